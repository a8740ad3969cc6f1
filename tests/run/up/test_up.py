"""`secureps up`: the real thing, every party a process of its own, and nothing left over."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from secureps.errors import ConfigError, Diverged, SecurepsError
from secureps.policy.plan import load_plan
from secureps.run.up import up as module
from secureps.run.up.folder import Cast, RunFolder
from secureps.run.up.programs import Order, Programs
from secureps.run.up.runs import STOPPED
from secureps.run.up.up import up
from secureps.store.checkpoint import read_state, write_state
from tests.kits.command import INSECURE, run, typed
from tests.kits.federations import same
from tests.kits.nursery import ROOT, supervise_children
from tests.kits.polling import until

pytestmark = pytest.mark.timeout(120)

UNSAFE = "unsafe seed: no privacy"
LOOK = 0.06
"""Seconds; to look at every process of this machine takes half that."""
SEEDED = ("--unsafe-seed", "5", INSECURE)
SCRIPT = ROOT / "clients" / "digits_torch.py"
WALKERS = ROOT / "tests" / "kits" / "walker_client.py"
"""Nothing to import, and no promise kept about privacy."""
PLAN = """
name = "small"
versions = 3
shards = 2
block_size = 4096
checkpoint_every = 2

[cipher]
name = "{cipher}"
capacity = 8

[[group]]
clip = 16.0
range = 1.5
bits = 16
most_examples = 1024
rule = {{ quorum = 3, minimum = 2, start = 3, deadline = 60.0 }}

[privacy]
noise_multiplier = 2.0
max_grad_norm = 0.3
records = 200
sample_rate = 0.5
delta = 1e-5
budget = 50.0

[training]
lr = 4.0
local_steps = 2

[federation]
script = "{script}"
clients = 3

[federation.settings]
alpha = 1.0
"""


UNACCOUNTED = re.sub(r"(?s)\[privacy\].*?(?=\[training\])", "", PLAN)
ENDLESS = UNACCOUNTED.replace("versions = 3", "versions = 100_000")


def write_plan(path: Path, cipher: str = "plain", script: Path = SCRIPT, text: str = PLAN) -> Path:
    path.write_text(text.format(cipher=cipher, script=script))
    return path


def start(plan: Path, out: Path) -> subprocess.Popen[str]:
    arguments = ["up", str(plan), "--out", str(out), *SEEDED]
    return subprocess.Popen(
        [sys.executable, "-m", "secureps", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT)},
    )


def processes(out: Path) -> dict[str, psutil.Process]:
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or []).split()  # a fork's is one text
        if "up" not in line and any(str(out) in part for part in line):
            name = line[line.index("--name") + 1] if "--name" in line else Path(line[-1]).stem
            found[name] = process
    return found


def metrics(out: Path) -> list[dict[str, Any]]:
    path = out / "report" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def check_logs(out: Path) -> None:
    """Every party's log says what it did, though opacus configures the root where all begin."""
    done = {"coordinator": "version 3 is committed", "shard-0": "version 3 is committed"}
    done |= {f"client-0{i}": f"client-0{i}: version 3: " for i in range(3)}
    for party, line in done.items():
        assert line in (out / "logs" / f"{party}.log").read_text(), party


