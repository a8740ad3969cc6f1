"""Runs a ServerApp once, on the plan author's machine, to record the messages that it would send.

It runs until its strategy would start, or until its first train message; then the strategy is
asked for every round's messages, which are not sent. Nobody answers. What must not live here: the
translation of a strategy's settings (`client.flower.strategy`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from flwr.app import (
    DEFAULT_TTL,
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    Metadata,
    RecordDict,
)
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from secureps.client.flower.records import to_plain
from secureps.client.trainer import Setting
from secureps.errors import ConfigError

RUN = 1
"""The run id that an app sees; it has no meaning here."""

UNKNOWN_MINIMUM = 1024
"""Nodes that a ServerApp with an unknown minimum sees: it must not wait for more of them."""

START = "start"
"""A strategy's loop of rounds."""

MINIMA = (
    "min_available_nodes",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_clients",
    "min_fit_clients",
    "min_evaluate_clients",
)


def message(content: RecordDict, message_type: str, node: int = 1) -> Message:
    """Makes a message to a client, as if from Flower's server."""
    return made(content, Metadata(RUN, "", 0, node, "", "", time.time(), DEFAULT_TTL, message_type))


def made(content: RecordDict, metadata: Metadata) -> Message:
    """A message with metadata of our own: the constructor does it, and its signature says not."""
    found: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    return found


@dataclass(frozen=True)
class Round:
    """The message to the clients of one round.

    Args:
        type: of the message; arrays, config: the records' names; empty: there is none.
        records: those without arrays, as JSON of `client.flower.records.to_plain`.
    """

    type: str
    arrays: str
    config: str
    records: str


@dataclass(frozen=True, eq=False)
class Heard:
    """The record of a ServerApp's rehearsal, in which nobody answers.

    Args:
        arrays: the initial model; None if it would ask a client.
        strategy: of either kind; None: a loop of its own.
        fits, evaluations: the rounds, from the first one on; one alone of a loop of its own.
        rounds, timeout: that it asks for.
        judges: whether it has an evaluation of its own.
        own: code of the app, by name, that would see single replies; and what it is.
    """

    arrays: ArrayRecord | None
    strategy: Any | None = None
    fits: tuple[Round, ...] = ()
    evaluations: tuple[Round, ...] = ()
    rounds: int | None = None
    timeout: float | None = None
    judges: bool = False
    own: tuple[tuple[str, str], ...] = ()


def rehearse(server: ServerApp, config: Mapping[str, Setting], versions: int) -> Heard:
    """Runs a ServerApp up to its first message, and asks its strategy for those of all rounds.

    It has a main function under @app.main(), or a server_fn and a strategy of the old kind.

    Raises:
        ConfigError: it ends before it trains, or sends another message first.
        Exception: whatever the ServerApp raises.
    """
    context = Context(RUN, 0, {}, RecordDict(), dict(config))
    with _rehearsing():
        if server._main is None:
            return _of_components(server, context, versions)
        try:
            server(_Nowhere(UNKNOWN_MINIMUM), context)
            raise ConfigError("the ServerApp ends before it trains")
        except (_Started, _TrainMessage) as ended:
            end = ended
        if isinstance(end, _Started):
            return _of_strategy(end, versions)
        text = "is a loop of its own, which would see every reply"
        arrays = _only_arrays(end.message.content)
        only = _round(end.message.metadata.message_type, end.message.content)
        return Heard(arrays, fits=(only,), own=(("main", text),))


# --- strategies of messages -------------------------------------------------------


