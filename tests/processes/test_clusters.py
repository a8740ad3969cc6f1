"""Manifests for Kubernetes, batch files for Slurm and the image, played by `make clusters` alone.

Each pod is a process in a network namespace with an address of its own, started by the very
commands of the manifests. Batch files are run by bash alone, and by Slurm itself: a job that loses
its node, or whose time is nearly over, goes on elsewhere, and the model is the same. The image of
`Containerfile` is built here on Debian's own packages. All of it takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from secureps.compiled import kernel_folder
from secureps.crypto.identity import Role
from secureps.policy.plan import load_plan
from secureps.run.cli import deploy
from secureps.run.deploy.kubernetes import USER
from secureps.run.up.folder import client_names, holder_names
from secureps.store.issuing import create_kit, issue
from tests.kits import firewall
from tests.kits.command import said
from tests.kits.namespaces import Switch, possible
from tests.kits.nursery import ROOT
from tests.kits.on_disk import PATIENCE, OnDisk
from tests.kits.pods import Cluster, Network, Running
from tests.kits.processes import make_kit
from tests.kits.whole_steps import SCRIPT, plan_text, unharmed
from tests.run.deploy.test_kubernetes import deployed

PAGE = ROOT / "docs" / "deploy.md"
VERSIONS = 6

PARTIES: dict[str, dict[str, Role]] = {
    "ps": {"coordinator": "coordinator", "shard-0": "shard", "observer": "observer"},
    "north": {"north-0-holder": "holder", "north-0": "client", "north-1": "client"},
    "south": {"south-0-holder": "holder", "south-0": "client", "south-1": "client"},
}


def blocks() -> list[tuple[list[str], str]]:
    found = []
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if where := re.match(r"# on ([a-z ]+):", block):
            found.append((where.group(1).split(" and "), block))
    return found


def own_kits(folder: Path) -> None:
    create_kit(folder / "issuer", load_plan(folder / "plan.toml").cipher_parameters)
    for roles in PARTIES.values():
        for name, role in roles.items():
            issue(folder / "issuer", role, name)
    for machine, roles in PARTIES.items():
        shutil.copytree(folder / "issuer" / "public", folder / machine / "kit" / "public")
        for name in roles:
            own = folder / machine / "kit" / "private" / name
            shutil.copytree(folder / "issuer" / "private" / name, own)
        shutil.copy(folder / "plan.toml", folder / machine)
        (folder / machine / "digits.py").write_text(SCRIPT)


SERVERS, HOLDERS_AND_CLIENTS = (
    {"coordinator-0", "shard-0-0"},
    {"north-0-holder-0", "south-0-holder-0", "north-0-x", "north-1-x", "south-0-x", "south-1-x"},
)
ALLOWED = {("shard-0-0", "coordinator-0", 7600)} | {
    (each, server, 7600) for each in HOLDERS_AND_CLIENTS for server in SERVERS
}
"""Who may open a connection to whom, and at which port: servers are asked, and nobody else is."""

PORTS = (22, 7600, 7700)

LISTENER = """
import socket, sys
own = []
for port in map(int, sys.argv[1:]):
    try:
        own.append(socket.create_server(("0.0.0.0", port)))
    except OSError:  # the pod's own process is there
        pass
print("listens", flush=True)
sys.stdin.read()
"""

DIALLER = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.partition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        continue
    print(place)
"""


def reached_by_tcp(stage: Stage) -> set[tuple[str, str, int]]:
    """(pod, pod, port) of all connections that are made, where at every port somebody listens."""
    pods = [pod for cluster in stage.clusters.values() for pod in cluster.pods.values()]
    at = {f"{pod.address}:{port}": (pod.name, port) for pod in pods for port in PORTS}
    listeners, found = [], set[tuple[str, str, int]]()
    try:
        for pod in pods:
            listeners.append(inside(pod, LISTENER, *map(str, PORTS)))
        for each in listeners:
            assert each.stdout is not None
            assert each.stdout.readline() == "listens\n"
        diallers = {
            pod.name: inside(pod, DIALLER, *(x for x in at if not x.startswith(f"{pod.address}:")))
            for pod in pods
        }
        for name, each in diallers.items():
            said, _ = each.communicate(timeout=PATIENCE)
            found |= {(name, *at[place]) for place in said.split()}
    finally:
        for each in listeners:
            each.communicate()
    return found


