"""A role is a machine without I/O: it takes events, and returns records and effects.

    handle(now, sender, event) -> Step(records, effects)

Payloads never enter a machine: they lie in stores under keys, and effects name the key (`attach`).
`service.executor` journals the records before it performs any of the effects.

All roles share `RosterFollower`, which has the CA's newest roster, and `AnnouncedKeys`, which has
the holders' newest envelope keys. The CA signs a new roster whenever a party comes or goes, and
signs the current one anew before it expires. A party accepts a roster from any sender, by the CA's
signature, and an envelope key by the holder's signature. It never goes back to an older key,
because an old key may have been stolen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from secureps.crypto.envelope import EnvelopePublicKey
from secureps.crypto.identity import PublicIdentity
from secureps.crypto.roster import Roster
from secureps.errors import (
    ConfigError,
    KitError,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    UnknownParty,
    WrongRun,
)
from secureps.messages.coordinator_records import CoordinatorRecord, StandbyFollows
from secureps.messages.envelope_keys import MOST_KEYS, EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.holder_records import HolderRecord
from secureps.messages.member_records import MemberRecord, OwnAct
from secureps.messages.orders import AnyOrder
from secureps.messages.records import RosterFollowed
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


# --- rosters and envelope keys ----------------------------------------------------------

ROSTER_NOTICE = 6 * 3600.0
"""Seconds before a roster expires in which operators are warned."""

NEWCOMER_RETRY = 60.0
"""Most seconds after which a client that is too new on the roster asks again."""

_place = attrgetter("place")


class RosterFollower:
    """A party's roster, at first its kit's; `unix` is the last known time of the calendar."""

    def __init__(self, roster: Roster) -> None:
        self._kit = self.roster = roster
        self.unix: float | None = None
        self._kept = dict[bytes, tuple[Roster, ...]]()
        self._said = ""

    def apply(self, record: RosterFollowed) -> None:
        """Folds one record; ConfigError if it is of another kit than this party has."""
        try:
            known = self.roster.of_line(record.text)
            self._keep(known)
            self.roster = max(self.roster, known, key=_place)
        except SecurepsError as error:
            raise ConfigError(
                f"this state folder is of a run with another kit: {error}; start it with the kit "
                "that it was made with. A new run takes a new state folder: keep this one"
            ) from None

    def follow(self, step: Step, text: str) -> bool:
        """Follows the roster in a text and journals it, if it is newer; returns whether it is.

        An older roster is journalled too if its key holders are not known here, because this party
        may still be asked to seal for them, or to open with them.

        Raises:
            Malformed, Oversized, Unsigned, Refused: as `Roster.follow`.
        """
        newer = self.roster.follow(text)
        if newer is not None:
            self.roster = newer
        found = newer or self.roster.of_line(text)
        if newer is not None or not self._rosters(found.committee):
            self._keep(found)
            step.records.append(RosterFollowed(text))
        return newer is not None

    def resume(self, step: Step) -> None:
        """Journals the kit's roster if it came while the party was down."""
        journalled = (each.place for rosters in self._kept.values() for each in rosters)
        if self.roster.place > max(journalled, default=(-1, 0)):
            self._keep(self.roster)
            step.records.append(RosterFollowed(self.roster.text))

    def read(self, step: Step, event: KitRead) -> bool:
        """Notes the calendar's time, and follows the roster in the party's own kit."""
        self.unix = event.unix
        try:
            return bool(event.roster) and self.follow(step, event.roster)
        except SecurepsError as error:
            raise KitError(
                f"the kit's public/roster.json is not taken, and roster {self.roster.number} "
                f"kept: {error}"
            ) from None

    def holds_back(self, step: Step, what: str) -> bool:
        """True if `what` must wait because the roster has expired; says so once."""
        known, self._said = self._said, self.expired
        if self._said and not known:
            step.say(f"{what} waits: {self._said}")
        return bool(self._said)

    def take_recovery(self) -> bool:
        """Returns, once, that the roster holds again after `holds_back` had something wait."""
        if not self._said or self.expired:
            return False
        self._said = ""
        return True

    @property
    def records(self) -> tuple[RosterFollowed, ...]:
        kept = {each for rosters in self._kept.values() for each in rosters}
        return tuple(RosterFollowed(each.text) for each in sorted(kept, key=_place))

    def _keep(self, roster: Roster) -> None:
        """Keeps, of each committee, its first roster, its newest, and the last to expire."""
        known = dict.fromkeys((*self._kept.get(roster.committee, ()), roster))
        self._kept[roster.committee] = tuple(
            {
                min(known, key=_place),
                max(known, key=_place),
                max(known, key=lambda each: each.expires or math.inf),
            }
        )

    def _rosters(self, committee: bytes | None) -> list[Roster]:
        """Returns the known rosters with the key holders of this digest, oldest first."""
        known = (*self._kept.get(committee or b"", ()), self._kit)
        return sorted((each for each in known if each.committee == committee), key=_place)

    def newest_with(self, committee: bytes | None) -> Roster:
        """Returns the newest roster with these key holders; Refused if no known one has them."""
        known = self._rosters(committee)
        if not known:
            raise Refused(
                "these key holders are on no roster that this party has followed: get the current "
                "kit from the CA"
            )
        return known[-1]

    def number_of(self, committee: bytes | None) -> int:
        """Returns the number of the first roster with these key holders; -1 if there is none."""
        return next((roster.number for roster in self._rosters(committee)), -1)

    def demand_unexpired(self, committee: bytes | None) -> None:
        """Refused once the last roster with these key holders has expired."""
        self.newest_with(committee)
        last = max(roster.expires or math.inf for roster in self._rosters(committee))
        if self.unix is not None and self.unix > last:
            raise Refused(f"the last roster with these key holders expired on {_date(last)}")

    @property
    def expired(self) -> str:
        """Why updates are neither sealed nor opened now; empty while the roster is valid."""
        end = self.roster.expires
        if not end or self.unix is None or self.unix <= end:
            return ""
        return (
            f"the roster expired on {_date(end)}: nothing is sealed or opened until whoever issues "
            "keys signs it anew, secureps roster renew"
        )

    @property
    def notice(self) -> str:
        """A warning for the operator if the roster has expired, or will soon; or empty."""
        if self.expired:
            return f"goes by an old roster: {self.expired}"
        end = self.roster.expires
        if not end or self.unix is None or self.unix <= end - ROSTER_NOTICE:
            return ""
        return f"goes by a roster that expires on {_date(end)}: secureps roster renew signs it anew"

    def is_new(self, client: str, founded: bytes) -> bool:
        """True if a client has come onto the roster since the run was founded on it."""
        first = self.roster.number_of(founded)
        return first is not None and self.roster.enrolment(client).epoch > first

    def demand_known(self, client: str, founded: bytes, wait: float) -> None:
        """NotReady while a client is too new on the roster to be in a cohort.

        Without this wait, an attacker who has names put on the roster could fill a cohort with them
        around one client. `founded` is the digest of the run's first roster.
        """
        if wait <= 0 or not self.is_new(client, founded):
            return
        begin = self.roster.enrolment(client).at + wait
        left = begin - (0.0 if self.unix is None else self.unix)
        if left > 0:
            raise NotReady(
                f"{client} came onto the roster after the run was founded, and takes part "
                f"{wait:g} s after that (newcomers_wait of the plan), on {_date(begin)}",
                retry_after=min(left, NEWCOMER_RETRY),
            )


