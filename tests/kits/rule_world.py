"""A coordinator reduced to what rules see: members come, go, train, fail and send as one likes."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.submission import Base, Member, SubmissionId
from secureps.policy.rules.rule import Admit, Arrival, Close, Drop, PassOver, Rule, RuleState, Wait
from secureps.roles.coordinator.group import Members


@dataclass
class RuleWorld:
    """One group under one rule without rounds; time moves when it is told to.

    Everything that was decided is kept for a test to judge: `started` are (member, its clock, least
    clock of the counted live members and settled cohorts, version) of every admission, `entered`
    (clock, that least clock before) of every joiner, `cohorts` the summed members.
    """

    rule: Rule
    now: float = 0.0
    version: int = 0
    clocks: Members = field(default_factory=Members)
    live: set[str] = field(default_factory=set)
    waiting: list[Arrival] = field(default_factory=list)
    bases: dict[SubmissionId, Base] = field(default_factory=dict)
    making: tuple[Member, ...] = ()
    since: float = 0.0
    started: list[tuple[str, int, int, int]] = field(default_factory=list)
    cohorts: list[tuple[int, tuple[tuple[Member, Arrival], ...]]] = field(default_factory=list)
    dropped: list[Arrival] = field(default_factory=list)
    entered: list[tuple[int, int]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    until: float | None = None

    # --- what happens -------------------------------------------------------------

    def join(self, member: str) -> None:
        if member not in self.live:
            self.live.add(member)
            self._enter(member)
        self.settle()

    def leave(self, member: str) -> None:
        """Its lease runs out."""
        self.live.discard(member)
        self.clocks.leave(member)
        self.settle()

    def crash(self, member: str) -> None:
        """It is gone with what it was training."""
        self.live.discard(member)
        self.clocks.forget(member)
        self.settle()

    def send(self, member: str) -> Arrival | None:
        """What it trains arrives, if it does train and is live; it trained from what was asked."""
        base = self.clocks.training.get(member)
        if base is None or member not in self.live:
            return None
        number = self.numbers.get(member, 0)
        self.numbers[member] = number + 1
        arrival = Arrival(SubmissionId(member, "all", number), base.version, self.now)
        self.bases[arrival.id] = base
        self.waiting.append(arrival)
        was_passed = member in self.clocks.passed
        self.clocks.arrive(arrival.id, base, self.now)
        if was_passed:
            self._enter(member, 1)
        self.settle()
        return arrival

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def commit(self) -> None:
        """The version in the making is committed."""
        if self.making:
            self.version, self.making, self.since = self.version + 1, (), self.now
            self.clocks.closed += 1
            self.settle()

    # --- what follows -------------------------------------------------------------

    @property
    def training(self) -> list[str]:
        return sorted(set(self.clocks.training) & self.live)

    @property
    def least(self) -> int:
        clocks = [self.clocks.clocks[m] for m in self.live if m in self.clocks.clocks]
        return min([*clocks, self.clocks.closed])

    def _enter(self, member: str, waiting: int = 0) -> None:
        if member not in self.clocks.passed:
            least, clock = self.least, self.rule.enter(self._state)
            self.entered.append((clock, least))
            self.clocks.enter(member, clock + waiting, self.now)

    @property
    def _state(self) -> RuleState:
        return self.clocks.state(self.version, frozenset(self.live), self.since)

    def settle(self) -> None:
        """Everything that the rule wants done now, as the coordinator does it."""
        while self._decide():
            pass
        for member in sorted(self.live):
            if isinstance(self.rule.admit(self.now, member, self._state), Admit):
                clock = self.clocks.clocks.get(member, self.rule.enter(self._state))
                self.started.append((member, clock, self.least, self.version))
                self.clocks.ask(member, self.clocks.next_base(member, self.version), self.now)

    def _decide(self) -> bool:
        if self.making:
            return False
        match self.rule.decide(self.now, tuple(self.waiting), self._state):
            case Close(members, reason):
                here = {arrival.id: arrival for arrival in self.waiting}
                summed = tuple((member, here[member.id]) for member in members)
                self.cohorts.append((self.version + 1, summed))
                taken = {member.id for member in members}
                self.waiting = [a for a in self.waiting if a.id not in taken]
                self.making, self.reason = members, reason
                return False
            case Drop(ids, reason):
                self.dropped += [a for a in self.waiting if a.id in ids]
                self.waiting = [a for a in self.waiting if a.id not in ids]
                self.clocks.drop(ids, self.version, self.now)
                self.reason = reason
                return True
            case PassOver(members, reason):
                for member in members:
                    self.clocks.pass_over(member)
                self.reason = reason
                return True
            case Wait(until, reason):
                self.until, self.reason = until, reason
        return False
