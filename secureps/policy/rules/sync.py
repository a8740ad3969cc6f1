"""The synchronous rule: a cohort is invited per version and closes together.

Where not all take part, each version draws its members anew (`RuleState.places`).
It closes when all invited have arrived, or at the deadline with at least the quorum.
With fewer the deadline is extended; after the last extension it closes with at least
the minimum cohort, or gives the round up without opening anything (federated averaging
in rounds: McMahan et al. 2017; over-selection and deadlines: Bonawitz et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.config.plan import SyncSection
from secureps.messages.submission import Member
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Bounds,
    Close,
    Drop,
    Extend,
    RuleState,
    Wait,
    renewed,
)
from secureps.wording import named


@dataclass(frozen=True, slots=True)
class Sync:
    """One version per round, under the keys of its section."""

    section: SyncSection
    bounds: Bounds

    def enter(self, state: RuleState) -> int:
        return 0

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        if state.opened_at is not None:
            if member in state.invited:
                return Admit(f"invited to version {state.version + 1}")
            return Wait(None, f"joins after version {state.version + 1}, whose round is open")
        start = max(self.bounds.start - state.left_out, self.section.minimum)
        if len(state.live) < start:
            text = f"waits for members: {len(state.live)} of {start} are live"
            return Wait(None, text, everybody=True)
        invited = self.invited(len(state.live))
        if state.places.get(member, invited) >= invited:
            return Wait(None, f"{invited} others are drawn for version {state.version + 1}")
        return Admit(f"invited to version {state.version + 1}")

    def invited(self, live: int) -> int:
        own = self.section
        share = max(int(live * own.fraction), own.quorum, own.minimum)
        return min(live, share, self.bounds.most)

    def decide(
        self, now: float, arrivals: tuple[Arrival, ...], state: RuleState
    ) -> Close | Wait | Extend | Drop:
        """Closes when all have sent, or at the deadline with a quorum; else extends or gives up."""
        if state.opened_at is None:
            return Wait(None, "no round is open")
        own, here = self.section, {arrival.id.client for arrival in arrivals}
        late = sorted(state.invited - here)
        count = f"{len(here)} of {len(state.invited)}"
        until = state.opened_at + own.deadline * (1 + state.extensions)
        if not late and len(here) >= own.minimum:
            return _close(arrivals, f"all {len(here)} invited have arrived")
        if now < until:
            if late:
                text = f"{count} have arrived; waits for {named(late)}"
                return Wait(until, text, arrivals=renewed(len(here), len(state.invited)))
            return Wait(until, f"{count} have arrived, the minimum cohort is {own.minimum}")
        over = f"deadline: {count} have arrived, quorum {own.quorum}"
        if len(here) >= max(own.quorum, own.minimum):
            return _close(arrivals, over)
        if state.extensions < own.extensions:
            over += f"; extension {state.extensions + 1} of {own.extensions}"
            return Extend(until + own.deadline, over)
        if len(here) >= own.minimum:
            over = f"last deadline: {count} have arrived, enough for the minimum cohort"
            return _close(arrivals, f"{over} of {own.minimum}")
        return Drop(
            tuple(sorted(arrival.id for arrival in arrivals)),
            f"given up: {count} have arrived after the last extension, the minimum cohort "
            f"is {own.minimum}; nothing was opened",
        )


def _close(arrivals: tuple[Arrival, ...], reason: str) -> Close:
    members = sorted(arrivals, key=lambda arrival: arrival.id)
    return Close(tuple(Member(a.id, 1, a.version) for a in members), reason)
