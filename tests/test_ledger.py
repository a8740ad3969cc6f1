"""A ledger only grows, retries cost nothing, and it never forgets or contradicts itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.errors import Conflict, Malformed
from secureps.messages.charge import Charge
from secureps.privacy.ledger import Ledger

ONE = Charge("alice", "rest", 3, 1.1, 0.01, 100)

charges = st.builds(
    Charge,
    party=st.sampled_from("ab"),
    group=st.sampled_from("gh"),
    version=st.integers(0, 2),
    noise_multiplier=st.just(1.0),
    sample_rate=st.just(0.1),
    steps=st.just(7),
)


def test_the_same_charge_again_changes_nothing() -> None:
    ledger = Ledger([ONE])
    assert not ledger.new(replace(ONE))
    ledger.append(replace(ONE))
    assert ledger.charges == (ONE,)
    assert Ledger().charges == ()


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 1.2}, {"sample_rate": 0.02}, {"steps": 101}, {"steps": 0}]
)
def test_other_facts_under_a_known_key_are_a_conflict(change: dict[str, Any]) -> None:
    ledger = Ledger([ONE])
    with pytest.raises(Conflict, match="'alice' was charged for 'rest' version 3"):
        ledger.append(replace(ONE, **change))
    assert ledger == Ledger([ONE])


@pytest.mark.parametrize("change", [{"party": "bob"}, {"group": "words"}, {"version": 4}])
def test_every_part_of_the_key_counts(change: dict[str, Any]) -> None:
    other = replace(ONE, **change)
    ledger = Ledger([ONE])
    assert ledger.new(other)
    ledger.append(other)
    assert ledger.charges == (ONE, other)


def test_of_one_party() -> None:
    bob, later = replace(ONE, party="bob"), replace(ONE, version=4)
    ledger = Ledger([ONE, bob, later])
    assert ledger.of("alice") == (ONE, later)
    assert ledger.of("bob") == (bob,)
    assert ledger.of("carol") == ()


@given(st.lists(charges, max_size=30))
def test_it_only_grows_and_holds_every_charge_once(made: list[Charge]) -> None:
    ledger = Ledger()
    for charge in made:
        before = ledger.charges
        ledger.append(charge)
        assert ledger.charges[: len(before)] == before
        assert charge in ledger.charges
        assert charge in ledger.of(charge.party)
    assert list(ledger.charges) == list(dict.fromkeys(made))


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
        Ledger([replace(ONE, **change)])
