"""The page on a trainer of one's own: its script and plan run as they stand."""

import json
import re
from pathlib import Path

import pytest

from secureps.run.simulate.simulate import simulate
from tests.kits.nursery import ROOT

PAGE = (ROOT / "docs" / "trainers.md").read_text()
(SCRIPT,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PLAN,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(ACCURACY,) = re.findall(r"comes to an accuracy of (\d\.\d+)\.", PAGE)
IN_THE_CLEAR = """
[cipher]
name = "plain"
"""
"""The same bits under every cipher, in less time."""
SCENARIO = """
name = "logistic"
plan = "logistic.toml"
script = "logistic.py"
clients = 5
seed = 3
"""


@pytest.mark.slow
def test_the_pages_trainer_comes_to_the_accuracy_it_names(tmp_path: Path) -> None:
    (tmp_path / "logistic.py").write_text(SCRIPT)
    (tmp_path / "logistic.toml").write_text(PLAN + IN_THE_CLEAR)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    out = simulate(tmp_path / "scenario.toml", tmp_path / "out", lambda text: None)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["versions"] == {"all": 10}
    assert summary["score"]["measure"] == "accuracy"
    assert f"{summary['score']['value']:.3f}" == ACCURACY
