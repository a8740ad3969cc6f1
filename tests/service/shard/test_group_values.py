"""Versions as tensors and back, and vectors that lie one after another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.messages.encoding import payload_digest
from secureps.model.optimizer import OptimizerState
from secureps.service.shard.group_values import (
    GroupValues,
    digest_of,
    from_tensors,
    laid_out,
    only,
    published,
    to_tensors,
    together,
)


def version(*blocks: int) -> GroupValues:
    values = {block: np.arange(block + 2, dtype=np.float32) for block in blocks}
    states = {b: OptimizerState(7, {"m": 2 * each}) for b, each in values.items()}
    return GroupValues(3, values, states, {b: np.full(3, b, np.uint8) for b in blocks if b})


def test_a_version_is_what_its_tensors_were() -> None:
    made = version(0, 4)
    again = from_tensors(3, to_tensors("all", made))
    assert again.optimizer == made.optimizer
    for block in made.values:
        assert made.values[block].tobytes() == again.values[block].tobytes()
    assert made.codes[4].tobytes() == again.codes[4].tobytes()
    assert 0 not in again.codes
    assert made.nbytes == again.nbytes == 2 * 4 * (2 + 6) + 3
    assert from_tensors(3, to_tensors("all", made), mapped=True).mapped


def test_blocks_are_taken_and_put_together() -> None:
    made = together(0, (version(0, 4), version(0)))
    assert sorted(made.values) == [0, 4]
    assert only(made, (4,)).values.keys() == only(made, (4,)).codes.keys() == {4}


def test_what_is_published_is_its_digests() -> None:
    values = version(4).values[4]
    assert published(values).readonly
    assert digest_of(values) == payload_digest(values.tobytes())


def test_vectors_lie_one_after_another() -> None:
    asked: list[int] = []

    def vector(count: int) -> NDArray[np.float32]:
        asked.append(count)
        return np.zeros(count, np.float32)

    made = laid_out({3: 2, 7: 5}, vector)
    made[3][:], made[7][:] = 1, 2
    assert asked == [7]
    whole = made[7].base
    assert whole is not None
    assert whole.tolist() == [1, 1, 2, 2, 2, 2, 2]
    assert laid_out({}) == {}
