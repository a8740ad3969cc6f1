"""`secureps simulate`: a scenario is a function of its file, drop-outs and all."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from secureps.compiled import kernel_folder
from secureps.errors import ConfigError, DiskFailed
from secureps.files.objects import ObjectStore
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.requests import Submit
from secureps.run import cli
from secureps.run.api import RunResult
from secureps.run.export import export
from secureps.run.processes.signals import Terminated
from secureps.run.report.version_metrics import Extras
from secureps.run.simulate.scenario_file import load_scenario
from secureps.run.simulate.simulation import Play, simulate
from secureps.store.checkpoint import read_state
from secureps.tracebacks import find_fatal_line, locate_crash
from tests.kits import extras_kit, whole_steps
from tests.kits.command import said
from tests.kits.federations import same
from tests.kits.nursery import ROOT

SCRIPT = ROOT / "clients" / "digits_torch.py"
PLAN = """
name = "few"
versions = 4
block_size = 4096
checkpoint_every = 2
lease = 20.0
[cipher]
name = "plain"
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


RECORDS = [40 + 10 * number for number in range(10)]
COUNTED = """
[privacy]
noise_multiplier = 2.0
max_grad_norm = 0.5
sample_rate = 0.25
delta = 1e-5
budget = 50.0
[federation]
script = "unused.py"
clients = 10
"""


def test_clients_count_by_the_numbers_of_the_plans_federation(tmp_path: Path) -> None:
    """As under `up`, in their receipts and weights."""
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace("dropout = 0.2", ""))
    text = PLAN.replace("local_epochs", "local_steps").replace("versions = 4", "versions = 1")
    (tmp_path / "plan.toml").write_text(f"{text}{COUNTED}records = {RECORDS}\n")
    play = Play(load_scenario(path), tmp_path / "play", lambda line: None)
    play.run(lambda line: None)
    rows = [row for _, row in play.simulation._stores["coordinator"].journal.replay()]
    wanted = dict(zip(play.scenario.clients, RECORDS, strict=True))
    got = [row.receipt for row in rows if isinstance(row, Submit) and row.receipt.charge]
    assert len(got) >= 6
    assert {each.id.client: each.examples for each in got}.items() <= wanted.items()
    closed = [row.cohort.members for row in rows if isinstance(row, CohortClosed)]
    for member in closed[0]:
        assert member.examples == wanted[member.id.client]
    (tmp_path / "plan.toml").write_text(f"{text}{COUNTED}records = {RECORDS[:9]}\n")
    with pytest.raises(ConfigError, match=r"federation.records: 9 numbers for 10 clients"):
        load_scenario(path)


