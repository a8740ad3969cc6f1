"""Flower as it is deployed, on loopback: a SuperLink and SuperNodes as processes, and `flwr run`.

TLS and Flower's node authentication are on, ports are free ones, and every message is answered by
a process of its own, as Flower does it. `with` ends all processes, also those that outlived whoever
began them. Also Flower's simulation, as `flwr run` has it: a SuperLink that Ray works for.
"""

import ipaddress
import json
import os
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
from typing import Self

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StopRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from secureps.crypto.tls import AUTHORITY_USAGE
from secureps.flower.aggregator import simulated_kit
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.run.up.folder import client_names, holder_names, shard_names
from tests.kits.nursery import ROOT
from tests.kits.party_kits import part
from tests.kits.relay import free_port
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
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "flwr").mkdir(parents=True)
        self._authority, *self._pair = certify(folder)
        trusted = f'root-certificates = "{self._authority}"\n'
        connection = _CONNECTION.format(address=self.address) + trusted
        (folder / "flwr" / "config.toml").write_text(connection)

    # --- processes ----------------------------------------------------------------

    def __enter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        command = [*PATIENT, "flower-superlink", "--host", host, "--port", port]
        command += ["--ssl-ca-certfile", str(self._authority)]
        command += ["--ssl-certfile", str(self._pair[0]), "--ssl-keyfile", str(self._pair[1])]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--enable-supernode-auth"] if self.nodes else ["--simulation"]
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
