"""A block's differences: their content, their length, and clients that follow their shard."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.errors import Malformed
from secureps.messages.encoding import payload_digest
from secureps.model.layout import SCALE, GroupLayout
from secureps.policy.block_deltas import BlockDelta, block_code, block_delta, bytes_down
from secureps.policy.plan import Plan
from tests.kits.privacy_kit import adaptive_plan, group
from tests.kits.roles_kit import make_plan

Floats = NDArray[np.float32]
SUPPORT = {"codec": [{"name": "support", "one_in": 4}, "rotate"], "clip": 2.0, "range": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "every value": {},
    "a part": SUPPORT,
    "a part, and momentum": SUPPORT | {"optimizer": {"name": "momentum"}},
}


def plan_of(bits: int | None = 4, **group: Any) -> Plan:
    own = {"rule": {"quorum": 3, "minimum": 2}, "most_examples": 32} | group
    return make_plan(group=[own if bits is None else own | {"pull_bits": bits}])


def layout_of(size: int, blocks: int = 1) -> GroupLayout:
    return GroupLayout("all", (), blocks * size, size)


def made(plan: Plan, layout: GroupLayout, block: int = 0) -> BlockDelta:
    found = block_delta(plan, layout, block)
    assert found is not None
    return found


def walk(plan: Plan, layout: GroupLayout, versions: int) -> tuple[list[Floats], list[bytes]]:
    """Returns a block as published in versions 5, 6, ..., and the differences between them."""
    rng, delta = np.random.default_rng(3), made(plan, layout)
    published = [rng.normal(size=delta.values).astype(np.float32)]
    exact, codes = published[0], []
    for version in range(5, 5 + versions):
        exact = (exact + 0.1 * rng.normal(size=exact.size)).astype(np.float32)
        code = None
        if not plan.chain("all").is_identity:
            base = payload_digest(published[-1].tobytes())
            code = block_code(plan, layout, 0, version, base)
        values = exact.copy()
        codes.append(delta.publish(values, published[-1], code).tobytes())
        published.append(values)
    return published, codes


@pytest.mark.parametrize("kind", KINDS)
@given(size=st.integers(1, 3000), bits=st.integers(2, 8), behind=st.integers(1, 5))
def test_clients_have_what_their_shard_publishes(
    kind: str, size: int, bits: int, behind: int
) -> None:
    """From any version, as long as the differences are shorter than the block."""
    plan, layout = plan_of(bits, **KINDS[kind]), layout_of(size)
    delta = made(plan, layout)
    published, codes = walk(plan, layout, 5)
    assert {len(each) for each in codes} == {delta.length}
    payload = b"".join(codes[5 - behind :])
    if behind > delta.behind:
        with pytest.raises(Malformed):
            delta.follow(published[5 - behind], payload, 10)
        return
    assert len(payload) < 4 * size
    assert delta.follow(published[5 - behind], payload, 10).tobytes() == published[5].tobytes()


def test_of_a_part_nothing_else_moves_and_nothing_else_is_sent() -> None:
    plan, layout = plan_of(4, **KINDS["a part"]), layout_of(4096)
    published, codes = walk(plan, layout, 1)
    base = payload_digest(published[0].tobytes())
    places = block_code(plan, layout, 0, 5, base).places
    assert places is not None
    moved = np.flatnonzero(published[0] != published[1])
    assert 0 < moved.size <= 1024
    assert set(moved) <= set(places)
    assert len(codes[0]) == 2 + 1024 // 2
    momentum = plan_of(4, **KINDS["a part, and momentum"])
    assert made(momentum, layout).length == 8 + 4096 // 2, "which moves the others, too"


def test_the_scale_of_a_clip_goes_as_it_is() -> None:
    plan = adaptive_plan("distributed", group=[group() | {"pull_bits": 2}])
    layout = GroupLayout("all", (SCALE,), 20, 10)
    last, other = made(plan, layout, 1), made(plan, layout, 0)
    assert (last.scaled, other.scaled) == (True, False)
    before, exact = np.zeros(10, np.float32), np.full(10, 1 / 3, np.float32)
    values = exact.copy()
    codes = last.publish(values, before, None).tobytes()
    assert len(codes) == last.length == 1 + 2 * 2 + 4
    assert values[-1] == exact[-1]
    assert (values[:-1] != exact[:-1]).all()
    assert last.follow(before, codes, 1).tobytes() == values.tobytes()


def test_a_block_that_is_shorter_than_a_difference_goes_whole() -> None:
    """A difference would have nine bytes, the value four."""
    assert made(plan_of(8), layout_of(1)).length == 9
    assert bytes_down(plan_of(8), layout_of(1, 3)) == 12
    assert bytes_down(plan_of(8), layout_of(1000, 3)) == 3 * (2 + 1000)


def test_without_pull_bits_blocks_go_whole() -> None:
    assert block_delta(plan_of(None), layout_of(10), 0) is None
    assert "pull_bits" not in plan_of(None).text, "run ids of before are as they were"


@pytest.mark.parametrize("length", [0, 1, -1, 3])
def test_what_is_no_difference_is_refused(length: int) -> None:
    delta = made(plan_of(8), layout_of(1000))
    assert delta.behind == 3
    wrong = {0: 0, 1: delta.length + 1, -1: delta.length - 1, 3: 4 * delta.length}[length]
    with pytest.raises(Malformed, match="no differences of 1000 values"):
        delta.follow(np.zeros(1000, np.float32), bytes(wrong), 9)
    with pytest.raises(Malformed):  # version 0 follows none
        delta.follow(np.zeros(1000, np.float32), bytes(delta.length), 0)
