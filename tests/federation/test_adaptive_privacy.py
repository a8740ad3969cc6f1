"""Privacy: an adaptive clip is the same for everybody, and charged with the release."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.update import Trained, Update, difference
from secureps.client.worker import ClientWorker, make_update
from secureps.codec.grid import Grid
from secureps.crypto.sampling import UnsafeSeed
from secureps.crypto.suite import cipher
from secureps.errors import Malformed, PlanRefused
from secureps.messages import orders, requests
from secureps.messages.encoding import payload_digest
from secureps.messages.records import RunPinned
from secureps.messages.run import Schema, TensorSpec
from secureps.messages.submission import FOUNDING
from secureps.model.layout import SCALE
from secureps.policy.plan import Plan
from secureps.privacy.mechanism import clip_l2
from secureps.roles.coordinator.group import Phase
from secureps.roles.member.tasks import Aim
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import ShardState
from secureps.run.report.version_metrics import Metrics
from secureps.run.simulate.simulation import Conditions
from secureps.service.shard.worker import ShardNoise
from secureps.store.spool import MemorySpool
from tests.kits.cipher_kit import PLACE
from tests.kits.explained import explain
from tests.kits.federations import layout_of, same, small_federation, status_of
from tests.kits.privacy_kit import (
    PRIVACY,
    SIGMAS,
    VALUES,
    Still,
    adaptive_plan,
    group,
    least_cipher,
    private_plan,
    scales,
)
from tests.kits.roles_kit import (
    ADDRESSES,
    SCHEMA,
    SHARDS,
    World,
    make_cohort,
    make_placement,
    make_plan,
    make_run,
    refused,
)
from tests.kits.sealed_blocks import drawn, made_of
from tests.kits.shard_kit import Desk
from tests.kits.shard_kit import refused as refused_by_shard

PLACEMENTS = ["local", "distributed", "aggregator"]


# --- the same everywhere --------------------------------------------------------------


@pytest.mark.slow
def test_every_cipher_gives_the_same_model_and_clip(tmp_path: Path) -> None:
    """Noise that shards add, and differences that clients pull, too; all are killed under bfv."""
    models, clips = [], []
    for name in ("plain", "bfv", "rlwe"):
        plan = adaptive_plan("aggregator", name, group=[group(pull_bits=3)])
        simulation = small_federation(plan, tmp_path / name)
        if name == "bfv":
            state = simulation.coordinator.federation.groups["all"]
            simulation.run(lambda: state.version == 2 and state.phase is Phase.PREPARING)  # noqa: B023
            for party in list(simulation.parties):
                simulation.kill(party)
                simulation.start(party)
        simulation.run()
        models.append(simulation.model())
        clips.append(scales(simulation))
    assert same(*models[:2])
    assert same(*models[1:])
    assert clips[0] == clips[1] == clips[2]
    assert sorted(clips[0]) == [0, 1, 2, 3, 4]
    assert clips[0][0] == 1.0
    assert len(set(clips[0].values())) == 5


@pytest.mark.slow
def test_a_lost_version_is_made_again_at_its_scale(tmp_path: Path) -> None:
    """Also by the shard that was only told the scale."""
    plan = adaptive_plan("distributed", checkpoint_every=4)
    unharmed = small_federation(plan, tmp_path / "unharmed")
    unharmed.run()
    play = small_federation(plan, tmp_path / "harmed")
    play.run(lambda: play.versions() == {"all": 3})
    for shard in ("shard-0", "shard-1"):
        play.kill(shard)
        lost = list((tmp_path / "harmed" / shard).rglob("*-00000[23].safetensors"))
        assert lost
        for path in lost:
            path.unlink()
        play.start(shard)
    play.run()
    assert same(play.model(), unharmed.model())
    assert scales(play) == scales(unharmed)


# --- what is sent and what comes of it ------------------------------------------------


def test_a_mean_is_in_the_units_of_the_model(tmp_path: Path) -> None:
    """Wherever the clip is, an update that passes whole moves the model by itself."""
    sent: dict[tuple[str, int], NDArray[np.float32]] = {}
    adaptive = {"least": 2.0**-10, "rate": 1.0}
    optimizer = {"name": "sgd", "learning_rate": 1.0}
    privacy = PRIVACY | {"placement": "local", "noise_multiplier": 1e-5, "budget": 1e15}
    wanted = group(adaptive=adaptive, clip=10.0, optimizer=optimizer, bits=24)
    plan = adaptive_plan("local", "plain", group=[wanted], privacy=privacy, versions=3)
    simulation = small_federation(plan, tmp_path)
    keep = make_update

    def kept(made: Trained) -> Update:
        delta = difference(made.layout, made.published, made.model)
        sent[made.party, round(math.log(made.scale or 0) * -2)] = delta(0, made.layout.size)
        return keep(made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secureps.client.worker.make_update", kept)
        models = []
        for version in range(4):
            simulation.run(lambda: simulation.versions() == {"all": version})  # noqa: B023
            models.append(simulation.model())
    found = scales(simulation)
    assert found[2] == pytest.approx(math.exp(-1), rel=1e-2)
    for version in (1, 2):
        deltas = [delta for (_, at), delta in sent.items() if at == version]
        assert len(deltas) == 6
        mean = np.mean([d[:-1].astype(float) for d in deltas], axis=0)
        after, before = models[version + 1], models[version]
        moved = np.concatenate([(after[n].astype(float) - before[n]).ravel() for n in before])
        assert moved == pytest.approx(mean, abs=3e-4)


def test_a_still_clip_is_the_fixed_one_under_the_enlarged_noise(tmp_path: Path) -> None:
    """Rate 0: what is sealed is the fixed clip's update with an indicator behind, under noise of
    zeta times the enlarged norm, bit for bit; and what is made of it is the plain mean."""
    plan = adaptive_plan(
        "local",
        "plain",
        group=[group(adaptive={"rate": 0.0}, optimizer={"name": "sgd", "learning_rate": 1.0})],
        versions=1,
    )
    updates: dict[str, NDArray[np.float32]] = {}
    keep = make_update

    def kept(made: Trained) -> Update:
        delta = difference(made.layout, made.published, made.model)
        updates[made.party] = delta(0, made.layout.size - 1)
        return keep(made)

    simulation = small_federation(plan, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secureps.client.worker.make_update", kept)
        simulation.run(lambda: simulation.versions() == {"all": 0})
        before = simulation.model()
        simulation.run()
    assert set(scales(simulation).values()) == {1.0}
    enlarged = plan.mechanism("all", VALUES + 1)
    assert enlarged is not None
    assert enlarged.clip == pytest.approx(math.sqrt(1 + 0.25**2), rel=1e-7)
    total = np.zeros(VALUES + 1, dtype=np.int64)
    for name, update in updates.items():
        clipped, norm = clip_l2(update, 1.0)
        joint = np.append(clipped, np.float32(0.25 if norm <= 1.0 else -0.25))
        own = simulation.parties[name].worker
        assert isinstance(own, ClientWorker)
        total += drawn(own, Aim("all", 0, 1), made_of(joint), 1)
    mean = Grid(16, enlarged.range).weighted_mean(total, Fraction(6), 6)
    flat = np.concatenate([before[n].ravel() for n in ("body.weight", "head.bias")])
    expected = (
        layout_of(simulation).group("all").unflatten(np.append(flat + mean[:-1], np.float32(1)))
    )
    assert same(simulation.model(), expected)


# --- what it spends -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_count_is_published_under_noise_and_never_without(
    placement: str, tmp_path: Path
) -> None:
    """Everybody stands still, so all pass: what is seen of the count is the noise on it."""
    own, cipher = group(adaptive={"rate": 1.0}), least_cipher(placement)
    plan = adaptive_plan(placement, cipher, group=[own], versions=12)
    simulation = small_federation(plan, tmp_path, kind=Still)
    simulation.run()
    found, clip = scales(simulation), plan.adaptive("all")
    assert clip is not None
    steps = [math.log(found[v + 1] / found[v]) for v in range(12)]
    seen = np.array([clip.quantile - step for step in steps])  # shares of 6 who all passed
    mechanism = plan.mechanism("all", VALUES + 1)
    assert mechanism is not None
    parties = 1 if placement == "aggregator" else 6
    noise = math.sqrt(parties * mechanism.calibration.variance) * mechanism.calibration.step / 6
    noise /= 2 * clip.indicator
    assert abs(seen.mean() - 1) < SIGMAS * noise / math.sqrt(12)
    assert abs(seen.var() / noise**2 - 1) < SIGMAS * math.sqrt(2 / 12)


def test_the_shards_noise_covers_the_indicator() -> None:
    plan = make_plan(
        "plain",
        group=[group(rule={"quorum": 3, "minimum": 2})],
        privacy=PRIVACY | {"placement": "aggregator"},
    )
    layout, drawn = plan.layout(SCHEMA).group("all"), []
    last, tools = layout.blocks - 1, cipher(plan.cipher_parameters)
    state = ShardState(SHARDS[0])
    state.apply(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
    source = ShardNoise(SHARDS[0], state, MemorySpool(), UnsafeSeed(1), {})
    for number in range(400):
        sealed = source.seal(make_cohort(number=number), last)
        total = tools.adder().zero(layout.slots(last))
        tools.adder().add(total, sealed, 1)
        opened = tools.opener(PLACE, None).open(0, tools.adder().total(total), layout.slots(last))
        drawn.append(int(opened[-1]))
    mechanism = plan.mechanism("all", layout.size)
    assert mechanism is not None
    noise = np.array(drawn) - mechanism.most
    assert abs(noise.var() / mechanism.calibration.variance - 1) < SIGMAS * math.sqrt(2 / 400)


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


@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0, -1.0, 2000.0, None])
def test_a_scale_out_of_bounds_is_refused(scale: float | None) -> None:
    world = scaled_world()
    due = claimed(world, orders.Prepare)
    claim = dataclasses.replace(due.reply, scale=scale)
    refused(world, due.to, claim, Malformed, "the plan keeps it between")


def test_a_scale_that_a_shard_has_no_say_in_is_refused() -> None:
    """Of another shard's block, where the clip stays, and at the beginning."""
    adaptive, plain = scaled_world(), World(make_plan("plain"))
    plain.found()
    begun = Scaled(adaptive.plan)
    begun.start()
    for world, order, by_owner, scale, text in (
        (adaptive, orders.Prepare, False, 1.0, "has the scale of all"),
        (plain, orders.Prepare, True, 1.0, "has a clip that stays"),
        (begun, orders.Found, True, 2.0, "begins with a scale of 1, not 2"),
    ):
        due = claimed(world, order, by_owner)
        refused(world, due.to, dataclasses.replace(due.reply, scale=scale), Malformed, text)


