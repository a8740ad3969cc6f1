"""When a version of the model is evaluated, what waits for that, and when it never will be.

An evaluation begins before anybody may train from its version: the round that follows a
version to be evaluated opens when the evaluation has begun, and goes on beside it. One
that cannot begin or comes to nothing is skipped, on record, and holds nobody up.
"""

from __future__ import annotations

from secureps.messages.evaluation import EVALUATION, EvaluationSkipped
from secureps.policy.checks.evaluation import best
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction

LAST_ROUNDS = 2
"""How often the evaluation of the last version is tried; of any other, once."""


def version(tx: Transaction) -> int:
    """The version that every group of the model is at; -1 if they are at several, or at none."""
    versions = {group.version for group in tx.federation.model_groups}
    return versions.pop() if len(versions) == 1 else -1


def due(tx: Transaction) -> int:
    at, state = version(tx), tx.federation.evaluations
    if at not in tx.plan.evaluated or state.settled(at):
        return 0
    group = tx.federation.groups.get(EVALUATION)
    begun = group is not None and group.phase is not Phase.WAITING
    return 0 if begun and state.subject == at else at


def asked(tx: Transaction, group: GroupState, member: str) -> int:
    """The version that an invitation has its member evaluate, or evaluate first; 0 for none."""
    own, subject = tx.federation.groups.get(EVALUATION), tx.federation.evaluations.subject
    if own is None or group is own:
        return subject
    return subject if own.awaits(member) and group.version == subject else 0


def over(tx: Transaction, model_over: bool) -> bool:
    """Whether no evaluation is under way, and none will begin; `model_over`: the model is made."""
    group = tx.federation.groups.get(EVALUATION)
    return model_over and not due(tx) and (group is None or group.phase is Phase.WAITING)


def skip_lost(tx: Transaction, group: GroupState) -> None:
    """Skips an evaluation that began and failed; the last version's is tried again."""
    state = tx.federation.evaluations
    subject = state.subject
    if group.phase is not Phase.WAITING or not subject or state.settled(subject):
        return
    last = subject == tx.plan.evaluated.last and version(tx) == subject
    if not last or state.rounds >= LAST_ROUNDS:
        tx.write(EvaluationSkipped(subject, group.reason))


def await_members(tx: Transaction, group: GroupState, at: int, reason: str, may_come: bool) -> Wait:
    """Waits for members to evaluate a version: at the end of a run, for one round's time.

    Args:
        may_come: whether enough are left that have not taken leave of the run.
    """
    if any(each.phase is not Phase.WAITING for each in tx.federation.model_groups):
        return Wait(None, reason)
    if at != tx.plan.evaluated.last and not tx.federation.ending:
        return Wait(None, reason)  # the next round of the model decides
    _, until = tx.deadlines(group, tx.federation.evaluations.since)
    if may_come and tx.now < until:
        return Wait(until, reason)
    tx.write(EvaluationSkipped(at, reason))
    return Wait(tx.now, reason)


def hold_back(tx: Transaction, group: GroupState) -> Wait | None:
    """What a round of the model that could open waits for; an evaluation may be skipped instead."""
    at, keep, state = due(tx), unkept(tx), tx.federation.evaluations
    if keep:
        return Wait(None, f"version {keep} is evaluated, and first comes into a checkpoint")
    if not at:
        return None
    own = tx.federation.groups.get(EVALUATION)
    if own is not None:
        if own.phase is not Phase.WAITING:
            return Wait(None, f"waits for the evaluation of version {state.subject}")
        tx.write(EvaluationSkipped(at, own.reason))
        return None
    return await_evaluator(tx, at)


def await_evaluator(tx: Transaction, at: int) -> Wait | None:
    """Waits one round's time for a designated evaluator, then skips the evaluation."""
    name, rule = tx.plan.evaluator, tx.plan.section.group[0].rule
    until = tx.federation.evaluations.since + rule.deadline
    if name in tx.federation.retired | tx.federation.isolated.keys():
        here = "takes part no more"
    elif tx.now < until:
        return Wait(until, f"waits for {name} to evaluate version {at}")
    else:
        here = "did not evaluate it in time" if name in tx.live else "is not there"
    tx.write(EvaluationSkipped(at, f"{name} {here}"))
    return None


def declined(tx: Transaction, at: int, reason: str) -> None:
    """Skips a version that the designated evaluator will not judge."""
    if due(tx) == at:
        tx.write(EvaluationSkipped(at, f"{tx.plan.evaluator}: {reason}"))


def unkept(tx: Transaction) -> int:
    """An evaluated version that no checkpoint was ordered of, if the best one is kept; else 0."""
    evaluation, at = tx.plan.section.evaluation, version(tx)
    if evaluation is None or evaluation.best is None or at not in tx.plan.evaluated:
        return 0
    groups = tx.federation.model_groups
    kept = any(
        all(checkpoint.version_of(group.name) == at for group in groups)
        for checkpoint in tx.federation.checkpoints
    )
    return 0 if kept else at


def best_version(tx: Transaction) -> int:
    """The best evaluated version; 0 if there is none, or the plan does not say what is best."""
    evaluation = tx.plan.section.evaluation
    if evaluation is None or evaluation.best is None:
        return 0
    found = best(tx.federation.evaluations.newest, evaluation.best)
    return 0 if found is None else found.version
