"""A plan's file of version 0: what a run cannot begin from is refused by its tensor's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from secureps.errors import ConfigError
from secureps.policy.plan import load_plan
from secureps.run.check import check
from secureps.run.initial_schema import initial_schema
from secureps.run.simulate.simulate import simulate
from tests.kits.whole_steps import SCRIPT, plan_text, unharmed

PLAN = """
initial = "start.safetensors"
name = "small"
versions = 4
local = ["mask"]
frozen = ["base"]
[cipher]
name = "plain"
capacity = 8
[[group]]
rule = { quorum = 6 }
"""


def model(**given: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    usual = {name: np.ones((2, 3), np.float32) for name in ("a", "base", "mask", "z")}
    return {**usual, **given}


def written(folder: Path, tensors: dict[str, NDArray[np.generic]]) -> Path:
    save_file(tensors, folder / "start.safetensors")
    (folder / "plan.toml").write_text(PLAN)
    return folder / "plan.toml"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e39])
def test_values_that_nobody_could_train_from_are_refused_before_a_run(
    wrong: float, tmp_path: Path
) -> None:
    values = np.ones(7)
    values[5] = wrong
    path = written(tmp_path, model(z=values))
    reason = r"initial: .*/start\.safetensors: tensor 'z' has values that are NaN, infinite or too"
    with pytest.raises(ConfigError, match=reason):
        check(path)
    with pytest.raises(ConfigError, match=reason):
        initial_schema(load_plan(path))


def test_what_stays_with_clients_may_be_anything(tmp_path: Path) -> None:
    masks = np.full((2, 3), -np.inf, np.float32)
    plan = load_plan(written(tmp_path, model(mask=masks, base=masks)))
    schema = initial_schema(plan)
    assert schema is not None
    assert [spec.name for spec in schema.tensors] == ["a", "base", "mask", "z"]


def test_a_simulation_begins_from_the_file(tmp_path: Path) -> None:
    save_file({"weight": np.full((30, 7), 5, np.float32)}, tmp_path / "start.safetensors")
    plan = plan_text("from-file", versions=2).replace(
        "name =", 'initial = "start.safetensors"\nname =', 1
    )
    (tmp_path / "plan.toml").write_text(plan)
    (tmp_path / "client.py").write_text(SCRIPT)
    scenario = 'name = "few"\nplan = "plan.toml"\nscript = "client.py"\nclients = 4\nseed = 1\n'
    (tmp_path / "scenario.toml").write_text(f"{scenario}[settings]\npace = 0.0\n")
    report = simulate(tmp_path / "scenario.toml", tmp_path / "report", lambda text: None)
    made = load_file(report / "model.safetensors")["weight"]
    assert np.array_equal(made, unharmed(2, range(4), start=5))