def inside(pod: Running, source: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["ip", "netns", "exec", pod.space, sys.executable, "-ISc", source, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Stage(OnDisk):
    """The machines' folders and clusters, and who plays what the page says.

    Args:
        options: more of `secureps deploy`, at all machines.
    """

    def __init__(self, folder: Path, network: Network, *options: str) -> None:
        run = folder / "ps-cluster/coordinator-0/data/runs/three-clusters"
        super().__init__(run, (folder, "*-cluster/*.log"))
        self.folder = folder
        self._options = options
        self.clusters = {name: Cluster(network, folder / f"{name}-cluster") for name in PARTIES}

    def play(self, where: list[str], block: str) -> None:
        for machine in where:
            for line in block.splitlines():
                words = shlex.split(line.replace("$SITE", machine), comments=True)
                if words[:2] == ["secureps", "deploy"]:
                    words += self._options
                if words[:1] == ["kubectl"]:
                    self._kubectl(machine, words[1:])
                elif words:
                    self._run(machine, words)

    def _run(self, machine: str, words: list[str]) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            words,
            cwd=self.folder / machine,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def _kubectl(self, machine: str, words: list[str]) -> None:
        cluster, home = self.clusters[machine], self.folder / machine
        match words:
            case ["apply", "-f", folder]:
                cluster.apply(home / folder)
            case ["delete", kind, name, "--namespace", "secureps"]:
                self.wait(lambda: self.reached(0), "the run")
                cluster.delete(kind, name)
            case ["cp", source, target, "--namespace", "secureps"]:
                pod, _, path = source.partition(":/srv/")
                shutil.copytree(cluster.folder / pod / path, home / target, dirs_exist_ok=True)
            case _:
                raise AssertionError(words)

    def jobs(self) -> list[int | None]:
        pods = (pod for cluster in self.clusters.values() for pod in cluster.pods.values())
        processes = [pod.process for pod in pods if pod.name.endswith("-x")]
        return [process.poll() for process in processes if process is not None]


def test_every_block_of_the_page_says_where_it_runs() -> None:
    assert [where for where, _ in blocks()] == [
        ["ps"],
        ["north", "south"],
        ["north", "south"],
        ["ps"],
        ["ps"],
        ["ps"],
    ]


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """A folder with the plan and all machines' kits; skips where no cluster can be played."""
    if "SECUREPS_CLUSTERS" not in os.environ:
        pytest.skip("it takes a minute: make clusters")
    if reason := possible() or firewall.possible():
        pytest.skip(reason)
    (tmp_path / "plan.toml").write_text(plan_text("three-clusters", VERSIONS))
    own_kits(tmp_path)
    return tmp_path


@pytest.mark.timeout(900)
def test_three_clusters_from_kits_to_a_model(kits: Path) -> None:
    servers, sites, secrets, shard, roster, export = blocks()
    with Switch() as switch, Network(switch) as network:
        stage = Stage(kits, network)
        stage.play(*servers)
        coordinator = stage.clusters["ps"].pods["coordinator-0"]
        shard_pod = stage.clusters["ps"].pods["shard-0-0"]
        stage.wait(lambda: shard_pod.ask("livenessProbe") == 0, "the shard's process")
        assert shard_pod.ask("readinessProbe") == 1, "no run is founded yet"
        stage.play(*sites)
        stage.wait(lambda: stage.reached(0), "the run")
        south = stage.clusters["south"].pods["south-0-holder-0"]
        erased = south.folder / "data/kit/private/south-0-holder/envelope.key"
        stage.wait(lambda: not erased.exists(), "the erasure of the key that all runs begin with")
        south.kill()
        south.prepare()
        assert not erased.exists(), "its Secret still has it"
        assert reached_by_tcp(stage) == ALLOWED
        south.begin()
        stage.play(*secrets)
        assert shard_pod.ask("readinessProbe") == 0
        assert coordinator.ask("readinessProbe") == 0
        holder = stage.clusters["north"].pods["north-0-holder-0"]
        assert holder.ask("readinessProbe") == 0
        stage.wait(lambda: stage.reached(1), "version 1")
        client = stage.clusters["south"].pods["south-1-x"]
        others = (coordinator, holder, client)
        before = [pod.address for pod in (shard_pod, *others)]
        for pod in others:
            pod.kill()
        stage.play(*shard)
        assert not stage.reached(VERSIONS), "there was something left to do"
        for pod in others:
            pod.start()
        assert not {pod.address for pod in (shard_pod, *others)} & set(before)
        stage.play(*roster)
        stage.wait(lambda: None not in stage.jobs(), "the end of all clients")
        assert stage.jobs() == [0, 0, 0, 0], stage.logs()
        stage.play(*export)
    model = load_file(kits / "ps" / "model.safetensors")["weight"]
    assert np.array_equal(model, unharmed(VERSIONS, (0, 1, 0, 1)))
    ends = [log.read_text().splitlines()[-1] for log in kits.glob("*-cluster/*-x.log")]
    assert ends == [f"all {VERSIONS} versions are made"] * 4


STORE = "10.78.200.1:9000"
BUCKET = "s3://bucket/three-clusters"
STORE_KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
}
TOGETHER = ("--standby", "--copies", f"{BUCKET}/checkpoints", "--store-secret", "store-keys")

S3 = """
import boto3, sys
from moto.server import ThreadedMotoServer
ThreadedMotoServer("0.0.0.0", 9000, verbose=False).start()
boto3.client("s3").create_bucket(Bucket="bucket")
print("listens", flush=True)
sys.stdin.read()
"""


class Outside:
    def __init__(self, switch: Switch) -> None:
        pytest.importorskip("moto.server", reason="moto is not installed: no S3 to copy to")
        pytest.importorskip("s3fs", reason="s3fs is not installed: nothing copies")
        self._space = switch.add("store", STORE.partition(":")[0])
        self._server = subprocess.Popen(
            self._inside("-c", S3), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "listens\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def exported(self, file: Path, version: int) -> bool:
        words = ("-m", "secureps", "export", BUCKET, "--out", str(file))
        done = subprocess.run(self._inside(*words), capture_output=True, text=True, check=False)
        return f"version {version}\n" in done.stdout

    def _inside(self, *words: str) -> list[str]:
        own = {**STORE_KEYS, "AWS_ENDPOINT_URL": f"http://{STORE}", "PYTHONPATH": str(ROOT)}
        around = ["env", *(f"{key}={value}" for key, value in own.items()), sys.executable]
        return ["ip", "netns", "exec", self._space, *around, *words]


def follows(coordinator: Running) -> bool:
    told = coordinator.say(
        *("secureps", "status", "--server", "127.0.0.1:7600", "--kit", "/srv/data/kit"),
        *("--name", "coordinator", "--json"),
    )
    servers = json.loads(told or "{}").get("servers", ())
    return any(each["name"] == "standby" and each["state"] == "follows" for each in servers)


@pytest.mark.timeout(900)
def test_a_coordinator_that_is_gone_for_good_has_a_standby_and_copies_at_a_store(
    kits: Path,
) -> None:
    servers, sites, *_ = blocks()
    with Switch() as switch, Outside(switch) as store, Network(switch) as network:
        options = (*TOGETHER, "--store-endpoint", f"http://{STORE}")
        stage = Stage(kits, network, *options)
        stage.clusters["ps"].create_secret("store-keys", STORE_KEYS)
        stage.play(*servers)
        pods = stage.clusters["ps"].pods
        coordinator, standby, shard = (
            pods[f"{each}-0"] for each in ("coordinator", "standby", "shard-0")
        )
        stage.play(*sites)
        stage.wait(lambda: follows(coordinator), "a standby that follows")
        assert standby.ask("readinessProbe") == standby.ask("livenessProbe") == 0
        holder = stage.clusters["north"].pods["north-0-holder-0"]
        for pod, reaches in ((shard, STORE), (standby, STORE), (holder, "")):
            assert inside(pod, DIALLER, STORE).communicate(timeout=PATIENCE)[0].strip() == reaches
        stage.wait(lambda: stage.reached(1), "version 1")
        assert not stage.reached(VERSIONS - 1), "there was something left to do"
        coordinator.kill()
        told = standby.say("secureps", "takeover", "/srv/config/coordinator.toml")
        assert told.startswith("the standby takes over")
        stage.wait(lambda: "no standby follows" in standby.log.read_text(), "a takeover")
        coordinator.start()
        text = "is its standby now"
        stage.wait(lambda: text in coordinator.log.read_text(), "the old one, which follows")
        stage.wait(lambda: None not in stage.jobs(), "the end of all clients")
        assert stage.jobs() == [0, 0, 0, 0], stage.logs()
        file = kits / "copied.safetensors"
        stage.wait(lambda: store.exported(file, VERSIONS), "the copy of the last version")
    model = load_file(kits / "copied.safetensors")["weight"]
    assert np.array_equal(model, unharmed(VERSIONS, (0, 1, 0, 1)))


BATCH_VERSIONS = 8
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
        (folder / "plan.toml").write_text(plan_text("batch", BATCH_VERSIONS, shards=2))
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
        assert np.array_equal(weight, unharmed(BATCH_VERSIONS, range(len(CLIENTS))))


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
        assert not of.reached(BATCH_VERSIONS), "there was something left to do"
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
        assert not of.reached(BATCH_VERSIONS), "there was something left to do"
        waiting = jobs("PENDING")
        assert len(waiting) == 1 + len(HOLDERS) + len(CLIENTS)
        for job in waiting:  # who is queued again would wait for two minutes
            run("scontrol", "update", f"JobId={job}", "StartTime=now")
        of.wait(lambda: not run("squeue", "--noheader"), "the end of all jobs")
        assert len(jobs("COMPLETED")) == len(jobs("all")) == 1 + len(waiting), of.logs()
    of.check_model()


TOOLS = ("debootstrap", "buildah", "podman", "runc")
BASE = "localhost/base:bookworm"
KEPT = ROOT / ".pytest_cache" / "bookworm.tar"
"""The base, half of all the time: nothing of it is tried here, so it is made once. `make clean`."""
IMAGE = "localhost/secureps:test"
WITHIN = ("pyproject.toml", "README.md", "LICENSE", "Containerfile", "secureps")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
IMAGE_PATIENCE = 120.0


class Engine:
    """Containers whose images lie in a folder of their own; `with` removes it.

    Layers lie over each other where the kernel can do it here; else each is a copy of all below it.
    """

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="ps-", dir="/tmp"))  # podman wants a short path
        (self.folder / "tmp").mkdir()
        self._driver = "overlay" if overlays(self.folder) else "vfs"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for mount in reversed(self._mounts()):  # podman leaves its store mounted on itself
            subprocess.run(["umount", mount], capture_output=True, check=False)
        if not self._mounts():  # nothing of others
            shutil.rmtree(self.folder, ignore_errors=True)

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [at for line in lines if (at := line.split()[4]).startswith(f"{self.folder}/")]

    def words(self, tool: str, *words: str) -> list[str]:
        stores = [f"--root={self.folder}/store", f"--runroot={self.folder}/run"]
        return [tool, *stores, f"--storage-driver={self._driver}", *words]

    def run(self, tool: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words(tool, *words),
            env={**os.environ, "TMPDIR": str(self.folder / "tmp")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done

    def podman(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        around = ("--runtime=runc", "--cgroup-manager=cgroupfs")
        return self.run("podman", *around, *words, check=check)


def overlays(folder: Path) -> bool:
    lower, upper, work, over = (folder / f"try-{name}" for name in ("l", "u", "w", "o"))
    for each in (lower, upper, work, over):
        each.mkdir()
    parts = f"lowerdir={lower},upperdir={upper},workdir={work}"
    words = ["mount", "-t", "overlay", "overlay", "-o", parts, str(over)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", over], check=True)
    return True


def base(engine: Engine) -> None:
    if not KEPT.exists():
        root, archive = engine.folder / "rootfs", KEPT.with_suffix(".new")
        words = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm"]
        made = subprocess.run([*words, str(root)], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"debootstrap made no base: {made.stdout[-200:]}")
        KEPT.parent.mkdir(exist_ok=True)
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
        archive.replace(KEPT)
    engine.podman("import", str(KEPT), BASE)


def pip_settings(folder: Path) -> list[str]:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    lines = ["[global]", *(f"{key} = {value}" for key, value in found.items())]
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    named = re.findall(r"(?:^| |file://)(/[\w./-]+)", "\n".join(found.values()), re.MULTILINE)
    outer = {Path(each) for each in named if Path(each).is_file() or each.endswith("/simple")}
    places = {path.parent if path in outer else path for path in map(Path, named)}
    mounts = [f"{folder}/pip.conf:/etc/pip.conf:ro"]
    mounts += [f"{place}:{place}:ro" for place in sorted(places) if place.is_dir()]
    return [word for mount in mounts for word in ("--volume", mount)]


def build(engine: Engine) -> None:
    context = engine.folder / "context"
    context.mkdir()
    for name in WITHIN:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, context)
    asked = ("--isolation=chroot", "--build-arg", f"BASE={BASE}", "--tag", IMAGE)
    file = ("--file", str(context / "Containerfile"), str(context))
    engine.run("buildah", "bud", *asked, *pip_settings(engine.folder), *file)


def in_pod(pod: Running, mounts: Sequence[dict[str, str]]) -> list[str]:
    """How a pod's container is run: nobody's, on a read-only file system, with its volumes."""
    words = ["--user", f"{USER}:{USER}", "--read-only", "--cap-drop=ALL", *LIMITS]
    words += ["--security-opt=no-new-privileges", f"--network=ns:/var/run/netns/{pod.space}"]
    for each in mounts:
        source = pod.folder / each["name"]
        source.mkdir(exist_ok=True)
        if each["name"] in ("data", "tmp"):
            os.chown(source, USER, USER)
        only = ":ro" if each.get("readOnly") else ""
        words += ["--volume", f"{source}:{each['mountPath']}{only}"]
    for each in pod.container["env"]:
        words += ["--env", f"{each['name']}={each['value']}"]
    return [*words, "--entrypoint", ""]


@contextmanager
def running(engine: Engine, pod: Running) -> Iterator[str]:
    (prepare,) = pod.spec["initContainers"]
    engine.podman("run", "--rm", *in_pod(pod, prepare["volumeMounts"]), IMAGE, *prepare["command"])
    own = in_pod(pod, pod.container["volumeMounts"])
    name = f"{pod.space}-main"
    engine.podman("run", "--detach", "--name", name, *own, IMAGE, *pod.container["command"])
    try:
        yield name
    finally:
        engine.podman("rm", "--force", name, check=False)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Has the image."""
    if "SECUREPS_CLUSTERS" not in os.environ:
        pytest.skip("it takes minutes: make clusters")
    if reason := possible() or ("" if all(map(shutil.which, TOOLS)) else f"no {', '.join(TOOLS)}"):
        pytest.skip(reason)
    with Engine() as made:
        base(made)
        build(made)
        yield made


@pytest.mark.timeout(1200)
def test_the_image_runs_a_coordinator_as_its_pod_would(engine: Engine, tmp_path: Path) -> None:
    home = deployed()
    options = ("--kit", home / "kit", "--out", tmp_path / "manifests", "--name", "coordinator")
    said(deploy, "kubernetes", home / "plan.toml", *map(str, options))
    with Switch() as switch, Network(switch) as network:
        cluster = Cluster(network, tmp_path / "cluster")
        pod = cluster.load(tmp_path / "manifests" / "servers")["coordinator-0"]
        pod.join()
        with running(engine, pod) as name:
            probe = pod.container["readinessProbe"]["exec"]["command"]
            end = time.monotonic() + IMAGE_PATIENCE
            while engine.podman("exec", name, *probe, check=False).returncode:
                log = engine.podman("logs", name, check=False)
                assert time.monotonic() < end, log.stdout + log.stderr
                time.sleep(0.5)
            tried = engine.podman(
                *("exec", name, "python3", "-c"),
                "import importlib.util, os; print(os.getuid(), importlib.util.find_spec('torch'))",
            )
            assert tried.stdout.split() == [str(USER), "None"]
            assert engine.podman("exec", name, "touch", "/opt/x", check=False).returncode
            engine.podman("stop", "--time", "20", name)
            ended = engine.podman("inspect", "--format", "{{.State.ExitCode}}", name)
            assert ended.stdout.strip() == "0"
    kept = tmp_path / "cluster" / "coordinator-0" / "data" / "runs" / "trial" / "state"
    assert (kept / "journal.db").stat().st_uid == USER


COMPOSE = ROOT / "examples" / "compose"
SITES = [f"five-sites_hospital-{i}_1" for i in range(1, 6)]


def composing(engine: Engine, folder: Path) -> Callable[..., str]:
    """podman-compose on an engine whose image has the name that the file gives it."""
    engine.podman("tag", IMAGE, "localhost/secureps:latest")
    limits = f"[containers]\ndefault_ulimits = {list(LIMITS[1::2])}\n"
    (folder / "containers.conf").write_text(limits)
    words = shlex.join(engine.words("podman", "--runtime=runc", "--cgroup-manager=cgroupfs"))
    settings = f"TMPDIR={engine.folder}/tmp CONTAINERS_CONF={folder}/containers.conf"
    podman = folder / "podman"
    podman.write_text(f'#!/bin/sh\n{settings} exec {words} "$@"\n')
    podman.chmod(0o755)

    def compose(*asked: str) -> str:
        command = ["podman-compose", "--podman-path", str(podman), *asked]
        done = subprocess.run(command, cwd=COMPOSE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return compose


@pytest.mark.timeout(1200)
def test_five_sites_of_the_compose_file_make_a_model_in_containers(
    engine: Engine, tmp_path: Path
) -> None:
    if shutil.which("podman-compose") is None:
        pytest.skip("no podman-compose")
    compose = composing(engine, tmp_path)
    try:
        compose("up", "--no-build", "-d")
        ended = engine.podman("wait", *SITES).stdout.split()
        logs = engine.podman("logs", SITES[0], check=False)
        assert ended == ["0"] * len(SITES), logs.stdout + logs.stderr
        for server in ("coordinator", "shard-0", "shard-1"):
            engine.podman("healthcheck", "run", f"five-sites_{server}_1")
        dial = "import socket; socket.create_connection(('{}', 7600), 5)"
        ask = ("run", "--rm", *LIMITS, "--network=five-sites_site-1", "--entrypoint=python3", IMAGE)
        engine.podman(*ask, "-c", dial.format("shard-0"))
        assert engine.podman(*ask, "-c", dial.format("hospital-2"), check=False).returncode
        for name in SITES:
            engine.podman("cp", f"{name}:/srv/data/model.safetensors", str(tmp_path / name))
        first, *others = (load_file(tmp_path / name) for name in SITES)
        assert any(values.any() for values in first.values())
        assert all((each[key] == first[key]).all() for each in others for key in first)
    finally:
        compose("down", "--volumes")
