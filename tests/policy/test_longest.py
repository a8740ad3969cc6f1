"""Safety: the bound on honest sums holds for the worst honest cohorts, and is not much longer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.model.layout import GroupLayout
from secureps.policy.longest import longest_sum, longest_usual, measure
from secureps.policy.plan import Plan
from tests.kits.federations import small_plan
from tests.kits.privacy_kit import PRIVACY

CLIP = 0.5
TURNS = 40


BUFFERED = {"name": "buffered", "buffer": 6, "minimum": 3, "deadline": 10.0}


def plan_of(bits: int = 16, rule: Any = None, privacy: Any = None, codec: Any = ()) -> Plan:
    rule = rule or (BUFFERED if privacy else {"quorum": 6})
    group = {"clip": CLIP, "bound": "clip", "bits": bits, "codec": codec, "rule": rule}
    counted = {} if privacy else {"most_examples": 8}
    return small_plan(group=[group | counted], capacity=64, privacy=privacy)


def layout_of(plan: Plan, size: int) -> GroupLayout:
    (layout,) = plan.lay_out_sizes({"all": size})
    return layout


def cohort_of(*members: tuple[int, int]) -> Cohort:
    """Of members that weigh and have examples."""
    made = (
        Member(SubmissionId(f"c{k}", "all", 0), weight, 0, 0, examples=examples)
        for k, (weight, examples) in enumerate(members)
    )
    return Cohort("all", 0, 1, 0, tuple(made))


def norm_of_sum(plan: Plan, size: int, cohort: Cohort, direction: Any, seed: int) -> float:
    """All send the same update, as long as the clip: the longest sum that they can come to."""
    rng, grid = np.random.default_rng(seed), plan.grid("all", size)
    update = (direction / np.linalg.norm(direction) * CLIP * (1 - 1e-6)).astype(np.float32)

    mechanism, total = plan.mechanism("all", size), np.zeros(size, np.int64)

    def words(count: int) -> NDArray[np.uint32]:
        return rng.integers(0, 2**32, count, dtype=np.uint32)

    for member in cohort.members:
        if mechanism is not None:
            made = mechanism.add_noise(mechanism.round_update(update, words), words)
            total += member.weight * made
        else:
            total += member.weight * grid.encode(update, words(size), member.examples / 8)
    return float(np.linalg.norm(grid.decode_sum(total, cohort.weight)))


@pytest.mark.parametrize("size", [1, 30, 5000])
@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.parametrize("members", [[(1, 8)] * 2, [(1, 8)] * 30, [(1, 8), (2, 3), (4, 1)]])
def test_aligned_updates_as_long_as_the_clip_are_within_it(
    members: list[tuple[int, int]], bits: int, size: int
) -> None:
    plan, cohort = plan_of(bits), cohort_of(*members)
    bound = longest_sum(plan, layout_of(plan, size), cohort)
    rng = np.random.default_rng(1)
    found = [norm_of_sum(plan, size, cohort, rng.normal(size=size), seed) for seed in range(TURNS)]
    assert bound is not None
    assert max(found) <= bound
    if bits == 16:
        assert bound < 1.05 * max(found)


@pytest.mark.parametrize("size", [30, 5000])
@pytest.mark.parametrize("weights", [[1] * 2, [1] * 30, [4] * 6, [4] * 3 + [1] * 3])
def test_noise_is_within_it(weights: list[int], size: int) -> None:
    """Each client's own noise counts as often as its update."""
    plan = plan_of(privacy=PRIVACY | {"placement": "local"})
    cohort = cohort_of(*[(weight, 1) for weight in weights])
    bound = longest_sum(plan, layout_of(plan, size), cohort)
    rng = np.random.default_rng(2)
    found = [norm_of_sum(plan, size, cohort, rng.normal(size=size), seed) for seed in range(TURNS)]
    assert bound is not None
    assert max(found) <= bound < 6 * max(found)


def test_members_that_all_weigh_four_have_four_times_the_bound() -> None:
    plan = plan_of(privacy=PRIVACY | {"placement": "local"})
    cohorts = (cohort_of(*[(weight, 1)] * 6) for weight in (1, 4))
    one, four = (longest_sum(plan, layout_of(plan, 30), cohort) or 0.0 for cohort in cohorts)
    assert four == pytest.approx(4 * one, rel=1e-12)


def test_noise_of_shards_is_in_it_once() -> None:
    cohort, placements = cohort_of(*[(1, 1)] * 30), ("local", "aggregator")
    plans = [plan_of(rule={"quorum": 6}, privacy=PRIVACY | {"placement": p}) for p in placements]
    each, once = (longest_sum(plan, layout_of(plan, 5000), cohort) or 0.0 for plan in plans)
    assert each > 3 * once > 0


def test_a_range_that_moves_has_it_in_units_of_its_scale() -> None:
    codec = [{"name": "rotate"}, {"name": "round", "length": "mean_norm"}]
    plan, cohort = plan_of(codec=codec), cohort_of((1, 8), (1, 8))
    whole, fourth = (
        longest_sum(plan, layout_of(plan, 30), replace(cohort, scale=scale))
        for scale in (1.0, 0.25)
    )
    assert whole is not None
    assert fourth == pytest.approx(4 * whole, rel=0.01)


