"""Decides when a client evaluates a published version of the model.

A client evaluates exactly the version that it is asked for, before it trains from that version. If
it has a newer version already, it declines, so that the coordinator does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from secureps.errors import PlanRefused
from secureps.messages.orders import Invite, Published
from secureps.messages.requests import Decline
from secureps.messages.submission import Base, model_digest
from secureps.policy.plan import Plan
from secureps.roles.machine import Halt, Say, Step
from secureps.roles.member.outbox import Desk
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.member.tasks import DECLINES, Aim, Evaluate
from secureps.roles.member.terms import Budget
from secureps.roles.pinned_run import Pinned


class Readiness(Enum):
    """Answer to whether a client can follow an invitation to evaluate."""

    EARLY = "the version is not published yet, as far as this client knows"
    READY = "every group of the model is at the version"
    LATE = "a group of the model has gone on"
    PAST = "the evaluation is over"
    UNPLANNED = "the plan has no such evaluation"


def find_readiness(
    plan: Plan,
    published: Mapping[str, Published],
    invite: Invite | None,
) -> Readiness:
    """Returns whether a client that knows these published versions can follow an invitation.

    Only evaluations on the plan's schedule are allowed, so that a coordinator cannot ask more often
    about held-out records, which no epsilon may cover. Each evaluation has a base of its own
    (`Schedule.base`), and so one name.
    """
    own = published.get(plan.trailing)
    if own is None or invite is None or own.version < invite.version:
        return Readiness.EARLY
    if own.version > invite.version:
        return Readiness.PAST
    if invite.evaluates not in plan.schedule:
        return Readiness.UNPLANNED
    if plan.schedule.base(invite.version, invite.evaluates).step != invite.step:
        return Readiness.UNPLANNED
    versions = [published[g].version if g in published else -1 for g in plan.groups]
    if max(versions) > invite.evaluates:
        return Readiness.LATE
    if min(versions) != invite.evaluates:
        return Readiness.EARLY
    return Readiness.READY


def _digest(published: Published) -> bytes:
    return model_digest(published.group, published.version, published.blocks)


@dataclass(slots=True)
class Appraiser:
    """The evaluations of one client.

    Args:
        evaluated: the newest version that it was asked to evaluate, since its process started.
        refuses: whether its data holder was told why it evaluates nothing.
    """

    pinned: Pinned
    budget: Budget
    pulled: PulledModel
    evaluated: int = 0
    refuses: bool = False

    def begin_evaluation(
        self,
        step: Step,
        desk: Desk,
        invites: dict[str, Invite],
        aims: Callable[[str, Base], Aim],
    ) -> tuple[bool, Evaluate | None]:
        """Begins an evaluation that is due, or removes its invitation and declines it.

        Args:
            aims: makes the aim of an update of a group from a base.

        Returns:
            Whether training must wait, and the task to begin (None for none).
        """
        if desk.plan.evaluator == self.budget.client:
            return self._judge(step)
        group = desk.plan.trailing
        invite = desk.invites.get(group)
        ready = find_readiness(desk.plan, desk.published, invite)
        if invite is None or ready is Readiness.EARLY:
            return False, None
        self.evaluated, base = invite.evaluates, Base(invite.version, invite.step)
        if desk.is_pending(group, base):
            return False, None
        aim = aims(group, base)
        refusal = self.budget.evaluation_objection()
        if ready is not Readiness.READY or refusal:
            del invites[group]
            if ready is not Readiness.PAST:
                self.decline(step, invite, DECLINES if refusal else ready.value)
            return False, None
        return True, self._task(step, aim)

    def _judge(self, step: Step) -> tuple[bool, Evaluate | None]:
        """Begins the designated evaluator's task, if all groups are at a scheduled version."""
        plan, published = self.pinned.plan, self.pulled.published
        version, *others = {published[g].version if g in published else -1 for g in plan.groups}
        if others or version not in plan.schedule or version <= self.evaluated:
            return False, None
        if objection := self.budget.evaluation_objection():
            step.effects.append(Halt(objection, PlanRefused))
            return True, None
        task = self._task(step)
        if task is not None:
            self.evaluated = version
        return True, task

    def _task(self, step: Step, aim: Aim | None = None) -> Evaluate | None:
        """Makes the task for the published version, once all of it is here; else asks for it."""
        if self.pulled.ask_for_absent(self.pinned, step):
            return None
        plan, published = self.pinned.plan, self.pulled.published
        own = b"" if aim is None else _digest(published[aim.group])
        digests = tuple(_digest(published[group]) for group in plan.groups)
        return Evaluate(*self.pulled.take(), digests, aim, own)

    def decline(self, step: Step, invite: Invite, reason: str) -> None:
        """Declines an invitation; tells the data holder, once, if no evaluation is ever sent."""
        if not self.refuses and (own := self.budget.evaluation_objection()):
            self.refuses = True
            step.effects.append(Say(own))
        step.tell(Decline(self.budget.client, invite.group, invite.round, reason))
