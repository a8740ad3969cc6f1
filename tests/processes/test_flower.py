"""Private apps inside Flower's engine as it is deployed: the same bits, whoever is killed or lies.

A wave of messages takes ten seconds of two cores: `make flower` runs this, `make test` does not.
"""

import importlib.util
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import psutil
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from safetensors.numpy import load_file

from secureps.crypto.identity import AUTHORITY_USAGE
from secureps.flower.strategy import simulated_kit
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.run.up.folder import client_names, holder_names, shard_names
from tests.examples.test_flower_examples import APPS
from tests.kits import key_search
from tests.kits.command import INSECURE, run
from tests.kits.flower_simulation import copied, private, simulate
from tests.kits.key_search import digested, piece, search
from tests.kits.nursery import ROOT
from tests.kits.party_kits import part
from tests.kits.relay import free_port
from tests.kits.tls_balancer import Balancer
from tests.kits.users import playable

PATIENCE = 600.0
"""Seconds without a word in any log: a wave takes ten of two cores, and many more of busy ones."""
MARK = "SECUREPS_FLOWER_TEST"
"""In the environment of every process of a deployment: which one it belongs to."""

PATIENT = (sys.executable, "-m", "tests.kits.flower_patient")

_CONNECTION = """[superlink]
default = "test"
[superlink.test]
address = "{address}"
"""