def test_the_scale_goes_with_the_cohort_and_survives_a_restart() -> None:
    world = scaled_world()
    world.scale = 0.75
    world.until(1)
    assert world.group().scale == 0.75
    again = Scaled(world.plan, journal=tuple(world.journal))
    assert again.group().scale == 0.75
    world.until(Phase.HOLDING)
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
    simulation = small_federation(adaptive_plan("local", "plain"), tmp_path, conditions)
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
    noise = math.sqrt(5 * mechanism.calibration.variance) * mechanism.calibration.step / 5 / 0.5
    assert f"standard deviation of {noise:.2f} of it" in remark
    fixed = explain(private_plan("local"), {"all": VALUES})
    assert not any("clip begins" in remark for remark in fixed.remarks)


def test_status_and_metrics_show_the_clip_of_every_version(tmp_path: Path) -> None:
    plan = adaptive_plan("local", "plain", group=[group(clip=2.0)])
    simulation = small_federation(plan, tmp_path)
    metrics = Metrics(lambda line: None, True)
    simulation.run()
    metrics.take(simulation.coordinator.telemetry)
    for version in range(5):
        metrics.publish("all", version, 0.0, None)
    clips = {version: 2.0 * scale for version, scale in scales(simulation).items()}
    assert {line.version: line.record()["clip"] for line in metrics.lines} == clips
    assert status_of(simulation).groups[0].clip == clips[4]
