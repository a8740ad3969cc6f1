"""What the coordinator knows of a group without rounds: who trains, whose clock is where.

Folded from the journal, shown to the rule. A member takes part from the moment at which it
is live until its lease runs out; what it sent waits on, and what it is training may
still come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from secureps.messages.submission import SubmissionId
from secureps.policy.base import Base
from secureps.policy.rules.rule import RuleState

MOST_REFUSED = 3
"""How often what a client sends may be refused on its way before it is asked seldom for it."""


def after_pause(moment: float, since: float, until: float) -> float:
    """When something was by a clock that stood still: what came meanwhile came at the end."""
    return min(moment, since) + (until - since)


@dataclass(slots=True)
class Clocks:
    """Of one group.

    Args:
        clocks: of the members that take part (see `policy.rules.rule`); moved: when each came to
        its own,
            or was asked for the next update.
        passed: members that were waited for too long, and have not sent since.
        training: who was asked, from which base on, and has not answered.
        sent: the newest base that each client has contributed from.
        arrived: when each submission that waits came, in seconds of the run's clock.
        again: submissions that were sealed anew, and count for no clock.
        returning: submissions that were taken out again, for their blocks were lost.
        refused: since which version how often what a client sent was refused on its way, or was
            lost and not sent again, and when it last was.
        spent: whom the plan's budget allows no further update.
        closed: cohorts that are settled.
    """

    clocks: dict[str, int] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    training: dict[str, Base] = field(default_factory=dict)
    sent: dict[str, Base] = field(default_factory=dict)
    arrived: dict[SubmissionId, float] = field(default_factory=dict)
    again: set[SubmissionId] = field(default_factory=set)
    returning: dict[SubmissionId, Base] = field(default_factory=dict)
    refused: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    closed: int = 0

    def enter(self, client: str, clock: int, at: float) -> None:
        """A member takes part, at this clock."""
        self.clocks[client], self.moved[client] = clock, at

    def leave(self, client: str) -> None:
        """It does no more; it may still send what it trains."""
        self.clocks.pop(client, None)
        self.moved.pop(client, None)

    def pass_over(self, client: str) -> None:
        """Nobody waits for it until it sends again: then it enters anew."""
        self.leave(client)
        self.passed.add(client)

    def exhaust(self, client: str) -> None:
        """Its budget is spent: it is never asked again, and nobody waits for it."""
        self.leave(client)
        self.passed.discard(client)
        self.spent.add(client)

    def forget(self, client: str) -> None:
        """It will not send what it was asked for: nobody waits for it until it does send."""
        if client in self.training:
            self.passed.add(client)
        self.leave(client)
        self.training.pop(client, None)

    def next_base(self, client: str, version: int) -> Base:
        """What the client's next update is trained from, if `version` is the newest."""
        last = self.sent.get(client)
        if last is None or last.version < version:
            return Base(version, 0)
        return Base(version, last.step + 1)

    def ask(self, client: str, base: Base, at: float) -> None:
        """It is asked to train from this base, or a newer one."""
        self.training[client] = base
        if client in self.moved:
            self.moved[client] = at

    def arrive(self, id: SubmissionId, base: Base, at: float, again: bool = False) -> None:
        """An update is here; one that returns comes before later ones, and was counted before.

        One that is sealed `again` was counted as what it was sealed as first.
        """
        if id in self.returning:
            del self.returning[id]
            later = (t for other, t in self.arrived.items() if other.client == id.client)
            self.arrived[id] = min((at, *later))
            return
        self.arrived[id] = at
        if again:
            self.again.add(id)
            return
        self.training.pop(id.client, None)
        self.passed.discard(id.client)
        self.sent[id.client] = max(base, self.sent.get(id.client, base))
        if id.client in self.clocks:
            self.enter(id.client, self.clocks[id.client] + 1, at)

    def remove(self, ids: Iterable[SubmissionId]) -> None:
        """These do not wait any more: they are summed, or given up."""
        for id in ids:
            self.arrived.pop(id, None)

    def refuse(self, client: str, version: int, at: float) -> None:
        """What it was asked for was refused on its way, while `version` is the newest.

        It is asked anew; after three times seldom, and nobody waits for it until it sends.
        """
        self.training.pop(client, None)
        self._count(client, version, at)

    def _count(self, client: str, version: int, at: float) -> None:
        since, times, _ = self.refused.get(client, (version, 0, at))
        self.refused[client] = (version, times + 1 if since == version else 1, at)
        if self.rests_until(client, version, math.inf) > at:
            self.pass_over(client)

    def rests_until(self, client: str, version: int, pause: float) -> float:
        """Until when it is asked for nothing, if this version is the newest: so long after it was
        refused too often."""
        since, times, last = self.refused.get(client, (version, 0, 0.0))
        return last + pause if since == version and times >= MOST_REFUSED else -math.inf

    def withdraw(self, lost: Mapping[SubmissionId, Base], at: float) -> None:
        """The blocks of these were lost: they come once more, or never."""
        self.remove(lost)
        self.returning |= lost
        for client in {id.client for id in lost} & self.moved.keys():
            self.moved[client] = at

    def drop(self, ids: Iterable[SubmissionId], version: int, at: float) -> None:
        """These are given up: they count for no later cohort, and others may be sent for it.

        Of what was to return and never does, if it was its client's newest, the client may make it
        anew from the same base; but not for ever (`refuse`).
        """
        self.remove(ids)
        for id in ids:
            base = self.returning.pop(id, None)
            if base is not None:
                self._count(id.client, version, at)
            if base is not None and id not in self.again and self.sent.get(id.client) == base:
                del self.sent[id.client]
                if base.step:
                    self.sent[id.client] = Base(base.version, base.step - 1)
            if id not in self.again and self.clocks.get(id.client, 0) > self.closed:
                self.enter(id.client, self.clocks[id.client] - 1, at)

    def stand_still(self, since: float, until: float) -> None:
        """A pause of the run: no time has passed for anybody."""
        self.moved = {c: after_pause(at, since, until) for c, at in self.moved.items()}
        self.arrived = {id: after_pause(at, since, until) for id, at in self.arrived.items()}
        self.refused = {
            client: (version, times, after_pause(at, since, until))
            for client, (version, times, at) in self.refused.items()
        }

    def settle(self) -> None:
        """A cohort is part of a version, or came to nothing."""
        self.closed += 1

    def state(self, version: int, live: Set[str], since: float | None) -> RuleState:
        """As the rule sees it, now and after whatever is folded next."""
        return RuleState(
            version=version,
            live=live,
            invited=self.training.keys(),
            opened_at=since,
            clocks=self.clocks,
            closed=self.closed,
            moved=self.moved,
            passed=self.passed,
            sent=self.sent,
        )