def check_told(told: str, out: Path) -> dict[str, Any]:
    """What a finished run printed and wrote; returns its summary."""
    assert told.count(UNSAFE) >= 3, told
    report = out / "report"
    ends = {"model": out / "model.safetensors", "report": report, "curves": report / "curves.png"}
    assert told.splitlines()[-3:] == [f"{label}: {path}" for label, path in ends.items()], told
    for part in ("federation (version 3)", "all data at one party", "bytes up", "opening"):
        assert part in told, told
    lines = metrics(out)
    assert [(line["group"], line["version"]) for line in lines] == [("all", v) for v in range(4)]
    assert {(line["privacy"], line["epsilon"]) for line in lines} == {(UNSAFE, None)}
    assert read_state(out / "model.safetensors")[1]["privacy"] == UNSAFE
    for party in ("coordinator", *(f"client-0{i}" for i in range(3))):
        assert UNSAFE in (out / "logs" / f"{party}.log").read_text(), party
    assert all(line["training_seconds"] > 0 and line["stepping_seconds"] > 0 for line in lines[1:])
    clients = {f"client-0{i}" for i in range(3)}
    for line in lines[1:]:
        assert line["waited_seconds"].keys() == clients, "an update came and nobody waited for it"
        assert line["longest_wait_seconds"] == line["waited_seconds"][line["longest_wait"]] > 0
    assert [line["elapsed"] for line in lines] == sorted(line["elapsed"] for line in lines)
    for picture in ("curves.png", "waiting.png"):
        assert UNSAFE.encode() in (report / picture).read_bytes()
    summary: dict[str, Any] = json.loads((out / "report" / "summary.json").read_text())
    assert summary["finished"] == "all 3 versions are made"
    assert summary["updates"] == {f"client-0{i}": 3 for i in range(3)}
    assert set(summary["baselines"]["alone"]) == set(summary["updates"])
    assert 0.9 < summary["baselines"]["central"]["value"] <= 1
    assert 0 <= summary["score"]["value"] <= 1
    members = [(m["epsilon"], m["unsafe"], m["charges"]) for m in summary["members"]]
    assert members == [(None, True, 3)] * 3
    assert summary["seconds"]["training"] > 0
    assert summary["privacy"] == UNSAFE
    return summary


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_bfv_with_kills_makes_the_model_that_plain_makes_in_virtual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, by the commands and with torch."""
    out, short = tmp_path / "bfv", PLAN.replace("clip = 16.0", "clip = 0.1")
    bfv = start(write_plan(tmp_path / "bfv.toml", "bfv", text=short), out)
    killed = ("shard-1", "client-02")
    until(lambda: set(killed) <= processes(out).keys(), 90, bfv, LOOK)
    found = processes(out)
    for name in killed:
        found[name].kill()
    told, _ = bfv.communicate()
    assert (bfv.returncode, processes(out)) == (0, {}), told
    assert "shard-1 died (signal SIGKILL)" in told
    assert len(re.findall(r"client-0\d says: update norm \S+, clip 0.1: cut to ", told)) == 1, told
    check_logs(out)
    summary = check_told(told, out)
    assert summary["ratio_up"] > 1
    assert 0.9 < summary["ratio_down"] < 1.1
    simulate_scenario(monkeypatch, tmp_path, short)
    models = (tmp_path / name / "model.safetensors" for name in ("bfv", "simulated"))
    played, simulated = map(load_file, models)
    assert played
    assert same(played, simulated)


def simulate_scenario(patch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    write_plan(folder / "plain.toml", text=text)
    scenario = folder / "scenario.toml"
    scenario.write_text(
        f'name = "same"\nplan = "plain.toml"\nscript = "{SCRIPT}"\nclients = 3\nseed = 5\n'
        "[settings]\nalpha = 1.0\n[delays]\ntrain = 3.0\n"
    )
    assert run(patch, "simulate", scenario, "--out", folder / "simulated") == 0


def test_a_flower_app_joins_and_its_holders_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = UNACCOUNTED.replace("versions = 3", "versions = 2")
    text = text.replace("lr = 4.0\nlocal_steps = 2\n", "lr = 2.0\n")
    plan = write_plan(tmp_path / "plan.toml", script=SCRIPT.with_name("digits_numpy.py"), text=text)
    supervise_children(monkeypatch, "secureps.client.flower.script", "sklearn.datasets")
    typed("up", plan, "--out", tmp_path / "run", *SEEDED)
    summary = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert summary["versions"] == {"all": 2}
    assert summary["updates"] == dict.fromkeys(("client-00", "client-01", "client-02"), 2)
    assert summary["score"]["measure"] == "accuracy"
    assert summary["score"]["examples"] > 300, "what all holders held out"
    assert set(summary["baselines"]["alone"]) == set(summary["updates"])
    assert "a Flower app trains in its clients alone" in summary["baselines"]["notes"][0]
    assert "alembic" not in (tmp_path / "run" / "logs" / "client-00.log").read_text()


@pytest.mark.slow
def test_a_flower_app_is_given_the_plans_initial_model(tmp_path: Path) -> None:
    initial = tmp_path / "initial.safetensors"
    write_state(initial, {"arr_0": np.zeros(3, np.float32)}, {})
    for script, given in ((SCRIPT.with_name("digits_numpy.py"), True), (SCRIPT, False)):
        path = write_plan(tmp_path / "plan.toml", script=script)
        path.write_text(f'initial = "{initial.name}"\n{path.read_text()}')
        plan = load_plan(path)
        assert plan.section.federation is not None
        cast = Cast.of(plan, 3)
        order = Order(path, None, None, ENV)
        programs = Programs(order, RunFolder(tmp_path), plan, plan.section.federation, cast)
        expected: dict[str, object] = {"alpha": 1.0, "partitions": 3, "partition": 2}
        if given:
            expected["initial"] = str(initial)
        assert programs.settings(2) == expected


@pytest.mark.parametrize("flower", [False, True])
def test_what_the_current_folder_holds_does_not_matter(flower: bool, tmp_path: Path) -> None:
    """`up` starts the installed package; a folder's own `queue.py` is nobody's but its scripts'."""
    for name in ("secureps/__init__.py", "numpy.py", "queue.py", "typer.py", "tomllib.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('the current folder was imported')\n")
    path = write_plan(tmp_path / "plan.toml", script=SCRIPT.with_name("digits_numpy.py"))
    plan = load_plan(path)
    assert plan.section.federation is not None
    order, folder = Order(path, None, None, ENV), RunFolder(tmp_path / "nothing")
    programs = Programs(order, folder, plan, plan.section.federation, Cast.of(plan, 3))
    client, shard = programs._client("client-00", "x", 0), programs._server("shard", "shard-0")
    command = list((client if flower else shard).arguments)
    if flower:
        command[command.index(str(programs.script))] = str(tmp_path / "nobody.py")
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 78, done.stderr
    told = "server x: expected HOST:PORT" if flower else "shard-0.toml: no such file"
    assert told in done.stderr