class Deployment:
    """A SuperLink and its SuperNodes, `nodes` of them; none: the SuperLink simulates.

    Args:
        folder: of keys, logs and the apps' own files; the ServerApp writes here.
        node_config: what a SuperNode says of itself, beside its partition, by its number.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        node_config: Callable[[int], Mapping[str, str]] = lambda number: {},
    ) -> None:
        self.folder = folder
        self.nodes = nodes
        self._node_config = node_config
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._programs = Path(sys.executable).parent
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = self._listens = f"127.0.0.1:{free_port()}"
        (folder / "flwr").mkdir(parents=True)
        self._authority, *pair = certify(folder)
        self._pair = (pair[0], pair[1])
        trusted = f'root-certificates = "{self._authority}"\n'
        connection = _CONNECTION.format(address=self.address) + trusted
        (folder / "flwr" / "config.toml").write_text(connection)

    # --- processes ----------------------------------------------------------------

    _registers = True
    """Whether the SuperLink lets in only SuperNodes whose keys it was told."""

    def _protection(self) -> list[str]:
        options = ["--ssl-ca-certfile", str(self._authority), "--ssl-certfile", str(self._pair[0])]
        options += ["--ssl-keyfile", str(self._pair[1])]
        return [*options, "--enable-supernode-auth"] if self.nodes else options

    def __enter__(self) -> Self:
        host, _, port = self._listens.rpartition(":")
        command = [*PATIENT, "flower-superlink", "--host", host, "--port", port]
        command += ["--disable-runtime-dependency-installation", *self._protection()]
        command += [] if self.nodes else ["--simulation"]
        try:
            self._begin("superlink", command)
            self.wait(lambda: _answers(int(port)), "the SuperLink")
            # Flower's own patience is 30 s, in which a busy machine does not always answer.
            self._control = ControlHttpClient(
                f"https://{self.address}",
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
                verify=ssl.create_default_context(cafile=self._authority),
                timeout=PATIENCE,
            )
            for number in range(self.nodes):
                if self._registers:
                    public = node_key(self.folder / f"node-{number}.key")
                    self._control.RegisterNode(RegisterNodeRequest(public_key=public))
                self.start_node(number)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._end()

    def start_node(self, number: int) -> None:
        """Starts a SuperNode, or starts it again: with its key it is who it was."""
        config = {"partition-id": str(number), "num-partitions": str(self.nodes)}
        config |= self._node_config(number)
        said = " ".join(f"{key}={value}" for key, value in config.items())
        command = [*PATIENT, "flower-supernode", "--superlink", self.address]
        command += ["--root-certificates", str(self._authority)]
        if self._registers:
            command += ["--auth-supernode-private-key", str(self.folder / f"node-{number}.key")]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", said]
        self._begin(f"node-{number}", command, *self._user(number))

    def _user(self, number: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """What a SuperNode's command begins with, and what its environment has besides."""
        return (), {}

    def online(self) -> int:
        """SuperNodes that the SuperLink counts on: of one that was killed it hears after a minute,
        and takes nobody in its place before that.
        """
        nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
        return sum(node.status == "online" for node in nodes)

    def kill(self, name: str) -> None:
        """SIGKILL, for a process and all that it began: "node-0" is a SuperNode."""
        process = self._running.pop(name)
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.wait()

    def _begin(
        self,
        name: str,
        command: list[str],
        prefix: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> None:
        with (self.folder / f"{name}.log").open("ab") as said:
            self._running[name] = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=self._environment() | dict(more or {}),
            )

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        return kept | {
            "PATH": f"{self._programs}{os.pathsep}{kept.get('PATH', '')}",  # it begins by name
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "local",  # not another that runs on this machine
            MARK: self._mark,
        }

    def _end(self) -> None:
        """By their mark: some of Flower's processes have sessions of their own."""
        while left := [each for each in psutil.process_iter() if self._is_ours(each)]:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)
        for begun in self._running.values():
            begun.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            return bool(alive and process.environ().get(MARK) == self._mark)
        return False

    # --- runs ---------------------------------------------------------------------

    def run(self, app: Path, *options: str) -> int:
        """Has `flwr run` send an app; returns the number of its run."""
        command = [str(self._programs / "flwr"), "run", str(app.resolve()), "test"]
        done = subprocess.run(
            [*command, "--format", "json", *options],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
        found = json.loads(done.stdout) if done.stdout.strip() else {}
        assert found.get("success"), f"flwr run: {done.stdout}{done.stderr}"
        return int(found["run-id"])

    def status(self, run: int) -> str:
        """How a run stands, as Flower says it: "finished:completed"."""
        found = self._control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return ":".join(filter(None, (found.status, found.sub_status, found.details)))

    def told(self, run: int) -> str:
        """What the ServerApp of a finished run logged."""
        asked = StreamLogsRequest(run_id=run)
        return "".join(each.log_output for each in self._control.StreamLogs(asked))

    def stop(self, run: int) -> None:
        """As `flwr stop`."""
        self._control.StopRun(StopRunRequest(run_id=run))

    def finish(self, run: int) -> None:
        """Waits for the end of a run, and fails unless it is a good one."""
        self.wait(lambda: self.status(run).startswith("finished"), f"the end of run {run}")
        found = self.status(run)
        assert found.startswith("finished:completed"), f"{found}; {self.logs()}"

    def wait(self, over: Callable[[], bool], what: str) -> None:
        """Polls until it is over; fails, with everybody's log, when nothing is said for too long,
        or a process ends that did not do all it had to.
        """
        said, end = -1, 0.0
        while not over():
            ended = [name for name, each in self._running.items() if each.poll()]
            if (now := sum(path.stat().st_size for path in self._logs())) != said:
                said, end = now, time.monotonic() + PATIENCE
            if ended or time.monotonic() > end:
                raise AssertionError(f"waiting for {what}; ended: {ended}; {self.logs()}")
            time.sleep(0.25)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in self._logs())

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


_PEM, _OPEN = serialization.Encoding.PEM, serialization.NoEncryption()
_DAY = timedelta(days=1)


def certify(folder: Path) -> tuple[Path, Path, Path]:
    """Writes a CA's certificate, and a server's with its key, for 127.0.0.1 and localhost."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    about = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        _builder("Flower CA", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(AUTHORITY_USAGE, critical=True)
        .add_extension(about, critical=False)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        _builder("SuperLink", own)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(about), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    paths = folder / "ca.crt", folder / "superlink.pem", folder / "superlink.key"
    secret = own.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _OPEN)
    written = root.public_bytes(_PEM), leaf.public_bytes(_PEM), secret
    for path, content in zip(paths, written, strict=True):
        path.write_bytes(content)
    return paths


def node_key(path: Path) -> bytes:
    """Writes a SuperNode's private key (P-384, as OpenSSH has it); returns the public one, DER."""
    made = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(made.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _OPEN))
    path.chmod(0o600)
    return made.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Flower CA")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


