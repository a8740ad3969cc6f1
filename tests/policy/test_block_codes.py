"""Every party with the published block draws the same code for it, and nobody earlier."""

from dataclasses import replace

import numpy as np

from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import block_code, block_codes
from secureps.policy.plan import Plan
from tests.kits.federations import small_plan

BASE = bytes(range(32))


def thin() -> Plan:
    chain = [{"name": "support", "one_in": 3}, "rotate"]
    return small_plan(group=[{"codec": chain, "rule": {"quorum": 6}}])


LAYOUT = GroupLayout("all", (), 1000, 400, None, 3)


def test_the_same_block_of_the_same_version_has_the_same_code() -> None:
    first, again = (block_code(thin(), LAYOUT, 1, 4, BASE) for _ in range(2))
    assert first.places is not None
    assert first.signs is not None
    assert first.sent == 134
    assert np.array_equal(first.places, again.places)  # type: ignore[arg-type]
    assert np.array_equal(first.signs, again.signs)  # type: ignore[arg-type]


def test_another_block_version_model_or_group_has_another_support() -> None:
    first = block_code(thin(), LAYOUT, 1, 4, BASE)
    others = [
        block_code(thin(), LAYOUT, 0, 4, BASE),
        block_code(thin(), LAYOUT, 1, 5, BASE),
        block_code(thin(), LAYOUT, 1, 4, bytes(32)),
    ]
    assert all(not np.array_equal(first.places, o.places) for o in others)  # type: ignore[arg-type]
    # without rounds a cohort has updates of several versions: they turn alike
    turned = [np.array_equal(first.signs, other.signs) for other in others]  # type: ignore[arg-type]
    assert turned == [False, True, True]


def test_without_rounds_all_members_of_a_cohort_send_the_same_values() -> None:
    """Members may have any base of the period: their shard decodes by the first."""
    rule = {"name": "buffered", "buffer": 3, "minimum": 3, "power": 0.0, "max_staleness": 3}
    stays = [{"name": "support", "one_in": 3}]
    plan = small_plan(group=[{"codec": stays, "rule": rule}])
    trained = ((3, b""), (4, BASE), (5, bytes(32)), (6, b""))
    codes = [block_code(plan, LAYOUT, 1, version, base) for version, base in trained]
    first, *others = (code.places.tolist() for code in codes if code.places is not None)
    assert [each == first for each in others] == [True, True, False]


def test_a_group_without_a_codec_sends_what_it_has() -> None:
    whole = replace(LAYOUT, one_in=None)
    found = list(map(block_codes(small_plan(), whole, 0, ()), range(whole.blocks)))
    assert [code.sent for code in found] == [400, 400, 200]
    x = np.arange(200, dtype=np.float32)
    assert np.array_equal(found[2].encode(x), x)
    assert np.array_equal(found[2].decode(x), x)


def test_a_layout_says_how_much_of_each_block_is_sent() -> None:
    assert [LAYOUT.slots(block) for block in range(3)] == [134, 134, 67]
    assert [LAYOUT.sent_span(block) for block in range(3)] == [(0, 134), (134, 268), (268, 335)]
    assert LAYOUT.sent == 335
