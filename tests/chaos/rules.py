"""A rule of a plan's author, as `docs/rules.md` shows how to write one."""

import math
from dataclasses import dataclass

from secureps import rules


@dataclass(frozen=True)
class Share:
    """Closes over whoever has sent once a share of the live members has."""

    minimum: int
    share: float = 0.5

    def enter(self, state: rules.RuleState) -> int:
        return 0

    def admit(self, now: float, member: str, state: rules.RuleState) -> rules.Admission:
        last = state.sent.get(member)
        if last is not None and last.version >= state.version:
            return rules.Wait(None, f"{member} has contributed from version {state.version}")
        return rules.Admit(f"trains from version {state.version}")

    def decide(
        self, now: float, arrivals: tuple[rules.Arrival, ...], state: rules.RuleState
    ) -> rules.Decision:
        ready = rules.by_client(arrivals).values()
        wanted = max(self.minimum, math.ceil(self.share * len(state.live)))
        if len(ready) < wanted:
            return rules.Wait(None, f"{len(ready)} of {wanted} updates are here")
        members = tuple(rules.Member(a.id, 1, a.version, a.step) for a in ready)
        return rules.Close(members, f"{len(members)} of {len(state.live)} live members have sent")