SEED = 5
"""Of what nodes draw: every run comes to the same bits."""


APP = 47_002
"""User and group of SuperNodes of key holders, where there are two users: it needs no name."""


class PrivateDeployment(Deployment):
    """Key holders are processes beside it, which dial the ServerApp or are nodes of its.

    Args:
        plan: of the run.
        nodes: of clients.
        holders_as_nodes: each key holder has a SuperNode too; as root, of another user than it is.
    """

    def __init__(
        self, folder: Path, nodes: int, plan: Path, holders_as_nodes: bool = False
    ) -> None:
        read = load_plan(plan)
        self.holders = holder_names(read.holders)
        self.clients = nodes
        self._relayed = holders_as_nodes
        super().__init__(folder, nodes + holders_as_nodes * len(self.holders), self._own)
        self._names = client_names(nodes)
        self._minimum = min(read.bounds(group).minimum for group in read.all_groups)
        self._all = simulated_kit(folder, read, nodes)
        self.listen = f"127.0.0.1:{free_port()}"
        shards = shard_names(read.section.shards)
        self.server_kit = part(self._all, folder / "kits" / "server", COORDINATOR, *shards)
        for name in (*self.holders, *self._names):
            part(self._all, folder / "kits" / name, name)

    def _own(self, number: int) -> Mapping[str, str]:
        partitions = {"num-partitions": str(self.clients)}
        if number >= self.clients:
            return partitions | {"secureps-holder": f'"{self.socket(number)}"'}
        name = client_names(self.clients)[number]
        kit = self.folder / "kits" / name
        told = {"secureps-kit": f'"{kit}"', "secureps-name": f'"{name}"'}
        return partitions | told | {"secureps-unsafe-seed": str(SEED)}

    # --- key holders as nodes ------------------------------------------------------

    def socket(self, number: int) -> Path:
        """Of the key holder whose SuperNode has this number."""
        return self.home(number) / "run" / "waves"

    def home(self, number: int) -> Path:
        return self.folder / f"home-{number}"

    def _user(self, number: int) -> tuple[Sequence[str], Mapping[str, str]]:
        if number < self.clients:
            return (), {}
        home, key = self.home(number), self.folder / f"node-{number}.key"
        (home / "run").mkdir(parents=True, exist_ok=True)
        told = {"FLWR_HOME": str(home), "HOME": str(home)}
        if not playable(APP):
            return (), told
        for path in (home, key):
            os.chown(path, APP, APP)
        os.chown(home / "run", 0, APP)
        (home / "run").chmod(0o2750)  # the socket in it is that group's
        return as_user(APP), told

    @property
    def said(self) -> dict[str, object]:
        own: dict[str, object] = {"kit": str(self.server_kit), "run": str(self.folder / "run")}
        return own | ({"holders": "nodes"} if self._relayed else {"listen": self.listen})

    def __enter__(self) -> Self:
        super().__enter__()
        for name in self.holders:
            self.start_holder(name)
        return self

    def start_holder(self, name: str) -> None:
        """Starts a key holder, or starts it again where it was."""
        config = self.folder / f"{name}.toml"
        kit, state = self.folder / "kits" / name, self.folder / name
        way = f'coordinator = "{self.listen}"'
        if self._relayed:
            path = self.socket(self.clients + self.holders.index(name))
            test = str(not playable(APP)).lower()
            way = f'socket = "{path}"\ninsecure_for_tests = {test}'
        config.touch(0o600)
        config.write_text(
            f'name = "{name}"\nkit = "{kit}"\nstate = "{state}"\nminimum = {self._minimum}\n{way}\n'
        )
        program = [sys.executable, "-m", "secureps", "serve", "keyholder"]
        self._begin(name, [*program, "--config", str(config)])


