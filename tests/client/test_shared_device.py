"""Clients that share a device: what one has no memory for changes nothing of the others.

Processes of their own share it in `benchmarks.gpu.neighbours`, which is played here by one.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu import neighbours
from secureps.client import device_update
from secureps.client import torch as torch_trainer
from secureps.client.torch import TorchTrainer
from secureps.client.update import Trained, Update
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ScriptFailed
from secureps.policy.plan import Plan
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Simulation
from tests.client.test_torch import mlp, records, trainer
from tests.kits.federations import finished, same, small_plan

CLIENTS = client_names(3)
GROUP = {
    "clip": 2.0,
    "bits": 8,
    "codec": ["rotate"],
    "most_examples": 64,
    "rule": {"quorum": 3, "minimum": 2, "deadline": 10.0},
}
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def plan_of(**rule: Any) -> Plan:
    group = GROUP | {"rule": dict(GROUP["rule"]) | rule}  # type: ignore[call-overload]
    return small_plan(versions=2, local=[], group=[group], training={"lr": 0.1, "local_steps": 3})


def played(folder: Path, plan: Plan, changed: dict[str, TorchTrainer] | None = None) -> Simulation:
    own = {name: trainer(train=records(20 + k, k)) for k, name in enumerate(CLIENTS)}
    simulation = Simulation(plan, Cast(own | (changed or {}), UnsafeSeed(3)), folder)
    simulation.run(lambda: finished(simulation))
    return simulation


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are made where models are trained."""
    monkeypatch.setattr(torch_trainer, "HELD_ON", {"cpu"})


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_clients_without_memory_for_an_update_change_no_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has none from the start of its updates on, another from their first block on."""
    expected = played(tmp_path / "roomy", plan_of()).model()
    made, rounded = device_update.device_update, device_update.DeviceVector.rounded

    def update(own: Trained, device: torch.device) -> Update | None:
        if own.party != CLIENTS[1]:
            return made(own, device)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_update, "clip_factor", full)
            return made(own, device)

    def full(*given: Any) -> Any:
        raise FULL

    def blocks(own: device_update.DeviceVector, *given: Any) -> Any:
        return (full if own._party == CLIENTS[2] else rounded)(own, *given)

    caplog.set_level(logging.INFO, logger="secureps")
    monkeypatch.setattr(device_update, "device_update", update)
    monkeypatch.setattr(device_update.DeviceVector, "rounded", blocks)
    assert same(played(tmp_path / "full", plan_of()).model(), expected)
    notes = [each for each in caplog.messages if "no memory left" in each]
    assert {note.partition(":")[0] for note in notes} == set(CLIENTS[1:])
    assert sum("this update is made on the host" in note for note in notes) == 2
    assert sum("the rest of it is made on the host" in note for note in notes) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_client_without_memory_to_train_ends_and_the_others_go_on(tmp_path: Path) -> None:
    class Full(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            raise FULL

    def large() -> nn.Module:
        return Full(*mlp().children())

    own = {CLIENTS[1]: trainer(large, records(21, 1))}
    simulation = played(tmp_path, plan_of(quorum=2), own)
    halt = simulation.parties[CLIENTS[1]].halted.result()
    assert halt.error is ScriptFailed
    assert "let fewer clients share it, or take device=cpu" in halt.reason


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_a_process_of_several_keeps_to_its_share_of_the_memory(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[Any]()

    class Counted:
        peak = 7

        def __init__(self, device: torch.device) -> None: ...

    def work(where: torch.device, tiny: bool) -> str:
        asked.append((str(where), tiny))
        return "ab"

    limit: Callable[..., None] = lambda *given: asked.append(given)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    monkeypatch.setattr(neighbours, "Memory", Counted)
    monkeypatch.setattr(neighbours, "work", work)
    neighbours.play([device, "full"], io.StringIO("go\n"))
    ready, told = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert json.loads(told)["peak"] == 7
    limits = [(neighbours.SHARE, torch.device(device))] if device != "cpu" else []
    assert asked == [*limits, *[(device, False)] * (1 + neighbours.TURNS)]
