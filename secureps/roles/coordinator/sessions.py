"""Who is at the coordinator's door now; what must outlive it is in the journal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.messages.requests import Subscribe
from secureps.messages.run import ShardAddress
from secureps.messages.submission import SubmissionId
from secureps.roles.coordinator.attendance import Attendance, Changes

Located = tuple[tuple[ShardAddress, ...], int]
"""Where shards are, and the epoch of the placement of blocks on them."""


@dataclass(slots=True)
class Sessions:
    """Who is here now, and whom this incarnation gave orders; a restart forgets it.

    `elsewhere` are parties that cannot be taken before an operator has brought something back,
    and when they last asked. `lost` are submissions whose fate was open and that their client had
    no more when it last subscribed, or said so of (`gone`) when it was to send them again
    (`asked`). `unconfirmed` are shards, by group, that said that they are prepared and came back
    since: perhaps without it. `located` is where shards were as those were told who joined and do
    not watch yet.
    """

    watchers: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    elsewhere: dict[str, float] = field(default_factory=dict)
    lost: dict[str, frozenset[SubmissionId]] = field(default_factory=dict)
    asked: set[SubmissionId] = field(default_factory=set)
    gone: set[SubmissionId] = field(default_factory=set)
    unconfirmed: set[tuple[str, str]] = field(default_factory=set)
    located: dict[str, Located] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)
    """Since when shards of the run are not here."""
    reached: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of which groups shards have what is committed, as they said since they last came up."""
    adopted: set[tuple[int, str, str]] = field(default_factory=set)
    """Of which groups shards have all blocks of a placement's epoch: (epoch, group, shard)."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of the rosters that parties go by, as they said when they last subscribed."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What is wrong at servers and clients, in words that follow their names."""
    roster: str = ""
    """What is wrong with the roster that the coordinator goes by, in such words."""
    refused: set[str] = field(default_factory=set)
    """Clients that took no part in the plan that they were shown, as an operator has read."""
    obeyed: dict[str, int] = field(default_factory=dict)
    """The incarnation that each server obeys, as it said."""
    told_of: dict[str, int] = field(default_factory=dict)
    """The incarnation that each server was told of, before this coordinator rules."""
    waiting: dict[str, Subscribe] = field(default_factory=dict)
    """Subscriptions of servers, until this coordinator rules."""
    caught_up: bytes = b""
    """The standby that has all of the journal, until it may be written down that it follows."""
    followed: bool = False
    """Whether a standby has had all of the journal in this incarnation."""
    confirmed: bool = False
    """Whether the standby has it on record, too, that it follows this incarnation."""
    changes: Changes = field(default_factory=Changes)
    """Clients that came, went or moved, for `attendance` to follow."""
    attendance: dict[str, Attendance] = field(default_factory=dict)
    """Who takes part in each group, by name (`Transaction.attendance`)."""
    unheard: set[str] = field(default_factory=set)
    """Clients that have a lease since this incarnation began, and were not heard of since."""
    steps: dict[tuple[str, int, str], float] = field(default_factory=dict)
    """Since when servers owe what a step of a commit, or a checkpoint, wants of them."""
    overdue: dict[str, str] = field(default_factory=dict)
    """Servers that owe it for longer than the plan's deadline, in words that follow their names."""
    kept: tuple[int, ...] = ()
    """The checkpoints that stay, as the last manifest's writer found them; none: not known."""
    began: float = 0.0
    _leases: dict[str, float] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)
    _first: float = math.inf
    """No lease runs out before it: until then nobody need look at all of them."""

    def trouble(self, party: str, reason: str) -> None:
        """Something is wrong at a server, or is no more (no reason)."""
        self.troubles.pop(party, None)
        if reason:
            self.troubles[party] = reason

    def holds(self, shard: str, group: str) -> None:
        """A shard has the next version of a group."""
        self.reached[shard] = self.reached.get(shard, frozenset()) | {group}

    def forget_adopted(self, shard: str) -> None:
        """A shard has come anew, perhaps without what it had."""
        self.adopted = {each for each in self.adopted if each[2] != shard}

    def renew(self, client: str, until: float) -> None:
        """A client was heard of: its lease runs until then."""
        self.unheard.discard(client)
        self._leases[client] = until
        self._first = min(self._first, until)
        if client not in self._live:
            self._live.add(client)
            self.changes.add(client)

    def begin(self, now: float, clients: Iterable[str], until: float) -> None:
        """These were here by the journal, which does not say who has gone since."""
        for client in clients:
            self.renew(client, until)
        self.unheard, self.began = set(clients), now

    def leave(self, client: str) -> None:
        """Its lease is over."""
        self._leases.pop(client, None)
        if client in self._live:
            self._live.remove(client)
            self.changes.add(client)

    def live(self, now: float) -> set[str]:
        """Clients whose lease runs: the set itself, not a copy; for reading."""
        if now >= self._first:
            for client in [client for client, until in self._leases.items() if until <= now]:
                del self._leases[client]
                self._live.discard(client)
                self.changes.add(client)
            self._first = min(self._leases.values(), default=math.inf)
        return self._live

    @property
    def next_look(self) -> float | None:
        """When a lease may run out; None: none runs."""
        return self._first if self._leases else None
