"""Survival: SIGKILL of any process, at any moment, leaves the same bits.
Survival: a stopped run continues to the same bits, also from copies of its checkpoints.
Survival: every party refuses a damaged journal and continues from a complete copy.

Real coordinators that are killed, paused or hang are taken over from.
"""

import io
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Self

import psutil
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save
from zstandard import ZstdCompressor

from secureps.crypto import identity
from secureps.crypto.bfv import DEGREE
from secureps.crypto.envelope import SECRET_BYTES
from secureps.crypto.identity import Identity
from secureps.crypto.roster import first_roster, next_roster
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import MISCONFIGURED, ConfigError, OperatorError, Refused
from secureps.files.objects import ObjectStore
from secureps.messages.format import FORMAT
from secureps.messages.records import REIGN
from secureps.messages.run import STANDBY
from secureps.policy.plan import load_plan
from secureps.run import cli
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import Origin, RunFolder, claim_folder, client_names
from secureps.run.up.runs import PLAYED, STOPPED, list_runs
from secureps.run.up.up import read_so_far, resume
from secureps.store.atomic_file import replace_text
from secureps.store.checkpoint import write_state
from secureps.store.journal import SqliteJournal, last_row
from secureps.store.journal_rows import height_path, read_height
from secureps.store.keyring import (
    default_state,
    load_holder_secret,
    load_private,
    load_public,
    renew_certificate,
    roster_file,
)
from tests.kits.command import INSECURE, invoked, said
from tests.kits.federations import Tensors, Walker, same, unharmed
from tests.kits.needles import Needles
from tests.kits.nursery import ROOT
from tests.kits.polling import until
from tests.kits.processes import ADAM, PATIENCE, PLAN, Processes, plan_text
from tests.kits.relay import free_port

BFV_SECRET, PUBLIC_BYTES = 2 * 8 * DEGREE, 4 * 8 * DEGREE
"""Of the coefficients of a BFV key; a tag precedes them."""


def test_each_machine_has_the_file_of_version_0_at_a_path_of_its_own(tmp_path: Path) -> None:
    """The plan pins its bytes; where they lie differs, also from one start to the next."""
    folder, model = tmp_path / "run", Walker(0).parameters(7)
    first, moved = folder / "first.safetensors", tmp_path / "elsewhere" / "v0.safetensors"
    for path in (first, moved):
        write_state(path, model, {})
    text = f'initial = "first.safetensors"\n{PLAN}'
    plan = load_plan(wrote(tmp_path / "plan.toml", text.format(cipher="plain", versions=4)), folder)
    trainers = {name: Walker(i) for i, name in enumerate(client_names(6))}
    cast = Cast(trainers, UnsafeSeed(3))
    simulation = Simulation(plan, cast, tmp_path / "simulation", initial=read_initial_schema(plan))
    simulation.run()
    with Processes(folder, "plain", plan=text) as processes:
        processes.pace = 0.1
        processes.start("coordinator")
        processes.wait((folder / "coordinator" / "address").is_file, "the coordinator")
        first.unlink()  # another machine's
        processes.settings["shard-0"] = 'initial = "../elsewhere/v0.safetensors"'
        for name in (*processes.shards, *processes.clients):
            processes.start(name)
        lacks = f"{first}: No such file or directory: bring shard-1 the file of version 0"
        processes.wait(lambda: lacks in processes.log("shard-1"), "the shard without the file")
        assert f"digest is {plan.initial_digest}" in processes.log("shard-1")
        processes.settings["shard-1"] = processes.settings["shard-0"]
        processes.start("shard-1")
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("coordinator")
        at = text.replace("first.safetensors", str(moved))
        wrote(folder / "plan.toml", at.format(cipher="plain", versions=4))
        processes.start("coordinator")
        processes.wait(processes.finished, "the end")
        assert same(processes.model()[1], simulation.model())


