"""A Grid that drives ClientApps in this process: Flower's engine without its processes."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN = 1
Reply = Callable[[Message], Message]
"""Makes the reply to a message."""
Fault = Callable[[Message, Reply], list[Message]]
"""What comes back of a message, by what its node does with it."""


@contextmanager
def a_task() -> Iterator[None]:
    """Lets this process make messages, as Flower's processes may."""
    names = ("task_id", "run_id", "node_id")
    before = {name: getattr(TaskIdentity, f"_{name}") for name in names}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 0
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, f"_{name}", value)


@dataclass(eq=False)
class Node:
    """One SuperNode: its app, its configuration, and its context between messages."""

    app: ClientApp
    config: dict[str, Any]
    state: RecordDict = field(default_factory=RecordDict)
    seen: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)


class LocalGrid(Grid):
    """Nodes of one app.

    Args:
        faults: by node (its partition) and the number of its message, from 0.

    Nodes in `gone` are not there; those in `back` are again after so many looks.
    """

    def __init__(
        self,
        app: ClientApp,
        configs: Iterable[dict[str, Any]],
        faults: dict[tuple[int, int], Fault] | None = None,
    ) -> None:
        self.nodes = {10 + k: Node(app, config) for k, config in enumerate(configs)}
        self.faults = faults or {}
        self.gone: set[int] = set()
        self.back: dict[int, int] = {}
        self._waiting: dict[str, list[Message]] = {}
        self._count = itertools.count()
        self._run: dict[str, Any] = {}

    @classmethod
    def simulated(
        cls, app: ClientApp, count: int, faults: dict[tuple[int, int], Fault] | None = None
    ) -> "LocalGrid":
        configs = [{"partition-id": k, "num-partitions": count} for k in range(count)]
        return cls(app, configs, faults)

    # --- Grid ---------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        pass

    @property
    def run(self) -> Run:
        return Run.create_empty(RUN)

    def create_message(self, *given: Any, **settings: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        for id, looks in list(self.back.items()):
            self.back[id] = looks - 1
            if looks == 0:
                self.gone.discard(id)
                del self.back[id]
        return [id for id in self.nodes if id not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            id = f"m{next(self._count)}"
            message.metadata.__dict__["_message_id"] = id
            partition = message.metadata.dst_node_id - 10
            node = self.nodes[message.metadata.dst_node_id]
            fault = self.faults.pop((partition, len(node.seen)), None)
            node.seen.append(message)
            if fault is None:
                self._waiting[id] = [self._play(message)]
            else:
                self._waiting[id] = fault(message, self._play)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for id in message_ids for reply in self._waiting.pop(id, [])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))

    def _play(self, message: Message) -> Message:
        """What the app answers; as Flower does, an exception is an answer too."""
        node = self.nodes[message.metadata.dst_node_id]
        context = Context(RUN, message.metadata.dst_node_id, node.config, node.state, self._run)
        try:
            reply = node.app(message, context)
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        node.state = context.state
        node.replies.append(reply)
        return reply
