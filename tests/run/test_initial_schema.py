"""A plan's file of version 0: what a run cannot begin from is refused by its tensor's name."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from secureps.client.initial_model import read_initial
from secureps.errors import ConfigError
from secureps.policy.plan import load_plan
from secureps.run.check import Permit, check
from secureps.run.initial_schema import read_initial_schema
from tests.kits.whole_steps import SCRIPT, plan_text

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
        read_initial_schema(load_plan(path))


def test_what_stays_with_clients_may_be_anything(tmp_path: Path) -> None:
    masks = np.full((2, 3), -np.inf, np.float32)
    plan = load_plan(written(tmp_path, model(mask=masks, base=masks)))
    schema = read_initial_schema(plan)
    assert schema is not None
    assert [spec.name for spec in schema.tensors] == ["a", "base", "mask", "z"]


def test_bfloat16_is_float32_of_the_same_values(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -0.1, 3e38, 2**-130], dtype=torch.bfloat16)
    save_torch({"weight": values.expand(30, 4).contiguous()}, tmp_path / "half.safetensors")
    tensors, ties = read_initial("half", tmp_path / "half.safetensors")
    assert ties == {}
    assert tensors["weight"].dtype == np.float32
    assert np.array_equal(tensors["weight"], values.float().expand(30, 4).numpy())


class Trap:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_is_never_read(old: bool, tmp_path: Path) -> None:
    path = written(tmp_path, model())
    torch.save(
        {"a": Trap(tmp_path / "trapped")},
        tmp_path / "start.safetensors",
        _use_new_zipfile_serialization=not old,
    )
    reason = r"initial: .*start\.safetensors: not a safetensors file: .*a pickle, .*save_model\("
    with pytest.raises(ConfigError, match=reason):
        check(path)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"module.weight": np.ones((30, 7), np.float32)}, r"names begin with 'module\.'"),
        ({"weight": np.ones((30, 8), np.float32)}, r"weight is float32\[30, 7\], the run's is flo"),
        ({"other": np.ones((30, 7), np.float32)}, "other is missing"),
    ],
)
def test_a_file_of_another_model_than_the_scripts_is_refused_by_check(
    tensors: dict[str, NDArray[np.generic]], reason: str, tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / "start.safetensors")
    plan = plan_text("other", versions=2).replace(
        "name =", 'initial = "start.safetensors"\nname =', 1
    )
    (tmp_path / "plan.toml").write_text(f'{plan}[federation]\nscript = "client.py"\nclients = 4\n')
    (tmp_path / "client.py").write_text(SCRIPT)
    with pytest.raises(
        ConfigError, match=f"it has not the tensors of the script's model: .*{reason}"
    ):
        check(tmp_path / "plan.toml", permit=Permit(run_script=True))


def test_an_integer_that_float32_cannot_hold_is_refused_unless_it_stays(tmp_path: Path) -> None:
    large = np.array([[2**24 + 1]], np.int64)
    with pytest.raises(
        ConfigError, match=r"initial: .*: tensor 'z' \(int64\) has the value 16777217"
    ):
        check(written(tmp_path, model(z=large)))
    check(written(tmp_path, model(base=large, mask=large, z=large - 1)))