class InThreeDays(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(days=3)


def test_a_party_waits_until_its_clock_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a machine that begins in another year its certificate is one of the future."""
    early = ("shard-0", "client-00")
    with Processes(tmp_path, "plain", versions=1) as processes:
        kit = tmp_path / "kit"
        ca, roster = Identity((kit / "ca" / "ca.key").read_bytes()), load_public(kit).roster
        with monkeypatch.context() as patch:
            patch.setattr(identity, "datetime", InThreeDays)
            for name in early:
                renew_certificate(kit, ca, roster, name)
        processes.start_all()
        for name in early:
            told = f"{name}.pem: it begins on "
            processes.wait(partial(says, processes, name, told), f"{name} to wait")
            assert "waits until the clock is set" in processes.log(name)
        for name in early:
            assert processes.alive(name)
            renew_certificate(kit, ca, roster, name)  # as good as a clock that is set
        processes.wait(processes.finished, "the end")


def says(processes: Processes, name: str, text: str) -> bool:
    return text in processes.log(name)


def wrote(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


AGGREGATOR = (
    *("coordinator", "shard-0", "shard-1", "checkpoints"),
    *("kit/public", "kit/private/coordinator", "kit/private/shard"),
)


def files(folder: Path, owners: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for path in (p for owner in owners for p in sorted(folder.glob(f"{owner}*"))):
        for file in (path, *path.rglob("*")):
            with suppress(OSError):
                found[str(file.relative_to(folder))] = file.read_bytes()
    return found


def caught(processes: Processes, folder: Path, owner: str, name: str) -> dict[str, bytes]:
    """The aggregator's files, and `owner`'s, at a moment when `owner` has one of this name."""
    found: dict[str, bytes] = {}

    def there() -> bool:
        found.clear()
        if any((folder / owner).rglob(name)):
            found.update(files(folder, (*AGGREGATOR, owner)))
        return any(fnmatch(key, f"{owner}/*{name}") for key in found)

    processes.wait(there, f"a {name} at {owner}")
    return found


def test_the_aggregator_never_has_the_secret_key(tmp_path: Path) -> None:
    """Every byte that went to and from its processes, and its files in mid-run and at the end."""
    with Processes(tmp_path, record=True) as processes:
        processes.pace = 0.15
        processes.start_all()
        sealed = caught(processes, tmp_path, "client-00", "update~*")
        opened = caught(processes, tmp_path, "shard-0", "opened~*")
        assert {"coordinator/journal.db", "shard-0/journal.db", "shard-1.log"} < opened.keys()
        processes.wait(processes.finished, "the end")
        streams = [bytes(s) for r in processes.recorders.values() for s in r.streams]
        seen = [*streams, *opened.values(), *files(tmp_path, AGGREGATOR).values()]
        kit = tmp_path / "kit"
        secret = Needles(load_holder_secret(kit, "holder-0").to_bytes()[-BFV_SECRET:])
        identity = Needles(load_private(kit, "holder-0").to_bytes())
        public = Needles((kit / "public/holders/holder-0.bfv.pub").read_bytes()[-PUBLIC_BYTES:])
    for needles in (secret, identity):
        assert [needles.found(each) for each in seen] == [set()] * len(seen)

    # ... and the search finds what is there: the recording is whole, and so is the search.
    payload = next(data for key, data in sealed.items() if "update~" in key)
    words = Needles(payload)
    recorded = set[int]().union(*(words.found(stream) for stream in streams))
    assert len(recorded) > 0.99 * len(words.words), "all but those that frames of HTTP/2 cut"
    assert public.found(b"x" + (kit / "public/holders/holder-0.bfv.pub").read_bytes()) == {
        int(word) for word in public.words
    }
    word = int(secret.words[1])
    raw = word.to_bytes(8, "little")
    for planted in (
        raw,
        ZstdCompressor().compress(bytes(1000) + raw + bytes(999)),
        f'{{"key": "{raw.hex()}"}}'.encode(),
        f'{{"key": "{b64encode(b"xy" + raw).decode()}"}}'.encode(),
    ):
        assert secret.found(payload[:999] + planted + payload[999:]) == {word}


def test_sigterm_ends_processes_cleanly(tmp_path: Path) -> None:
    """In the middle of a version, the others going on: status 0 and no traceback."""
    with Processes(tmp_path, "bfv") as processes:
        processes.start_all()
        processes.wait(lambda: processes.reached(0), "version 0")
        names = ("shard-0", "holder-0", "client-00", "client-01", "coordinator", "shard-1")
        for times, name in enumerate(names, start=1):
            # before that the interpreter is loading modules, and ends as any program does
            processes.wait((tmp_path / name / "journal.db").is_file, f"{name} to begin")
            assert processes.stop(name, times) == 0
            assert f"{name}: ends on SIGTERM" in processes.log(name)
            assert "Traceback" not in processes.log(name)


def test_a_coordinator_does_not_take_the_folder_of_another_kit_s_run(tmp_path: Path) -> None:
    with Processes(tmp_path, "plain") as processes:
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("coordinator")
        kit = tmp_path / "kit"
        ca, known = Identity((kit / "ca" / "ca.key").read_bytes()), load_public(kit).roster
        other_line = next_roster(ca, first_roster(ca, 0), known.certificates, 0, 0)
        roster_file(kit).write_bytes(other_line.to_bytes())
        processes.start("coordinator")
        for said in (
            "which was founded with another kit, or a newer one, than was given",
            "A new run takes a new state folder: keep this one",
        ):
            processes.wait(partial(says, processes, "coordinator", said), said)
        assert "Traceback" not in processes.log("coordinator")


def test_who_is_replaced_ends_with_an_error(tmp_path: Path) -> None:
    """Elsewhere, with a state folder of its own: nobody can know before its stream is taken."""
    with Processes(tmp_path, "plain") as processes:
        processes.start("coordinator")
        processes.wait(lambda: (tmp_path / "coordinator" / "address").is_file(), "the address")
        processes.start("shard-0")
        processes.wait(partial(processes.live, "shard-0"), "the stream")
        first = processes._running["shard-0"]
        (tmp_path / "elsewhere").mkdir()
        config = processes._server("shard-0")[-1]
        text = Path(config).read_text().replace('state = "shard-0"', 'state = "elsewhere/state"')
        other = tmp_path / "other.toml"
        other.write_text(text)
        command = ["-m", "secureps", "serve", "shard", "--config", str(other)]
        processes._running["elsewhere"] = processes._begin(command, tmp_path / "elsewhere.log")
        assert first.wait(PATIENCE) == MISCONFIGURED
        said = processes.log("shard-0")
        assert "another process with shard-0's kit has taken its orders over" in said
        assert "Traceback" not in said
        processes.wait(partial(processes.live, "shard-0"), "the stream of the one that is left")
        assert processes.alive("elsewhere")


def test_one_place_for_each_kit_from_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    here = default_state(Path("kit"), "ada")
    monkeypatch.chdir(tmp_path / "deep")
    assert default_state(Path("../kit"), "ada") == here == tmp_path / "kit" / "state" / "ada"


def keys_of(processes: Processes, holder: str) -> list[Path]:
    return sorted((processes.kit(holder) / "private" / holder).glob("**/envelope*.key"))


def erased(processes: Processes) -> None:
    for holder in processes.holders:
        processes.wait(lambda name=holder: not keys_of(processes, name), "erased keys")  # type: ignore[misc]


@pytest.mark.timeout(240)
def test_parties_killed_one_after_another_end_in_the_simulated_model(tmp_path: Path) -> None:
    """SIGKILL of every kind of process; and no holder's key is in the aggregator's files."""
    with Processes(tmp_path / "run", "rlwe", versions=6) as processes:
        assert len(processes.holders) == 4
        processes.pace = 0.15
        processes.start_all()
        processes.kill_in_turn(*processes.holders, "shard-0")
        secrets = {name: keys_of(processes, name)[-1].read_bytes() for name in processes.holders}
        processes.kill_in_turn("client-03", "coordinator")
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
        status = processes.seen
        assert status.incarnation == 2
        marks = {m.name: (m.unsafe, m.epsilon) for m in status.members}
        assert marks == dict.fromkeys(processes.clients, (True, math.inf))
        erased(processes)
    assert versions == {"all": 6}
    assert same(model, unharmed(versions=6)[0])
    folder = tmp_path / "run"
    kept = [
        path.read_bytes()
        for party in ("coordinator", "shard-0", "shard-1", "checkpoints")
        for path in (folder / party).rglob("*")
        if path.is_file()
    ]
    for secret in secrets.values():
        needles = Needles(secret[-SECRET_BYTES:])
        assert [needles.found(data) for data in kept] == [set()] * len(kept)
        assert needles.found(b"x" + secret)


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


ROLES = ("coordinator", "shard-0", "holder-0", "client-00")
FIRST_FRAME = 32 + 24
"""Where the first page of SQLite's log begins."""


def flip_its_log(state: Path) -> None:
    """SQLite reads what is before the damage as if nothing had come after."""
    log = state / "journal.db-wal"
    whole = log.read_bytes()
    at = FIRST_FRAME + 2000
    log.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])


