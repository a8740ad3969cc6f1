"""The whole protocol in one process: exact under every cipher, every fault and every kill."""

from pathlib import Path

import numpy as np
import pytest

from secureps.errors import InternalError
from secureps.messages.encoding import digest
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.store.checkpoint import load_newest
from secureps.store.spool import DiskSpool
from tests.kits.federations import Walker, finished, small_federation, small_plan


@pytest.mark.slow
def test_what_never_happens_is_not_waited_for_after_the_end(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("plain"), tmp_path)
    simulation.run()
    end = "the simulation stands still: after the end of the run, all 4 versions are made"
    with pytest.raises(InternalError, match=end):
        simulation.run(lambda: False)


def test_every_client_contributes_once_to_every_version(tmp_path: Path) -> None:
    simulation = small_federation(small_plan(), tmp_path)
    simulation.run()
    fates = simulation.coordinator.federation.fates
    updates = [(id.client, fate.version) for id, fate in fates.items() if fate.version > 0]
    assert len(updates) == len(set(updates)) == 6 * 4
    assert {fate.outcome for fate in fates.values()} == {"durable"}
    marked = load_newest(simulation.checkpoints)[1].unsafe
    assert marked == tuple(sorted(f"client-{i:02d}" for i in range(6))), "their seed is known"


def test_the_model_is_what_the_formulas_say(tmp_path: Path) -> None:
    """One version of plain SGD against the weighted mean computed here in float64."""
    from secureps.client.trainer import FitConfig
    from secureps.crypto.sampling import UnsafeSeed

    rule = {"quorum": 6, "deadline": 10.0}
    group = {"clip": 100.0, "range": 1.0, "bits": 24, "most_examples": 32, "rule": rule}
    plan = small_plan(versions=1, group=[group])
    simulation = small_federation(plan, tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 0})
    whole = digest("secureps-base", *simulation.coordinator.federation.groups["all"].blocks)
    simulation.run()
    model = simulation.model()
    seed = UnsafeSeed(3)
    base = Walker(0).parameters(seed.derive("initial").integer(63))
    total, mean = 0, np.zeros((30, 7))
    for number in range(6):
        labels = ("fit", f"client-{number:02d}", "all", 0, whole)
        config = FitConfig({"all": 0}, seed.derive(*labels).integer(63), {})
        result = Walker(number).fit(dict(sorted(base.items())), config)
        moved = result.parameters["body.weight"].astype(np.float64)
        mean += result.examples * (moved - base["body.weight"])
        total += result.examples
    expected = base["body.weight"] + mean / total
    # 24 bits of grid over [-1, 1], six roundings of a step each, weights of 2^-24.
    assert np.abs(model["body.weight"].astype(np.float64) - expected).max() < 1e-5


def test_a_secret_seed_is_not_marked(tmp_path: Path) -> None:
    from secureps.crypto.sampling import SecretSeed

    trainers = {f"client-{i:02d}": Walker(i) for i in range(6)}
    cast = Cast(trainers, SecretSeed.from_os())
    simulation = Simulation(small_plan(versions=1), cast, tmp_path)
    simulation.run()
    assert simulation.versions() == {"all": 1}
    assert simulation.coordinator.federation.unsafe == set()
    assert load_newest(simulation.checkpoints)[1].unsafe == ()


@pytest.mark.slow
@pytest.mark.parametrize("cipher", ["bfv", "rlwe"])
def test_stores_do_not_grow_with_versions(cipher: str, tmp_path: Path) -> None:
    """Spools and outboxes forget what is durable."""
    conditions = Conditions(spool=lambda name: DiskSpool(tmp_path / "spool" / name))
    simulation = small_federation(small_plan(cipher, versions=8), tmp_path, conditions)
    counts: list[int] = []

    def count() -> bool:
        if simulation.versions()["all"] > len(counts):
            held = [len(DiskSpool(tmp_path / "spool" / n).keys()) for n in simulation.parties]
            counts.append(sum(held))
        return finished(simulation)

    simulation.run(count)
    assert max(counts[5:]) <= max(counts[1:5])
