"""Adaptive clipping: who may say where the clip is, which plans have one, and what is told."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.errors import Malformed, PlanRefused
from secureps.messages import orders, requests
from secureps.messages.encoding import payload_digest
from secureps.messages.schema import Schema, TensorSpec
from secureps.messages.submission import FOUNDING
from secureps.model.layout import SCALE
from secureps.policy.plan import Plan
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Answer
from secureps.roles.shard.shard import Shard
from secureps.run.report.version_metrics import Metrics
from secureps.run.simulate.simulation import Conditions
from secureps.store.spool import MemorySpool
from tests.kits.explained import explain
from tests.kits.privacy_kit import (
    PRIVACY,
    VALUES,
    adaptive_plan,
    federation,
    group,
    private_plan,
    scales,
)
from tests.kits.roles_kit import SCHEMA, World, make_cohort, make_plan, refused
from tests.kits.shard_kit import Desk
from tests.kits.shard_kit import refused as refused_by_shard

# --- who may say what -----------------------------------------------------------------


class Scaled(World):
    """Parties by rote that know of scales: the shard of the last block says `scale`."""

    scale = 1.0

    def reply(self, to: str, order: Any) -> Any:
        made = super().reply(to, order)
        if isinstance(made, requests.Prepared) and to == self.federation.last_owners(made.group)[0]:
            return dataclasses.replace(made, scale=self.scale if made.version else 1.0)
        return made


def scaled_world() -> Scaled:
    rule = {"quorum": 3, "minimum": 2, "most": 4}
    privacy = PRIVACY | {"placement": "local"}
    world = Scaled(make_plan("plain", group=[group(rule=rule)], privacy=privacy))
    world.found()
    return world


def claimed(world: World, kind: type[Any], by_owner: bool = True) -> Any:
    """What the shard of the last block, or the other one, is about to answer to such an order."""
    while not any(isinstance(due.order, kind) for due in world.due):
        world.pump(1)
    owner = world.federation.last_owners("all")[0]
    answers = (due for due in world.due if isinstance(due.order, kind))
    return next(due for due in answers if (due.to == owner) is by_owner)


@pytest.mark.parametrize(
    ("scale", "reason"),
    [
        (math.nan, "the plan keeps it between"),
        (math.inf, "the plan keeps it between"),
        (0.0, "the plan keeps it between"),
        (-1.0, "the plan keeps it between"),
        (2000.0, "the plan keeps it between"),
        (None, "the plan keeps it between"),
    ],
)
def test_a_scale_out_of_bounds_is_refused(scale: float | None, reason: str) -> None:
    world = scaled_world()
    due = claimed(world, orders.Prepare)
    refused(world, due.to, dataclasses.replace(due.reply, scale=scale), Malformed, reason)


def test_a_scale_of_another_shard_is_refused() -> None:
    world = scaled_world()
    due = claimed(world, orders.Prepare, by_owner=False)
    claim = dataclasses.replace(due.reply, scale=1.0)
    refused(world, due.to, claim, Malformed, "has the scale of all")


def test_a_scale_where_the_clip_stays_is_refused() -> None:
    world = World(make_plan("plain"))
    world.found()
    due = claimed(world, orders.Prepare)
    claim = dataclasses.replace(due.reply, scale=1.0)
    refused(world, due.to, claim, Malformed, "has a clip that stays")


def test_a_run_begins_with_the_plans_clip() -> None:
    world = Scaled(scaled_world().plan)
    world.start()
    due = claimed(world, orders.Found)
    claim = dataclasses.replace(due.reply, scale=2.0)
    refused(world, due.to, claim, Malformed, "begins with a scale of 1, not 2")


def test_the_scale_goes_with_the_cohort_and_survives_a_restart() -> None:
    world = scaled_world()
    world.scale = 0.75
    while world.group().version < 1:
        world.pump(1)
    assert world.group().scale == 0.75
    again = Scaled(world.plan, journal=tuple(world.journal))
    assert again.group().scale == 0.75
    while world.group().phase is not Phase.HOLDING:
        world.pump(1)
    held = {o.cohort.scale for _, o in world.told if isinstance(o, orders.Hold)}
    assert held == {1.0, 0.75}


def test_a_shard_sums_no_cohort_of_a_scale_that_the_plan_has_not() -> None:
    desk = Desk().founded()
    cohort = dataclasses.replace(make_cohort(), scale=3.0)
    refused_by_shard(desk, "coordinator", desk.hold(cohort), Malformed, "a clip that stays")


def test_a_founder_cannot_choose_the_scale(tmp_path: Path) -> None:
    """Its blocks are in the clear and it signs them: a shard looks at the last value."""
    spools: dict[str, MemorySpool] = {}
    conditions = Conditions(spool=lambda name: spools.setdefault(name, MemorySpool()))
    simulation = federation(adaptive_plan("local", "plain"), tmp_path, conditions=conditions)
    simulation.run(lambda: simulation.versions() == {"all": 0})
    owner = simulation.coordinator.federation.last_owners("all")[0]
    shard, worker = simulation.parties[owner].machine, simulation.parties[owner].worker
    assert isinstance(shard, Shard)
    header = next(
        h
        for h in shard.state.spooled.values()
        if h.purpose == FOUNDING and h.block == shard.state.own("all")[-1]
    )
    values = np.frombuffer(spools[owner].get(header.key), dtype="<f4").copy()
    assert values[-1] == 1
    values[-1] = 2
    forged = dataclasses.replace(header, digest=payload_digest(values.tobytes()))
    with pytest.raises(Malformed, match="the founding model's last value is the clip's scale"):
        worker.take(requests.PutBlock(forged), values.tobytes())


# --- plans, and what is told ----------------------------------------------------------


def test_a_model_may_not_use_the_reserved_name() -> None:
    with pytest.raises(PlanRefused, match="which is reserved: rename it"):
        adaptive_plan("local").layout(Schema((SCALE,)))


def test_a_plan_without_it_has_the_text_and_layout_it_always_had() -> None:
    plan = private_plan("local")
    assert "adaptive" not in plan.text
    assert "adaptive" in adaptive_plan("local").text
    for each in (plan, adaptive_plan("local")):
        assert Plan.from_text(each.text).text == each.text
    whole = Schema((*SCHEMA.tensors, TensorSpec("batches.count", (), "int64")))
    assert not plan.layout(whole).group("all").scaled


def test_check_explains_what_it_does_and_costs() -> None:
    plan = adaptive_plan("local")
    told = explain(plan, {"all": VALUES + 1})
    (remark,) = [r for r in told.remarks if "the clip begins at 1 " in r]
    assert "until 0.5 of the updates are shorter" in remark
    assert "the noise 3.1% larger than a fixed clip's" in remark
    mechanism = plan.mechanism("all", VALUES + 1)
    assert mechanism is not None
    noise = math.sqrt(5 * mechanism.share_variance) * mechanism.calibration.step / 5 / 0.5
    assert f"standard deviation of {noise:.2f} of it" in remark
    fixed = explain(private_plan("local"), {"all": VALUES})
    assert not any("clip begins" in remark for remark in fixed.remarks)


def test_status_and_metrics_show_the_clip_of_every_version(tmp_path: Path) -> None:
    simulation = federation(adaptive_plan("local", "plain", group=[group(clip=2.0)]), tmp_path)
    metrics = Metrics(lambda line: None, True)
    simulation.run()
    metrics.take(simulation.coordinator.telemetry)
    for version in range(5):
        metrics.publish("all", version, 0.0, None)
    clips = {version: 2.0 * scale for version, scale in scales(simulation).items()}
    assert {line.version: line.record()["clip"] for line in metrics.lines} == clips
    now = simulation.loop.now()
    step = simulation.coordinator.handle(now, "client-00", requests.AskStatus())
    (status,) = [e.message for e in step.effects if isinstance(e, Answer)]
    assert isinstance(status, requests.Status)
    assert status.groups[0].clip == clips[4]
