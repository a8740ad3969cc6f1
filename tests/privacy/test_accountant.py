"""Privacy: epsilon agrees with closed forms, Opacus and an independent accountant."""

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.errors import Conflict, Malformed, PlanRefused
from secureps.messages.charge import Charge, Release
from secureps.privacy.accountant import (
    FRACTIONAL,
    SKELLAM_ORDERS,
    WHOLE,
    client_epsilon,
    epsilon,
    fractional_rdp,
    skellam_rdp,
)
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.ledger import Ledger
from tests.kits.skellam_kit import law, tight_epsilon

DELTA = 1e-5
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
    tight = tight_epsilon([charge], DELTA)
    assert tight == pytest.approx(exact, abs=1e-3)
    assert exact - 1e-9 <= tight <= epsilon([charge], DELTA) <= 1.5 * exact


@pytest.mark.slow
@pytest.mark.parametrize(
    "facts",
    [
        [(0.8, 0.004, 5000)],
        [(1.0, 0.01, 300), (2.0, 0.05, 100), (1.0, 0.01, 200)],
    ],
)
def test_rdp_agrees_with_opacus_and_pld_is_tighter(facts: list[tuple[float, float, int]]) -> None:
    from opacus.accountants.analysis import rdp as opacus

    orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 513))
    total = sum(
        opacus.compute_rdp(q=q, noise_multiplier=s, steps=n, orders=orders) for s, q, n in facts
    )
    theirs, _ = opacus.get_privacy_spent(orders=orders, rdp=total, delta=DELTA)
    charges = [Charge("alice", "g", i, *fact) for i, fact in enumerate(facts)]
    ours = epsilon(charges, DELTA)
    assert ours == pytest.approx(theirs, rel=5e-3)
    assert epsilon(reversed(charges), DELTA) == ours
    assert 0.5 * ours < tight_epsilon(charges, DELTA) < ours


def test_only_the_facts_count_and_not_how_they_are_split() -> None:
    whole = epsilon([ONE], DELTA)
    parts = [replace(ONE, version=v, steps=100) for v in range(5)]
    assert epsilon(parts, DELTA) == whole
    assert epsilon(Counter({replace(ONE, steps=100): 5}), DELTA) == whole
    assert epsilon([ONE, replace(ONE, version=1)], DELTA) > whole > 0


def test_a_step_is_worked_out_once_and_no_bit_is_another() -> None:
    charges = [replace(ONE, version=v, sample_rate=0.01 / (v + 1), steps=7) for v in range(3)]
    alone = rdp.RdpAccountant(None, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for each in sorted(charges, key=lambda charge: charge.sample_rate):
        gaussian = dp_accounting.GaussianDpEvent(each.noise_multiplier)
        alone.compose(dp_accounting.PoissonSampledDpEvent(each.sample_rate, gaussian), each.steps)
    assert epsilon(charges, DELTA) == alone.get_epsilon(DELTA)


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.7, 1.0])
def test_an_integral_of_a_whole_order_is_its_closed_form(noise: float, rate: float) -> None:
    orders = np.arange(2.0, 11.0)
    wanted = rdp.RdpAccountant(
        range(2, 11), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ).compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)))
    found = fractional_rdp(noise, rate, orders)
    assert np.allclose(found, wanted.rdp, rtol=2e-9, atol=1e-11)
    between = fractional_rdp(noise, rate, np.array(FRACTIONAL))
    assert (np.diff(between) > 0).all(), "a Renyi divergence grows with its order"


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "known"), [(0.6, 0.1, 5, 8.178), (2.0, 0.5, 50, 10.278)]
)
def test_at_high_rates_orders_are_fractional_too(
    sigma: float, rate: float, steps: int, known: float
) -> None:
    """Whole ones alone gave 9.09 for the first; the tight accountant is never above."""
    charge = Charge("alice", "g", 0, sigma, rate, steps)
    found = epsilon([charge], DELTA)
    assert found == pytest.approx(known, abs=0.01)
    assert tight_epsilon([charge], DELTA) < found
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    whole = rdp.RdpAccountant(WHOLE, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    whole.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps)
    assert found <= whole.get_epsilon(DELTA)


