"""Clients pull differences between versions: the same bits everywhere, whatever goes wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.worker import ClientWorker
from secureps.messages.requests import Payload, Telemetry
from secureps.model.optimizer import EXACT
from secureps.policy.plan import Plan
from secureps.roles.member.tasks import Contribute
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.service.shard.worker import ShardWorker
from secureps.store.checkpoint import checkpoint_path
from tests.kits.federations import finished, same, small_federation, small_plan, unharmed
from tests.kits.shoppers import SYNC, shopping, sparse_plan
from tests.kits.thin_group import FED_BACK, RULE

GROUPS: dict[str, dict[str, Any]] = {
    "every value": {"range": 1.0, "clip": 3.0},
    "a part": FED_BACK,
}


def group(kind: str = "a part", bits: int = 4, **more: Any) -> dict[str, Any]:
    return GROUPS[kind] | {"most_examples": 32, "rule": RULE, "pull_bits": bits} | more


def plan(cipher: str = "plain", kind: str = "a part", bits: int = 4, **more: Any) -> Plan:
    return small_plan(cipher, **({"group": [group(kind, bits)], "versions": 4} | more))


class Traffic:
    """Payload bytes to every client, in the order in which they were sent."""

    def __init__(self) -> None:
        self.down: dict[str, list[int]] = {}
        self.told: list[float] = []

    def note(self, sender: str, to: str, message: Any) -> float:
        if isinstance(message, Payload):
            self.down.setdefault(to, []).append(len(message.payload))
        if isinstance(message, Telemetry):
            self.told += [f.value for f in message.figures if f.name == "bytes_down"]
        return 0.0


@pytest.mark.parametrize(
    ("kind", "whole", "delta"),
    [("every value", (64, 25), (1 + 32, 1 + 16)), ("a part", (64, 25), (1 + 8, 1 + 4))],
)
def test_what_clients_pull_after_the_first_version(
    kind: str, whole: tuple[int, int], delta: tuple[int, int], tmp_path: Path
) -> None:
    """Of three full blocks and a last one: 4 bytes for eight values, of all or of a quarter."""
    traffic = Traffic()
    small_federation(plan(kind=kind), tmp_path, Conditions(traffic.note)).run()
    for client in client_names(6):
        first, rest = traffic.down[client][:4], traffic.down[client][4:]
        assert sorted(first) == sorted([*(3 * [4 * whole[0]]), 4 * whole[1]])
        assert sorted(rest) == sorted(3 * [*(3 * [delta[0]]), delta[1]])
    assert traffic.told[-6:] == [3 * delta[0] + delta[1]] * 6, "and so they say"


def test_a_model_follows_what_its_clients_send(tmp_path: Path) -> None:
    """What rounding leaves over stays with the shard, and comes with a later version."""
    simulation = small_federation(plan(kind="every value", bits=5), tmp_path)
    simulation.run(lambda: finished(simulation))
    worker = simulation.parties["shard-0"].worker
    assert isinstance(worker, ShardWorker)
    before, last = (worker._states.values("all", version) for version in (3, 4))
    for block, values in last.values.items():
        left = np.abs(last.optimizer[block].slots[EXACT] - values).max()
        moved = np.abs(values - before.values[block]).max()
        assert 0 < left <= moved / 15


# --- who skips versions ---------------------------------------------------------------


def test_who_skips_versions_pulls_their_differences_one_after_another(tmp_path: Path) -> None:
    """A client trains while others make several versions."""
    rule, traffic = {"quorum": 5, "deadline": 10.0, "extensions": 1}, Traffic()
    own = plan(versions=12, checkpoint_every=4, group=[group(rule=rule)])

    def cost(who: str, task: object) -> float:
        return 35.0 if who == "client-05" and isinstance(task, Contribute) else 0.0

    simulation = small_federation(own, tmp_path, Conditions(traffic.note), cost=cost)
    simulation.run(lambda: finished(simulation))
    lengths = set(traffic.down["client-05"])
    assert lengths & {2 * 9, 3 * 9, 4 * 9}, "several differences in one payload"


def test_row_blocks_of_a_table(tmp_path: Path) -> None:
    """Each has versions of its own, and a client pulls those that it touches."""
    models = []
    for cipher in ("plain", "rlwe"):
        made = sparse_plan(cipher, SYNC).section
        groups = tuple(each.model_copy(update={"pull_bits": 4}) for each in made.group)
        simulation, _ = shopping(Plan(made.model_copy(update={"group": groups})), tmp_path / cipher)
        simulation.run()
        models.append(simulation.model())
    assert same(*models)


# --- disks ----------------------------------------------------------------------------


def test_a_shard_makes_its_files_again_with_the_same_differences(tmp_path: Path) -> None:
    simulation = small_federation(plan(checkpoint_every=4), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 3})
    simulation.kill("shard-0")
    files = sorted((tmp_path / "shard-0" / "states").glob("*.safetensors"))
    assert len(files) >= 3
    for path in files[1:]:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    simulation.start("shard-0")
    simulation.run()
    assert same(simulation.model(), unharmed(plan=plan)[0])


def test_a_shard_that_lost_its_disk_serves_blocks_until_there_are_differences_again(
    tmp_path: Path,
) -> None:
    """It goes on from its part of a checkpoint, which has what its optimizer made, too."""
    traffic = Traffic()
    simulation = small_federation(plan(versions=6), tmp_path, Conditions(traffic.note))
    part = checkpoint_path(simulation.checkpoints, 3) / "shard-0.safetensors"
    simulation.run(part.is_file)
    simulation.kill("shard-0")
    simulation.lose("shard-0")
    simulation.start("shard-0")
    simulation.run()
    assert same(simulation.model(), unharmed(versions=6, plan=plan)[0])
    assert set(traffic.down["client-00"][-4:]) == {5, 9}


# --- who lies -------------------------------------------------------------------------


def spoilt(simulation: Simulation) -> None:
    """Differences that shard-0 serves of the model are changed."""
    worker = simulation.parties["shard-0"].worker
    right = worker.fetch

    def fetch(key: str) -> bytes | memoryview:
        found = bytes(right(key))
        if not key.startswith("model/") or len(found) >= 40:
            return found
        return found[:-1] + bytes([found[-1] ^ 1])

    worker.fetch = fetch  # type: ignore[method-assign]


def test_a_wrong_difference_changes_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    simulation = small_federation(plan(), tmp_path)
    spoilt(simulation)
    with caplog.at_level(logging.INFO, "secureps"):
        simulation.run(lambda: finished(simulation))
    assert same(simulation.model(), unharmed(plan=plan)[0])
    text = "differences were asked for, and now the whole block is"
    told = [line for line in caplog.messages if text in line]
    assert {line.split(":")[0] for line in told} == set(client_names(6))
    blocks = len({line.split()[2] for line in told})
    assert len(told) == 6 * 3 * blocks, "once for each block and each version after the first"


def test_a_client_keeps_no_more_than_it_needs(tmp_path: Path) -> None:
    """The blocks that differences are from, until the new ones are there."""
    simulation = small_federation(plan(), tmp_path)
    most = 0

    def over() -> bool:
        nonlocal most
        worker = simulation.parties["client-00"].worker
        assert isinstance(worker, ClientWorker)
        most = max(most, len(worker.pulled))
        return finished(simulation)

    simulation.run(over)
    assert most == 2 * 4
