"""Epsilon against closed forms and an independent accountant."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from opacus.accountants.analysis import rdp as opacus_rdp

from secureps.errors import Malformed, PlanRefused
from secureps.messages.charge import Charge
from secureps.privacy.accountant import AccountantName, epsilon

DELTA = 1e-5
BOTH: list[AccountantName] = ["rdp", "pld"]
ONE = Charge("alice", "rest", 0, 1.0, 0.01, 500)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The exact epsilon of a Gaussian of sensitivity 1 (Balle and Wang 2018, Theorem 8)."""

    def phi(t: float) -> float:
        return 0.5 * math.erfc(-t / math.sqrt(2))

    def delta_at(eps: float) -> float:
        half, shift = 1 / (2 * sigma), eps * sigma
        return phi(half - shift) - math.exp(eps) * phi(-half - shift)

    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (2.0, 4), (5.0, 10), (0.7, 1)])
def test_without_sampling_it_is_a_gaussian(sigma: float, steps: int) -> None:
    exact = gaussian_epsilon(sigma / math.sqrt(steps), DELTA)
    charge = Charge("alice", "g", 0, sigma, 1.0, steps)
    tight = epsilon([charge], DELTA, "pld")
    assert tight == pytest.approx(exact, abs=1e-3)
    assert exact - 1e-9 <= tight <= epsilon([charge], DELTA, "rdp") <= 1.5 * exact


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.1, 0.01, 1000), (0.8, 0.004, 5000), (4.0, 0.2, 50)]
)
def test_rdp_agrees_with_opacus_and_pld_is_tighter(sigma: float, rate: float, steps: int) -> None:
    orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 513))
    theirs, _ = opacus_rdp.get_privacy_spent(
        orders=orders,
        rdp=opacus_rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=steps, orders=orders),
        delta=DELTA,
    )
    charge = Charge("alice", "g", 0, sigma, rate, steps)
    ours = epsilon([charge], DELTA)
    assert ours == pytest.approx(theirs, rel=5e-3)
    assert 0.5 * ours < epsilon([charge], DELTA, "pld") < ours


def test_different_mechanisms_compose_as_in_opacus() -> None:
    orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 513))
    facts = [(1.0, 0.01, 300), (2.0, 0.05, 100), (1.0, 0.01, 200)]
    total = sum(
        opacus_rdp.compute_rdp(q=q, noise_multiplier=s, steps=n, orders=orders) for s, q, n in facts
    )
    theirs, _ = opacus_rdp.get_privacy_spent(orders=orders, rdp=total, delta=DELTA)
    charges = [Charge("alice", "g", i, *fact) for i, fact in enumerate(facts)]
    assert epsilon(charges, DELTA) == pytest.approx(theirs, rel=5e-3)
    assert epsilon(reversed(charges), DELTA) == epsilon(charges, DELTA)


@pytest.mark.parametrize("accountant", BOTH)
def test_only_the_facts_count_and_not_how_they_are_split(accountant: AccountantName) -> None:
    whole = epsilon([ONE], DELTA, accountant)
    parts = [replace(ONE, version=v, steps=100) for v in range(5)]
    assert epsilon(parts, DELTA, accountant) == whole
    assert epsilon([ONE, replace(ONE, version=1)], DELTA, accountant) > whole > 0


@pytest.mark.parametrize("accountant", BOTH)
def test_the_ends_of_the_scale(accountant: AccountantName) -> None:
    def of(**change: Any) -> float:
        return epsilon([replace(ONE, **change)], DELTA, accountant)

    assert epsilon([], DELTA, accountant) == 0.0
    assert of(steps=0) == of(sample_rate=0.0) == of(steps=0, noise_multiplier=0.0) == 0.0
    assert of(noise_multiplier=0.0) == math.inf
    assert epsilon([ONE, replace(ONE, noise_multiplier=0.0)], DELTA, accountant) == math.inf


def test_what_is_unsound_is_refused() -> None:
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(PlanRefused, match="delta"):
            epsilon([ONE], delta)
    with pytest.raises(PlanRefused, match="unknown accountant 'moments': known are rdp, pld"):
        epsilon([ONE], DELTA, "moments")  # type: ignore[arg-type]
    with pytest.raises(Malformed, match="sample rate"):
        epsilon([replace(ONE, sample_rate=2.0)], DELTA)
    with pytest.raises(Malformed, match="noise multiplier"):
        epsilon([replace(ONE, noise_multiplier=math.nan)], DELTA)