def test_with_next_to_no_noise_whole_orders_are_left() -> None:
    charge = Charge("alice", "g", 0, 0.01, 0.5, 1)
    assert 4000 < epsilon([charge], DELTA) < math.inf


def test_the_ends_of_the_scale() -> None:
    def of(**change: Any) -> float:
        return epsilon([replace(ONE, **change)], DELTA)

    assert epsilon([], DELTA) == 0.0
    assert of(steps=0) == of(sample_rate=0.0) == of(steps=0, noise_multiplier=0.0) == 0.0
    assert of(noise_multiplier=0.0) == math.inf
    assert epsilon([ONE, replace(ONE, noise_multiplier=0.0)], DELTA) == math.inf


def test_what_is_unsound_is_refused() -> None:
    with pytest.raises(Malformed, match="sample rate"):
        epsilon([replace(ONE, sample_rate=2.0)], DELTA)
    with pytest.raises(Malformed, match="noise multiplier"):
        epsilon([replace(ONE, noise_multiplier=math.nan)], DELTA)


# --- the client unit --------------------------------------------------------------

RELEASE = Release("alice", "rest", 0, 100.0, 5000.0, 400.0, 1, 0.0)


def times(release: Release, count: int) -> list[Release]:
    return [replace(release, version=v) for v in range(count)]


@lru_cache(maxsize=64)
def logs(variance: float) -> tuple[Decimal, ...]:
    with localcontext(prec=60):
        return tuple((Decimal(p.numerator) / p.denominator).ln() for p in law(variance, 900))


def renyi(variance: float, shift: int, order: int) -> float:
    """The divergence itself: ln(sum_k p(k - shift)^a p(k)^(1-a)) / (a - 1), term by term."""
    with localcontext(prec=60):
        p = logs(variance)
        reach = len(p) - 1 - shift
        total = sum(
            (order * p[abs(k - shift)] + (1 - order) * p[abs(k)]).exp()
            for k in range(-reach, reach + 1)
        )
        return float(Decimal(total).ln() / (order - 1))


def divergence(l2: float, l1: float, stddev: float, order: int) -> float:
    return float(skellam_rdp(l2, l1, stddev, np.array([float(order)]))[0])


@pytest.mark.parametrize("variance", [0.3, 2.0, 25.0, 300.0])
@pytest.mark.parametrize("shift", [1, 2, 7, 20])
def test_the_bound_is_above_the_divergence_itself(variance: float, shift: int) -> None:
    stddev = math.sqrt(variance)
    for order in (2, 3, 5, 12, 32):
        exact = renyi(variance, shift, order)
        bound = divergence(shift, shift, stddev, order)
        assert 0 < exact <= bound
        # Where noise is what it should be, against the move times the order, it is close.
        if variance >= max(100, 10 * order * shift):
            assert bound <= 1.06 * exact
            assert exact == pytest.approx(order * shift**2 / (2 * variance), rel=0.06)


def test_known_divergences() -> None:
    # a = 2, l2 = 3, l1 = 5, v = 4: 18/8 + min((27 + 30)/64, 15/8); then v = 1/4 and the other.
    assert divergence(3, 5, 2.0, 2) == 18 / 8 + 57 / 64
    assert divergence(3, 5, 0.5, 2) == 18 * 2 + min(57 * 4, 15 * 2)


def test_only_whole_orders_are_asked_for() -> None:
    assert all(isinstance(known, int) and known >= 2 for known in SKELLAM_ORDERS)
    assert list(SKELLAM_ORDERS) == sorted(set(SKELLAM_ORDERS))


