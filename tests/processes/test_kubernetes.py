"""Manifests for Kubernetes run as pods in network namespaces (`make clusters`).

Each pod is a process in a network namespace with an address of its own, started by the very
commands of the manifests. It takes a minute, so it is played by `make clusters` alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from safetensors.numpy import load_file

from secureps.crypto.identity import Role
from secureps.policy.plan import load_plan
from secureps.store.issuing import create_kit, issue
from tests.kits import firewall
from tests.kits.namespaces import Switch, possible
from tests.kits.nursery import ROOT
from tests.kits.on_disk import PATIENCE, OnDisk
from tests.kits.pods import Cluster, Network, Running
from tests.kits.whole_steps import SCRIPT, plan_text, unharmed

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