def empty(state: Path) -> None:
    (state / "journal.db").write_bytes(b"")


def empty_without_its_log(state: Path) -> None:
    empty(state)
    for beside in ("journal.db-wal", "journal.db-shm"):
        (state / beside).unlink(missing_ok=True)


HARMS: tuple[Callable[[Path], None], ...] = (flip_its_log, empty, empty_without_its_log)


def whole_without_its_log(state: Path, folder: Path) -> bool:
    """Whether SQLite has just moved everything into the file: then its log holds nothing."""
    folder.mkdir(exist_ok=True)
    alone = Path(shutil.copy(state / "journal.db", folder))
    return last_row(alone) == read_height(height_path(state / "journal.db"))


def refusal(processes: Processes, name: str) -> str:
    before = len(processes.log(name))
    processes.start(name)
    assert processes._running[name].wait(PATIENCE) != 0
    return processes.log(name)[before:]


@pytest.mark.timeout(300)
def test_every_role_refuses_a_damaged_journal_and_goes_on_from_a_whole_one(tmp_path: Path) -> None:
    harmed = 0
    with Processes(tmp_path / "run", "bfv") as processes:
        processes.pace = 0.1
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        for name in ROLES:
            processes.kill(name)
        for name in ROLES:
            state, copy = processes.folder / name, tmp_path / "copies" / name
            shutil.copytree(state, copy)
            for harm in HARMS:
                if harm is flip_its_log and whole_without_its_log(state, tmp_path / name):
                    continue
                harm(state)
                harmed += 1
                for _again in range(1 + (harm is empty)):  # a start changes nothing of it
                    said = refusal(processes, name)
                    assert f"{state / 'journal.db'}: " in said, said
                    assert "rows were written" in said, said
                    assert "secureps restore" in said, said
                shutil.rmtree(state)
                shutil.copytree(copy, state)
        for name in ROLES:
            processes.start(name)
        processes.wait(processes.finished, "the end")
    assert harmed > 2 * len(ROLES)


