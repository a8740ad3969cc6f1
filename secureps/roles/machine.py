"""What a role is: a machine without I/O. Events in, records and effects out.

    handle(now, sender, event) -> Step(records, effects)

The executor writes a step's records into the journal, in one transaction, before it
performs any of its effects; after a restart it folds the journal's records with `apply`
and asks `resume` what is to be done again. Payloads never enter a machine: they lie in
stores under keys, and effects name the key (`attach`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from secureps.errors import SecurepsError
from secureps.messages.coordinator_records import CoordinatorRecord, StandbyFollows
from secureps.messages.holder_records import HolderRecord
from secureps.messages.member_records import MemberRecord, OwnAct
from secureps.messages.orders import AnyOrder, Task
from secureps.messages.requests import Reply, Request, Subscribe, Telemetry, Trouble
from secureps.messages.run import COORDINATOR
from secureps.messages.shard_records import ShardRecord


class TaskResult:
    """What came of a task: the event that reports its end."""

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
    """After a start: deletes payloads that no record refers to."""

    referenced: frozenset[str]


Record = CoordinatorRecord | ShardRecord | HolderRecord | MemberRecord
"""What is journalled, of whichever role."""

WORKER = "(worker)"
"""The sender of an event that reports the end of a `Work`: no party can have this name."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The state that a party's journal comes to: a compacted journal begins with it.

    Args:
        records: what its machine applies first: its run, and the rosters it followed.
        state: the rest, in plain values (`messages.encoding.to_plain`).
    """

    records: tuple[Any, ...]
    state: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Replies to the request that is being handled; `attach` names its payload.

    With a `ticket` it replies to the requests that were deferred under it instead.
    """

    message: Reply | SecurepsError
    attach: str | None = None
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """The request that is being handled is answered later, by an Answer with this ticket."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Order:
    """To a party that watches (the coordinator alone gives orders)."""

    to: str
    message: AnyOrder


@dataclass(frozen=True, slots=True)
class Call:
    """Dials a server; its answer, or `Failed`, comes back as an event from `to`.

    `others` can answer it as well: they are asked in turn if `to` cannot be reached.
    """

    to: str
    message: Request
    attach: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallOff:
    """Ends all unanswered calls to a server; calls with `others` go on with those."""

    to: str


@dataclass(frozen=True, slots=True)
class Work:
    """Something long or with I/O, done outside the machine; its result comes back as an event."""

    task: Task


@dataclass(frozen=True, slots=True)
class Locate:
    """Where a server can be reached from now on."""

    party: str
    address: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Opens the stream of orders, and opens it again whenever it is lost."""


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
    """Event: a call came back with an error that trying again cannot mend."""

    request: Request
    error: SecurepsError


@dataclass(frozen=True, slots=True)
class Done(TaskResult):
    """Event: a task is done, and what it made is durable: it may go on record, and to others."""

    task: Task
    made: Record | Request | None = None
    telemetry: Telemetry | None = None


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Event: a work ended with an error."""

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

    The party itself hears of its own stream and greets the coordinator anew; the coordinator hears
    of everybody's.
    """


@dataclass(frozen=True, slots=True)
class Leave(TaskResult):
    """Event: the person who runs this party wants it to take part no more, and to end."""

    reason: str


@dataclass(frozen=True, slots=True)
class KitRead(TaskResult):
    """Event: the calendar's Unix seconds, and what is new in this party's kit.

    `roster` and `keys`, those of holders' envelopes, are empty if they did not change.
    """

    unix: float
    roster: str = ""
    keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: the time that `wake` asked for has come."""


Effect = Answer | Defer | Order | Call | CallOff | Work | Locate | Watch | Halt | Say
"""What a machine has done for it."""

Event = (Request | AnyOrder | TaskResult | WorkFailed) | (
    Answered | Failed | WatchLost | OwnAct | StandbyFollows | Tick
)
"""What a machine is told, of whichever role."""


@dataclass(slots=True)
class Step:
    """The records and effects that one event led to."""

    records: list[Record] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def tell(self, message: Request) -> None:
        self.effects.append(Call(COORDINATOR, message))


@runtime_checkable
class Viewed(Protocol):
    """A role that answers some requests without journalling, even while its disk fails."""

    def view(self, now: float, sender: str, message: Event) -> Reply | None:
        """The answer to a request that changes nothing, None to any other; SecurepsErrors."""


@runtime_checkable
class Unfolds(Protocol):
    """A role that can begin from a compacted journal."""

    def unfold(self, fold: Fold) -> None:
        """Takes up its state, before anything is applied; Malformed if it is no such state."""


@runtime_checkable
class Foldable(Unfolds, Protocol):
    """A role whose journal may be compacted."""

    def make_fold(self) -> Fold:
        """All that the records so far came to, and nothing else."""


class Machine(Protocol):
    """A role. It raises a SecurepsError for a bad request, and then nothing has changed."""

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record into the state; also called for every new record."""

    def resume(self, now: float) -> Step:
        """What to do first after a start or restart, when the journal has been folded."""

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """One event: a request, an order, an answer, the end of a work, or a tick."""

    def inspect(self, sender: str, message: Request) -> bool:
        """Before a payload is taken in: is it wanted? False if it is already held."""

    def report_trouble(self, reason: str) -> Sequence[Effect]:
        """Something is wrong beside the machine, or is no more (no reason): effects that say so."""

    def wake(self) -> float | None:
        """When to send the next `Tick`; None for never."""

    def subscription(self) -> Subscribe:
        """What to say when opening the stream of orders."""


class DiskReports:
    """Tells the coordinator what is wrong with the disk of one party, until it has heard it."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._reason = ""

    def report_trouble(self, reason: str) -> list[Effect]:
        self._reason = reason
        return [Call(COORDINATOR, Trouble(self._party, reason))]

    def repeat_if_stale(self, request: object) -> list[Effect]:
        """Says it again if the coordinator heard an older state: calls overtake each other."""
        stale = isinstance(request, Trouble) and request.reason != self._reason
        return self.report_trouble(self._reason) if stale else []
