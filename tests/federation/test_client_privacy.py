"""Client-level privacy through the whole protocol: the promised noise, once, and paid for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.sealing import whole as sealed_whole
from secureps.client.trainer import FitConfig, FitResult
from secureps.client.worker import ClientWorker
from secureps.errors import PlanRefused, Refused
from secureps.messages.orders import Open
from secureps.messages.submission import Cohort, SubmissionId, cohort_digest
from secureps.messages.submission import Member as Summed
from secureps.policy.spending import fact, spent
from secureps.roles.coordinator.group import Phase
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Aim, Contribute, Evaluate
from secureps.roles.shard.keys import noise_key
from secureps.run.simulate.simulation import Conditions
from secureps.store.spool import MemorySpool
from tests.kits.faults_kit import Drop, faulty
from tests.kits.federations import Tensors, Walker, same
from tests.kits.privacy_kit import (
    CLIENTS,
    PRIVACY,
    SIGMAS,
    Still,
    facts_of,
    federation,
    private_plan,
)
from tests.kits.roles_kit import SCHEMA
from tests.kits.sealed_blocks import made_of, whole


@pytest.mark.parametrize("placement", ["local", "aggregator"])
def test_the_same_noise_and_the_same_model_under_every_cipher(
    placement: str, tmp_path: Path
) -> None:
    models = []
    for cipher in ("plain", "bfv", "rlwe"):
        simulation = federation(private_plan(placement, cipher), tmp_path / cipher)
        simulation.run()
        models.append(simulation.model())
    assert same(*models[:2])
    assert same(*models[1:])


@cache
def unharmed_model(placement: str) -> Tensors:
    with TemporaryDirectory() as folder:
        unharmed = federation(private_plan(placement), Path(folder))
        unharmed.run()
        return unharmed.model()


@pytest.mark.parametrize("party", ["coordinator", "shard-0", "holder-0", "client-03"])
@pytest.mark.parametrize("placement", ["distributed", "aggregator"])
def test_a_kill_repeats_the_noise_that_was_drawn(
    placement: str, party: str, tmp_path: Path
) -> None:
    killed = federation(private_plan(placement), tmp_path)
    killed.run(lambda: killed.versions() == {"all": 2})
    killed.kill(party)
    killed.start(party)
    killed.run()
    assert same(killed.model(), unharmed_model(placement))


@pytest.mark.parametrize("cipher", ["bfv", "rlwe"])
def test_a_lost_sum_is_made_again_with_the_noise_that_was_drawn(
    cipher: str, tmp_path: Path
) -> None:
    unharmed = federation(private_plan("aggregator"), tmp_path / "unharmed")
    unharmed.run()
    spools = {name: MemorySpool() for name in ("shard-0", "shard-1")}
    conditions = Conditions(spool=lambda name: spools.get(name, MemorySpool()))
    plan = private_plan("aggregator", cipher)
    play = federation(plan, tmp_path / "harmed", conditions=conditions)
    group = play.coordinator.federation.groups["all"]
    play.run(lambda: (group.phase, group.version) == (Phase.OPENING, 1))
    lost = [
        (spool, key) for spool in spools.values() for key in spool.keys(f"sum/all/{group.number}/")
    ]
    sums = [(spool, key) for spool, key in lost if "/noise/" not in key]
    assert len(sums) == len(lost) - len(sums) > 0
    for spool, key in sums:
        spool.delete(key)
    play.run()
    assert same(play.model(), unharmed.model())
    assert all(fate.outcome == "durable" for fate in play.coordinator.federation.fates.values())
    assert not any(spool.keys("sum/all/0/") for spool in spools.values()), "noise is pruned too"


@pytest.mark.parametrize("placement", ["local", "distributed", "aggregator"])
def test_the_published_mean_has_the_promised_noise(placement: str, tmp_path: Path) -> None:
    """Forgotten, doubled or at the wrong scale, it would not pass."""
    plan = private_plan(placement, versions=1)
    simulation = federation(plan, tmp_path, (120, 120), Still)
    simulation.run(lambda: simulation.versions() == {"all": 0})
    before = simulation.model()
    simulation.run()
    after = simulation.model()
    moved = np.concatenate([(after[n].astype(float) - before[n]).ravel() for n in before])
    mechanism = plan.mechanism("all", moved.size)
    assert mechanism is not None
    parties = {"local": CLIENTS, "distributed": CLIENTS, "aggregator": 1}[placement]
    step = mechanism.calibration.step
    promised = parties * mechanism.share_variance * (step / CLIENTS) ** 2
    spread = SIGMAS * np.sqrt(2 / moved.size)
    assert abs(moved.var() / promised - 1) < spread
    assert abs(moved.mean()) < SIGMAS * np.sqrt(promised / moved.size)
    # sigma is zeta times the clip, or a little more for rounding; shares of 4 of 6 make it up
    sigma = {"local": 1.0, "distributed": 1 / 2, "aggregator": 1.0}[placement]
    assert mechanism.share_variance * step**2 == pytest.approx(sigma**2, rel=0.1)


def test_epsilon_is_that_of_the_releases(tmp_path: Path) -> None:
    plan = private_plan("distributed")
    simulation = federation(plan, tmp_path)
    simulation.run()
    ledger = simulation.coordinator.federation.ledger
    assert ledger.charges == ()
    expected = [fact(plan, "client-00", "all", 217, version) for version in range(4)]
    assert list(facts_of(ledger, "client-00")) == expected
    assert 0 < spent(plan, [e for e in expected if e is not None]) < 500
    machine = simulation.parties["client-00"].machine
    assert isinstance(machine, Member)
    assert facts_of(machine._ledger, "client-00") == facts_of(ledger, "client-00")


def test_fewer_than_the_honest_fail_the_version(tmp_path: Path) -> None:
    """Noise that was not added is never claimed: nothing is opened."""
    gone = {("client-04", "coordinator", "Submit", n): Drop() for n in range(2, 60)}
    gone |= {("client-05", "coordinator", "Submit", n): Drop() for n in range(2, 60)}
    conditions = Conditions(network=faulty(gone))
    simulation = federation(private_plan("distributed"), tmp_path, conditions=conditions)
    told: list[str] = []

    def given_up() -> bool:
        group = simulation.coordinator.federation.groups["all"]
        told.append(group.reason)
        return "given up" in group.reason

    simulation.run(given_up)
    assert "the minimum cohort is 5; nothing was opened" in told[-1]
    assert simulation.versions() == {"all": 1}
    assert "cohort" not in str(simulation.coordinator.federation.groups["all"].cohort)


def test_a_holder_opens_no_cohort_with_too_few_honest_members(tmp_path: Path) -> None:
    """The coordinator may forget the rule; the plan that the holder pinned does not."""
    simulation = federation(private_plan("distributed"), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    holder = simulation.parties["holder-0"].machine
    assert isinstance(holder, BfvHolder)
    object.__setattr__(holder._ledger._rules, "minimum", 1)
    members = tuple(Summed(SubmissionId(f"c{k}", "all", 9), 1, 1) for k in range(4))
    few = Cohort("all", 99, 2, 1, members)
    with pytest.raises(Refused, match="a cohort of 4 clients, and 5 or more are opened"):
        holder._ledger.check(Open(1, few, (), ()))


class Restless(Walker):
    """Never does the same twice, as an app that seeds from the operating system."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        result = super().fit(parameters, config)
        result.parameters["head.bias"] = result.parameters["head.bias"] + np.float32(self.fits)
        return result