@pytest.mark.slow
def test_the_same_file_gives_the_same_report_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else its figures are written to."""
    extras_kit.install(monkeypatch)
    path, said = scenario(tmp_path), list[str]()
    first = simulate(path, tmp_path / "first", said.append)
    extras = Extras(tmp_path / "tb", str(tmp_path / "ml"))
    second = simulate(path, tmp_path / "second", said.append, extras)
    assert "unsafe seed: no privacy" in said[0]
    ends = ("unsafe seed: no privacy", f"report: {second}", f"curves: {second / 'curves.png'}")
    assert tuple(said[-3:]) == ends
    metrics = (first / "metrics.jsonl").read_bytes()
    assert metrics == (second / "metrics.jsonl").read_bytes()
    lines = [json.loads(line) for line in metrics.splitlines()]
    assert [(line["group"], line["version"]) for line in lines] == [("all", v) for v in range(5)]
    assert {line["privacy"] for line in lines} == {"unsafe seed: no privacy"}
    assert [line["elapsed"] for line in lines] == sorted(line["elapsed"] for line in lines)
    assert any(line["gone"] > 0 or line["clients"] < 10 for line in lines[1:]), "nobody dropped out"
    assert all(5 <= line["clients"] <= 10 for line in lines[1:])
    for line in lines[1:]:
        check_waits(line)
    assert any(line["missed_seconds"] for line in lines[1:])
    assert "longest_wait" not in lines[0]
    assert lines[-1]["accuracy"] > lines[0]["accuracy"] + 0.2
    summary = (first / "summary.json").read_bytes()
    assert summary == (second / "summary.json").read_bytes()
    check_summary(json.loads(summary), lines)
    model, again = (load_file(run / "model.safetensors") for run in (first, second))
    assert all(model[name].tobytes() == again[name].tobytes() for name in model)
    assert read_state(first / "model.safetensors")[1] == {"privacy": "unsafe seed: no privacy"}
    for picture in ("curves.png", "waiting.png"):
        png = (first / picture).read_bytes()
        assert png.startswith(b"\x89PNG")
        assert b"unsafe seed: no privacy" in png
    assert sorted(p.name for p in (first / "checkpoints").iterdir())[-1] == "000002"

    check_extras(lines)
    path = scenario(tmp_path, seed=2)
    (tmp_path / "plan.toml").write_text(PLAN.replace("versions = 4", "versions = 1"))
    other = simulate(path, tmp_path / "other", said.append)
    *_, last = (other / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["waited_seconds"] != lines[1]["waited_seconds"]


@pytest.mark.slow
def test_what_secret_noise_would_have_spent_is_told(tmp_path: Path) -> None:
    path, said = scenario(tmp_path), list[str]()
    private = PLAN.replace("range = 0.5", 'weighting = "uniform"').replace(
        "versions = 4", "versions = 1"
    )
    unit = 'unit = "client"\nplacement = "local"\nnoise_multiplier = 4.0\n'
    (tmp_path / "plan.toml").write_text(f"{private}[privacy]\n{unit}delta = 1e-5\nbudget = 50.0\n")
    out = simulate(path, tmp_path / "out", said.append)
    summary = json.loads((out / "summary.json").read_text())
    spent, of = summary["epsilon"], "one client's updates replaced by zeros"
    assert 0 < spent < 50
    assert summary["adjacency"] == of
    assert said[-4].startswith(f"epsilon {spent:.3f} of 50 (delta 1e-05, {of})")
    result = RunResult.read(out)
    assert (result.epsilon, result.unsafe) == (spent, True)
    assert f"epsilon spent: {spent:.3f}, had the seed been secret\n" in str(result)
    assert "privacy: unsafe seed: no privacy\n" in str(result)


@pytest.mark.slow
def test_clients_come_late_and_leave_for_good(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    stays = "[[stay]]\nfirst = 8\ncount = 2\ncomes = 35.0\n[[stay]]\nfirst = 0\nleaves = 40.0\n"
    text = path.read_text().replace("dropout = 0.2", "dropout = 0.0")
    path.write_text(text.replace("[settings]", f"{stays}[settings]"))
    folder = simulate(path, tmp_path / "out", lambda text: None)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    early, late = {"client-08", "client-09"}, "client-00"
    came = [(line["elapsed"], set(line["waited_seconds"])) for line in lines[1:]]
    assert all(not names & early for at, names in came if at < 35.0)
    assert late in came[0][1]
    assert early <= came[-1][1], "who came late takes part"
    assert late not in came[-1][1], "who left takes no part, and nobody waits for it"
    assert [line["gone"] for line in lines if line["elapsed"] < 35.0][-1] == 2
    assert lines[-1]["gone"] == 1


def check_waits(line: dict[str, Any]) -> None:
    """Of one version: whoever is part of it came, nobody later than the round's deadlines."""
    came, missed = line["waited_seconds"], line["missed_seconds"]
    assert len(came) == line["clients"]
    assert not came.keys() & missed.keys()
    assert all(0 < seconds <= 30.0 for seconds in came.values())
    assert set(missed.values()) <= {30.0}, "a cohort closed at another time than the deadline"
    every = came | missed
    assert line["longest_wait_seconds"] == max(every.values()) == every[line["longest_wait"]]