class Followed(Processes):
    def __init__(self, folder: Path, cipher: str = "rlwe", plan: str = PLAN) -> None:
        super().__init__(folder, cipher, plan=plan)
        one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.places = f"{one},{two}"
        self.settings["coordinator"] = f'listen = "{one}"\nstandby = "{two}"'
        self.settings[STANDBY] = f'listen = "{two}"\ncoordinator = "{one}"'

    @property
    def server(self) -> str:
        return self.places

    def follows(self) -> bool:
        return self.live(STANDBY)

    def incarnation(self) -> int:
        status = self.status()
        return 0 if status is None else status.incarnation


def take_over(followed: Followed) -> None:
    told = said(cli.app, "takeover", followed.folder / "standby.toml")
    assert told.startswith("the standby takes over")


def test_a_standby_that_does_not_run_is_named_and_not_its_coordinator(tmp_path: Path) -> None:
    with Followed(tmp_path, "plain") as processes:
        processes.start("coordinator")
        processes.start(STANDBY)
        processes.wait((tmp_path / STANDBY / "address").is_file, "the standby")
        processes.stop(STANDBY)
        config = tmp_path / "standby.toml"
        told = invoked(cli.app, "takeover", config)
        assert isinstance(told.exception, OperatorError)
        assert str(told.exception).startswith(f"the standby of {config} does not run here: ")


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    with Followed(tmp_path) as processes:
        processes.pace = 2.0
        processes.start_all()
        processes.start(STANDBY)
        processes.wait(processes.follows, "a standby that follows")
        yield processes


