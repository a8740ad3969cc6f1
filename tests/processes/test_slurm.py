"""The batch files of `secureps deploy slurm`, run by bash alone, and by Slurm itself.

A job that loses its node, or whose time is nearly over, goes on elsewhere, and the model is the
same. It takes a minute each, so both are played by `make clusters` alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from secureps.compiled import kernel_folder
from secureps.policy.plan import load_plan
from secureps.run.cli import deploy
from secureps.run.up.folder import client_names, holder_names
from tests.kits.command import said
from tests.kits.nursery import ROOT
from tests.kits.on_disk import PATIENCE, OnDisk
from tests.kits.processes import make_kit
from tests.kits.whole_steps import SCRIPT, plan_text, unharmed

VERSIONS = 8
CLIENTS = client_names(4)
HOLDERS = holder_names(2)


def free_ports(count: int, start: int) -> int:
    """The first of so many ports that follow each other and are free, from about `start` on."""
    for first in range(start + os.getpid() % 10_000, 65_000, 7):
        with suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("0.0.0.0", port)).close()
            return first
    raise AssertionError("no free ports")


class Deployment(OnDisk):
    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder / "run", (folder / "run", "logs/*.log"))
        self.folder = folder
        (folder / "plan.toml").write_text(plan_text("batch", VERSIONS, shards=2))
        (folder / "client.py").write_text(SCRIPT)
        kit, plan = folder / "kit", load_plan(folder / "plan.toml")
        make_kit(kit, plan, "coordinator", "shard-0", "shard-1", *HOLDERS, *CLIENTS)
        words = ["--kit", kit, "--out", self.run, "--script", folder / "client.py"]
        words += ["--set", "partition={index}", "--port", str(free_ports(3, 12_000)), *options]
        said(deploy, "slurm", folder / "plan.toml", *map(str, words))
        job = self.run / "aggregator.sbatch"
        text = job.read_text()
        assert "sleep 60 &" in text
        job.write_text(text.replace("sleep 60 &", "sleep 3 &"))

    def have_kernels(self) -> None:
        own = kernel_folder()
        shutil.copytree(own, self.run / "kernels" / own.name)

    def environment(self) -> dict[str, str]:
        path = f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def check_model(self) -> None:
        model = self.folder / "model.safetensors"
        done = subprocess.run(
            [sys.executable, "-m", "secureps", "export", str(self.run), "--out", str(model)],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        weight = load_file(model)["weight"]
        assert np.array_equal(weight, unharmed(VERSIONS, range(len(CLIENTS))))


class Jobs:
    def __init__(self, of: Deployment) -> None:
        self.of = of
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (of.folder / "scontrol").write_text('#!/bin/sh\necho "$@" >> "$SCONTROL"\n')
        (of.folder / "scontrol").chmod(0o755)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.running:
            self.kill(name)

    def start(self, name: str, node: str = "127.0.0.1") -> None:
        own = {
            "SECUREPS_HOST": node,
            "SLURM_JOB_ID": name,
            "SCONTROL": str(self.of.folder / "said"),
        }
        with (self.of.run / "logs" / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                ["bash", str(self.of.run / f"{name}.sbatch")],
                env={**self.of.environment(), **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)
        self.running[name].wait()


def is_empty(group: int) -> bool:
    """Whether no shell is left of a job: it would end a process by a number that is another's."""
    for process in psutil.process_iter(["pid", "name"]):
        with suppress(ProcessLookupError):
            if process.info["name"] == "bash" and os.getpgid(process.info["pid"]) == group:
                return False
    return True


def asked_for() -> None:
    if "SECUREPS_CLUSTERS" not in os.environ:
        pytest.skip("it takes a minute: make clusters")


