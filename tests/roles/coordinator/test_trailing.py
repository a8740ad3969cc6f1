"""When a version is evaluated, what waits for that, and when it is skipped."""

import pytest

from secureps.messages.evaluation import EVALUATION, EvaluationSkipped, Metric, VersionEvaluated
from secureps.messages.orders import GroupVersion
from secureps.roles.coordinator import trailing
from secureps.roles.coordinator.group import CheckpointState, GroupState, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from tests.kits.evaluations import evaluated_plan
from tests.kits.roles_kit import make_charter

BEST = {"best": {"metric": "accuracy", "goal": "max"}}
EVALUATOR = "client-05"


def at(
    version: int, subject: int = 0, phase: Phase = Phase.WAITING, best: bool = False
) -> Transaction:
    """A run whose model is at a version, and whose trailing group is in this phase."""
    groups = {
        "all": GroupState("all", version=version, phase=Phase.WAITING),
        EVALUATION: GroupState(EVALUATION, version=0, phase=phase, trails=True),
    }
    federation, everybody = CoordinatorState(groups), frozenset(f"client-0{n}" for n in range(6))
    federation.trail.subject = subject
    plan = evaluated_plan(evaluation=BEST if best else {})
    settings = make_charter(plan)
    return Transaction(0.0, settings, federation, everybody, (), everybody, frozenset())


def test_the_versions_of_the_plan_are_due_once_each() -> None:
    assert [trailing.due_version(at(version)) for version in range(6)] == [0, 0, 2, 0, 4, 5]
    done, never = at(4), at(4)
    done.federation.trail.results[4] = VersionEvaluated(4, ())
    never.federation.trail.skipped[4] = "nobody came"
    assert trailing.due_version(done) == trailing.due_version(never) == 0


def test_training_goes_on_beside_an_evaluation_that_has_begun() -> None:
    """No client trains from the version before its evaluation begins."""
    begun = at(4, subject=4, phase=Phase.COLLECTING)
    assert trailing.due_version(begun) == 0
    assert trailing.hold_back(begun) is None
    older = at(4, subject=2, phase=Phase.COLLECTING)
    assert trailing.due_version(older) == 4
    held = trailing.hold_back(older)
    assert held is not None
    assert held.reason == "waits for the evaluation of version 2"


@pytest.mark.parametrize(
    ("gone", "says"),
    [("", ""), ("retired", "takes part no more"), ("isolated", "takes part no more")],
)
def test_a_designated_evaluator_that_has_left_is_not_waited_for(gone: str, says: str) -> None:
    tx = at(4)
    del tx.federation.groups[EVALUATION]
    tx.settings = make_charter(evaluated_plan(evaluation={"evaluator": EVALUATOR}))
    if gone == "retired":
        tx.federation.retired.add(EVALUATOR)
    elif gone:
        tx.federation.isolated[EVALUATOR] = "its operator's word"
    held = trailing.hold_back(tx)
    assert (held is None) == bool(gone)
    reasons = [each.reason for each in tx.step.records if isinstance(each, EvaluationSkipped)]
    assert reasons == ([f"{EVALUATOR} {says}"] if gone else [])


@pytest.mark.parametrize(
    ("version", "rounds", "skipped"), [(4, 1, True), (5, 1, False), (5, 2, True)]
)
def test_one_that_came_to_nothing_is_skipped_and_the_last_is_tried_once_more(
    version: int, rounds: int, skipped: bool
) -> None:
    tx = at(version, subject=version)
    tx.federation.trail.rounds = rounds
    trailing.skip_lost(tx, tx.federation.groups[EVALUATION])
    records = [record for record in tx.step.records if isinstance(record, EvaluationSkipped)]
    assert [record.version for record in records] == [version] * skipped


def test_where_the_best_is_kept_an_evaluated_version_is_first_in_a_checkpoint() -> None:
    tx = at(4, best=True)
    tx.federation.trail.results[4] = VersionEvaluated(4, (Metric("accuracy", 0.5),))
    for before in ((), (2,), (2, 3)):
        made = [CheckpointState(n, (GroupVersion("all", v),)) for n, v in enumerate(before)]
        tx.federation.checkpoints = made
        assert trailing.unkept_version(tx) == 4
        held = trailing.hold_back(tx)
        assert held is not None
        assert "first comes into a checkpoint" in held.reason
    tx.federation.checkpoints.append(CheckpointState(3, (GroupVersion("all", 4),)))
    assert trailing.unkept_version(tx) == 0
    assert trailing.hold_back(tx) is None
    assert trailing.best_version(tx) == 4
    assert trailing.unkept_version(at(4)) == 0, "the plan does not say what is best"
