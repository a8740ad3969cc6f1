"""What the coordinator knows of a group without rounds: who trains, whose clock is where.

Folded from the journal, shown to the rule. A member takes part from the moment at which it
is live until its lease runs out; what it sent stays in the pool, and what it is training may
still come. What must not live here: receipts and cohorts (`roles.federation`), and decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.policy.rule import RuleState


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """What an update was trained from: the version, and which of the client's updates of it."""

    version: int
    step: int


@dataclass(slots=True)
class Pool:
    """Of one group.

    Args:
        clocks: of the members that take part (see `policy.rule`).
        training: who was asked, from which base on, and has not answered.
        sent: the newest base that each client has contributed from.
        closed: cohorts that are settled.
    """

    clocks: dict[str, int] = field(default_factory=dict)
    training: dict[str, Base] = field(default_factory=dict)
    sent: dict[str, Base] = field(default_factory=dict)
    closed: int = 0

    def enter(self, client: str, clock: int) -> None:
        """A member takes part, at this clock."""
        self.clocks[client] = clock

    def leave(self, client: str) -> None:
        """It does no more; it may still send what it trains."""
        self.clocks.pop(client, None)

    def forget(self, client: str) -> None:
        """It will send nothing any more."""
        self.leave(client)
        self.training.pop(client, None)

    def next_base(self, client: str, version: int) -> Base:
        """What the client's next update is trained from, if `version` is the newest."""
        last = self.sent.get(client)
        if last is None or last.version < version:
            return Base(version, 0)
        return Base(version, last.step + 1)

    def ask(self, client: str, base: Base) -> None:
        """It is asked to train from this base, or a newer one."""
        self.training[client] = base

    def arrive(self, client: str, base: Base) -> None:
        """Its update is here."""
        self.training.pop(client, None)
        self.sent[client] = max(base, self.sent.get(client, base))
        if client in self.clocks:
            self.clocks[client] += 1

    def withdraw(self, client: str) -> None:
        """An update of it was taken out again, and it sends the same once more."""
        if client in self.clocks:
            self.clocks[client] -= 1

    def settle(self) -> None:
        """A cohort is part of a version, or burnt."""
        self.closed += 1

    def state(self, version: int, live: frozenset[str], since: float | None) -> RuleState:
        """As the rule sees it."""
        return RuleState(
            version=version,
            live=live,
            invited=frozenset(self.training),
            opened_at=since,
            clocks=self.clocks,
            closed=self.closed,
            sent={client: base.version for client, base in self.sent.items()},
        )
