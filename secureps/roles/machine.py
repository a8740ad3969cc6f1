"""A role is a machine without I/O: it takes events, and returns records and effects.

    handle(now, sender, event) -> Step(records, effects)

Payloads never enter a machine: they lie in stores under keys, and effects name the key (`attach`).
`service.executor` journals the records before it performs any of the effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from secureps.errors import SecurepsError
from secureps.messages.coordinator_records import CoordinatorRecord, StandbyFollows
from secureps.messages.holder_records import HolderRecord
from secureps.messages.member_records import MemberRecord, OwnAct
from secureps.messages.orders import AnyOrder
from secureps.messages.requests import Reply, Request, Subscribe, Telemetry, Trouble
from secureps.messages.run import COORDINATOR, Task
from secureps.messages.shard_records import ShardRecord


class TaskResult:
    """Event that reports the end of a task."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Prune(Task):
    """Deletes these spool keys, and a group's sums and states that are older than `keep`."""

    keys: tuple[str, ...] = ()
    group: str = ""
    version: int = -1
    keep: int = -1


@dataclass(frozen=True, slots=True)
class Sweep(Task):
    """Deletes, after a start, the payloads that no record refers to."""

    referenced: frozenset[str]


Record = CoordinatorRecord | ShardRecord | HolderRecord | MemberRecord

WORKER = "(worker)"
"""Sender of the events that report the end of a `Work`; no party can have this name."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The state that a party's records add up to; a compacted journal begins with it.

    Args:
        records: the run and the rosters, which the machine applies first.
        state: the rest, in plain values (`messages.encoding.to_plain`).
    """

    records: tuple[Any, ...]
    state: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Replies to the request that is being handled; `attach` names the reply's payload.

    With a `ticket`, it replies instead to the requests that were deferred under that ticket.
    """

    message: Reply | SecurepsError
    attach: str | None = None
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """Leaves the request that is being handled open until an `Answer` with this ticket."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Order:
    """Sends an order to a party whose stream is open; only the coordinator gives orders."""

    to: str
    message: AnyOrder


@dataclass(frozen=True, slots=True)
class Call:
    """Sends a request to a server; its answer, or `Failed`, comes back as an event from `to`.

    `others` are asked in turn if `to` cannot be reached.
    """

    to: str
    message: Request
    attach: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallOff:
    """Ends all unanswered calls to a server; a call with `others` continues with those."""

    to: str


@dataclass(frozen=True, slots=True)
class Work:
    """Has a long task, or one with I/O, done outside the machine; its result is an event."""

    task: Task


@dataclass(frozen=True, slots=True)
class Locate:
    """Sets the address at which a server can be reached from now on."""

    party: str
    address: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Opens the stream of orders, or opens it anew."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Ends this process; `error` is the class of the error it ends with, None for a good end."""

    reason: str
    error: type[SecurepsError] | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """One line for the person who runs this process."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: a call failed with an error that a retry cannot mend."""

    request: Request
    error: SecurepsError


@dataclass(frozen=True, slots=True)
class Done(TaskResult):
    """Event: a task is done. What it made is durable, and may be journalled or sent."""

    task: Task
    made: Record | Request | tuple[Any, ...] | None = None
    telemetry: Telemetry | None = None


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Event: a task ended with an error."""

    task: Task
    error: SecurepsError


@dataclass(frozen=True, slots=True)
class Answered:
    """Event: the answer to a call; `length` is the bytes of the payload that came with it."""

    request: Request
    reply: Reply
    length: int = 0


@dataclass(frozen=True, slots=True)
class WatchLost:
    """Event: the sender's stream of orders broke.

    A party gets this event for its own stream, and registers or joins again. The coordinator gets
    one for each party's stream.
    """


@dataclass(frozen=True, slots=True)
class Leave(TaskResult):
    """Event: the person who runs this party wants it to leave the run and to end."""

    reason: str


@dataclass(frozen=True, slots=True)
class KitRead(TaskResult):
    """Event: the calendar's Unix seconds, and what is new in this party's kit.

    `roster` and `keys` (the holders' envelope keys) are empty if they did not change.
    """

    unix: float
    roster: str = ""
    keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: the time that `wake` asked for has come."""


Effect = Answer | Defer | Order | Call | CallOff | Work | Locate | Watch | Halt | Say

Event = (Request | AnyOrder | TaskResult | WorkFailed) | (
    Answered | Failed | WatchLost | OwnAct | StandbyFollows | Tick
)


@dataclass(slots=True)
class Step:
    """The records and effects that one event led to."""

    records: list[Record] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def tell(self, message: Request) -> None:
        self.effects.append(Call(COORDINATOR, message))

    def say(self, text: str) -> None:
        self.effects.append(Say(text))

    def watch_if(self, newer: bool) -> Step:
        """Subscribes anew after a newer roster or calendar, so that orders that waited come again.

        The subscription also tells the coordinator which roster this party goes by.
        """
        if newer:
            self.effects.append(Watch())
        return self


@runtime_checkable
class Viewed(Protocol):
    """A role that answers some requests without journalling, even while its disk fails."""

    def view(self, now: float, sender: str, message: Event) -> Reply | None:
        """Answers a request that changes nothing; None for any other. Raises SecurepsErrors."""


@runtime_checkable
class Unfolds(Protocol):
    """A role that can begin from a compacted journal."""

    def unfold(self, fold: Fold) -> None:
        """Restores the state before records are applied; Malformed if it is another role's."""


@runtime_checkable
class Foldable(Unfolds, Protocol):
    """A role whose journal may be compacted."""

    def make_fold(self) -> Fold:
        """Returns the state that all records so far add up to."""


class Machine(Protocol):
    """A role. It raises a SecurepsError for a bad request, and is then unchanged."""

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record into the state; also called for every new record."""

    def resume(self, now: float) -> Step:
        """Returns what to do first after a start, when the journal has been folded."""

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles one event: a request, an order, an answer, finished work, or a tick of time."""

    def inspect(self, sender: str, message: Request) -> bool:
        """Checks a request before its payload is received; False if the payload is held already."""

    def report_trouble(self, reason: str) -> Sequence[Effect]:
        """Reports a fault outside the machine; an empty reason says that the fault is gone."""

    def wake(self) -> float | None:
        """Returns when to send the next `Tick`; None for never."""

    def subscription(self) -> Subscribe:
        """Returns the request that opens the stream of orders."""


class DiskReports:
    """Tells the coordinator what is wrong with one party's disk."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._reason = ""

    def report_trouble(self, reason: str) -> list[Effect]:
        self._reason = reason
        return [Call(COORDINATOR, Trouble(self._party, reason))]

    def repeat_if_stale(self, request: object) -> list[Effect]:
        """Repeats the report if the coordinator heard an older one: calls overtake each other."""
        stale = isinstance(request, Trouble) and request.reason != self._reason
        return self.report_trouble(self._reason) if stale else []