@pytest.mark.parametrize(("kind", "repeats"), [(Walker, False), (Restless, True)])
def test_another_update_of_one_version_is_another_release_with_noise_of_its_own(
    kind: type[Walker], repeats: bool, tmp_path: Path
) -> None:
    """A round that was given up is trained for again: the same update costs nothing more."""
    gone = {(f"client-0{i}", "coordinator", "Submit", 3): Drop() for i in (4, 5)}
    gone |= {(f"client-0{i}", "coordinator", "Submit", n): Drop() for i in (4, 5) for n in (4, 5)}
    conditions = Conditions(network=faulty(gone))
    simulation = federation(private_plan("local"), tmp_path, kind=kind, conditions=conditions)
    simulation.run()
    ledger = simulation.coordinator.federation.ledger
    again = [r.attempt for r in facts_of(ledger, "client-00") if r.version == 2]
    assert again == list(range(len(again)))
    assert (len(again) > 1) is repeats
    worker = simulation.parties["client-00"].worker
    assert isinstance(worker, ClientWorker)
    update = np.zeros(217, dtype=np.float32)
    aim = Aim("all", 2, 0)
    first, same_again, other = (drawn(worker, aim, a, update) for a in (0, 0, 1))
    assert np.array_equal(first, same_again)
    assert not np.array_equal(first, other)


