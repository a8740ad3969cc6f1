"""When no more rounds open, and when the run is over.

A run ends after the plan's versions, or earlier and in order: a reason is journalled (`Ending`),
no group opens another round, those that are open come to their ends, and the last checkpoint
holds what was made. What must not live here: checkpoints (`roles.checkpointing`), rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from secureps.messages.evaluation import EVALUATION, VersionEvaluated
from secureps.messages.orders import Finish
from secureps.messages.records import Ending, Finished
from secureps.policy.spending import after, fact
from secureps.policy.stopping import stop
from secureps.roles import judging
from secureps.roles.federation import GroupState, Phase
from secureps.roles.turn import Turn


def over(turn: Turn, group: GroupState) -> bool:
    """Whether a group has made its last version."""
    if group.name == EVALUATION:
        return judging.over(turn, all(over(turn, each) for each in turn.federation.model_groups))
    if turn.federation.ending and group.phase is Phase.WAITING:
        return True
    return group.version >= turn.plan.section.versions


def end(turn: Turn, reason: str) -> None:
    """No more rounds open from now on; the first reason stays."""
    if not turn.federation.ending:
        turn.write(Ending(reason))


def judged(turn: Turn, evaluation: VersionEvaluated) -> None:
    """An evaluation is there: the plan may end the run for what it says."""
    turn.write(evaluation)
    section = turn.plan.section.evaluation
    assert section is not None
    reason = stop(turn.federation.evaluations.newest, section)
    if reason is not None and not all(over(turn, g) for g in turn.federation.model_groups):
        end(turn, reason)


def exhausted(turn: Turn, groups: Iterable[GroupState]) -> frozenset[str]:
    """Clients whom the next version of each of these groups would bring above the plan's budget.

    The same sum that each client makes for itself (`roles.member`), from the ledger of what
    arrived; a client that spent on updates that never arrived stops by itself.
    """
    privacy, layout = turn.plan.section.privacy, turn.layout
    if privacy is None or layout is None:
        return frozenset()
    ahead = [(group.name, layout.group(group.name).size, max(0, group.version)) for group in groups]
    return frozenset(c for c in turn.clients if _next(turn, c, ahead) > privacy.budget)


def _next(turn: Turn, client: str, ahead: list[tuple[str, int, int]]) -> float:
    """A client's epsilon after these: groups, their values and base versions."""
    facts = (fact(turn.plan, client, *each) for each in ahead)
    return after(turn.plan, turn.federation.ledger, client, (f for f in facts if f is not None))


def next_version(turn: Turn) -> list[GroupState]:
    """The groups that a version more of the model concerns: the metrics' if it is evaluated."""
    federation = turn.federation
    ahead = [group for group in federation.model_groups if not over(turn, group)]
    evaluated = any(group.version + 1 in turn.plan.evaluated for group in ahead)
    own = federation.groups.get(EVALUATION)
    return [*ahead, own] if evaluated and own is not None else ahead


def finish(turn: Turn) -> None:
    """The run is over when a checkpoint holds the last version of every group."""
    federation, versions = turn.federation, turn.plan.section.versions
    groups = federation.groups.values()
    last = federation.checkpoints[-1] if federation.checkpoints else None
    if last is None or not last.complete or not all(over(turn, group) for group in groups):
        return
    if judging.due(turn) or last.evaluations < len(federation.evaluations.results):
        return
    if any(last.version_of(group.name) < group.version for group in groups):
        return
    made = all(group.version >= versions for group in federation.model_groups)
    turn.write(Finished(f"all {versions} versions are made" if made else federation.ending))
    for party in sorted(turn.watchers):
        turn.order(party, Finish(federation.incarnation, federation.finished))