def converted(divergences: NDArray[np.float64], delta: float) -> float:
    a = np.array(SKELLAM_ORDERS, dtype=np.float64)
    return float(
        np.min(divergences + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)).clip(0)
    )


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_epsilon_is_the_conversion_of_the_sum(delta: float, count: int) -> None:
    other = replace(RELEASE, group="words", l2=10.0, l1=90.0, stddev=800.0)
    orders = np.array(SKELLAM_ORDERS, dtype=np.float64)
    one, two = (skellam_rdp(r.l2, r.l1, r.stddev, orders) for r in (RELEASE, other))
    for releases, sums in [
        (times(RELEASE, count), count * one),
        ([*times(RELEASE, count), *times(other, 2 * count)], count * one + 2 * count * two),
    ]:
        spent = client_epsilon(releases, delta)
        assert spent == pytest.approx(converted(sums, delta), rel=1e-12)
        assert client_epsilon(reversed(releases), delta) == spent


def exact_delta(variance: float, shift: int, releases: int, eps: float) -> float:
    """sup P[A] - e^eps Q[A] for that many releases of one value: by its definition.

    The privacy losses of all outcomes, combined one release after another.
    """
    masses = [float(p) for p in law(variance) if p > 1e-60]
    reach = len(masses) - 1 - shift
    place = np.arange(-reach, reach + 1)
    p, q = (np.array([masses[abs(k)] for k in place - s]) for s in (shift, 0))
    first, second = p, q
    for _ in range(releases - 1):
        first, second = np.outer(first, p).ravel(), np.outer(second, q).ravel()
    return float(np.maximum(first - math.exp(eps) * second, 0).sum())


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (50.0, 3), (400.0, 20)])
@pytest.mark.parametrize("releases", [1, 2])
def test_the_promise_is_kept_and_not_given_away(variance: float, shift: int, releases: int) -> None:
    made = replace(RELEASE, l2=shift, l1=shift, stddev=math.sqrt(variance))
    for delta in (1e-3, 1e-5, 1e-8):
        promised = client_epsilon(times(made, releases), delta)
        assert exact_delta(variance, shift, releases, promised) <= delta
        # The theorem is loose where noise is little; elsewhere 30% less would be too little.
        if variance >= 50:
            assert exact_delta(variance, shift, releases, 0.7 * promised) > delta


def test_a_mechanism_of_many_values_costs_what_a_gaussian_does() -> None:
    for placement, honest in (("local", 1), ("aggregator", 1), ("distributed", 50)):
        mechanism = ClientMechanism(1.0, 10**5, 16, 2.0, placement, honest)  # type: ignore[arg-type]
        for count in (1, 20):
            spent = client_epsilon(times(mechanism.release("alice", "rest", 0), count), DELTA)
            exact = gaussian_epsilon(2.0 / math.sqrt(count), DELTA)
            assert exact < spent < 1.1 * exact


@pytest.mark.parametrize("sources", [1, 3])
def test_how_often_each_release_is_as_good_as_all_of_them(sources: int) -> None:
    one = replace(RELEASE, sources=sources, clamping=1e-9)
    two = replace(one, group="words", clamping=3e-10)
    counted = client_epsilon(Counter({one: 7, two: 70}), DELTA)
    assert counted == client_epsilon([*times(one, 7), *times(two, 70)], DELTA)
    assert counted > client_epsilon([*times(RELEASE, 77)], DELTA)


def test_the_ends_of_the_clients_scale() -> None:
    assert client_epsilon([], DELTA) == 0.0
    assert client_epsilon([replace(RELEASE, l2=0.0, l1=0.0, stddev=0.0)], DELTA) == 0.0
    assert client_epsilon([replace(RELEASE, stddev=0.0)], DELTA) == math.inf
    assert client_epsilon([RELEASE, replace(RELEASE, version=1, stddev=0.0)], DELTA) == math.inf
    assert client_epsilon([replace(RELEASE, stddev=1e9)], DELTA) == 0.0
    # A small epsilon takes a large order, which is there.
    little = client_epsilon([replace(RELEASE, stddev=1e6)], DELTA)
    assert gaussian_epsilon(1e4, DELTA) < little < 1.5 * gaussian_epsilon(1e4, DELTA)