EXAMINERS = """
from secureps.run.own_script import run_client
from tests.kits.evaluations import Examiner, judged

def make(settings):
    return Examiner(int(settings["partition"]))

def make_evaluator(settings):
    return Examiner(0)

def central(settings):
    return judged(0, Examiner(0).parameters(1))

if __name__ == "__main__":
    run_client(make)
"""


def test_spent_budgets_end_the_run_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "examiners.py"
    script.write_text(EXAMINERS)
    plan = write_plan(tmp_path / "plan.toml", script=script)
    plan.write_text(plan.read_text().replace("budget = 50.0", "budget = 2.5"))
    plan.write_text(plan.read_text().replace("clip = 16.0", "clip = 0.01"))
    monkeypatch.setenv("COLUMNS", "120")
    supervise_children(monkeypatch)
    told = typed("up", plan, "--out", tmp_path / "run", *SEEDED).out
    ending = "the privacy budget is spent: after version 1, another would bring 3 clients"
    assert ending in told
    cuts = [line for line in told.splitlines() if "clip 0.01: cut to" in line]
    assert [re.sub(r"client-0\d says: update norm .*", "", line) for line in cuts] == [""]
    summary = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert summary["finished"].startswith(ending)
    assert summary["versions"] == {"all": 1}
    assert summary["updates"] == dict.fromkeys(("client-00", "client-01", "client-02"), 1)
    assert summary["baselines"]["notes"] == []  # the last checkpoint has version 1; no norm is here
    # up to 4 bytes for 16 bits in the clear
    assert 0.5 <= summary["ratio_up"] < 1.1
    assert not processes(tmp_path / "run")


def test_a_stop_leaves_nothing_over(tmp_path: Path) -> None:
    """`secureps stop` sends SIGTERM, and waits until all is over."""
    out = tmp_path / "run"
    play = start(write_plan(tmp_path / "plan.toml", script=WALKERS, text=ENDLESS), out)
    until(lambda: len(processes(out)) == 6, 90, play, LOOK)
    assert typed("stop", out).out == f"{out}: {STOPPED}\n"
    assert not processes(out)
    told, _ = play.communicate()
    assert play.returncode == 143, told
    assert "Traceback" not in told
    assert told.index("stopping ...") < told.index("stopped; this goes on with it")
    assert not processes(out)


EMPTY = """
from dataclasses import replace
from tests.kits.evaluations import Examiner

class Empty(Examiner):
    def fit(self, parameters, config):
        return replace(super().fit(parameters, config), examples=0)

    def evaluate(self, parameters):
        raise ValueError("nothing held out")

def make(settings):
    return Empty(settings["partition"])
"""