class Balanced(PrivateDeployment):
    """All reach the SuperLink by a balancer that ends TLS, and alters one update if it is told how.

    Flower then has no TLS of its own, and refuses to know its SuperNodes by their keys.
    """

    _registers = False

    def __init__(
        self, folder: Path, nodes: int, plan: Path, alter: Callable[[bytes], bytes] | None = None
    ) -> None:
        super().__init__(folder, nodes, plan)
        self._listens = f"127.0.0.1:{free_port()}"
        self.balancer = Balancer(self.address, self._pair, self._listens, alter)

    def __enter__(self) -> Self:
        self.balancer.start()
        return super().__enter__()

    def _end(self) -> None:
        super()._end()
        self.balancer.end()

    def _protection(self) -> list[str]:
        return ["--insecure"]


def as_user(user: int) -> list[str]:
    """What a command of another user begins with; root alone may say it.

    Where others may not come to this interpreter, they do in a mount namespace of their own.
    """
    python = Path(sys.base_prefix).resolve()
    closed = [each for each in reversed(python.parents) if not each.stat().st_mode & 0o001]
    script = 'exec "$@"'
    if closed:
        script = (
            f"mount --bind {python} /mnt && mount -t tmpfs -o mode=755 none {closed[0]} && "
            f'mkdir -p {python} && mount --move /mnt {python} && exec "$@"'
        )
    own = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    return ["unshare", "--mount", "sh", "-c", script, "sh", *own]


ASKED = "SECUREPS_FLOWER"
"""In the environment: these tests are wanted."""

pytestmark = [
    pytest.mark.skipif(ASKED not in os.environ, reason="minutes each: make flower"),
    pytest.mark.timeout(3600),
]

NODES, ROUNDS = 3, 2

Model = dict[str, np.ndarray]


def fewer(app: Path) -> Path:
    plan = app / "plan.toml"
    text = plan.read_text().replace("quorum = 5", f"quorum = {NODES}, minimum = {NODES}")
    text = text.replace("versions = 3", f"versions = {ROUNDS}")
    plan.write_text(text.replace("clients = 5", f"clients = {NODES}"))
    project = app / "pyproject.toml"
    text = project.read_text().replace("num-server-rounds = 3", f"num-server-rounds = {ROUNDS}")
    project.write_text(text.replace("fraction-evaluate = 1.0", "fraction-evaluate = 0.0"))
    return app


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """The model of `secureps up`, of the same plan, app and seed, without Flower's engine."""
    known: dict[str, Model] = {}

    def of(name: str) -> Model:
        if name not in known:
            folder = tmp_path_factory.mktemp("up")
            app, out = fewer(copied(name, folder)), folder / "run"
            with pytest.MonkeyPatch.context() as patch:
                seed = ("--unsafe-seed", str(SEED), INSECURE)
                assert run(patch, "up", app / "plan.toml", "--out", out, *seed) == 0
            known[name] = load_file(out / "model.safetensors")
        return known[name]

    return of


def final(folder: Path) -> Model:
    (path,) = folder.glob("final_*")
    if path.suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    return {name: each.numpy() for name, each in torch.load(path, weights_only=True).items()}


def same(found: Model, expected: Model) -> None:
    assert len(found) == len(expected)
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert found[one].tobytes() == expected[other].tobytes(), one