def check_summary(summary: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    assert summary["privacy"] == "unsafe seed: no privacy"
    assert summary["finished"] == "all 4 versions are made"
    assert summary["versions"] == {"all": 4}
    assert summary["score"]["value"] == lines[-1]["accuracy"]
    assert sum(summary["updates"].values()) == sum(line["clients"] for line in lines[1:])
    for name in ("bytes_up", "bytes_down"):
        assert summary[name] == sum(line[name] for line in lines[1:]) > 0
    assert not any("training_seconds" in line for line in lines), "no two runs would be the same"


def check_extras(lines: list[dict[str, Any]]) -> None:
    """TensorBoard and MLflow have the numbers of the lines."""
    (file,) = extras_kit.EventFileWriter.files.values()
    values = {(v.tag, e.step): v.simple_value for e in file.events for v in e.summary.value}
    ((_, runs),) = extras_kit.MlflowClient.stores.values()
    (run,) = runs.values()
    assert values == {(metric.key, metric.step): metric.value for metric in run.metrics}
    for line in lines:
        for name in ("accuracy", "clients", "bytes_up", "longest_wait_seconds"):
            assert values.get((name, line["version"])) == line.get(name)
    assert values["summary/score.value", 4] == lines[-1]["accuracy"]
    assert (run.status, run.experiment) == ("FINISHED", "few")
    assert run.name == "second (unsafe seed: no privacy)"
    assert run.params["plan.group.all.rule.quorum"] == "6"
    assert run.params["scenario.downtime"] == "15.0"
    assert file.closed


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("clients = 10", "clients = 6", "clients: 6 take part, but a version waits for 7"),
        ("lognormal", "gaussian", 'unknown value "gaussian"'),
        ("downtime = 15.0", "downtime = -1.0", "downtime"),
        ("plan.toml", "no.toml", "no such file"),
        (str(SCRIPT), "no.py", "no such script"),
        ('name = "few"', 'name = "few"\nnonsense = 1', "nonsense"),
        (
            "[settings]",
            "[[stay]]\nfirst = 9\ncount = 2\n[settings]",
            "clients 0 to 9 and no others",
        ),
        (
            "[settings]",
            "[[stay]]\nfirst = 1\ncomes = 5.0\nleaves = 5.0\n[settings]",
            "it leaves before",
        ),
        ("[settings]", "[[stay]]\nfirst = 1\n[[stay]]\nfirst = 1\n[settings]", "has another stay"),
        (
            "[settings]",
            "[shards]\nslow = { shard-1 = 2.0, shard-7 = 3.0 }\n[settings]",
            "shards.slow: no shard is called 'shard-7'; did you mean shard-",
        ),
    ],
)
def test_a_scenario_that_cannot_be_played_is_refused(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=reason):
        load_scenario(path)


def test_clients_whose_script_fails_are_named_where_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "import numpy as np\n"
        "import secureps as ps\n"
        "class Some:\n"
        "    def __init__(self, partition): self.partition = partition\n"
        "    def parameters(self, seed): return {'w': np.zeros(3, np.float32)}\n"
        "    def examples(self): return 5\n"
        "    def fit(self, parameters, config):\n"
        "        if self.partition in (1, 4): raise ValueError(f'no data in {object()}')\n"
        "        return ps.FitResult({'w': parameters['w'] + 1}, 5, {}, 1)\n"
        "def make(settings): return Some(settings['partition'])\n"
    )
    (tmp_path / "plan.toml").write_text(PLAN.replace("versions = 4", "versions = 1"))
    path = tmp_path / "some.toml"
    path.write_text(
        'name = "some"\nplan = "plan.toml"\nscript = "some.py"\nclients = 10\nseed = 1\n'
    )
    said = list[str]()
    out = simulate(path, tmp_path / "out", said.append)
    failed = re.compile(
        r"client-01: fit raised ValueError: no data in <object object at 0x\w+> "
        r"\(some.py:8 in fit\); mend the script or its settings; so did client-04"
    )
    assert sum(failed.fullmatch(line) is not None for line in said) == 1, said
    assert failed.fullmatch(json.loads((out / "summary.json").read_text())["notes"][0])


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return whole_steps.scenario(tmp_path, versions=3)


