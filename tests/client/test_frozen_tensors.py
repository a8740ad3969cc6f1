from __future__ import annotations

import numpy as np
import pytest

from secureps.client.initial_model import schema_of
from secureps.client.local_tensors import Tensors, digests_of, refuse_changed, take_frozen
from secureps.errors import WrongShape

BASE: Tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.zeros((), np.int64)}
SPECS = schema_of(BASE).telling(digests_of(BASE)).tensors


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