def drawn(worker: ClientWorker, aim: Aim, attempt: int, update: NDArray[np.float32]) -> Any:
    layout = worker._layout().group(aim.group)
    return whole(layout, worker._on_grid(aim, attempt, made_of(update), 1))


@pytest.mark.parametrize("at", [0, 216])
def test_noise_that_is_asked_for_again_is_that_of_the_same_integers_alone(
    at: int, tmp_path: Path
) -> None:
    """A client that forgot its attempts sends another update: the noise must not cancel."""
    simulation = federation(private_plan("local", block_size=64), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 0})
    worker = simulation.parties["client-00"].worker
    assert isinstance(worker, ClientWorker)
    plan, update = simulation.plan, np.zeros(217, np.float32)
    mechanism = plan.mechanism("all", 217)
    assert mechanism is not None
    aim, first = (
        Aim("all", 2, 0),
        drawn(worker, Aim("all", 2, 0), 0, update),
    )
    assert np.array_equal(first, drawn(worker, aim, 0, update))
    update[at] = 0.9
    sent = drawn(worker, aim, 0, update)
    moved = np.flatnonzero(np.abs(sent - first) > 0)
    assert len(moved) > 200, "the difference is the update, and no noise"


@pytest.mark.parametrize("kind", [Contribute, Evaluate])
def test_that_two_models_came_to_the_same_is_told_to_nobody(
    kind: type[Contribute] | type[Evaluate], tmp_path: Path
) -> None:
    """Whoever publishes two models for one version would learn it from `attempt`, exactly."""
    tasks = [(kind((), (model,), ()), 0) for model in (b"one", b"other", b"one", b"third")]
    assert attempts(tasks, tmp_path) == [0, 1, 0, 2]


def test_that_two_steps_of_a_model_came_to_the_same_is_told_to_nobody(tmp_path: Path) -> None:
    """A client whose steps are equal, as an empty one's, would be known by its equal noise."""
    task = Contribute((), (b"one",), ())
    assert attempts([(task, step) for step in (0, 1, 0, 2, 1)], tmp_path) == [0, 1, 0, 2, 1]


def test_an_updates_name_is_of_what_is_sealed_and_tells_nothing_of_what_is_not(
    tmp_path: Path,
) -> None:
    """The same for the same; another one of another version, step or noise, though all are zero."""
    simulation = federation(private_plan("local"), tmp_path)
    simulation.run()
    worker = simulation.parties["client-00"].worker
    assert isinstance(worker, ClientWorker)
    update, task = made_of(np.zeros(217, dtype=np.float32)), Contribute((), (b"one",), ())
    aims = [Aim("all", 2, 100), Aim("all", 2, 101), Aim("all", 3, 102), Aim("all", 2, 103, (), 1)]
    aims.append(Aim("all", 2, 104, (b"another",)))
    made = [sealed_whole(worker._contribution(task, aim, bytes(32), update, 1)) for aim in aims]
    names = [each.receipt.update for each in made if each is not None]
    assert names[0] == names[1]
    assert len(set(names)) == len(names) - 1 == 4
    wanted = [Aim("all", 2, 105, wanted=name) for name in (names[0], names[2])]
    again = [sealed_whole(worker._contribution(task, aim, bytes(32), update, 1)) for aim in wanted]
    assert [each is not None for each in again] == [True, False]


def attempts(tasks: Sequence[tuple[Contribute | Evaluate, int]], folder: Path) -> list[int]:
    """What a client's receipts say, whose updates all come to the same, of tasks at steps."""
    simulation = federation(private_plan("local"), folder)
    simulation.run()
    worker = simulation.parties["client-00"].worker
    assert isinstance(worker, ClientWorker)
    update = made_of(np.zeros(217, dtype=np.float32))
    found, known = list[int](), tuple[bytes, ...]()
    for task, step in tasks:
        aim = Aim("all", 2, 100, known, step)
        made = sealed_whole(worker._contribution(task, aim, bytes(32), update, 1))
        assert made is not None
        assert made.receipt.release is not None
        assert made.receipt.step == step
        found.append(made.receipt.release.attempt)
        known += () if made.content in known else (made.content,)
    return found