def test_what_one_party_cuts_off_comes_off_delta_once() -> None:
    cut = replace(RELEASE, clamping=1e-6)
    for count in (1, 5, 9):
        spent = client_epsilon(times(cut, count), DELTA)
        assert spent == client_epsilon(times(RELEASE, count), DELTA - sum([1e-6] * count))
    with pytest.raises(
        PlanRefused, match=r"cut off with probability 1\.1e-05 in all, which uses up"
    ):
        client_epsilon(times(cut, 11), DELTA)


def test_what_several_cut_off_comes_off_delta_with_its_exponential() -> None:
    whole, cut = replace(RELEASE, sources=5), replace(RELEASE, sources=5, clamping=1e-9)
    for count in (1, 4, 20):
        spent = client_epsilon(times(cut, count), DELTA)
        left = DELTA - (1 + math.exp(spent)) * count * 1e-9
        assert left > 0
        # Sound: at what is left the conversion needs no more; and hardly more is claimed.
        needed = client_epsilon(times(whole, count), left)
        assert needed <= spent <= needed * (1 + 1e-6)
        assert spent > client_epsilon(times(whole, count), DELTA)
    # e^eps 2e-7 exceeds delta long before eps is enough: there is no epsilon at all.
    assert client_epsilon(times(cut, 200), DELTA) == math.inf
    with pytest.raises(PlanRefused, match="uses up delta 1e-05: fewer versions"):
        client_epsilon([replace(cut, clamping=5e-6)], DELTA)
    # Both kinds together.
    mixed = [replace(RELEASE, clamping=1e-6), replace(cut, version=1)]
    spent = client_epsilon(mixed, DELTA)
    assert spent >= client_epsilon(times(whole, 2), DELTA - 1e-6 - (1 + math.exp(spent)) * 1e-9)


@pytest.mark.parametrize("sources", [2, 3])
def test_two_parties_are_several(sources: int) -> None:
    """Neither of them draws all of the noise."""
    cut = replace(RELEASE, sources=sources, clamping=1e-9)
    assert client_epsilon([cut], DELTA) == client_epsilon([replace(cut, sources=5)], DELTA)


def test_unsound_releases_are_refused() -> None:
    with pytest.raises(Malformed, match="the release of 'alice'"):
        client_epsilon([replace(RELEASE, stddev=math.nan)], DELTA)


def test_without_what_counts_it_is_said_what_to_install() -> None:
    """In a small installation (docs/platforms.md); nothing is approximated."""
    program = (
        "import sys",
        "sys.modules['dp_accounting'] = None",
        "from secureps.errors import ConfigError",
        "try:",
        "    import secureps.privacy.accountant",
        "except ConfigError as error:",
        "    print(error)",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("epsilon is counted with it: pip install dp-accounting\n")


# --- ledgers ----------------------------------------------------------------------


CHARGE = Charge("alice", "rest", 3, 1.1, 0.01, 100)
OF_CLIENT = Release("alice", "rest", 3, 10.0, 100.0, 20.0, 4, 1e-30)

charges = st.builds(
    Charge,
    party=st.sampled_from("ab"),
    group=st.sampled_from("gh"),
    version=st.integers(0, 2),
    noise_multiplier=st.just(1.0),
    sample_rate=st.just(0.1),
    steps=st.just(7),
)


@pytest.mark.parametrize("fact", [CHARGE, OF_CLIENT])
def test_another_step_of_one_version_is_another_fact(fact: Charge | Release) -> None:
    ledger, again = Ledger([fact]), replace(fact, step=1)
    assert ledger.is_new(again)
    ledger.append(again)
    assert ledger.count("alice") == 2
    assert ledger.facts == (fact, again)
    assert not ledger.is_new(fact)


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 1.2}, {"sample_rate": 0.02}, {"steps": 101}, {"steps": 0}]
)
def test_other_facts_under_a_known_key_are_a_conflict(change: dict[str, Any]) -> None:
    ledger = Ledger([CHARGE])
    with pytest.raises(Conflict, match="a charge of 'alice' for 'rest' version 3 is on record"):
        ledger.append(replace(CHARGE, **change))
    assert ledger == Ledger([CHARGE])