@pytest.mark.parametrize("name", APPS)
def test_each_app_simulated_comes_to_the_bits_of_up(
    name: str, tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    simulate(fewer(private(name, tmp_path, unsafe_seed=SEED)), NODES, tmp_path)
    same(final(tmp_path), expected(name))


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: flwr[simulation]")
def test_ray_comes_to_the_same_bits(tmp_path: Path, expected: Callable[[str], Model]) -> None:
    with Deployment(tmp_path / "simulated", 0) as deployment:
        app = fewer(private("numpy", tmp_path, unsafe_seed=SEED))
        told = f"num-supernodes={NODES} client-resources-num-cpus=1"
        deployment.finish(deployment.run(app, "--federation-config", told))
        same(final(deployment.folder), expected("numpy"))


FAULTY = """
import os, signal
from pathlib import Path
from flwr.supernode.runtime import run_clientapp as process
from secureps.flower import mod, post

DONE, CONTEXTS, UPDATES = Path({done!r}), [], []
sealed, packed, pushed = mod._seal, post.pack, process.push_task_output

def remembered(message, context, call_next):
    CONTEXTS.append(context)
    return sealed(message, context, call_next)

def changed(said, batch):
    if CONTEXTS[0].node_config["partition-id"] == 1 and len(batch) > 10_000:
        if not DONE.exists():
            UPDATES.append(batch)
            DONE.touch()
            batch = lie(batch)
    return packed(said, batch)

def push(*arguments, **named):
    if UPDATES:
        die()
    return pushed(*arguments, **named)

mod._seal, post.pack, process.push_task_output = remembered, changed, push

def lie(batch):
    return {batch}

def die():
    {die}
"""
"""At the end of a client_app.py: something happens once, to the first update of node 1."""

LIES = {"batch": "batch[:5000] + bytes([batch[5000] ^ 1]) + batch[5001:]", "die": "pass"}
"""A byte of its update is another than it signed."""
CRASHES = {"batch": "batch", "die": "os.kill(os.getpid(), signal.SIGKILL)"}
"""Its process is killed when its reply is out, and its context is not."""


def deployed(
    folder: Path, name: str = "numpy", holders_as_nodes: bool = False
) -> PrivateDeployment:
    plan = fewer(copied(name, folder / "plan")) / "plan.toml"
    return PrivateDeployment(folder / "deployed", NODES, plan, holders_as_nodes)


def begin(deployment: PrivateDeployment, folder: Path, code: str = "", name: str = "numpy") -> int:
    app = fewer(private(name, folder / "app", **deployment.said))
    with (app / f"{name}example" / "client_app.py").open("a") as client:
        client.write(code)
    return deployment.run(app)


def said(deployment: Deployment, node: int, words: str, times: int) -> Callable[[], bool]:
    log = deployment.folder / f"node-{node}.log"
    return lambda: log.read_text().count(words) >= times


@pytest.mark.parametrize("name", APPS)
def test_the_same_bits_as_without_flowers_engine(
    name: str, tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    with deployed(tmp_path, name) as deployment:
        deployment.finish(begin(deployment, tmp_path, name=name))
        same(final(deployment.folder), expected(name))


SEARCHES = """
{search}

import json, sys
from secureps.flower import mod

WANTED, OUT = json.loads({wanted!r}), Path({out!r})
sealed = mod._seal

def searched(message, context, call_next):
    config = dict(context.node_config)
    report = OUT / str(config["partition-id"])
    if "secureps-holder" in config and not report.exists():
        pids = [p for p in os.listdir("/proc") if p.isdigit() and b"keyholder" in
                (content(f"/proc/{{p}}/cmdline") or b"")]
        told = [dict(os.environ), sys.argv, context, message, config]
        roots = [WANTED["folder"], os.getcwd(), os.environ["HOME"]]
        relay = config["secureps-holder"]
        needles, private, pieces = (WANTED[key] for key in ("needles", "private", "pieces"))
        found = search(needles, private, roots, told, pids, relay, pieces)
        report.write_text(json.dumps([os.geteuid(), len(pids), found]))
    return sealed(message, context, call_next)

mod._seal = searched
"""
"""At the end of a client_app.py: at a key holder's node it looks for all that the holder keeps."""


@pytest.mark.skipif(
    not playable(APP), reason="needs root: key holders and their nodes are two users"
)
def test_key_holders_are_nodes_and_an_app_that_looks_for_their_keys_finds_none(
    expected: Callable[[str], Model],
) -> None:
    with TemporaryDirectory(prefix="flower-") as made:  # others may not come into pytest's
        folder, out = Path(made), Path(made) / "out"
        folder.chmod(0o755)
        out.mkdir()
        os.chown(out, APP, APP)
        with deployed(folder, holders_as_nodes=True) as deployment:
            homes = [deployment.folder / "kits" / name for name in deployment.holders]
            keys = [path for home in homes for path in (home / "private").rglob("*.key")]
            configs = [deployment.folder / f"{name}.toml" for name in deployment.holders]
            assert len(keys) >= 2 * len(homes)
            assert all(path.is_file() for path in configs)
            public = homes[0] / "public" / "roster.json"
            secrets = [*keys, *configs]
            needles = {str(path): digested(path.read_bytes()) for path in (*secrets, public)}
            raw = [path.read_bytes() for path in keys]
            texts = raw + [each.hex().encode() for each in raw]
            wanted: dict[str, Any] = {
                "folder": str(deployment.folder),
                "needles": needles,
                "private": [str(deployment.folder / name) + "/" for name in deployment.holders],
                "pieces": {f"a key, {k}": piece(text) for k, text in enumerate(texts)},
            }
            code = SEARCHES.format(
                search=Path(key_search.__file__).read_text().replace("from __future__", "# "),
                wanted=json.dumps(wanted),
                out=str(out),
            )
            deployment.finish(begin(deployment, folder, code))
            reports = [json.loads(path.read_text()) for path in out.iterdir()]
            assert len(reports) == len(homes)
            for user, pids, found in reports:
                assert (user, pids) == (APP, len(homes)), found
                assert {line.partition(":")[0] for line in found} == {str(public)}, found
            same(final(deployment.folder), expected("numpy"))
            # the same search finds all of it where it may
            may = search(needles, wanted["private"], [str(deployment.folder)], [], [], "", {})
            assert set(needles) <= {line.partition(":")[0] for line in may}
            assert any(line.startswith("private: ") for line in may)


def test_a_supernode_is_killed_in_mid_round_and_comes_back(
    tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    with deployed(tmp_path) as deployment:
        begun = begin(deployment, tmp_path)
        deployment.wait(said(deployment, 1, "Receiving: train", 2), "a round at node 1")
        deployment.kill("node-1")
        deployment.wait(lambda: deployment.online() < NODES, "word of its end")
        deployment.start_node(1)
        deployment.finish(begun)
        same(final(deployment.folder), expected("numpy"))


def test_holders_are_away_and_come_back(tmp_path: Path, expected: Callable[[str], Model]) -> None:
    with deployed(tmp_path) as deployment:
        away = deployment.holders[2:]
        begun = begin(deployment, tmp_path)
        deployment.wait(said(deployment, 1, "Receiving: train", 2), "a round at node 1")
        for name in away:
            deployment.kill(name)
        deployment.wait(said(deployment, 1, "Sent successfully", 2), "an update of node 1")
        assert deployment.status(begun) == "running", "two of four open nothing"
        deployment.start_holder(away[0])
        deployment.finish(begun)
        same(final(deployment.folder), expected("numpy"))


@pytest.mark.parametrize("fault", [LIES, CRASHES], ids=["lies", "crashes after its reply"])
def test_a_node_is_faulty_once(
    fault: dict[str, str], tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    done = tmp_path / "done"
    with deployed(tmp_path) as deployment:
        deployment.finish(begin(deployment, tmp_path, FAULTY.format(done=str(done), **fault)))
        assert done.exists()
        same(final(deployment.folder), expected("numpy"))


def test_a_balancer_that_opens_tls_carries_updates_and_one_that_it_alters_is_refused(
    tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    """It sees what Flower sees: models, and who sends when. An update it can neither read nor
    change: its client signed it.
    """
    plan = fewer(copied("numpy", tmp_path / "plan")) / "plan.toml"

    def alter(batch: bytes) -> bytes:
        return batch[:5000] + bytes([batch[5000] ^ 1]) + batch[5001:]

    with Balanced(tmp_path / "deployed", NODES, plan, alter) as deployment:
        begun = begin(deployment, tmp_path)
        deployment.finish(begun)
        assert deployment.balancer.altered == 1
        told = deployment.told(begun)
        wrong = "a signature in secureps-wave is wrong: another key made it, or whoever passed the "
        assert re.search(rf"node \d+ \(client-0\d\): {wrong}bytes on altered them", told), told
        same(final(deployment.folder), expected("numpy"))
