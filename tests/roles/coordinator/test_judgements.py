"""What became of versions that were to be evaluated."""

from __future__ import annotations

from secureps.messages.evaluation import VersionEvaluated
from secureps.roles.coordinator.group import Evaluations, GroupState


def test_results_are_in_the_order_of_versions_and_settled_with_what_is_skipped() -> None:
    state = Evaluations({2: VersionEvaluated(2, ()), 1: VersionEvaluated(1, ())}, {3: "too few"})
    assert [each.version for each in state.newest] == [1, 2]
    assert [state.settled(version) for version in (1, 2, 3, 4)] == [True, True, True, False]


def test_rounds_are_counted_of_one_version() -> None:
    state, model = Evaluations(), (GroupState("all", version=2),)
    for rounds in (1, 2):
        state.begin(model)
        assert (state.subject, state.rounds) == (2, rounds)
    state.begin((GroupState("all", version=4),))
    assert (state.subject, state.rounds) == (4, 1)