def test_a_sum_of_no_bounded_group_has_no_bound() -> None:
    plan = small_plan()
    assert longest_sum(plan, layout_of(plan, 30), cohort_of((1, 8), (1, 8))) is None


def compared(privacy: Any = None) -> Plan:
    rule = {"quorum": 6, "minimum": 3, "deadline": 10.0}
    group = {"clip": CLIP, "bound": "2.5x median", "bits": 16, "rule": rule}
    return small_plan(group=[group], capacity=64, privacy=privacy)


def test_a_mean_may_be_so_many_times_the_median_of_the_last_ones() -> None:
    plan, four = compared(), cohort_of(*[(1, 1)] * 4)
    lengths = [(0.01, 16.0), (0.03, 4.0), (0.5, 1.0)]
    assert longest_usual(plan, four, lengths) == pytest.approx(2.5 * 0.03)
    assert longest_usual(plan, four, []) == 0.0, "nothing is usual yet"
    assert longest_usual(plan_of(), four, lengths) == np.inf
    layout = layout_of(plan, 30)
    usual = longest_sum(plan, layout, four, 2.5 * 0.03) or 0.0
    assert usual == pytest.approx(4 * 2.5 * 0.03, rel=0.01)
    assert longest_sum(plan, layout, four, 2.5 * 0.5) == longest_sum(plan, layout, four)


@pytest.mark.parametrize("placement", [None, "local", "aggregator"])
@pytest.mark.parametrize("members", [4, 40])
def test_fewer_members_than_before_are_within_it(placement: str | None, members: int) -> None:
    """Their updates are independent; of known noise nothing is in a length."""
    plan = compared(None if placement is None else PRIVACY | {"placement": placement})
    before, now = cohort_of(*[(1, 1)] * 40), cohort_of(*[(1, 1)] * members)
    layout, rng = layout_of(plan, 500), np.random.default_rng(4)
    mechanism, step = plan.mechanism("all", 500), plan.grid("all", 500).step

    def norm(length: float, count: int) -> float:
        """Of a sum of so many independent updates."""
        summed = length * np.sqrt(count / 500) * rng.standard_normal(500)
        if mechanism is not None:
            variance = (1 if plan.noisy_shards else count) * mechanism.calibration.variance
            summed += step * np.sqrt(variance) * rng.standard_normal(500)
        return float(np.linalg.norm(summed))

    for length in (0.02, 0.4):
        known = measure(plan, layout, before, norm(length, 40))
        assert known[1] == 40
        most = longest_sum(plan, layout, now, longest_usual(plan, now, [known] * 3)) or 0.0
        assert max(norm(length, members) for _ in range(TURNS)) <= most


@pytest.mark.parametrize("scale", [1.0, 0.25, 8.0])
def test_lengths_of_a_range_that_moves_are_compared_in_the_units_of_the_model(scale: float) -> None:
    """Each version's sum is in units of that version's scale."""
    codec = [{"name": "rotate"}, {"name": "round", "length": "mean_norm"}]
    rule = {"quorum": 6, "minimum": 3, "deadline": 10.0}
    group = {"clip": CLIP, "bound": "2.5x median", "bits": 16, "codec": codec, "rule": rule}
    plan = small_plan(group=[group], capacity=64)
    layout, cohort = layout_of(plan, 30), replace(cohort_of(*[(1, 1)] * 4), scale=scale)
    longest = longest_sum(plan, layout, cohort, 0.02) or 0.0
    assert longest == pytest.approx(4 * 0.02 / scale, rel=0.2)
    assert measure(plan, layout, cohort, 4 * 0.02 / scale) == pytest.approx((0.02, 4.0))


@pytest.mark.parametrize(("placement", "draws"), [("local", 40), ("aggregator", 1)])
def test_noise_is_taken_out_of_a_length_as_often_as_it_was_drawn(
    placement: str, draws: int
) -> None:
    plan, cohort = compared(PRIVACY | {"placement": placement}), cohort_of(*[(1, 1)] * 40)
    mechanism, layout = plan.mechanism("all", 500), layout_of(plan, 500)
    assert mechanism is not None
    noise = 500 * draws * mechanism.calibration.variance * plan.grid("all", 500).step ** 2
    norm = float(np.sqrt((40 * 0.3) ** 2 + noise))
    assert measure(plan, layout, cohort, norm) == pytest.approx((0.3, 40.0))


def test_members_of_unlike_weight_count_as_fewer() -> None:
    plan, unlike = compared(), cohort_of((4, 1), (1, 1), (1, 1), (1, 1))
    assert measure(plan, layout_of(plan, 30), unlike, 0.7)[1] == pytest.approx(49 / 19)
    examples = cohort_of((1, 4), (1, 1), (1, 1), (1, 1))
    assert measure(plan, layout_of(plan, 30), examples, 0.7)[1] == pytest.approx(49 / 19)
