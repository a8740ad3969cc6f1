"""Privacy: what attacks on single releases show is within the claim, and faults are not."""

from collections.abc import Callable

import numpy as np
import pytest

from secureps.client.canaries import MANY, Mechanism, Trials
from secureps.errors import Malformed
from secureps.policy.plan import Plan
from secureps.policy.spending import total_epsilon
from secureps.privacy.empirical import one_run_bound, threshold_bound
from tests.kits.canary_plans import (
    MODES,
    break_sampling,
    halve_noise,
    leave_clip_out,
    mechanism_of,
)

Plant = Callable[[pytest.MonkeyPatch], None]
SUMS = [mode for mode in MODES if not mode.startswith(("record", "person"))]


def play(made: Mechanism, name: str, trials: int, seed: int = 0) -> Trials:
    rng, parts, count = np.random.default_rng(seed), list[Trials](), 0
    while count < trials:
        parts.append(made.attacks[name](rng))
        count += len(parts[-1][0])
    coins, scores = zip(*parts, strict=True)
    return np.concatenate(coins), np.concatenate(scores)


def shown(made: Mechanism, name: str, trials: int, delta: float) -> float:
    coins, scores = play(made, name, trials)
    return threshold_bound(scores[coins], scores[~coins], delta, 0.05)


def claim(plan: Plan, made: Mechanism) -> float:
    return total_epsilon(plan, [made.fact])


@pytest.mark.parametrize("mode", MODES)
def test_what_is_shown_is_at_most_what_is_claimed(mode: str) -> None:
    """Over twenty seeds of the coins; noise is another in each."""
    plan, made = mechanism_of(mode, 1.0, 1e-5)
    claimed, seen = claim(plan, made), list[float]()
    for seed in range(20):
        coins, scores = play(made, MANY, 600 if mode in SUMS else 2000, seed)
        seen.append(one_run_bound(coins, scores, 1e-5, 0.01))
        if mode in SUMS:
            coins, scores = play(made, "alone", 200, seed)
            seen.append(threshold_bound(scores[coins], scores[~coins], 1e-5, 0.01))
    assert max(seen) < claimed
    assert max(seen) > 0 or "seldom" in mode


@pytest.mark.parametrize("plant", [halve_noise, leave_clip_out])
@pytest.mark.parametrize("mode", ["record", "person", *SUMS])
def test_half_the_noise_and_no_clip_are_seen(
    mode: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    plan, made = mechanism_of(mode, 1.0, 0.1)
    trials = 4000 if plant is halve_noise else 1500
    assert shown(made, "alone", trials, 0.1) > claim(plan, made)


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize(
    ("mode", "attack", "trials"),
    [("seldom", "alone", 2000), ("sampled", "opposed by others", 5000)],
    ids=["always in", "fixed size"],
)
def test_a_batch_that_is_not_poisson_is_seen(
    mode: str, attack: str, trials: int, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_sampling(monkeypatch, fixed=mode == "sampled")
    plan, made = mechanism_of(f"{unit}, {mode}", 0.7, 0.1)
    assert shown(made, attack, trials, 0.1) > claim(plan, made)


def test_an_update_that_was_not_clipped_is_refused_before_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the fault of a missing clip alone cannot be audited: nothing is released."""
    monkeypatch.setattr("secureps.client.update.clip_in_place", lambda values, bound: bound)
    with pytest.raises(Malformed, match="an update was not clipped"):
        play(mechanism_of("client, local", 1.0, 0.1)[1], "alone", 1)