@pytest.mark.timeout(1800)
def test_jobs_that_bash_runs_survive_their_nodes_and_the_end_of_their_time(tmp_path: Path) -> None:
    asked_for()
    of = Deployment(tmp_path)
    with Jobs(of) as jobs:
        for name in ("aggregator", *HOLDERS, *CLIENTS):
            jobs.start(name)
        of.wait(lambda: of.reached(1), "version 1")
        timed, (first, *_) = CLIENTS[0], HOLDERS
        for name in (timed, first):
            os.kill(jobs.running[name].pid, signal.SIGUSR1)
            assert jobs.running[name].wait(PATIENCE) == 0
            of.wait(partial(is_empty, jobs.running[name].pid), f"the end of {name}")
        assert (tmp_path / "said").read_text() == f"requeue {timed}\nrequeue {first}\n"
        jobs.kill("aggregator")
        jobs.kill(CLIENTS[1])
        assert not of.reached(VERSIONS), "there was something left to do"
        jobs.start("aggregator", node="127.0.0.2")
        for name in (timed, first, CLIENTS[1]):
            jobs.start(name)
        ended = {name: job.wait(PATIENCE) for name, job in jobs.running.items()}
        assert ended == dict.fromkeys(ended, 0), of.logs()
    of.check_model()
    assert (of.run / "coordinator.address").read_text().startswith("127.0.0.2:")
    assert (of.run / "logs" / f"{CLIENTS[2]}.log").read_text().count("compiled") == 1


CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={port_1}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/d
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=64000 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF
"""


@contextmanager
def slurm(folder: Path) -> Iterator[Callable[..., str]]:
    host, port = socket.gethostname().partition(".")[0], free_ports(2, 23_000)
    for name in ("ctld", "d"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, port=port, port_1=port + 1, folder=folder)
    )
    own = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    places = [f"--{part}-file={folder}/munge.{part}" for part in ("key", "pid", "log", "seed")]
    daemons = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", host],
    ]
    running = []

    def run(*words: str, around: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            words, env={**own, **(around or {})}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    try:
        for command in daemons:
            with (folder / f"{command[0]}.out").open("wb") as log:
                running.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))
            if command[0] == "munged":
                end = time.monotonic() + 20
                while not (folder / "munge.socket").exists():
                    assert time.monotonic() < end, (folder / "munged.out").read_text()
                    time.sleep(0.05)
        yield run
    finally:
        with suppress(AssertionError, OSError):
            run("scancel", "--user=root")
            end = time.monotonic() + 30
            while run("squeue", "--noheader") and time.monotonic() < end:
                time.sleep(0.2)
        for daemon in reversed(running):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


@pytest.mark.timeout(1800)
def test_slurm_preempts_a_federation_which_goes_on(tmp_path: Path) -> None:
    asked_for()
    if os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
        pytest.skip("it needs root, and Slurm: apt-get install slurmctld slurmd munge")
    of = Deployment(tmp_path, "--sbatch=--partition=low")
    of.have_kernels()
    with slurm(tmp_path / "slurm") as run:
        around = {**of.environment(), "SECUREPS_HOST": "127.0.0.1"}

        def jobs(state: str) -> list[str]:
            return run("squeue", "--noheader", "--format=%A", f"--states={state}").split()

        of.wait(lambda: "idle" in run("sinfo", "--noheader", "--format=%T"), "the node")
        for path in sorted(of.run.glob("*.sbatch")):
            run("sbatch", str(path), around=around)
        of.wait(lambda: of.reached(1), "version 1")
        urgent = run(
            *("sbatch", "--parsable", "--partition=high", "--cpus-per-task=16"),
            *("--output=/dev/null", "--wrap=sleep 2"),
        )
        of.wait(lambda: urgent.strip() in jobs("RUNNING"), "preemption")
        assert not of.reached(VERSIONS), "there was something left to do"
        waiting = jobs("PENDING")
        assert len(waiting) == 1 + len(HOLDERS) + len(CLIENTS)
        for job in waiting:  # who is queued again would wait for two minutes
            run("scontrol", "update", f"JobId={job}", "StartTime=now")
        of.wait(lambda: not run("squeue", "--noheader"), "the end of all jobs")
        assert len(jobs("COMPLETED")) == len(jobs("all")) == 1 + len(waiting), of.logs()
    of.check_model()
