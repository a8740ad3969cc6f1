"""Frozen tensors never travel, are the same at all clients, and leave the model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from secureps.client.script import Script
from secureps.client.trainer import FitConfig, FitResult
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import PlanRefused, ScriptFailed, SecurepsError, WrongShape
from secureps.messages import coordinator_records
from secureps.messages.encoding import file_digest
from secureps.policy.plan import Plan
from secureps.run.initial_schema import read_initial_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import Tensors, Walker, finished, same, small_plan, unharmed
from tests.kits.flower_apps import CLIENT_APP, write

FROZEN: dict[str, Any] = {"frozen": ["base.*"]}
CLIENTS = client_names(6)


class Adapter(Walker):
    """A walker with a base that it never moves, from `base`; its updates depend on the base."""

    def __init__(self, number: int, base: float = 1.5, moves: bool = False) -> None:
        super().__init__(number)
        self.base, self.moves = base, moves

    def parameters(self, seed: int) -> Tensors:
        base: Tensors = {
            "base.scale": np.full(3, self.base, np.float32),
            "base.seen": np.array(7, np.int64),
        }
        return base | super().parameters(seed)

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        base = {name: parameters.pop(name) for name in ("base.scale", "base.seen")}
        assert base["base.scale"].tolist() == [self.base] * 3
        assert base["base.seen"] == 7
        result = super().fit(parameters, config)
        if self.moves:
            base["base.scale"] = base["base.scale"] + np.float32(1e-6)
        return FitResult(
            {**base, **result.parameters}, result.examples, result.metrics, result.steps
        )


def federation(folder: Path, plan: Plan, other: Adapter | None = None, **more: Any) -> Simulation:
    """Six adapters on one base, the last of which is `other`."""
    trainers = {name: Adapter(i) for i, name in enumerate(CLIENTS)}
    if other is not None:
        trainers[CLIENTS[-1]] = other
    return Simulation(plan, Cast(trainers, UnsafeSeed(3)), folder, **more)


def five() -> Plan:
    """Five clients suffice for a version."""
    return small_plan(versions=2, rule={"quorum": 5}, **FROZEN)


def test_the_model_is_that_of_a_run_without_the_base(tmp_path: Path) -> None:
    """The same bits as without any base: it is in no update, no norm and no checkpoint."""
    played = federation(tmp_path / "frozen", small_plan(versions=2, **FROZEN))
    played.run()
    assert sorted(played.model()) == ["body.weight", "head.bias"]
    assert same(played.model(), unharmed(versions=2)[0])
    assert played.versions() == {"all": 2}


def test_a_client_with_another_base_is_refused_by_the_tensor(tmp_path: Path) -> None:
    other = Adapter(5, base=1.75)
    played = federation(tmp_path, five(), other)
    played.run(lambda: finished(played))
    assert other.fits == 0
    assert played.versions() == {"all": 2}
    journal = played._stores["coordinator"].journal
    joined = {
        record.client
        for _, record in journal.replay()
        if isinstance(record, coordinator_records.MemberJoined)
    }
    assert joined == {*CLIENTS[:5]}
    halt = played.parties[CLIENTS[-1]].halted.result()
    assert halt.error is WrongShape
    assert "base.scale is frozen, and has other values than the run's: make it from" in halt.reason


def test_a_trainer_that_moves_its_base_is_told(tmp_path: Path) -> None:
    played = federation(tmp_path, five(), Adapter(5, moves=True))
    played.run(lambda: finished(played))
    halt = played.parties[CLIENTS[-1]].halted.result()
    assert halt.error is ScriptFailed
    assert "base.scale was trained, and the plan has it frozen" in halt.reason


def test_a_file_of_version_0_has_the_base_too(tmp_path: Path) -> None:
    start = Adapter(0).parameters(11)
    path = tmp_path / "start.safetensors"
    save_file(start, path)
    made = small_plan(versions=2, initial=str(path), **FROZEN)
    plan = Plan(made.section, file_digest(path.read_bytes()).hex())
    schema = read_initial_schema(plan)
    assert schema is not None
    assert schema.valued == {"base.scale", "base.seen"}
    played = federation(tmp_path, plan, initial=schema)
    played.run()
    assert played.versions() == {"all": 2}


def test_a_file_without_the_base_is_no_start(tmp_path: Path) -> None:
    save_file(Walker(0).parameters(11), tmp_path / "start.safetensors")
    plan = small_plan(initial=str(tmp_path / "start.safetensors"), **FROZEN)
    with pytest.raises(PlanRefused, match=r"frozen: no tensor matches 'base\.\*'"):
        read_initial_schema(plan)


@pytest.mark.parametrize("moves", [False, True])
def test_a_frozen_array_never_travels_and_an_app_that_moves_it_is_told(
    moves: bool, tmp_path: Path
) -> None:
    source = CLIENT_APP if moves else CLIENT_APP.replace("bias + noise", "bias")
    script, plan = Script(write(tmp_path, source)), small_plan(versions=2, frozen=["*1"], local=[])
    trainers = {name: script.make({"partition": i}) for i, name in enumerate(CLIENTS)}
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path / "run")
    if moves:
        with pytest.raises(SecurepsError, match="was trained, and the plan has it frozen"):
            simulation.run()
        return
    simulation.run()
    assert [array.shape for array in simulation.model().values()] == [(30, 7)]
