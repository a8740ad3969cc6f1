"""States as plain values, and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from secureps.errors import InternalError, Malformed
from secureps.messages.charge import Charge, Release
from secureps.privacy.ledger import Ledger
from secureps.roles.fold import Fold, from_state, shape, to_state
from tests.golden.schema import FOLDS


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    key: bytes
    at: float = 0.0


@dataclass(slots=True)
class Outer:
    number: int
    yes: bool
    name: str
    colour: Colour
    inner: Inner
    maybe: Inner | None
    fact: Charge | Release | None
    pair: tuple[str, int]
    many: tuple[Inner, ...]
    items: list[int]
    table: dict[tuple[str, int], Inner]
    ordered: dict[str, None]
    names: frozenset[str]
    sets: frozenset[frozenset[str]]
    counts: Counter[str]
    read: Mapping[str, int]
    ledger: Ledger
    none: dict[bytes | None, int] = field(default_factory=dict)


CHARGE = Charge("a", "all", 3, 1.5, 0.1, 7)
OUTER = Outer(
    number=3,
    yes=True,
    name="ünï",
    colour=Colour.BLUE,
    inner=Inner(b"\x00\xff", 1.25),
    maybe=None,
    fact=CHARGE,
    pair=("a", 1),
    many=(Inner(b""), Inner(b"x")),
    items=[3, 1],
    table={("b", 2): Inner(b"b"), ("a", 1): Inner(b"a")},
    ordered={"z": None, "a": None},
    names=frozenset({"b", "a"}),
    sets=frozenset({frozenset({"a", "b"}), frozenset({"c"})}),
    counts=Counter({"a": 2, "b": -1}),
    read={"q": 1},
    ledger=Ledger([CHARGE, Charge("a", "all", 4, 1.5, 0.1, 7)]),
    none={None: 1, b"k": 2},
)


def again(state: Outer) -> Outer:
    return from_state(Outer, json.loads(json.dumps(to_state(Outer, state))))


def test_a_state_comes_back_as_it_was() -> None:
    found = again(OUTER)
    assert found == OUTER
    assert list(found.table) == list(OUTER.table), "what is asked in order is answered as before"
    assert list(found.ordered) == ["z", "a"]
    assert isinstance(found.counts, Counter)
    assert found.counts["nobody"] == 0


def test_equal_states_have_equal_plain_values() -> None:
    other = again(OUTER)
    other.names = frozenset(sorted(OUTER.names, reverse=True))
    assert to_state(Outer, other) == to_state(Outer, OUTER)
    other.items = [1, 3]
    assert to_state(Outer, other) != to_state(Outer, OUTER)


@pytest.mark.parametrize("place", range(18))
def test_what_is_no_state_is_malformed(place: int) -> None:
    plain = to_state(Outer, OUTER)
    for wrong in (object, {"a": 1}, [[3]], -1.5):
        spoilt = [*plain[:place], wrong, *plain[place + 1 :]]
        with pytest.raises(Malformed):
            from_state(Outer, spoilt)
    with pytest.raises(Malformed):
        from_state(Outer, [*plain, 1])


def test_of_a_union_none_is_taken_for_another() -> None:
    assert again(OUTER).fact == CHARGE
    other = again(OUTER)
    other.fact = Release("a", "all", 3, 1.0, 2.0, 3.0, 1, 0.0)
    assert isinstance(again(other).fact, Release)


def test_what_has_no_place_is_our_own_fault() -> None:
    with pytest.raises(InternalError, match="no place in a state"):
        to_state(set, {1})


def test_a_fold_is_a_value() -> None:
    assert Fold((CHARGE,), [1]) == Fold((CHARGE,), [1])


@pytest.mark.parametrize("kind", FOLDS)
def test_every_role_can_be_folded(kind: Any) -> None:
    """Whatever a field of a state is made of has a plain form: no run need meet it first."""
    with pytest.raises(Malformed):
        from_state(kind, [])
    assert kind.__name__ in shape(kind)
    with pytest.raises((AttributeError, TypeError)):
        to_state(kind, None)


def test_a_shape_says_every_field_and_every_word_of_an_enum() -> None:
    found = shape(Outer)
    assert found["Inner"] == ["key: bytes", "at: float"]
    assert found["Colour"] == ["red", "blue"]
    assert found["Ledger"] == ["packed"]
    assert "table: dict of (tuple of (str, int), Inner)" in found["Outer"]
    assert "fact: Charge or Release or NoneType" in found["Outer"]
