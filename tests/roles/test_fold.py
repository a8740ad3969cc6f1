"""States as plain values, and back."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from secureps.errors import InternalError, Malformed
from secureps.messages import encoding
from secureps.messages.charge import Charge
from secureps.messages.encoding import from_plain, to_plain
from secureps.privacy.ledger import Ledger
from tests.golden.schema import FOLDS, classes


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
    pair: tuple[str, int]
    many: tuple[Inner, ...]
    items: list[int]
    table: dict[tuple[str, int], Inner]
    named: dict[Inner, int]
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
    pair=("a", 1),
    many=(Inner(b""), Inner(b"x")),
    items=[3, 1],
    table={("b", 2): Inner(b"b"), ("a", 1): Inner(b"a")},
    named={Inner(b"k"): 2},
    ordered={"z": None, "a": None},
    names=frozenset({"b", "a"}),
    sets=frozenset({frozenset({"a", "b"}), frozenset({"c"})}),
    counts=Counter({"a": 2, "b": -1}),
    read={"q": 1},
    ledger=Ledger([CHARGE, Charge("a", "all", 4, 1.5, 0.1, 7)]),
    none={None: 1, b"k": 2},
)


def again(state: Outer) -> Outer:
    return from_plain(Outer, json.loads(json.dumps(to_plain(state))))


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
    assert to_plain(other) == to_plain(OUTER)
    other.items = [1, 3]
    assert to_plain(other) != to_plain(OUTER)


@pytest.mark.parametrize("name", to_plain(OUTER))
def test_what_is_no_state_is_malformed(name: str) -> None:
    plain = to_plain(OUTER)
    for wrong in (object, {"a": 1}, [[3]], -1.5):
        with pytest.raises(Malformed, match=rf"^Outer\.{name}"):
            from_plain(Outer, {**plain, name: wrong})


def test_what_has_no_place_is_our_own_fault() -> None:
    with pytest.raises(InternalError, match="no place in a record"):
        encoding._reader(complex)


@pytest.mark.parametrize("kind", FOLDS)
def test_every_role_can_be_folded(kind: Any) -> None:
    """Every type of a state's field has a plain form, also types that a run rarely has."""
    with pytest.raises(Malformed):
        from_plain(kind, [])


def test_a_shape_says_every_field_and_every_word_of_an_enum() -> None:
    found = classes((Outer,))
    assert found["Inner"] == ["key: bytes", "at: float"]
    assert found["Colour"] == ["red", "blue"]
    assert found["Ledger"] == ["packed"]
    assert "table: dict of (tuple of (str, int), Inner)" in found["Outer"]
    assert "maybe: Inner or NoneType" in found["Outer"]
