"""What an app's ServerApp would send first: the initial model, and what its clients are told.

A Message-API client has no initial model of its own; its ServerApp has. So it is run up to its
first train message, which goes nowhere. What must not live here: serving anybody.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from flwr.app import DEFAULT_TTL, Array, ArrayRecord, Context, Message, Metadata, RecordDict
from flwr.server.client_manager import SimpleClientManager
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from secureps.client.trainer import Setting
from secureps.errors import ConfigError

RUN = 1
"""The run id that an app sees; it has no meaning here."""

NODES = 1024
"""How many nodes a ServerApp sees, so that it waits for no more."""


def message(content: RecordDict, message_type: str, node: int = 1) -> Message:
    """A message to a client, as if from Flower's server."""
    metadata = Metadata(RUN, "", 0, node, "", "", time.time(), DEFAULT_TTL, message_type)
    made: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    return made


def first_message(server: ServerApp, config: Mapping[str, Setting]) -> Message | None:
    """The first train message of a ServerApp.

    Args:
        server: with a main function under @app.main(), or with a server_fn and a strategy of
            the old kind, of which only the initial parameters are taken.
        config: the project's.

    Returns:
        None if a strategy would ask a client for the initial model.

    Raises:
        ConfigError: it ends, or asks for something else, before it trains.
        Exception: whatever the ServerApp raises.
    """
    context = Context(RUN, 0, {}, RecordDict(), dict(config))
    if server._main is None:
        return _first_of_strategy(server, context)
    try:
        with _rehearsing():
            server(_Rehearsal(), context)
    except _TrainMessage as taken:
        return taken.message
    raise ConfigError("the ServerApp ends before it trains")


def _first_of_strategy(server: ServerApp, context: Context) -> Message | None:
    strategy = server._strategy
    if server._server_fn is not None:
        strategy = server._server_fn(context).strategy
    if strategy is None:
        return None
    found = strategy.initialize_parameters(SimpleClientManager())
    if found is None:
        return None
    arrays = {
        str(i): Array(dtype="", shape=(), stype=found.tensor_type, data=tensor)
        for i, tensor in enumerate(found.tensors)
    }
    return message(RecordDict({"fitins.parameters": ArrayRecord(arrays)}), "train")


class _TrainMessage(BaseException):
    """Ends a rehearsal; no Exception, so that no ServerApp can go on after it."""

    def __init__(self, taken: Message) -> None:
        super().__init__()
        self.message = taken


class _Rehearsal(Grid):
    """A grid of nodes that are not there."""

    def set_run(self, run: Run) -> None:
        pass

    @property
    def run(self) -> Run:
        return Run.create_empty(RUN)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return message(content, message_type, dst_node_id)

    def get_node_ids(self) -> Iterable[int]:
        return range(1, NODES + 1)

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        for each in messages:
            if each.metadata.message_type.partition(".")[0] == "train":
                raise _TrainMessage(each)
            raise ConfigError(
                f"the ServerApp asks its clients to {each.metadata.message_type} before it trains"
            )
        raise ConfigError("the ServerApp sends nobody anything in its first round")

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        raise ConfigError("the ServerApp waits for answers before it trains")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> NoReturn:
        self.push_messages(messages)


@contextmanager
def _rehearsing() -> Iterator[None]:
    """A ServerApp may make messages, is quiet, and does not evaluate the initial model.

    Its evaluation is on records that only Flower's server has.
    """
    start = Strategy.start
    logger = logging.getLogger("flwr")
    level = logger.level
    identity = {
        name: getattr(TaskIdentity, f"_{name}") for name in ("task_id", "run_id", "node_id")
    }
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 0
    Strategy.start = _without_evaluation(start)  # type: ignore[method-assign]
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
        Strategy.start = start  # type: ignore[method-assign]
        for name, value in identity.items():
            setattr(TaskIdentity, f"_{name}", value)


def _without_evaluation(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def started(*args: Any, **settings: Any) -> Any:
        bound = inspect.signature(start).bind(*args, **settings)
        bound.arguments.pop("evaluate_fn", None)
        return start(*bound.args, **bound.kwargs)

    return started