def _date(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(slots=True)
class AnnouncedKeys:
    """The newest envelope key of each holder that announced one."""

    newest: Mapping[str, EnvelopeKeyAnnounced] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def apply(self, record: EnvelopeKeyAnnounced) -> None:
        """Folds one announcement; readers of the old `newest` keep what they have."""
        self.newest = {**self.newest, record.holder: record}
        self._counts[record.holder] += 1

    def count(self, holder: str) -> int:
        return self._counts[holder]

    def number(self, holder: str) -> int:
        """Returns the number of a holder's newest key; 0 is the kit's."""
        known = self.newest.get(holder)
        return 0 if known is None else known.number

    def least(self, holder: str) -> int:
        """Returns the lowest number of a holder's keys that is not erased."""
        known = self.newest.get(holder)
        return 0 if known is None else known.least

    def is_news(self, told: EnvelopeKeyAnnounced, run: bytes, roster: Roster) -> bool:
        """Verifies an announcement; returns whether it is newer than what is known."""
        known = self.newest.get(told.holder)
        if told == known:
            return False
        holder = roster.find(told.holder)
        if holder.role != "holder" or not holder.cipher_key_digest:
            raise UnknownParty(f"{told.holder} is no key holder, and has no envelope key")
        _verify_announcement(told, holder.public_key)
        # A key of another run is erased by that run's rules.
        if told.run != run:
            raise WrongRun(f"key {told.number} of {told.holder} was announced for another run")
        if not 0 < told.number < MOST_KEYS or not 0 <= told.least <= told.number:
            raise Malformed(f"{told.holder} announces key {told.number}, least {told.least}")
        EnvelopePublicKey(told.key)
        if known is None or told.number > known.number:
            return True
        if told.number < known.number or told.least < known.least:
            raise Refused(
                f"key {told.number} of {told.holder} is older than its key {known.number}, which "
                "is known: nothing is sealed for a key that may be stolen by now"
            )
        if told.key != known.key:
            raise Refused(f"key {told.number} of {told.holder} is another than was announced")
        return told.least > known.least


@lru_cache(64)
def _verify_announcement(told: EnvelopeKeyAnnounced, key: bytes) -> None:
    """Unsigned unless the holder with this key signed it; cached for all clients of a process."""
    PublicIdentity(key).verify(*announcement_bytes(told), told.signature)
