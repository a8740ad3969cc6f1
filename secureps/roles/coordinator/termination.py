"""When no more rounds open, and when the run is over.

A run ends after the plan's versions, or earlier and in order: a reason is journalled (`Ending`),
no group opens another round, those that are open come to their ends, and the last checkpoint
holds what was made. What must not live here: checkpoints (`roles.coordinator.checkpointing`),
rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from secureps.errors import SecurepsError, TooFew
from secureps.messages.coordinator_records import Ending, Finished, GroupResigned
from secureps.messages.evaluation import EVALUATION, VersionEvaluated
from secureps.messages.orders import Finish
from secureps.policy.early_stopping import stop
from secureps.policy.plan import Plan
from secureps.policy.spending import Fact, adjacency, after, fact, facts_of
from secureps.roles.coordinator import evaluation as judging
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def over(turn: Transaction, group: GroupState) -> bool:
    """Whether a group has made its last version."""
    if group.name == EVALUATION:
        return judging.over(turn, all(over(turn, each) for each in turn.federation.model_groups))
    between = group.phase is Phase.WAITING or (group.streaming and group.phase is Phase.COLLECTING)
    if (turn.federation.ending or group.resigned) and between:
        return True
    return _made(turn, group) or (between and _deserted(turn, group))


def row_block(turn: Transaction, group: GroupState) -> bool:
    """Whether a group is a part of a table, which the run can do without."""
    return group.name != EVALUATION and turn.plan.group(group.name).sparse is not None


def too_few(turn: Transaction, group: GroupState) -> str:
    """Why a row-block cannot move on: whoever joined, too few touch it; empty if enough do."""
    if not row_block(turn, group):
        return ""
    federation, least = turn.federation, turn.plan.bounds(group.name).start
    joined = frozenset(federation.members) - federation.retired - {turn.plan.evaluator}
    able = turn.takers(group.name, joined)
    if len(able) >= least:
        return ""
    here = "1 member touches" if len(able) == 1 else f"{len(able)} members touch"
    return f"{here} it, a cohort needs {least}: it stays at {group.version}"


def _made(turn: Transaction, group: GroupState) -> bool:
    return group.version >= turn.plan.versions(group.name)


def _deserted(turn: Transaction, group: GroupState) -> bool:
    """Whether too few touch a row-block, and all groups that enough contribute to are made.

    A run does not wait for members who may never come; while it goes on, they may.
    """
    if not too_few(turn, group):
        return False
    others = turn.federation.model_groups
    return any(_made(turn, each) or each.resigned for each in others) and all(
        _made(turn, each) or each.resigned or too_few(turn, each) for each in others
    )


def end(turn: Transaction, reason: str, failure: type[SecurepsError] | None = None) -> None:
    """No more rounds open from now on; the first reason stays.

    `failure` is what the run ends with where its plan does not foresee this end.
    """
    if not turn.federation.ending:
        turn.write(Ending(reason, None if failure is None else failure.__name__))


def give_up(turn: Transaction, group: GroupState, reason: str) -> None:
    """Nobody can make a group's next version, whoever comes: the run ends.

    A row-block is left as it is instead, and the others go on.
    """
    if not row_block(turn, group):
        end(turn, reason, TooFew)
    elif not group.resigned and not turn.federation.ending:
        turn.write(GroupResigned(group.name, reason))


def judged(turn: Transaction, evaluation: VersionEvaluated) -> None:
    """An evaluation is there: the plan may end the run for what it says."""
    turn.write(evaluation)
    section = turn.plan.section.evaluation
    assert section is not None
    reason = stop(turn.federation.evaluations.newest, section)
    if reason is not None and not all(over(turn, g) for g in turn.federation.model_groups):
        end(turn, reason)


def exhausted(turn: Transaction, groups: Iterable[GroupState]) -> frozenset[str]:
    """Clients whom the next version of each of these groups would bring above the plan's budget.

    The same sum that each client makes for itself (`roles.member.member`), from the ledger of what
    arrived and the evaluation that it still owes; a client that spent on updates that never
    arrived stops by itself.
    """
    privacy, ahead = turn.plan.section.privacy, list(groups)
    if privacy is None or turn.layout is None:
        return frozenset()
    return frozenset(c for c in turn.clients if _next(turn, c, ahead) > privacy.budget)


def unaffordable(turn: Transaction, client: str, group: GroupState) -> bool:
    """Whether one update more of a group would bring a client above the plan's budget."""
    privacy = turn.plan.section.privacy
    return privacy is not None and _next(turn, client, [group]) > privacy.budget


