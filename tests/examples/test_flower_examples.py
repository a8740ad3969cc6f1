"""The quickstart apps of examples/flower run as any Flower app does, and learn."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from tests.kits.flower_simulation import EXAMPLES, copied, private, simulate
from tests.kits.nursery import ROOT

APPS = {"numpy": 0.8, "sklearn": 0.9, "pytorch": 0.6, "lora": 0.6}
"""The accuracy that five nodes reach at least in three rounds; a guess has 0.1, of tumours 0.63."""


def test_every_app_is_tried() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")} == set(APPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", APPS)
def test_an_app_learns_under_flowers_simulation(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        simulate(copied(name, tmp_path), 5, tmp_path)
    found = re.findall(r"'(?:eval_acc|accuracy)': ([0-9.]+)", caplog.text)
    assert float(found[-1]) >= APPS[name], found
    assert list(tmp_path.glob("final_*"))


MOST_LINES = 5
"""That make an app private: added, changed or removed, of which a changed one is both."""


def changed(name: str) -> int:
    """Lines that an app's diff changes."""
    lines = (EXAMPLES / name / "private.diff").read_text().splitlines()
    signs = [line[0] for line in lines if not line.startswith(("+++", "---"))]
    return max(signs.count("+"), signs.count("-"))


@pytest.mark.parametrize("name", APPS)
def test_five_lines_make_an_app_private(name: str) -> None:
    assert changed(name) <= MOST_LINES


def test_the_page_shows_the_lines_of_one() -> None:
    """Those of its code."""
    page = (ROOT / "docs" / "flower.md").read_text()
    (shown,) = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    _, code = (EXAMPLES / "numpy" / "private.diff").read_text().split("--- a/numpyexample/client")
    lines = [line for line in code.splitlines() if re.match(r"[+-](?![+-])", line)]
    assert [line for line in shown.splitlines() if line[0] != " "] == lines


@pytest.mark.slow
def test_a_private_app_learns_what_the_plain_one_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    clear = copied("numpy", plain)
    server = clear / "numpyexample" / "server_app.py"  # it may begin before all nodes are there
    all_five = " FedAvg(min_available_nodes=5, min_train_nodes=5, "
    server.write_text(server.read_text().replace(" FedAvg(", all_five))
    for folder, app in ((plain, clear), (sealed, private("numpy", sealed))):
        simulate(app, 5, folder)
    expected, found = (np.load(folder / "final_model.npz") for folder in (plain, sealed))
    for name in expected:
        assert np.abs(expected[name] - found[name]).max() < 1e-3
