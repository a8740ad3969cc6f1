"""What `secureps check` says of a plan is what the plan's own code does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from secureps.codec.grid import Grid
from secureps.crypto.suite import cipher
from secureps.messages.charge import Charge
from secureps.policy.explanation import explain
from secureps.policy.plan import load_plan
from secureps.privacy.accountant import epsilon
from tests.roles_kit import SCHEMA, make_plan, private_plan

DIGITS = load_plan(Path(__file__).parent.parent / "policies" / "digits.toml")
VALUES = 9610


@pytest.mark.parametrize("name", ["plain", "bfv"])
def test_bytes_are_those_of_the_sealed_blocks(name: str) -> None:
    plan = make_plan(name)
    layout = plan.layout(SCHEMA).group("all")
    (group,) = explain(plan, {"all": layout.size}).groups
    adder = cipher(plan.cipher_parameters).adder()
    sealed = sum(adder.block_bytes(layout.slots(b)) for b in range(layout.blocks))
    assert (group.bytes_up, group.blocks) == (sealed, layout.blocks)
    assert group.ratio == sealed / (4 * layout.size)
    assert group.bytes_down == 4 * layout.size
    assert group.step == Grid(16, 1.0).step
    assert group.cohort == (2, 4)


def test_epsilon_is_the_ledgers() -> None:
    price = explain(DIGITS, {"all": VALUES}).price
    assert price is not None
    charges = [Charge("me", "all", version, 3.66, 0.5, 8) for version in range(15)]
    assert price.epsilon_run == epsilon(charges, 1e-5) <= price.budget == 8.0
    assert price.epsilon_version == epsilon(charges[:1], 1e-5)
    assert price.versions == 15
    assert price.unit == "one record of a client, added or removed"


def test_a_budget_that_ends_the_run_early_is_told() -> None:
    privacy = DIGITS.section.privacy
    assert privacy is not None
    less = privacy.model_copy(update={"budget": 5.0})
    plan = type(DIGITS)(DIGITS.section.model_copy(update={"privacy": less}))
    price = explain(plan, {"all": VALUES}).price
    assert price is not None
    charges = [Charge("me", "all", version, 3.66, 0.5, 8) for version in range(15)]
    assert 0 < price.versions < 15
    assert epsilon(charges[: price.versions], 1e-5) <= 5.0
    assert epsilon(charges[: price.versions + 1], 1e-5) > 5.0


def test_the_noise_is_that_of_dp_sgd_on_the_mean() -> None:
    price = explain(DIGITS, {"all": VALUES}).price
    assert price is not None
    step = 4.0 * 3.66 * 0.3 / (0.5 * 512)
    expected = step * math.sqrt(8) / math.sqrt(5) / (16.0 / math.sqrt(VALUES))
    assert price.noise["all"] == pytest.approx(expected, rel=1e-12)


def test_groups_compose() -> None:
    rule = {"quorum": 3, "minimum": 2, "most": 4}
    groups = [{"name": n, "pattern": p, "rule": rule} for n, p in (("b", "bias"), ("w", "*"))]
    one = explain(private_plan(), {"all": 60}).price
    two = explain(private_plan(group=groups), {"b": 5, "w": 55}).price
    assert one is not None
    assert two is not None
    assert two.epsilon_version > one.epsilon_version


def test_who_sees_what_depends_on_the_cipher() -> None:
    sealed, plain = (explain(make_plan(name), {"all": 60}) for name in ("bfv", "plain"))
    assert [s.role for s in sealed.sights] == ["client", "coordinator", "shard", "key holder"]
    assert "a single update" in sealed.sights[2].never
    assert "every client's update" in plain.sights[2].sees
    assert "at least 1" in sealed.collusion
    assert plain.collusion == "nobody needs help: shards read every update"


def test_remarks_tell_what_costs_more_than_it_need() -> None:
    small = explain(make_plan("bfv"), {"all": 60})
    assert any("raise block_size" in remark for remark in small.remarks)
    assert any("no privacy" in remark for remark in small.remarks)
    large = explain(make_plan("plain", block_size=1 << 18), {"all": 1 << 20})
    assert not any("block_size" in remark for remark in large.remarks)
    few = explain(make_plan("plain", block_size=1 << 18), {"all": 60})
    assert any("fewer blocks than shards" in remark for remark in few.remarks)


def test_memory_counts_the_optimizer() -> None:
    rule = {"quorum": 3, "minimum": 2, "most": 4}
    state = {
        name: explain(
            make_plan("plain", group=[{"rule": rule, "optimizer": {"name": name}}]), {"all": 1000}
        ).shard_state
        for name in ("sgd", "momentum", "adam", "yogi")
    }
    assert state == {"sgd": 4000, "momentum": 8000, "adam": 12000, "yogi": 12000}
