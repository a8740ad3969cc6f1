"""Evaluations of the model: rounds of the group that trails it, or a designated evaluator.

The plan's schedule says which versions of the model are evaluated. The trailing group's round for a
version begins before any client may train from that version: the model's next round opens once the
trailing round has begun, and both go on together. A round that cannot begin, or fails, is skipped
on record and delays nothing. If the plan names an evaluator, no group trails the model, and the
model's next round waits for the evaluator's result instead.
"""

from __future__ import annotations

from secureps.messages.evaluation import EvaluationSkipped
from secureps.policy.checks.evaluation import find_best
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction


def _since(tx: Transaction) -> float:
    return max(group.committed_at for group in tx.federation.model_groups)


def skip_lost(tx: Transaction, group: GroupState) -> None:
    """Skips a version whose round began and failed, unless the schedule has it tried again."""
    state, subject = tx.federation.trail, tx.federation.trail.subject
    if group.phase is not Phase.WAITING or not subject or state.settled(subject):
        return
    if state.rounds >= tx.plan.schedule.tries(subject):
        tx.write(EvaluationSkipped(subject, group.reason))


def await_members(tx: Transaction, group: GroupState, at: int, reason: str, may_come: bool) -> Wait:
    """Waits for members of a round of version `at`; at the end of a run, for one round's time.

    Args:
        may_come: whether enough clients are left that have not retired.
    """
    if any(each.phase is not Phase.WAITING for each in tx.federation.model_groups):
        return Wait(None, reason)
    if at != tx.plan.schedule.last and not tx.federation.ending:
        return Wait(None, reason)  # `hold_back` skips it when the model's next round is due
    _, until = tx.deadlines(group, _since(tx))
    if may_come and tx.now < until:
        return Wait(until, reason)
    tx.write(EvaluationSkipped(at, reason))
    return Wait(tx.now, reason)


def hold_back(tx: Transaction) -> Wait | None:
    """Returns what the model's next round must wait for; if nothing, skips a due evaluation."""
    at, keep, own = tx.evaluation_due(), unkept_version(tx), tx.trailing
    if keep:
        return Wait(None, f"version {keep} is evaluated, and first comes into a checkpoint")
    if not at:
        return None
    if own is None:
        return await_evaluator(tx, at)
    if own.phase is not Phase.WAITING:
        return Wait(None, f"waits for the evaluation of version {tx.federation.trail.subject}")
    tx.write(EvaluationSkipped(at, own.reason))
    return None


def await_evaluator(tx: Transaction, at: int) -> Wait | None:
    """Waits one round's time for a designated evaluator, then skips the version."""
    name, rule = tx.plan.evaluator, tx.plan.section.group[0].rule
    until = _since(tx) + rule.deadline
    if name in tx.federation.retired | tx.federation.isolated.keys():
        here = "takes part no more"
    elif tx.now < until:
        return Wait(until, f"waits for {name} to evaluate version {at}")
    else:
        here = "did not evaluate it in time" if name in tx.live else "is not there"
    tx.write(EvaluationSkipped(at, f"{name} {here}"))
    return None


def skip_declined(tx: Transaction, at: int, reason: str) -> None:
    """Skips a version that the designated evaluator will not judge."""
    if tx.evaluation_due() == at:
        tx.write(EvaluationSkipped(at, f"{tx.plan.evaluator}: {reason}"))


def unkept_version(tx: Transaction) -> int:
    """Returns the model's version if the best is kept and no checkpoint has it; else 0."""
    at = tx.model_version()
    if not tx.plan.keeps_best or at not in tx.plan.schedule:
        return 0
    groups = tx.federation.model_groups
    kept = any(
        all(checkpoint.version_of(group.name) == at for group in groups)
        for checkpoint in tx.federation.checkpoints
    )
    return 0 if kept else at


def best_version(tx: Transaction) -> int:
    """Returns the best version by its results; 0 without results, or if the plan ranks none."""
    found = find_best(tx.federation.trail.newest, tx.plan.section.evaluation)
    return 0 if found is None else found.version
