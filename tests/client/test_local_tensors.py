"""Tensors that never travel: local ones, version by version, and frozen ones, by their digests."""

from pathlib import Path

import numpy as np
import pytest

from secureps.client.initial_model import (
    KEPT,
    LocalTensors,
    Tensors,
    digests_of,
    refuse_changed,
    schema_of,
    take_frozen,
)
from secureps.errors import WrongShape
from secureps.messages.run import GroupVersion

INITIAL: Tensors = {"head": np.zeros(3, np.float32)}


def model(**versions: int) -> tuple[GroupVersion, ...]:
    return tuple(GroupVersion(group, version) for group, version in versions.items())


def made(number: int) -> Tensors:
    return {"head": np.full(3, number, np.float32)}


def loaded(own: LocalTensors, *at: GroupVersion) -> int | None:
    found = own.load(at or None)
    return None if found is None else int(found["head"][0])


def test_a_client_that_is_started_again_trains_on_from_where_an_earlier_version_began(
    tmp_path: Path,
) -> None:
    """It may be asked for that version once more, and the same must come of it."""
    own = LocalTensors(tmp_path)
    for version in range(6):
        own.save(model(all=version), INITIAL, made(version))
    assert len(list(tmp_path.iterdir())) == KEPT
    assert loaded(own) == 5
    assert [loaded(own, *model(all=version)) for version in (6, 5, 4)] == [5, 4, 3]
    assert loaded(own, *model(all=2)) is None


def test_groups_that_move_alone_go_by_all_their_versions(tmp_path: Path) -> None:
    """One of them may stay where it is while the others move on, or take its turn after them."""
    own = LocalTensors(tmp_path)
    own.save(model(body=1, rare=0), INITIAL, made(1))
    own.save(model(body=2, rare=0), INITIAL, made(2))
    own.save(model(body=2, rare=1), INITIAL, made(3))
    assert loaded(own, *model(body=1, rare=0)) is None
    assert loaded(own, *model(body=2, rare=0)) == 1
    assert loaded(own, *model(body=2, rare=1)) == 2
    assert loaded(own, *model(body=2, rare=2)) == 3


def test_what_a_training_left_as_it_was_is_not_written(tmp_path: Path) -> None:
    LocalTensors(tmp_path).save(model(all=0), INITIAL, dict(INITIAL))
    assert list(tmp_path.iterdir()) == []


# ---

BASE: Tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.zeros((), np.int64)}
SPECS = schema_of(BASE).with_values(digests_of(BASE)).tensors


def test_a_digest_is_of_the_values_wherever_they_lie() -> None:
    other = {"a": np.asfortranarray(BASE["a"]), "n": BASE["n"].astype(">i8")}
    assert digests_of(other) == digests_of(BASE)
    assert len({*digests_of(BASE).values()}) == 2
    assert digests_of({"a": BASE["a"] + 1}) != {"a": digests_of(BASE)["a"]}
    assert digests_of({"a": -0.0 * BASE["a"]}) != digests_of({"a": 0.0 * BASE["a"]}), "bits, not =="


def test_what_joined_is_what_trains() -> None:
    taken = take_frozen({**BASE, "b": np.ones(1)}, SPECS)
    assert list(taken) == ["a", "n"]
    with pytest.raises(WrongShape, match=r"a is frozen, and has other values than when .* joined"):
        take_frozen({**BASE, "a": BASE["a"] + 1}, SPECS)


def test_a_bit_that_training_changed_is_refused_by_name() -> None:
    refuse_changed(BASE, {name: each.copy() for name, each in BASE.items()}, SPECS)
    refuse_changed(BASE, {**BASE, "n": BASE["n"] + 1}, SPECS[:1])
    moved = BASE["a"].copy()
    moved[1, 2] = np.nextafter(moved[1, 2], np.float32(9))
    with pytest.raises(WrongShape, match=r"a was trained, and the plan has it frozen"):
        refuse_changed(BASE, {**BASE, "a": moved}, SPECS)
