"""Survival: a stopped run continues to the same bits, also from copies of its checkpoints."""

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save

from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, OperatorError
from secureps.files.objects import ObjectStore
from secureps.messages.format import FORMAT
from secureps.policy.plan import load_plan
from secureps.run import cli
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import Origin, RunFolder, claim_folder, client_names
from secureps.run.up.runs import PLAYED, STOPPED, list_runs
from secureps.run.up.up import read_so_far, resume
from secureps.store.atomic_file import replace_text
from secureps.store.journal import SqliteJournal
from tests.kits.command import INSECURE, said
from tests.kits.federations import Tensors, Walker, same
from tests.kits.nursery import ROOT
from tests.kits.polling import until
from tests.kits.processes import ADAM, Processes, plan_text

VERSIONS = 3
SCRIPT = """
import time
from pathlib import Path
from secureps.run.own_script import run_client
from tests.kits.walker import Walker

class Waiting(Walker):
    def __init__(self, settings):
        super().__init__(int(settings["partition"]))
        self.versions = Path(settings["versions_file"])

    def fit(self, parameters, config):
        while config.versions["all"] >= int(self.versions.read_text()):
            time.sleep(0.02)
        return super().fit(parameters, config)

make = Waiting

if __name__ == "__main__":
    run_client(make)
"""
RULE = """[group.rule]
quorum = 3
minimum = 2
deadline = 60.0
"""
FEDERATION = """[federation]
script = "holder.py"
clients = 3
[federation.settings]
versions_file = "versions.txt"
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def secureps(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "secureps", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
        cwd=cwd,
    )


def stage(folder: Path, versions: int) -> Path:
    """Writes a plan and its script, and a working directory with the file that the script reads.

    Clients train until this file's number of versions is made, then wait for a larger number.
    """
    (folder / "plans").mkdir()
    plan = folder / "plans" / "small.toml"
    text = plan_text(RULE + ADAM + FEDERATION)
    plan.write_text(text.format(cipher="plain", versions=VERSIONS))
    (folder / "plans" / "holder.py").write_text(SCRIPT)
    (folder / "work").mkdir()
    let_train(folder / "work", versions)
    return plan


def let_train(work: Path, versions: int) -> None:
    replace_text(work / "versions.txt", str(versions))


def newest(run: Path) -> int:
    path = run / "report" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line)["version"] for line in lines), default=-1)


def uninterrupted(plan: Path, folder: Path) -> Tensors:
    trainers = {name: Walker(i) for i, name in enumerate(client_names(3))}
    straight = Simulation(load_plan(plan), Cast(trainers, UnsafeSeed(5)), folder)
    straight.run()
    return straight.model()


@pytest.mark.timeout(200)
def test_a_stopped_run_goes_on_to_the_same_model(tmp_path: Path) -> None:
    plan, work, runs = stage(tmp_path, versions=1), tmp_path / "work", tmp_path / "runs"
    model = uninterrupted(plan, tmp_path / "straight")
    seeded = ("--unsafe-seed", "5", INSECURE, "--out")
    stopped = secureps("up", str(plan), *seeded, str(runs / "stopped"), cwd=work)
    until(lambda: newest(runs / "stopped") >= 1, 90, stopped, 0.02)
    with pytest.raises(OperatorError, match="this run is being played now"):
        resume(runs / "stopped", ENVIRONMENT, Console(file=io.StringIO()))
    _, far, standing = map(str, list_runs(runs))
    assert far.endswith(f" of {VERSIONS}")
    assert standing == f"  {PLAYED}"
    stopped.send_signal(signal.SIGINT)
    told, _ = stopped.communicate()
    assert stopped.returncode == 130, told
    assert "Traceback" not in told
    assert told.index("stopping ...") < told.index("stopped; this goes on with it")
    assert f"this goes on with it: secureps resume {runs / 'stopped'}" in told
    _, far, standing, *_ = map(str, list_runs(runs))
    assert standing == f"  {STOPPED}"
    assert int(far.split()[-3]) == 1
    let_train(work, VERSIONS)
    before = read_so_far(RunFolder(runs / "stopped"))
    assert before.seconds > 0

    # neither the plan's file nor where one stands matters any more
    plan.write_text(plan.read_text().replace(f"versions = {VERSIONS}", "versions = 99"))
    resumed = secureps("resume", str(runs / "stopped"), cwd=tmp_path)
    told, _ = resumed.communicate()
    assert resumed.returncode == 0, told
    assert f"(version {VERSIONS})" in told
    assert same(load_file(runs / "stopped" / "model.safetensors"), model)

    lines = (runs / "stopped" / "report" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == list(range(VERSIONS + 1))
    elapsed = [json.loads(line)["elapsed"] for line in lines]
    assert elapsed == sorted(elapsed)
    summary = json.loads((runs / "stopped" / "report" / "summary.json").read_text())
    assert summary["updates"] == {f"client-0{i}": VERSIONS for i in range(3)}
    assert summary["wall_seconds"] > before.seconds

    over = io.StringIO()
    resume(runs / "stopped", ENVIRONMENT, Console(file=over, width=200))
    assert over.getvalue().startswith(
        f"this run is over: all {VERSIONS} versions are made; its model is "
    )
    told = "\n".join(map(str, list_runs(runs)))
    assert told.count(f", version {VERSIONS} of {VERSIONS}") == 1
    assert told.count(f"  all {VERSIONS} versions are made") == 1


def killed(config: Path) -> None:
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or []).split()  # a fork's is one text
        if "serve" in words and str(config) in words:
            process.kill()
            return
    raise AssertionError(f"no server has {config}")


@pytest.mark.timeout(200)
def test_a_coordinator_that_dies_leaves_its_run_to_the_standby(tmp_path: Path) -> None:
    """Stopped afterwards, the run goes on, and under the standby."""
    plan, work, run = stage(tmp_path, versions=0), tmp_path / "work", tmp_path / "run"
    model = uninterrupted(plan, tmp_path / "straight")
    seeded = ("--unsafe-seed", "5", INSECURE, "--out")
    played = secureps("up", str(plan), "--standby", *seeded, str(run), cwd=work)

    def says(log: str, text: str) -> None:
        path = run / "logs" / f"{log}.log"
        until(lambda: path.exists() and text in path.read_text(), 150, played, 0.02)

    try:
        says("standby", "has all that the coordinator has")
        says("coordinator", "version 0 is committed")
        killed(run / "config" / "coordinator.toml")
        assert any("coordinator died (signal SIGKILL)" in line for line in played.stdout or ())
        said(cli.app, "takeover", run / "config" / "standby.toml")
        says("standby", "no standby follows")
    finally:
        played.send_signal(signal.SIGINT)
        told, _ = played.communicate()
    assert played.returncode == 130, told
    let_train(work, VERSIONS)
    resumed = secureps("resume", str(run), cwd=tmp_path)
    told, _ = resumed.communicate()
    assert resumed.returncode == 0, told
    assert same(load_file(run / "model.safetensors"), model)
    logs = ((run / "logs" / f"{name}.log").read_text() for name in ("coordinator", "standby"))
    assert sum("the run is over" in log for log in logs) == 1


def test_a_party_that_was_left_over_is_named(tmp_path: Path) -> None:
    import fcntl

    state = tmp_path / "state" / "shard-1"
    state.mkdir(parents=True)
    with (state / "journal.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OperatorError, match="shard-1 still runs"), claim_folder(tmp_path):
            raise AssertionError
    with claim_folder(tmp_path):
        pass


def test_what_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run of `secureps up`"):
        resume(tmp_path, ENVIRONMENT, Console())
    assert list(list_runs(tmp_path.parent)) == []
    Origin(tmp_path / "plan.toml", tmp_path / "gone", None, 1.0).write(RunFolder(tmp_path))
    with pytest.raises(ConfigError, match=r"the run began in .*gone, which is gone"):
        resume(tmp_path, ENVIRONMENT, Console())
    older = tmp_path / "state" / "shard-0" / "journal.db"
    older.parent.mkdir(parents=True)
    SqliteJournal(older).close()
    with closing(sqlite3.connect(older)) as base:
        base.execute(f"PRAGMA user_version = {FORMAT - 1}")
    with pytest.raises(ConfigError, match=rf"shard-0/journal\.db: format {FORMAT - 1}, and"):
        resume(tmp_path, ENVIRONMENT, Console())
    (tmp_path / "origin.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        resume(tmp_path, ENVIRONMENT, Console())


def test_a_run_outlives_its_store_and_a_shard_its_disk(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("in the way: nothing can be written below it")
    with Processes(tmp_path / "run", "plain", versions=8) as run:
        copies = f'checkpoint_copies = "file://{store}/run/checkpoints"'
        for name in ("coordinator", *run.shards):
            run.settings[name] = copies
        run.pace = 0.3
        run.start_all()
        run.wait(lambda: run.reached(5), "more versions than stay, although the store is down")

        def told() -> bool:
            status = run.status()
            troubles = {} if status is None else {s.name: s.trouble for s in status.servers}
            return all(
                troubles.get(name, "").startswith(f"does not copy checkpoints: file://{store}")
                for name in ("coordinator", *run.shards)
            )

        run.wait(told, "the status to say so")
        store.unlink()
        manifest = store / "run" / "checkpoints" / "000001" / "manifest.json"
        run.wait(manifest.exists, "the copies")
        run.wait(lambda: not any(s.trouble for s in run.observer().status().servers), "its end")
        run.kill("shard-0")
        shutil.rmtree(run.folder / "shard-0")
        for copy in (store / "run" / "checkpoints").glob("*/shard-0.safetensors"):
            # the newest may still be on its way there
            (run.folder / "checkpoints" / copy.parent.name / copy.name).unlink(missing_ok=True)
        run.start("shard-0")
        run.wait(run.finished, "the end of the run")
        last = store / "run" / "checkpoints" / "000008" / "manifest.json"
        run.wait(last.exists, "the copy of the last checkpoint")
        at_store = [each.parent.name for each in store.glob("run/checkpoints/*/manifest.json")]
        assert sorted(at_store) == [f"{number:06}" for number in range(9)]
        versions, published = run.model()
        made = export(f"file://{store}/run", tmp_path / "model.safetensors")
        assert made.versions == versions == {"all": 8}
        for name, each in made.tensors.items():
            assert each.tobytes() == published[name].tobytes()
        for name in run.shards:
            assert run.stop(name) == 0


@pytest.mark.timeout(200)
def test_a_run_of_up_begins_and_goes_on_from_a_store(tmp_path: Path) -> None:
    """Its checkpoints have a place of their own there, and a lost disk comes back from it."""
    plan, work, store = stage(tmp_path, versions=1), tmp_path / "work", f"file://{tmp_path}/store"
    ObjectStore(store).create("v0.safetensors", save(Walker(0).parameters(7)))
    plan.write_text(f'initial = "{store}/v0.safetensors"\n{plan.read_text()}')
    read = load_plan(plan)
    trainers = {name: Walker(i) for i, name in enumerate(client_names(3))}
    cast = Cast(trainers, UnsafeSeed(5))
    straight = Simulation(read, cast, tmp_path / "straight", initial=read_initial_schema(read))
    straight.run()
    run, at = tmp_path / "runs" / "one", ("--copies", f"{store}/named")
    stopped = secureps(
        "up", str(plan), "--unsafe-seed", "5", INSECURE, "--out", str(run), *at, cwd=work
    )
    first = tmp_path / "store" / "named" / "one" / "checkpoints" / "000001" / "manifest.json"
    until(lambda: newest(run) >= 1 and first.exists(), 90, stopped, 0.02)
    stopped.send_signal(signal.SIGINT)
    told, _ = stopped.communicate()
    assert stopped.returncode == 130, told
    shutil.rmtree(run / "state" / "shard-0")
    for part in (run / "checkpoints").glob("*/shard-0.safetensors"):
        part.unlink()
    let_train(work, VERSIONS)
    resumed = secureps("resume", str(run), cwd=tmp_path)
    told, _ = resumed.communicate()
    assert resumed.returncode == 0, told
    assert same(load_file(run / "model.safetensors"), straight.model())
    export(f"{store}/named/one", tmp_path / "copied.safetensors")
    assert same(load_file(tmp_path / "copied.safetensors"), straight.model())