def test_it_takes_over_from_one_that_is_there_and_is_taken_over_from(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(0), "version 0")
    take_over(followed)
    followed.wait(lambda: "is its standby now" in followed.log("coordinator"), "the other's rule")
    followed.wait(lambda: followed.incarnation() // REIGN == 1 and followed.follows(), "a follower")
    followed.kill("coordinator")  # what a folder has come to be, it stays
    followed.start("coordinator")
    followed.wait(lambda: followed.log("coordinator").count("listens on") == 3, "its next start")
    followed.wait(followed.follows, "a follower")
    followed.kill("standby")
    said(cli.app, "takeover", followed.folder / "coordinator.toml")
    followed.wait(lambda: followed.incarnation() // REIGN == 2, "a takeover back")
    followed.wait(followed.finished, "the end")
    assert same(followed.model()[1], unharmed("plain")[0])


def test_a_standby_without_a_run_says_why_it_takes_nothing_over(tmp_path: Path) -> None:
    with Followed(tmp_path) as followed:
        followed.start("coordinator")
        followed.start(STANDBY)
        followed.wait(lambda: "has all that the coordinator has" in followed.log(STANDBY), "it")
        with pytest.raises(Refused, match="no run is founded yet, and so there is nothing to take"):
            take_over(followed)


def test_version_0_lies_elsewhere_on_the_standby_s_machine(tmp_path: Path) -> None:
    initial = tmp_path / "first.safetensors"
    write_state(initial, Walker(0).parameters(7), {})
    plan = f'initial = "first.safetensors"\n{PLAN}'
    with Followed(tmp_path, "plain", plan) as followed:
        followed.pace = 0.3
        followed.start_all()
        followed.wait(lambda: followed.reached(0), "version 0")
        (tmp_path / "elsewhere").mkdir()
        other = tmp_path / "elsewhere" / "v0.safetensors"
        initial.rename(other)
        own = followed.settings[STANDBY]
        followed.start(STANDBY)
        followed.wait(lambda: not followed.alive(STANDBY), "the end of the standby")
        assert f"initial: no file {initial}" in followed.log(STANDBY)
        followed.settings[STANDBY] = f'{own}\ninitial = "elsewhere/v0.safetensors"'
        right = other.read_bytes()
        write_state(other, Walker(0).parameters(8), {})
        followed.start(STANDBY)
        followed.wait(lambda: not followed.alive(STANDBY), "the end of the standby")
        assert f"{other} is another file than the coordinator's" in followed.log(STANDBY)
        other.write_bytes(right)
        followed.start(STANDBY)
        followed.wait(followed.follows, "a standby that follows")
        followed.kill("coordinator")
        take_over(followed)
        followed.wait(followed.finished, "the end")


def test_one_that_knows_no_other_address_ends(tmp_path: Path) -> None:
    with Followed(tmp_path, "plain") as processes:
        processes.settings["coordinator"] = processes.settings["coordinator"].splitlines()[0]
        processes.start_all()
        processes.start(STANDBY)
        processes.wait(processes.follows, "a standby that follows")
        take_over(processes)
        processes.wait(lambda: not processes.alive("coordinator"), "the end of the old one")
        assert 'name the other one in its file, standby = "HOST:PORT"' in processes.log(
            "coordinator"
        )
