"""`secureps simulate`: a scenario is a function of its file, drop-outs and all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from secureps.errors import ConfigError
from secureps.run.simulate import draw, load_scenario, simulate
from secureps.store.checkpoint import read_state

SCRIPT = Path(__file__).parent.parent / "clients" / "digits_torch.py"
PLAN = """
name = "few"
versions = 4
block_size = 4096
checkpoint_every = 2
lease = 20.0
[cipher]
name = "bfv"
capacity = 16
[[group]]
clip = 4.0
range = 0.5
most_examples = 512
rule = { quorum = 6, minimum = 5, start = 7, most = 10, deadline = 30.0 }
[training]
lr = 0.1
local_epochs = 1
"""
SCENARIO = """
name = "few"
plan = "plan.toml"
script = "{script}"
clients = 10
seed = {seed}
downtime = 15.0
[settings]
minimum = 20
[delays]
train = {{ kind = "lognormal", median = 8.0, sigma = 0.5 }}
network = {{ kind = "uniform", low = 0.01, high = 0.2 }}
dropout = 0.2
"""


def scenario(folder: Path, seed: int = 1) -> Path:
    (folder / "plan.toml").write_text(PLAN)
    path = folder / f"scenario-{seed}.toml"
    path.write_text(SCENARIO.format(script=SCRIPT, seed=seed))
    return path


def test_the_same_file_gives_the_same_report_bit_for_bit(tmp_path: Path) -> None:
    path, said = scenario(tmp_path), list[str]()
    first = simulate(path, tmp_path / "first", said.append)
    second = simulate(path, tmp_path / "second", said.append)
    assert "unsafe seed: no privacy" in said[0]
    assert "unsafe seed: no privacy" in said[-2:]
    metrics = (first / "metrics.jsonl").read_bytes()
    assert metrics == (second / "metrics.jsonl").read_bytes()
    lines = [json.loads(line) for line in metrics.splitlines()]
    assert [line["versions"] for line in lines] == [{"all": v} for v in range(5)]
    assert {line["privacy"] for line in lines} == {"unsafe seed: no privacy"}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert any(line["gone"] > 0 or line["clients"] < 10 for line in lines[1:]), "nobody dropped out"
    assert all(5 <= line["clients"] <= 10 for line in lines[1:])
    assert lines[-1]["accuracy"] > lines[0]["accuracy"] + 0.2
    model, again = (load_file(run / "model.safetensors") for run in (first, second))
    assert all(model[name].tobytes() == again[name].tobytes() for name in model)
    assert read_state(first / "model.safetensors", None)[1] == {
        "privacy": "unsafe seed: no privacy"
    }
    png = (first / "curves.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert b"few: unsafe seed: no privacy" in png
    assert sorted(p.name for p in (first / "checkpoints").iterdir())[-1] == "000002"

    other = simulate(scenario(tmp_path, seed=2), tmp_path / "other", said.append)
    assert (other / "metrics.jsonl").read_bytes() != metrics


def test_curves_have_their_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr(Figure, "savefig", lambda f, *_, **__: titles.append(f.get_suptitle()))
    line = {"time": 0.0, "bytes_up": 0, "bytes_down": 0, "loss": 1.0}
    draw([line], "a title", tmp_path / "curves.png")
    assert titles == ["a title"]


def test_a_report_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds a report already"):
        simulate(scenario(tmp_path), tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("clients = 10", "clients = 6", "6 play, the plan's rounds wait for 7"),
        ("lognormal", "gaussian", "unknown kind 'gaussian'"),
        ("downtime = 15.0", "downtime = -1.0", "downtime"),
        ("plan.toml", "no.toml", "no such file"),
        (str(SCRIPT), "no.py", "no such script"),
        ('name = "few"', 'name = "few"\nnonsense = 1', "nonsense"),
    ],
)
def test_a_scenario_that_cannot_be_played_is_refused(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=reason):
        load_scenario(path)
