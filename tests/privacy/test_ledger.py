"""A ledger only grows, retries cost nothing, and it never forgets or contradicts itself."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.errors import Conflict, Malformed
from secureps.messages.charge import Charge, Release
from secureps.privacy.ledger import Ledger

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
    assert (*ledger.charges, *ledger.releases) == (fact, again)
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
        before = ledger.charges, ledger.releases
        ledger.append(fact)
        assert ledger.charges[: len(before[0])] == before[0]
        assert ledger.releases[: len(before[1])] == before[1]
    once = list(dict.fromkeys(made))
    assert list(ledger.charges) == [fact for fact in once if isinstance(fact, Charge)]
    assert list(ledger.releases) == [fact for fact in once if isinstance(fact, Release)]
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
    assert (ledger.charges, ledger.releases) == ((CHARGE,), (OF_CLIENT,))
    assert ledger.count("alice") == 2
    assert not ledger.is_new(replace(OF_CLIENT))
    with pytest.raises(Conflict, match="a release of 'alice' for 'rest' version 3 is on record"):
        ledger.append(replace(OF_CLIENT, stddev=21.0))
    assert ledger == Ledger([OF_CLIENT, CHARGE])
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