releases = st.builds(
    Release,
    party=st.sampled_from("ab"),
    group=st.sampled_from("gh"),
    version=st.integers(0, 2),
    l2=st.just(1.0),
    l1=st.just(2.0),
    stddev=st.just(3.0),
    sources=st.just(1),
    clamping=st.just(0.0),
)


@pytest.mark.slow
@given(st.lists(charges | releases, max_size=40))
def test_it_only_grows_holds_every_fact_once_and_mixes_none(made: list[Charge | Release]) -> None:
    ledger = Ledger()
    for fact in made:
        before = ledger.facts
        ledger.append(fact)
        assert ledger.facts[: len(before)] == before
    once = tuple(dict.fromkeys(made))
    assert ledger.facts == once
    for party in "ab":
        own = [replace(fact, version=0, step=0) for fact in once if fact.party == party]
        assert ledger.count(party) == len(own)
        assert ledger.tally(party) == Ledger.unpacked(ledger.packed()).tally(party) == Counter(own)


def test_a_tally_is_a_copy() -> None:
    ledger = Ledger([CHARGE])
    ledger.tally("alice").clear()
    assert ledger.tally("alice") == {replace(CHARGE, version=0): 1}
    assert ledger.tally("bob") == {}


def test_the_two_units_do_not_meet() -> None:
    # One key, two units: neither repeats, contradicts or hides the other.
    ledger = Ledger([CHARGE, OF_CLIENT])
    assert ledger.facts == (CHARGE, OF_CLIENT)
    assert ledger.count("alice") == 2
    assert not ledger.is_new(replace(OF_CLIENT))
    with pytest.raises(Conflict, match="a release of 'alice' for 'rest' version 3 is on record"):
        ledger.append(replace(OF_CLIENT, stddev=21.0))
    assert ledger == Ledger([CHARGE, OF_CLIENT])
    assert ledger != Ledger([CHARGE])
    assert ledger != Ledger([OF_CLIENT])


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"noise_multiplier": -0.1},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"sample_rate": -0.1},
        {"sample_rate": 1.1},
        {"sample_rate": math.nan},
        {"steps": -1},
    ],
)
def test_impossible_charges_are_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="the charge of 'alice'"):
        Ledger([replace(CHARGE, **change)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": -1}, "a version and a step are at least 0"),
        ({"step": -1}, "a version and a step are at least 0"),
        ({"stddev": -1.0}, "the standard deviation -1.0 is no number >= 0"),
        ({"stddev": math.inf}, "the standard deviation inf"),
        ({"l2": -1.0}, "no vector of whole numbers"),
        ({"l2": 101.0}, "an L2 norm of 101.0 and an L1 norm of 100.0"),
        ({"l1": math.inf}, "no vector of whole numbers"),
        ({"l2": math.nan}, "no vector of whole numbers"),
        ({"sources": 0}, "0 parties make no noise"),
        ({"clamping": -1e-9}, "no probability of clamping"),
        ({"clamping": 1.1}, "no probability of clamping"),
        ({"clamping": math.nan}, "no probability of clamping"),
    ],
)
def test_impossible_releases_are_malformed(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Malformed, match=f"the release of 'alice'.*{reason}"):
        Ledger([replace(OF_CLIENT, **change)])


def test_a_script_may_import_the_whole_package_afterwards() -> None:
    program = "import secureps.privacy.accountant, dp_accounting; dp_accounting.pld.PLDAccountant"
    subprocess.run([sys.executable, "-c", program], check=True)
