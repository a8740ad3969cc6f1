"""The quickstart apps of examples/flower run as any Flower app does, and learn."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import pytest

from tests.kits.flower_simulation import simulate
from tests.kits.nursery import ROOT

EXAMPLES = ROOT / "examples" / "flower"

APPS = {"numpy": 0.8, "sklearn": 0.9, "pytorch": 0.6, "lora": 0.6}
"""The accuracy that five nodes reach at least in three rounds; a guess has 0.1, of tumours 0.63."""


def copied(name: str, folder: Path) -> Path:
    """An app in a folder of its own, as its user has it."""
    app = folder / "app"
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    return app


def test_every_app_is_tried() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")} == set(APPS)


@pytest.mark.parametrize("name", APPS)
def test_an_app_learns_under_flowers_simulation(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        simulate(copied(name, tmp_path), 5, tmp_path)
    found = re.findall(r"'(?:eval_acc|accuracy)': ([0-9.]+)", caplog.text)
    assert float(found[-1]) >= APPS[name], found
    assert list(tmp_path.glob("final_*"))