class _Started(BaseException):
    """Raised when a strategy is started.

    A BaseException, because a ServerApp that catches Exception must not go on after it.
    """

    def __init__(self, strategy: Strategy, own: bool, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.strategy, self.own, self.arguments = strategy, own, arguments


def _of_strategy(started: _Started, versions: int) -> Heard:
    strategy, given = started.strategy, started.arguments
    arrays = given.get("initial_arrays")
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError("its strategy is started without initial_arrays")
    grid = _Nowhere(_nodes(strategy))
    train, evaluate = (_config(given.get(f"{kind}_config")) for kind in ("train", "evaluate"))
    fits, evaluations, own = list[Round](), list[Round](), list[tuple[str, str]]()
    model = arrays
    for number in range(1, versions + 1):
        try:
            sent = list(strategy.configure_train(number, arrays, train, grid))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            own.append(("configure_train", f"fails in round {number}: {text}"))
            break
        if not sent:
            raise ConfigError(f"its strategy has nobody train in round {number}")
        if number == 1:
            model = _only_arrays(sent[0].content)
        fits.append(_round(sent[0].metadata.message_type, sent[0].content))
        own += _differing("configure_train", "nodes", [each.content for each in sent])
        sent = list(strategy.configure_evaluate(number, arrays, evaluate, grid))
        if sent:
            evaluations.append(_round(sent[0].metadata.message_type, sent[0].content))
            own += _differing("configure_evaluate", "nodes", [each.content for each in sent])
    if started.own:
        own.append(("start", f"{type(strategy).__name__}.start is the app's own loop"))
    return Heard(
        model,
        strategy,
        tuple(fits),
        tuple(evaluations),
        given.get("num_rounds"),
        given.get("timeout"),
        given.get("evaluate_fn") is not None,
        tuple(dict(own).items()),
    )


def _config(given: object) -> ConfigRecord:
    return given if isinstance(given, ConfigRecord) else ConfigRecord()


def _only_arrays(content: RecordDict) -> ArrayRecord:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise ConfigError(f"it sends {len(records)} ArrayRecords; one of them is the model")
    return records[0]


def _round(kind: str, content: RecordDict) -> Round:
    """A message without its arrays and the round's number, which each version says anew."""
    kept = RecordDict({n: r for n, r in content.items() if n not in content.array_records})
    for name, record in list(kept.config_records.items()):
        items = {key: value for key, value in record.items() if key != "server-round"}
        kept[name] = ConfigRecord(items)
    arrays, config = (next(iter(each), "") for each in (content.array_records, kept.config_records))
    return Round(kind, arrays, config, to_plain(kept)[1])


def _differing(method: str, who: str, told: Sequence[object]) -> list[tuple[str, str]]:
    """Names a method that tells some of one round different things: no plan can do that."""
    if all(each is told[0] or each == told[0] for each in told):
        return []
    return [(method, f"{method} tells {who} of one round different things")]


# --- strategies of the old kind ---------------------------------------------------


def _of_components(server: ServerApp, context: Context, versions: int) -> Heard:
    made: Any = server
    strategy, config = server._strategy, server._config
    own_server, manager = server._server, server._client_manager
    if server._server_fn is not None:
        made = server._server_fn(context)
        strategy, config = made.strategy, made.config
        own_server, manager = made.server, made.client_manager
    own = list[tuple[str, str]]()
    if own_server is not None:
        own.append(("server", f"{type(own_server).__name__} is the app's own server"))
    if manager is not None and type(manager) is not SimpleClientManager:
        own.append(("client_manager", f"{type(manager).__name__} chooses clients itself"))
    rounds, timeout = (None, None) if config is None else (config.num_rounds, config.round_timeout)
    if strategy is None:
        return Heard(None, rounds=rounds, timeout=timeout, own=tuple(own))
    clients = _Clients(_nodes(strategy))
    found = strategy.initialize_parameters(clients)
    parameters: Any = found
    if found is None:
        from flwr.common import Parameters

        parameters = Parameters(tensors=[], tensor_type="numpy.ndarray")
    fits, evaluations = list[Round](), list[Round]()
    for number in range(1, versions + 1):
        sent = strategy.configure_fit(number, parameters, clients)
        if not sent:
            raise ConfigError(f"its strategy has nobody train in round {number}")
        fits.append(_instructed("train", sent))
        own += _differing("configure_fit", "clients", [each.config for _, each in sent])
        judges = strategy.configure_evaluate(number, parameters, clients)
        if judges:
            evaluations.append(_instructed("evaluate", judges))
            told = [each.config for _, each in judges]
            own += _differing("configure_evaluate", "clients", told)
    return Heard(
        None if found is None else _array_record(found),
        strategy,
        tuple(fits),
        tuple(evaluations),
        rounds,
        timeout,
        getattr(strategy, "evaluate_fn", None) is not None,
        tuple(dict(own).items()),
    )


def _array_record(parameters: Any) -> ArrayRecord:
    return ArrayRecord(
        {
            str(i): Array(dtype="", shape=(), stype=parameters.tensor_type, data=tensor)
            for i, tensor in enumerate(parameters.tensors)
        }
    )


def _instructed(kind: str, sent: Sequence[tuple[Any, Any]]) -> Round:
    return _round(kind, RecordDict({"config": ConfigRecord(sent[0][1].config)}))


# --- what a ServerApp sees --------------------------------------------------------


def _nodes(strategy: Any) -> int:
    """The number of nodes to show: as many as a strategy waits for, at least 16."""
    known = [getattr(strategy, name) for name in MINIMA if hasattr(strategy, name)]
    return max([16, *known]) if known else UNKNOWN_MINIMUM


class _Absent(ClientProxy):
    """A client that never answers."""

    def _nobody(self, *args: Any, **settings: Any) -> NoReturn:
        raise ConfigError("the ServerApp waits for a client's answer before it trains")

    get_properties = get_parameters = fit = evaluate = reconnect = _nobody


class _Clients(SimpleClientManager):
    """A manager of clients that never answer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            self.register(_Absent(str(number)))


class _TrainMessage(BaseException):
    """Ends a ServerApp's own loop at its first train message; a BaseException, as above."""

    def __init__(self, taken: Message) -> None:
        super().__init__()
        self.message = taken


class _Nowhere(Grid):
    """A grid of nodes that never answer."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

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
        return range(1, self._nodes + 1)

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
    """Lets a ServerApp make messages, silences its log, and stops strategies at their start."""
    starts = {kind: kind.__dict__[START] for kind in _strategies(Strategy)}
    logger = logging.getLogger("flwr")
    level = logger.level
    identity = {
        name: getattr(TaskIdentity, f"_{name}") for name in ("task_id", "run_id", "node_id")
    }
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 0
    for kind, start in starts.items():
        setattr(kind, START, _caught(start, kind is not Strategy))
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for kind, start in starts.items():
            setattr(kind, START, start)
        for name, value in identity.items():
            setattr(TaskIdentity, f"_{name}", value)


def _strategies(kind: type[object]) -> Iterator[type[object]]:
    """Yields a class and its subclasses that have a `start` of their own."""
    if START in kind.__dict__:
        yield kind
    for derived in kind.__subclasses__():
        yield from _strategies(derived)


def _caught(start: Callable[..., Any], own: bool) -> Callable[..., Any]:
    @functools.wraps(start)
    def started(*args: Any, **settings: Any) -> Any:
        bound = inspect.signature(start).bind(*args, **settings)
        bound.apply_defaults()
        given = dict(bound.arguments)
        raise _Started(given.pop("self", args[0]), own, given)

    return started