def budget_spent(
    turn: Transaction, group: GroupState, spent: frozenset[str], retired: frozenset[str]
) -> str:
    """Why no round of a group can open any more, whoever comes."""
    privacy, after = turn.plan.section.privacy, f"after version {group.version}"
    after += turn.plan.of(group.name)
    if privacy is None:  # they left, or insist on privacy
        number = f"{len(retired)} of them {'takes' if len(retired) == 1 else 'take'} part no more"
        return f"too few clients are left: {after}, {number}"
    parts = [f"the privacy budget is spent: {after}"]
    if spent:
        budget = f"{privacy.budget:g} ({adjacency(turn.plan)})"
        parts.append(f"another would bring {len(spent)} clients above epsilon {budget}")
    if stopped := retired - spent:
        parts.append(f"{len(stopped)} clients have stopped at budgets of their own")
    return ", ".join(parts)


def _next(turn: Transaction, client: str, ahead: list[GroupState]) -> float:
    """A client's epsilon after the evaluation that it owes, and one version more of these."""
    own = turn.federation.groups.get(EVALUATION)
    bases = [(group, max(0, group.version)) for group in ahead if group is not own]
    if own is not None and judging.owes(own, client):
        bases.append((own, own.version))
    if own is not None and own in ahead:
        bases.append((own, own.version + (own.phase is not Phase.WAITING)))
    ledger = turn.federation.ledger

    def count() -> float:
        facts = (_fact(turn, client, group, base) for group, base in bases)
        return after(turn.plan, ledger, client, [each for each in facts if each is not None])

    steps = tuple((base, group.next_base(client, base).step) for group, base in bases)
    question = ("epsilon", client, *(group.name for group, _ in bases))
    return turn.memo.of(question, (ledger.count(client), steps), count)


def _fact(turn: Transaction, client: str, group: GroupState, base: int) -> Fact | None:
    """What it spends from this base version: after an evaluation that was lost, or as a further
    step from it, once more."""
    assert turn.layout is not None
    size, attempt = turn.layout.group(group.name).size, 0
    if group.name == EVALUATION or group.next_base(client, base).step:
        known = facts_of(turn.federation.ledger, client)
        attempt = sum((each.group, each.version) == (group.name, base) for each in known)
    return fact(turn.plan, client, group.name, size, base, attempt)


def next_version(turn: Transaction) -> list[GroupState]:
    """The groups that a version more of the model concerns: the metrics' if it is evaluated."""
    federation = turn.federation
    ahead = [group for group in federation.model_groups if not over(turn, group)]
    evaluated = any(group.version + 1 in turn.plan.evaluated for group in ahead)
    own = federation.groups.get(EVALUATION)
    return [*ahead, own] if evaluated and own is not None else ahead


def _all_made(plan: Plan) -> str:
    """That every group of the plan's file has its versions, which may not be as many."""
    wanted = {
        section.name: section.versions or plan.section.versions for section in plan.section.group
    }
    if len(set(wanted.values())) == 1:
        return f"all {min(wanted.values())} versions are made"
    each = ", ".join(f"{versions} of {name}" for name, versions in wanted.items())
    return f"all versions are made ({each})"


def _told(turn: Transaction) -> str:
    """Why the run is over, and what was not made."""
    short = [group for group in turn.federation.model_groups if not _made(turn, group)]
    if not short:
        return _all_made(turn.plan)
    parts = [f"of {group.name}: {group.resigned}" for group in short if group.resigned]
    if few := [group.name for group in short if not group.resigned]:
        parts.insert(0, f"of {named(few)}: too few members touch it")
    return turn.federation.ending or f"{_all_made(turn.plan)}, but {'; '.join(parts)}"


def finish(turn: Transaction) -> None:
    """The run is over when a checkpoint holds the last version of every group."""
    federation = turn.federation
    groups = federation.groups.values()
    last = federation.checkpoints[-1] if federation.checkpoints else None
    if last is None or not last.complete or not all(over(turn, group) for group in groups):
        return
    if judging.due(turn) or last.evaluations < len(federation.evaluations.results):
        return
    if any(last.version_of(group.name) < group.version for group in groups):
        return
    made = any(group.version > 0 for group in federation.model_groups)
    failure = federation.failure or (None if made else TooFew.__name__)
    turn.write(Finished(_told(turn), failure))
    for party in sorted(turn.watchers):
        turn.order(party, Finish(federation.incarnation, federation.finished))
