"""A client that takes part no more, for good or for a while, and what it tells the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.errors import TermsRefused
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.messages.requests import Retire
from secureps.roles.machine import Effect, Halt, Say, Step
from secureps.wording import counted

PAUSED = "its data holder has paused it"
LEFT = "left by its data holder's own act"
"""What the coordinator hears of why."""


@dataclass(slots=True)
class Departure:
    """Whether a client takes part no more.

    Args:
        away: it trains no more, for good or for a while; told: the coordinator hears of it.
        halt: the effect with which it ends, once the coordinator knows; None if it stays or rests.
        reason: that the coordinator hears.
        until: when it comes back from a rest, by the run's clock; None if it does not by itself.
        acted: the number of its data holder's newest act; wants: what that had it do, `PAUSE` or
            `LEAVE`, None for nothing.
    """

    client: str
    away: bool = False
    halt: Halt | None = None
    reason: str = ""
    until: float | None = None
    told: bool = False
    acted: int = 0
    wants: OwnDeed | None = None

    @property
    def end(self) -> list[Effect]:
        """What follows when the coordinator knows that it leaves; nothing, if it rests."""
        return [] if self.halt is None else [self.halt]

    def begin(self, halt: Halt | None = None, reason: str = "", until: float | None = None) -> None:
        """Begins to leave (with a halt) or to rest, which the coordinator is yet to hear."""
        self.away, self.halt, self.reason, self.until = True, halt, reason, until
        self.told = False

    def _end_rest(self) -> bool:
        """Ends a rest; returns whether the coordinator has to hear that the client is back."""
        told, self.away, self.until, self.told = self.told, False, None, False
        return told

    def apply(self, act: OwnAct) -> None:
        self.acted, what = act.number, OwnDeed(act.what)
        if what is OwnDeed.LEFT:
            self.wants = None
        elif self.wants is not OwnDeed.LEAVE and what is not OwnDeed.LOWER_BUDGET:
            self.wants = None if what is OwnDeed.GO_ON else what

    def follow(self) -> bool:
        """Leaves, rests or comes back as its data holder wants; whether it must say it is back."""
        if self.wants is OwnDeed.LEAVE:
            if self.halt is None:
                self.begin(Halt(LEFT), LEFT)
        elif self.wants is OwnDeed.PAUSE:
            if not self.away or self.until is not None:
                self.begin(reason=PAUSED)
        elif self.away and self.halt is None and self.until is None:
            return self._end_rest()
        return False

    def lost(self) -> bool:
        """Whether it greets the coordinator anew, after its stream of orders broke.

        A paused client does: it hears of the end of the run, and says again that it is paused.
        """
        if self.wants is OwnDeed.PAUSE:
            self.told = False
        return not self.told

    @property
    def settled(self) -> tuple[OwnAct, ...]:
        """The record that it left: a later start joins anew."""
        return (OwnAct(self.acted, OwnDeed.LEFT),) if self.wants is OwnDeed.LEAVE else ()

    def refuse(self, step: Step, error: TermsRefused) -> None:
        """Takes no part in a plan; the coordinator, which counts it in, hears it now."""
        self.begin(Halt(str(error), type(error)), error.revealed)
        self.tell(step)

    def tell(self, step: Step) -> None:
        """Tells the coordinator that nobody need wait for it."""
        if self.away:
            self.told = True
            step.tell(Retire(self.client, self.reason, self.halt is None))

    def rest(self, step: Step, now: float, seconds: float, reason: str) -> None:
        if self.away:
            return
        self.begin(reason=reason, until=now + seconds)
        minutes = counted(max(1, round(seconds / 60)), "minute")
        text = (
            "as many trainings as this site allows (updates_per_hour) have begun within an hour: "
            f"the next one may begin in {minutes}"
        )
        step.effects.append(Say(text))

    def comes_back(self, now: float) -> bool:
        """Ends a rest whose time has passed; returns whether the coordinator must hear of it."""
        return self.until is not None and now >= self.until and self._end_rest()
