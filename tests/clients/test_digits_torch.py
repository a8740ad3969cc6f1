import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig, Trainer
from secureps.errors import ConfigError
from tests.kits.nursery import ROOT
from tests.kits.trainer_kit import check_trainer

SCRIPT = ROOT / "clients" / "digits_torch.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    Script(SCRIPT)
    return sys.modules[SCRIPT.stem]


def rows(task: Any) -> set[bytes]:
    return {row.numpy().tobytes() for row in task.x}


def test_holders_share_the_training_part_and_nobody_has_the_held_out_set(
    script: ModuleType,
) -> None:
    holders = [script.make({"partition": str(i)}) for i in range(6)]
    world = script.make_evaluator({})
    parts = [part for each in holders for part in (rows(each._train), rows(each._held_out))]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 1438
    assert set.union(*parts) == rows(world._train)
    assert not set.union(*parts) & rows(world._held_out)
    for each in holders:
        total = len(each._train) + len(each._held_out)
        assert total >= 100
        assert len(each._held_out) / total == pytest.approx(0.15, abs=0.03)


def test_all_holders_start_from_one_model(script: ModuleType) -> None:
    one: Trainer = script.make({"partition": "0"})
    other: Trainer = script.make_evaluator({})
    first, second = one.parameters(5), other.parameters(5)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert sum(array.size for array in first.values()) == 64 * 128 + 128 + 128 * 10 + 10


def test_it_keeps_the_contract(script: ModuleType) -> None:
    config = FitConfig({"all": 0}, 1, {"lr": 0.1})
    check_trainer(lambda: script.make({"partition": "2", "device": "cpu"}), config)


@pytest.mark.slow
def test_central_training_is_the_upper_mark(script: ModuleType) -> None:
    result = script.central({})
    assert result.examples == 359
    assert result.metrics["accuracy"] > 0.95


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"partitoin": "1"}, "partitoin: unknown key; did you mean partition"),
        ({"partition": "6"}, "partition must be 0 to 5"),
        ({"partition": "-1"}, "partition must be 0 to 5"),
        ({"alpha": "much"}, "--set: alpha: must be a number"),
        ({"device": "abacus"}, "no usable device 'abacus'"),
    ],
)
def test_bad_settings_are_refused(
    script: ModuleType, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        script.make(settings)


@pytest.mark.parametrize(
    ("device", "limited"),
    [
        ("auto", [(0.25, None)]),
        ("cuda", [(0.25, None)]),
        ("cuda:1", [(0.25, "cuda:1")]),
        ("cpu", []),
        ("cpu:0", []),
    ],
)
def test_a_share_of_the_memory_is_asked_of_the_gpu_that_is_used(
    device: str,
    limited: list[tuple[float, str | None]],
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[tuple[float, str | None]]()
    monkeypatch.setattr(script, "TorchTrainer", lambda *_, device, persons: device)
    monkeypatch.setattr(script.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        script.torch.cuda, "set_per_process_memory_fraction", lambda *given: asked.append(given)
    )
    for memory in (1.0, 0.25):
        assert script.make({"partition": "0", "device": device, "memory": memory}) == device
    assert asked == limited


def test_more_than_all_of_the_memory_is_refused(script: ModuleType) -> None:
    with pytest.raises(ConfigError, match="memory"):
        script.make({"partition": "0", "device": "cpu", "memory": 1.5})


def test_a_script_that_nobody_started_with_torchrun_is_alone(script: ModuleType) -> None:
    script.join_ranks()
    assert not script.distributed.is_initialized()