def test_a_run_in_which_no_client_has_examples_fails_and_goes_on_once_that_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients are named, whose scripts it is; each says once that its evaluation fails."""
    script, out = tmp_path / "empty.py", tmp_path / "run"
    script.write_text(EMPTY)
    text = UNACCOUNTED + "[evaluation]\nevery = 1\n[evaluation.metrics]\naccuracy = 1.0\n"
    plan = write_plan(tmp_path / "plan.toml", script=script, text=text)
    monkeypatch.setenv("COLUMNS", "400")
    supervise_children(monkeypatch)
    told = typed("up", plan, "--out", out, *SEEDED, status=1)
    nobody = "sends no update from version 0 of all: its script trained on 0 examples"
    assert nobody in told.out, "it is said while the run goes on"
    few = "error: too few clients are left for version 1 of all: its script trained on 0 examples ("
    assert few in told.err
    assert "(the members' fault)" in told.err
    assert f"once that is mended, this goes on: secureps resume {out}" in told.out
    assert not (out / "model.safetensors").exists(), "nobody trained one"
    told = typed("status", out)
    assert f"failed: {few[7:]}" in told.out
    assert "this run is over" not in told.out
    assert f"up: failed: {few[7:]}" in typed("log", out, "up").out

    script.write_text(EMPTY.replace("examples=0", "examples=9"))
    told = typed("resume", out)
    summary = json.loads((out / "report" / "summary.json").read_text())
    assert summary["finished"] == "all 3 versions are made"
    fails = "sends no evaluation: evaluate raised ValueError: nothing held out (empty.py:10 in eval"
    said = " ".join(line for line in told.out.splitlines() if fails in line)
    assert sorted(re.findall(r"client-\d+", said)) == ["client-00", "client-01", "client-02"]
    assert "skipped: version 1, 2, 3: given up: 1 member of the round is left" in told.out
    assert not (out / "logs" / "script.log").exists(), "the script wrote nothing"


FAILING = """
from tests.kits.evaluations import Examiner

class Failing(Examiner):
    def fit(self, parameters, config):
        if self.number == 2:
            raise ValueError(f"no data in {object()}")
        return super().fit(parameters, config)

def make(settings):
    return Failing(settings["partition"])
"""


def test_the_run_goes_on_without_a_client_that_fails_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the quorum holds; and a training that fails as it failed is not tried a third time."""
    script, out = tmp_path / "failing.py", tmp_path / "run"
    script.write_text(FAILING)
    text = UNACCOUNTED.replace("quorum = 3", "quorum = 2").replace("start = 3", "start = 2")
    plan = write_plan(tmp_path / "plan.toml", script=script, text=text)
    monkeypatch.setenv("COLUMNS", "400")
    supervise_children(monkeypatch)
    told = typed("up", plan, "--out", out, *SEEDED).out
    failed = (
        r"client-02 died twice in the same way, with exit status 1, and is not started again: fit "
        r"raised ValueError: no data in <object object at 0x\w+> \(failing\.py:7 in fit\)"
    )
    assert re.search(f"^{failed}.*; the run goes on while it can$", told, re.MULTILINE), told
    assert re.search(f"^note: {failed}", told, re.MULTILINE), told
    assert "this side's fault" not in told
    summary = json.loads((out / "report" / "summary.json").read_text())
    assert summary["finished"] == "all 3 versions are made"
    assert summary["updates"]["client-00"] == summary["updates"]["client-01"] == 3
    assert (out / "logs" / "client-02.log").read_text().count("error: fit raised") == 2
    log = (out / "logs" / "coordinator.log").read_text()
    assert re.search(f"coordinator: {failed}", log.replace("client-02 failed: ", "client-02 "))
    state = "failed: died twice in the same way, with exit status 1, and is not started again: fit"
    assert f"\u2502 client-02 \u2502 {state} raised" in typed("status", out).out


