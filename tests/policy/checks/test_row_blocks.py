"""Exactness: sparse tables in row-blocks have the same bits."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.messages.requests import GetBlock, PutBlock
from secureps.run.export import newest_model
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import same
from tests.kits.shoppers import BLOCK, BUFFERED, ENDS, SYNC, TASTES, cohorts, shopping, sparse_plan

SSP = {"name": "ssp", "slack": 1, "minimum": 3}
LOCKSTEP = {"name": "ssp", "slack": 0, "minimum": 3}


def played(cipher: str, rules: tuple[Any, Any], folder: Path) -> Simulation:
    simulation, _ = shopping(sparse_plan(cipher, *rules), folder)
    simulation.run()
    assert simulation.versions() == ENDS
    return simulation


@pytest.mark.slow
def test_each_group_has_its_rule_and_every_cipher_the_same_model(tmp_path: Path) -> None:
    rules = (BUFFERED, SSP)
    plain = played("plain", rules, tmp_path / "plain")
    sealed = played("rlwe-2-of-3", rules, tmp_path / "rlwe")
    assert same(plain.model(), sealed.model())
    for group in ENDS:
        named = [replace(each, committee=None) for each in cohorts(sealed, group)]
        assert cohorts(plain, group) == named
    exported = newest_model(sealed.checkpoints)
    assert exported.versions == ENDS
    assert same(exported.tensors, sealed.model())


def test_every_push_of_a_row_block_is_a_version_beside_a_tower_in_rounds(tmp_path: Path) -> None:
    simulation, _ = shopping(sparse_plan("plain", {"name": "async"}), tmp_path)
    simulation.run()
    assert simulation.versions() == {**ENDS, "table.3": 5}
    for k in range(4):
        assert [len(cohort.members) for cohort in cohorts(simulation, f"table.{k}")] == [1] * 5
    assert [len(cohort.members) for cohort in cohorts(simulation, "tower")] == [8] * 3


def test_what_too_few_touch_is_never_opened_and_never_changes(tmp_path: Path) -> None:
    simulation = played("plain", (BUFFERED, SYNC), tmp_path)
    assert cohorts(simulation, "table.3") == []
    founder = simulation._cast.trainers[simulation.coordinator.federation.founder]
    initial = founder.parameters(simulation._cast.seed.derive("initial").integer(63))
    rows, model = slice(3 * BLOCK, 4 * BLOCK), simulation.model()
    assert model["table"][rows].tobytes() == initial["table"][rows].tobytes()
    assert (model["table"][:BLOCK] != initial["table"][:BLOCK]).any()
    told = (
        "all versions are made (5 of table, 3 of tower), but of table.3: too few members touch it"
    )
    assert simulation.coordinator.federation.finished == told


class Wire:
    def __init__(self) -> None:
        self.pushed: Counter[tuple[str, str]] = Counter()
        self.pulled: Counter[tuple[str, str, int]] = Counter()

    def delay(self, sender: str, to: str, message: Any) -> float:
        if sender.startswith("client-") and isinstance(message, PutBlock):
            self.pushed[sender, message.header.group] += 1
        if sender.startswith("client-") and isinstance(message, GetBlock):
            self.pulled[sender, message.group, message.version] += 1
        return 0.0


def test_a_client_pushes_and_pulls_what_it_touches_and_no_block_twice(tmp_path: Path) -> None:
    wire = Wire()
    plan = sparse_plan("plain", BUFFERED)
    simulation, shoppers = shopping(plan, tmp_path, Conditions(delay=wire.delay))
    simulation.run()
    founder = simulation.coordinator.federation.founder
    for client, own in zip(client_names(len(TASTES)), TASTES):
        parts = {"tower", *(f"table.{k}" for k in own)}
        assert {group for name, group, _ in wire.pulled if name == client} == parts
        if client != founder:  # it offers all of version 0
            pushed = {group for name, group in wire.pushed if name == client}
            assert pushed == parts - {"table.3"}
    assert set(wire.pulled.values()) == {1}, "a block that did not change is not pulled again"
    stuck = {version for _, group, version in wire.pulled if group == "table.3"}
    assert stuck == {0}
    for shopper, own in zip(shoppers, TASTES):
        others = [k for k in range(4) if k not in own]
        for seen in shopper.seen:
            by_block = seen["table"].reshape(4, -1)
            assert not by_block[others].any()
            assert by_block[own].any(axis=1).all()


@pytest.mark.slow
def test_a_latecomer_who_touches_it_sets_a_row_block_going(tmp_path: Path) -> None:
    tastes = [*TASTES[:7], [0, 3]]
    simulation, _ = shopping(
        sparse_plan("plain", BUFFERED, {**SYNC, "quorum": 7}), tmp_path, tastes=tastes
    )
    simulation.kill("client-07")
    simulation.run(lambda: simulation.loop.now() > 4.0)
    assert "table.3: 2 members touch it, a cohort needs 3: it stays at 0" in simulation.reasons()
    simulation.start("client-07")
    simulation.run(lambda: simulation.loop.now() > 4.5)
    groups = simulation.coordinator.federation.groups
    waited = {name for name, group in groups.items() if group.awaits("client-07")}
    assert "table.3" in waited
    assert waited.isdisjoint({"table.1", "table.2"}), "it has nothing for these"
    simulation.run()
    assert simulation.versions() == {**ENDS, "table.3": 5}


VICTIMS = ("coordinator", "shard-0", "client-01", "coordinator", "shard-1")


def test_killed_parties_change_nothing(tmp_path: Path) -> None:
    undisturbed = played("plain", (LOCKSTEP, SYNC), tmp_path / "undisturbed").model()
    simulation, _ = shopping(sparse_plan("rlwe-2-of-3", LOCKSTEP), tmp_path / "killed")
    for victim, at in zip(VICTIMS, (1.3, 3.2, 5.1, 7.0, 9.1), strict=True):
        simulation.loop.call_later(at, partial(simulation.kill, victim))
        simulation.loop.call_later(at + 1.0, partial(simulation.start, victim))
    simulation.run()
    assert simulation.versions() == ENDS
    assert simulation.loop.now() > 10.1
    assert same(simulation.model(), undisturbed)


def test_zero_rows_are_pulled_by_nobody_who_has_none(tmp_path: Path) -> None:
    """A shopper without any row of the table trains the tower alone."""
    simulation, shoppers = shopping(
        sparse_plan("plain", BUFFERED), tmp_path, tastes=[*TASTES[:7], []]
    )
    simulation.run()
    assert simulation.versions()["tower"] == 3
    assert all(not seen["table"].any() for seen in shoppers[7].seen)
    members = [m.id.client for c in cohorts(simulation, "tower") for m in c.members]
    assert members.count("client-07") == 3
    assert np.isfinite(simulation.model()["table"]).all()