def test_all_checkpoints_are_at_the_store(whole: Path, tmp_path: Path) -> None:
    url, out = f"file://{tmp_path}/store", tmp_path / "report"
    said(cli.app, "simulate", whole, "--out", out, "--copies", url)
    made = export(f"{url}/report", tmp_path / "copied.safetensors")
    assert made.versions == {"all": 3}
    model = load_file(out / "model.safetensors")
    assert same(load_file(tmp_path / "copied.safetensors"), model)
    kept = {path.name for path in (out / "checkpoints").glob("0*")}
    assert kept <= {path.name for path in (tmp_path / "store/report/checkpoints").iterdir()}
    without = simulate(whole, tmp_path / "without", lambda text: None)
    assert same(load_file(without / "model.safetensors"), model)


def test_a_place_that_has_something_is_refused_before_the_folder_is_made(
    whole: Path, tmp_path: Path
) -> None:
    url, out = f"file://{tmp_path}/store", tmp_path / "report"
    ObjectStore(f"{url}/report/checkpoints/000001").create("manifest.json", b"another's")
    with pytest.raises(ConfigError, match=r"--copies: .*/report/checkpoints has something"):
        simulate(whole, out, lambda text: None, copies=url)
    with pytest.raises(ConfigError, match="--copies: nowhere/report/checkpoints: no URL"):
        simulate(whole, out, lambda text: None, copies="nowhere")
    assert not out.exists()


def test_a_store_that_refuses_to_the_end_is_told_and_the_report_is_there(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ObjectStore, name: str, data: bytes) -> None:
        raise DiskFailed(f"{self.name}/{name}: it is full")

    monkeypatch.setattr(ObjectStore, "create", refuse)
    out = tmp_path / "report"
    with pytest.raises(DiskFailed, match=r"not all of them at the store: .*: it is full"):
        simulate(whole, out, lambda text: None, copies=f"file://{tmp_path}/store")
    assert (out / "summary.json").exists()


PAUSE = "time.sleep(self.pace)"


def ending(how: str) -> str:
    """A script of which one client ends its process."""
    return whole_steps.SCRIPT.replace(PAUSE, f"if self.number == 1: {how}").replace(
        "import time", "import ctypes, signal"
    )


@pytest.mark.slow
def test_a_simulation_that_a_script_crashes_says_in_which_line(tmp_path: Path) -> None:
    path = whole_steps.scenario(tmp_path, script=ending("ctypes.string_at(0)"))
    line = next(n for n, text in enumerate(whole_steps.SCRIPT.splitlines(), 1) if PAUSE in text)
    ended = subprocess.run(
        [sys.executable, "-m", "secureps", "simulate", path, "--out", tmp_path / "out"],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SECUREPS_KERNELS": str(kernel_folder().parent),  # not compiled again for this home
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode < 0
    assert f'client.py", line {line} in fit' in ended.stderr


def test_one_that_is_told_to_end_says_where_it_has_got_to(tmp_path: Path) -> None:
    path = whole_steps.scenario(tmp_path, script=ending("signal.raise_signal(signal.SIGTERM)"))
    lines = list[str]()
    with pytest.raises(Terminated):
        simulate(path, tmp_path / "out", lines.append)
    assert lines[-1].startswith(f"stopped: {tmp_path / 'out'} has what there was until then")


def test_the_thread_that_crashed_is_the_one_that_is_named(tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text("")
    dump = f"""Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  File "{script}", line 3 in waits

Current thread 0x2 (most recent call first):
  File "{__file__}", line 9 in fit
  File "{script}", line 7 in other
""".splitlines()
    assert locate_crash(dump) == "test_simulate.py:9 in fit"
    assert locate_crash([*dump[:4]]) == "holder.py:3 in waits"
    assert find_fatal_line(dump) == "Fatal Python error: Aborted"
    assert (locate_crash([]), find_fatal_line([])) == ("", "")