ENV = dict(os.environ)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("clients = 3", "clients = 2"),
            "waits for 3: .* lower start, quorum and minimum of its rule",
        ),
        (("digits_torch.py", "nobody.py"), "federation.script: no file"),
        (("digits_torch.py", "digits_numpy.py"), "a promise about every training step"),
        (("budget = 50.0", "budget = 0.5"), r"privacy\.budget: 0\.5 allows no version"),
        (("[federation]", '[federation]\ncheckpoint_copies = "x"'), "key is gone: .* --copies URL"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_starts(
    change: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path / "plan.toml")
    plan.write_text(plan.read_text().replace(*change))
    with pytest.raises(SecurepsError, match=reason):
        up(Order(plan, tmp_path / "run", None, ENV), Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_plan_without_a_federation_and_a_folder_in_use(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.toml")
    with pytest.raises(ConfigError, match="is not empty"):
        up(Order(plan, tmp_path, None, ENV), Console(file=io.StringIO()))
    with pytest.raises(ConfigError, match="--copies: x: no URL of an object store"):
        up(Order(plan, tmp_path / "run", None, ENV, copies="x"), Console(file=io.StringIO()))
    scenario = plan.with_name("scenario.toml")
    scenario.write_text('plan = "plan.toml"\nclients = 3\n')
    with pytest.raises(ConfigError, match="is a scenario: `secureps simulate` plays it"):
        up(Order(scenario, tmp_path / "run", None, ENV), Console(file=io.StringIO()))
    plan.write_text(plan.read_text().partition("[federation]")[0])
    with pytest.raises(ConfigError, match="federation: `up` needs this section"):
        up(Order(plan, tmp_path / "run", None, ENV), Console(file=io.StringIO()))


def test_who_lowers_a_learning_rate_is_told_that_it_is_another_run(tmp_path: Path) -> None:
    """The run keeps its copy of the plan."""
    told, folder = io.StringIO(), RunFolder(tmp_path)
    folder.report.mkdir()
    folder.over.write_text("of the play before")
    with pytest.raises(Diverged), module._advising_resume(folder, Console(file=told, width=400)):
        raise Diverged("fit: the loss is nan")
    assert "with another learning rate in the plan it is another run" in told.getvalue()
    assert not folder.over.exists()


def full(*given: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "sofar.json")


def test_a_disk_that_is_full_loses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is only told is left out; where the end cannot be written `resume` writes it."""
    out, plan = tmp_path / "run", write_plan(tmp_path / "plan.toml", script=WALKERS)
    plan.write_text(UNACCOUNTED.format(cipher="plain", script=WALKERS))
    monkeypatch.setenv("COLUMNS", "400")
    supervise_children(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("secureps.run.up.up.replace_text", full)
        patch.setattr("secureps.run.up.up.replace_text", full)
        patch.setattr("secureps.run.up.up.draw", full)
        told = typed("up", plan, "--out", out, status=1)
    assert told.out.count("of these versions is not kept: [Errno 28] No space left") == 1, told.out
    assert "no curves were drawn" in told.out
    reason = "error: sofar.json: No space left on device: make room on the disk, and go on"
    assert f"{reason} (this side's fault)" in told.err
    assert f"this goes on: secureps resume {out}" in told.out
    assert "Traceback" not in told.out + told.err
    model = (out / "model.safetensors").read_bytes()
    typed("resume", out)
    assert (out / "model.safetensors").read_bytes() == model
    assert (out / "report" / "summary.json").exists()


def test_who_stops_up_while_it_trains_baselines_has_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plan = tmp_path / "run", write_plan(tmp_path / "plan.toml", script=WALKERS)
    plan.write_text(UNACCOUNTED.format(cipher="plain", script=WALKERS))
    supervise_children(monkeypatch)

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("secureps.run.up.up.ScriptProcess.baselines", interrupted)
    told = typed("up", plan, "--out", out, status=130)
    assert "stopped; this goes on with it" in told.out
    assert (out / "report" / "curves.png").stat().st_size > 10_000
    assert not (out / "report" / "summary.json").exists()


def test_a_run_outlives_its_own_output(tmp_path: Path) -> None:
    out, plan = tmp_path / "run", tmp_path / "plan.toml"
    plan.write_text(UNACCOUNTED.format(cipher="plain", script=WALKERS))
    with open("/dev/full", "w") as full_disk:
        done = subprocess.run(
            [sys.executable, "-m", "secureps", "up", str(plan), "--out", str(out)],
            env={**ENV, "PYTHONPATH": str(ROOT)},
            stdout=full_disk,
            stderr=full_disk,
        )
    assert done.returncode == 0
    assert (out / "model.safetensors").exists()
    assert (out / "report" / "summary.json").exists()
