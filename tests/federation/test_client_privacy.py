"""Privacy: client-level noise has the promised variance, and is paid for once."""

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.update import Update, difference
from secureps.client.worker import ClientWorker
from secureps.codec.grid import Grid
from secureps.crypto.sampling import UnsafeSeed
from secureps.crypto.suite import cipher
from secureps.errors import Malformed, PlanRefused
from secureps.messages import orders, requests
from secureps.messages.encoding import payload_digest
from secureps.messages.records import RunPinned
from secureps.messages.requests import Submit
from secureps.messages.run import Schema, TensorSpec
from secureps.messages.submission import FOUNDING
from secureps.model.layout import SCALE
from secureps.policy.plan import Plan
from secureps.privacy.mechanism import clip_l2
from secureps.roles.coordinator.group import Phase
from secureps.roles.member.tasks import Aim, Contribute, Evaluate
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import ShardState
from secureps.run.report.version_metrics import Metrics
from secureps.run.simulate.simulation import Conditions
from secureps.service.shard.worker import ShardNoise
from secureps.store.spool import MemorySpool
from tests.kits.cheats import journalled, until
from tests.kits.cipher_kit import PLACE
from tests.kits.explained import explain
from tests.kits.faults_kit import Drop, faulty
from tests.kits.federations import Walker, layout_of, same, small_federation, status_of, unharmed
from tests.kits.privacy_kit import (
    CLIENTS,
    PRIVACY,
    SIGMAS,
    VALUES,
    Restless,
    Still,
    adaptive_plan,
    facts_of,
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
from tests.kits.sealed_blocks import drawn, made_of, released
from tests.kits.shard_kit import Desk
from tests.kits.shard_kit import refused as refused_by_shard


def noisy(cipher: str = "plain", **changes: Any) -> Plan:
    """Shards add the noise, to four blocks."""
    return private_plan("aggregator", cipher, **({"block_size": 64} | changes))


@pytest.mark.parametrize("placement", ["local", "distributed", "aggregator"])
def test_the_published_mean_has_the_promised_noise(placement: str, tmp_path: Path) -> None:
    """Forgotten, doubled or at the wrong scale, it would not pass."""
    plan = private_plan(placement, least_cipher(placement), versions=1)
    simulation = small_federation(plan, tmp_path, kind=lambda i: Still(i, (120, 120)))
    simulation.run(lambda: simulation.versions() == {"all": 0})
    before = simulation.model()
    simulation.run()
    after = simulation.model()
    moved = np.concatenate([(after[n].astype(float) - before[n]).ravel() for n in before])
    mechanism = plan.mechanism("all", moved.size)
    assert mechanism is not None
    parties = {"local": CLIENTS, "distributed": CLIENTS, "aggregator": 1}[placement]
    step = mechanism.calibration.step
    promised = parties * mechanism.calibration.variance * (step / CLIENTS) ** 2
    spread = SIGMAS * np.sqrt(2 / moved.size)
    assert abs(moved.var() / promised - 1) < spread
    assert abs(moved.mean()) < SIGMAS * np.sqrt(promised / moved.size)
    # sigma is zeta times the clip, or a little more for rounding; shares of 4 of 6 make it up
    sigma = {"local": 1.0, "distributed": 1 / 2, "aggregator": 1.0}[placement]
    assert mechanism.calibration.variance * step**2 == pytest.approx(sigma**2, rel=0.1)


@pytest.mark.parametrize("kind", [Walker, Restless])
def test_a_round_that_was_given_up_is_answered_with_the_same_update(
    kind: type[Walker], tmp_path: Path
) -> None:
    """Nobody trains again for it, whether a training repeats its bits or not: it costs nothing."""
    gone = {(f"client-0{i}", "coordinator", "Submit", n): Drop() for i in (4, 5) for n in (3, 4, 5)}
    conditions = Conditions(network=faulty(gone))
    plan = private_plan("local", "plain")
    simulation = small_federation(plan, tmp_path, conditions, kind=kind)
    simulation.run()
    assert simulation.versions() == {"all": 4}
    ledger = simulation.coordinator.federation.ledger
    assert [r.version for r in facts_of(ledger, "client-00")] == [0, 1, 2, 3]
    arrived = [r.receipt for r in journalled(simulation, Submit)]
    names = [r.update for r in arrived if (r.id.client, r.version) == ("client-00", 2)]
    assert len(names) > 1 == len(set(names))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> ClientWorker:
    """A client's, once its run is over."""
    plan = private_plan("local", "plain", block_size=64)
    simulation = small_federation(plan, tmp_path_factory.mktemp("run"))
    simulation.run()
    found = simulation.parties["client-00"].worker
    assert isinstance(found, ClientWorker)
    return found


def test_the_same_update_has_the_same_noise_and_another_step_its_own(worker: ClientWorker) -> None:
    update = made_of(np.zeros(217, dtype=np.float32))
    aims = Aim("all", 2, 0), Aim("all", 2, 0), Aim("all", 2, 0, 1)
    first, same_again, other = (drawn(worker, aim, update, 1) for aim in aims)
    assert np.array_equal(first, same_again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("at", [0, 216])
def test_noise_that_is_asked_for_again_is_that_of_the_same_integers_alone(
    at: int, worker: ClientWorker
) -> None:
    """Were another update to leave for the same place, the noise would not cancel."""
    update = np.zeros(217, np.float32)
    first = drawn(worker, Aim("all", 2, 0), made_of(update), 1)
    assert np.array_equal(first, drawn(worker, Aim("all", 2, 0), made_of(update), 1))
    update[at] = 0.9
    sent = drawn(worker, Aim("all", 2, 0), made_of(update), 1)
    moved = np.flatnonzero(np.abs(sent - first) > 0)
    assert len(moved) > 200, "the difference is the update, and no noise"


@pytest.mark.parametrize("kind", [Contribute, Evaluate])
def test_that_two_models_came_to_the_same_is_told_to_nobody(
    kind: type[Contribute] | type[Evaluate], worker: ClientWorker
) -> None:
    """Whoever publishes two models for one version would learn it from what is sent."""
    version = 9 + (kind is Evaluate)
    update = made_of(np.zeros(217, dtype=np.float32))
    other, refused = made_of(np.full(217, 0.01, np.float32)), f"another update of version {version}"
    one, another = (f"{name} of version {version}".encode() for name in ("one", "another"))
    sent = [
        released(worker, kind((), (model,), ()), Aim("all", version, 100), each)
        for model, each in ((one, update), (another, update), (one, other), (one, update))
    ]
    assert [isinstance(each, str) and each.startswith(refused) for each in sent] == [
        *(False, True, True, False)
    ]


def test_an_updates_name_is_of_what_is_sealed_and_tells_nothing_of_what_is_not(
    worker: ClientWorker,
) -> None:
    """The same for the same; another one of another version, step or noise, though all are zero."""
    update = made_of(np.zeros(217, dtype=np.float32))
    aims = [Aim("all", 2, 100), Aim("all", 2, 101), Aim("all", 3, 102), Aim("all", 2, 103, 1)]
    made = [worker._draft(Contribute((), (), ()), aim, bytes(32), update, 1) for aim in aims]
    names = [each.receipt.update for each in made]
    assert names[0] == names[1]
    assert len(set(names)) == len(names) - 1 == 3
    assert made[0].row.update == made[1].row.update not in names, "it lies in the ledger alone"


@pytest.mark.parametrize(
    ("group", "privacy", "cipher", "reason"),
    [
        (
            {"weighting": "examples", "most_examples": 8},
            {},
            "bfv",
            'client-level privacy needs "uniform"',
        ),
        ({"range": 1.0}, {}, "bfv", "it follows from clip, bits and noise"),
        ({}, {"placement": "distributed"}, "plain", "shows every one: encrypt, or take local"),
        ({}, {"placement": "local", "honest": 3}, "bfv", "relies on nobody's share"),
        ({}, {"placement": "distributed", "honest": 6}, "bfv", "raise rule.minimum"),
    ],
)
def test_unsound_plans_are_refused(
    group: dict[str, Any], privacy: dict[str, Any], cipher: str, reason: str
) -> None:
    base = private_plan("local").section.group[0].model_dump()
    privacy = PRIVACY | {"placement": "local"} | privacy
    with pytest.raises(PlanRefused, match=reason):
        private_plan("local", cipher, group=[base | group], privacy=privacy)


def test_a_model_too_large_for_its_bits_is_refused_when_it_is_known() -> None:
    group = private_plan("local").section.group[0].model_dump() | {"bits": 4}
    with pytest.raises(PlanRefused, match="bits would do"):
        private_plan("local", group=[group], local=[]).layout(SCHEMA)


def test_the_shards_noise_takes_one_place_of_the_capacity() -> None:
    rule = {"quorum": 8, "most": 8}
    group = {"clip": 1.0, "weighting": "uniform", "rule": rule}
    with pytest.raises(PlanRefused, match="of which the shards' noise takes 1"):
        private_plan("aggregator", group=[group])
    private_plan("local", group=[group])


@pytest.mark.slow
@pytest.mark.parametrize(("cipher", "phase"), [("bfv", Phase.OPENING), ("plain", Phase.PREPARING)])
def test_noise_that_is_lost_with_its_sum(cipher: str, phase: Phase, tmp_path: Path) -> None:
    """In the clear it is made again; encrypted it would be another: the cohort is burnt."""
    spools: dict[str, MemorySpool] = {}
    conditions = Conditions(spool=lambda name: spools.setdefault(name, MemorySpool()))
    play, spool = small_federation(noisy(cipher), tmp_path, conditions), spools["shard-0"]
    until(play, phase, 2)
    noise = next(key for key in spool.keys("sum/all/2/") if "/noise/" in key)
    spool.delete(noise.partition("/noise/")[0])
    spool.delete(noise)
    play.run()
    fates = play.coordinator.federation.fates.values()
    burnt = {fate.reason for fate in fates if fate.outcome == "dropped"}
    if cipher == "plain":
        assert burnt == set()
        assert same(play.model(), unharmed(plan=noisy)[0])
    else:
        (reason,) = burnt
        block = noise.split("/")[3]
        assert reason.endswith(f"shard-0: the noise of block {block} of cohort 2 of all is gone")
        expected = unharmed(plan=noisy)[0]
        assert not same(play.model(), expected), "two cohorts never have the same noise"


PLACEMENTS = ["local", "distributed", "aggregator"]


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


def test_a_mean_is_in_the_units_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the clip is, an update that passes whole moves the model by itself."""
    sent: dict[tuple[str, int], NDArray[np.float32]] = {}
    monkeypatch.setattr("secureps.privacy.client_level.RATE", 1.0)
    optimizer = {"name": "sgd", "learning_rate": 1.0}
    privacy = PRIVACY | {"placement": "local", "noise_multiplier": 1e-5, "budget": 1e15}
    wanted = group(clip=10.0, optimizer=optimizer, bits=24)
    plan = adaptive_plan("local", "plain", group=[wanted], privacy=privacy, versions=3)
    simulation = small_federation(plan, tmp_path)
    keep = ClientWorker._make_update

    def kept(self: ClientWorker, aim: Aim, *made: Any) -> Update:
        published, trained, scale, _ = made
        at = self._site.name, round(math.log(scale) * -2)
        sent[at] = difference(self._layout().group(aim.group), published, trained)
        return keep(self, aim, *made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientWorker, "_make_update", kept)
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


def test_a_still_clip_is_the_fixed_one_under_the_enlarged_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rate 0: what is sealed is the fixed clip's update with an indicator behind, under noise of
    zeta times the enlarged norm, bit for bit; and what is made of it is the plain mean."""
    monkeypatch.setattr("secureps.privacy.client_level.RATE", 0.0)
    plan = adaptive_plan(
        "local",
        "plain",
        group=[group(optimizer={"name": "sgd", "learning_rate": 1.0})],
        versions=1,
    )
    updates: dict[str, NDArray[np.float32]] = {}
    keep = ClientWorker._make_update

    def kept(self: ClientWorker, aim: Aim, *made: Any) -> Update:
        delta = difference(self._layout().group(aim.group), *made[:2])
        updates[self._site.name] = delta[:-1]
        return keep(self, aim, *made)

    simulation = small_federation(plan, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientWorker, "_make_update", kept)
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
    grid = Grid(16, enlarged.range)
    mean = grid.mean(grid.decode_sum(total, 6), Fraction(6))
    flat = np.concatenate([before[n].ravel() for n in ("body.weight", "head.bias")])
    expected = (
        layout_of(simulation).group("all").unflatten(np.append(flat + mean[:-1], np.float32(1)))
    )
    assert same(simulation.model(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_count_is_published_under_noise_and_never_without(
    placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody stands still, so all pass: what is seen of the count is the noise on it."""
    monkeypatch.setattr("secureps.privacy.client_level.RATE", 1.0)
    own, cipher = group(), least_cipher(placement)
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
    source = ShardNoise(state, MemorySpool(), UnsafeSeed(1), {})
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
