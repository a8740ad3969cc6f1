"""A difference that is made in parts is the one of the whole vectors, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.errors import WrongShape
from secureps.messages.schema import Schema, TensorSpec
from secureps.model.difference import difference
from secureps.model.layout import SCALE, GroupLayout
from tests.kits.roles_kit import make_plan

SPECS = {
    "bias": ((5,), "float32"),
    "count": ((), "int64"),
    "empty": ((0, 3), "float32"),
    "half": ((3, 4), "float16"),
    "mask": ((7,), "bool"),
    "weight": ((6, 5), "float32"),
    "wide": ((4,), "float64"),
}
SCHEMA = Schema(tuple(TensorSpec(name, *spec) for name, spec in SPECS.items()))
GROUP = make_plan(block_size=16).layout(SCHEMA).group("all")


def model(seed: int) -> dict[str, NDArray[Any]]:
    drawn = np.random.default_rng(seed)
    return {
        name: (9 * drawn.standard_normal(shape)).astype(dtype)
        for name, (shape, dtype) in SPECS.items()
    }


def published(group: GroupLayout, values: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [values[slice(*group.span(block))] for block in range(group.blocks)]


@pytest.mark.parametrize("cut", [1, 7, 16, 1000])
def test_it_is_that_of_the_flattened_models(cut: int) -> None:
    """Wherever parts begin and end, beside whatever borders of tensors and blocks."""
    before, trained = GROUP.unflatten(GROUP.flatten(model(1))), model(2)
    blocks = published(GROUP, GROUP.flatten(before))
    part = difference(GROUP, blocks, trained)
    cuts = [*range(0, GROUP.size, cut), GROUP.size]
    made = np.concatenate([part(first, last) for first, last in itertools.pairwise(cuts)])
    assert made.dtype == np.float32
    assert np.array_equal(made, GROUP.flatten(trained) - GROUP.flatten(before))


def test_what_a_tensor_cannot_hold_of_a_published_value_is_no_difference() -> None:
    """A trainer that leaves a count of 2.4, which it saw as 2, has not changed it."""
    values = GROUP.flatten(model(1)) + np.float32(0.4)
    part = difference(GROUP, published(GROUP, values), GROUP.unflatten(values))
    assert not part(0, GROUP.size).any()


def test_a_scale_is_not_trained() -> None:
    group = GroupLayout("all", (TensorSpec("w", (2,), "float32"), SCALE), 3, 3)
    part = difference(group, [np.array([1, 2, 0.5], np.float32)], {"w": np.ones(2, np.float32)})
    assert part(0, 3).tolist() == [0, -1, 0]


def test_parts_are_the_callers_own() -> None:
    """Who changes one, changes neither the next part nor the models."""
    trained, blocks = model(2), published(GROUP, GROUP.flatten(model(1)))
    part = difference(GROUP, blocks, trained)
    first = part(0, GROUP.size)
    kept = first.copy()
    first[:] = 7
    assert np.array_equal(part(0, GROUP.size), kept)


def test_another_model_is_refused() -> None:
    trained = model(2)
    del trained["bias"]
    with pytest.raises(WrongShape, match="'bias' of group 'all' is missing"):
        difference(GROUP, [], trained)