@pytest.mark.parametrize(
    ("group", "privacy", "cipher", "reason"),
    [
        ({"weighting": "examples"}, {}, "bfv", 'client-level privacy needs "uniform"'),
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


# --- noise on a shard's disk ------------------------------------------------------


@pytest.mark.parametrize(("cipher", "phase"), [("bfv", Phase.OPENING), ("plain", Phase.PREPARING)])
def test_noise_that_is_lost_with_its_sum(cipher: str, phase: Phase, tmp_path: Path) -> None:
    """In the clear it is made again; encrypted it would be another: the cohort is burnt."""
    plan = private_plan("aggregator", cipher, block_size=64)
    unharmed = federation(plan, tmp_path / "unharmed")
    unharmed.run()
    spools: dict[str, MemorySpool] = {}
    conditions = Conditions(spool=lambda name: spools.setdefault(name, MemorySpool()))
    play = federation(plan, tmp_path / "harmed", conditions=conditions)
    group, spool = play.coordinator.federation.groups["all"], spools["shard-0"]
    play.run(lambda: (group.phase, group.version) == (phase, 2))
    noise = next(key for key in spool.keys("sum/all/2/") if "/noise/" in key)
    spool.delete(noise.partition("/noise/")[0])
    spool.delete(noise)
    play.run()
    fates = play.coordinator.federation.fates.values()
    burnt = {fate.reason for fate in fates if fate.outcome == "dropped"}
    if cipher == "plain":
        assert burnt == set()
        assert same(play.model(), unharmed.model())
    else:
        (reason,) = burnt
        block = noise.split("/")[3]
        assert reason.endswith(f"shard-0: the noise of block {block} of cohort 2 of all is gone")
        assert not same(play.model(), unharmed.model()), "two cohorts never have the same noise"


@pytest.mark.parametrize("cipher", ["plain", "bfv"])
def test_no_noise_stays_that_no_sum_has(cipher: str, tmp_path: Path) -> None:
    plan = private_plan("aggregator", cipher, block_size=64)
    spools: dict[str, MemorySpool] = {}
    conditions = Conditions(spool=lambda name: spools.setdefault(name, MemorySpool()))
    play = federation(plan, tmp_path, conditions=conditions)
    group, spool = play.coordinator.federation.groups["all"], spools["shard-0"]
    play.run(lambda: (group.phase, group.version) == (Phase.HOLDING, 2))
    spool.delete(spool.keys("update/client-02/")[-1])  # after the first sums are made
    play.run()
    kept = {key.partition("/noise/")[0] for key in spool.keys("sum/") if "/noise/" in key}
    assert kept == {key for key in spool.keys("sum/") if "/noise/" not in key} != set()


def test_noise_that_is_torn_is_not_believed(tmp_path: Path) -> None:
    """It has no digest on record before its sum has one, and carries its own."""
    plan = private_plan("aggregator", "plain", block_size=64)
    unharmed = federation(plan, tmp_path / "unharmed")
    unharmed.run()
    spools: dict[str, MemorySpool] = {}
    conditions = Conditions(spool=lambda name: spools.setdefault(name, MemorySpool()))
    play = federation(plan, tmp_path / "harmed", conditions=conditions)
    group, spool = play.coordinator.federation.groups["all"], spools["shard-0"]
    play.run(lambda: (group.phase, group.version) == (Phase.HOLDING, 2))
    known = next(key for key in spool.keys("sum/all/1/") if "/noise/" in key)
    assert group.cohort is not None
    pinned = play.coordinator.federation.pinned
    assert pinned is not None
    about = cohort_digest(pinned.run.id, group.cohort)
    key = noise_key("all", 2, int(known.split("/")[3]), about)
    spool.put(key, spool.get(known)[:-1])
    play.run()
    assert same(play.model(), unharmed.model())
