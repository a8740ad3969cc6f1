"""Privacy: client-level noise has the promised variance, and is paid for once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.worker import ClientWorker
from secureps.errors import PlanRefused, Refused
from secureps.messages.orders import Open
from secureps.messages.requests import Submit
from secureps.messages.submission import Cohort, SubmissionId
from secureps.messages.submission import Member as Summed
from secureps.policy.plan import Plan
from secureps.roles.coordinator.group import Phase
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.member.tasks import Aim, Contribute, Evaluate
from secureps.run.simulate.simulation import Conditions
from secureps.store.spool import MemorySpool
from tests.kits.cheats import journalled, until
from tests.kits.faults_kit import Drop, faulty
from tests.kits.federations import Walker, same, small_federation, unharmed
from tests.kits.privacy_kit import (
    CLIENTS,
    PRIVACY,
    SIGMAS,
    Restless,
    Still,
    facts_of,
    least_cipher,
    private_plan,
)
from tests.kits.roles_kit import SCHEMA
from tests.kits.sealed_blocks import drawn, made_of, released


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


def test_a_holder_opens_no_cohort_with_too_few_honest_members(tmp_path: Path) -> None:
    """The coordinator may forget the rule; the plan that the holder pinned does not."""
    simulation = small_federation(private_plan("distributed"), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    holder = simulation.parties["holder-0"].machine
    assert isinstance(holder, BfvHolder)
    object.__setattr__(holder._ledger._rules, "minimum", 1)
    members = tuple(Summed(SubmissionId(f"c{k}", "all", 9), 1, 1) for k in range(4))
    few = Cohort("all", 99, 2, 1, members)
    with pytest.raises(Refused, match="a cohort of 4 clients, and 5 or more are opened"):
        holder._ledger.check(Open(1, few, (), ()))


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


# --- noise on a shard's disk ------------------------------------------------------


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
