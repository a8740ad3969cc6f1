"""What a deployment shows of its constants: modes, TLS, headers, pods, batch files.

Each table is compared with what is really there: files on the disk, a server's socket, manifests.
Whoever changes a constant says so here.
"""

import os
import re
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity, tls_name
from secureps.messages.charge import Charge
from secureps.messages.records import Incarnated
from secureps.run.deploy.deployment import write_folders
from secureps.service.metrics import Metrics, serve_metrics
from secureps.service.one_wave import answer_batches
from secureps.store.act_lines import ActLines
from secureps.store.atomic_file import secure_folder
from secureps.store.backup import backup, load_folder_number
from secureps.store.budget import BudgetLedger
from secureps.store.checkpoint import write_state
from secureps.store.envelope_keys import EnvelopeKeyFiles
from secureps.store.issuing import approve, create_kit, issue, make_keys, write_request
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import ENVELOPE, TlsFiles, load_public, load_seed
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.framing import Tls
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from tests.dashboard.test_application import full, opened
from tests.kits.ledgers import charge
from tests.kits.nursery import ROOT
from tests.kits.transport_kit import EchoServer
from tests.run.deploy.test_kubernetes import directives, of_kind, pods, write_batch

Table = dict[str, Any]


@contextmanager
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> Table:
    """Of every file and folder that a federation makes, where the umask keeps nothing closed."""
    with no_umask():
        kit, state = folder / "kit", folder / "state"
        create_kit(kit, CipherParameters("rlwe", 32, 65_534))
        request = make_keys(kit, "holder", "keys-0", ENVELOPE)
        write_request(kit, request)
        approve(kit, [request])
        EnvelopeKeyFiles(kit, "keys-0").for_run(bytes(32)).make(1)
        secure_folder(state)
        load_seed(state / "seed")
        load_folder_number(state)
        DiskSpool(state / "spool").put("key", b"payload")
        ActLines(state, "me", Identity(bytes(32))).note("pause")
        with closing(SqliteJournal(state / "journal.db")) as journal:
            journal.append(0.0, [Incarnated(1)])
            part = folder / "checkpoints" / "000001" / "shard-0.safetensors"
            write_state(part, {"w": np.ones(3)}, {}, None)
            with serve_metrics(Metrics(), "127.0.0.1:0", state, None):
                pass
        backup(state, folder / "copy")
        ledger = BudgetLedger(folder / "ledgers" / "me.db")
        charge(ledger, bytes(32), Charge("me", "all", 0, 1.1, 0.01, 100))
        write_folders(folder / "deployed", {"servers": {"0-keys.yaml": "a secret"}})
        with answer_batches("keys-0", folder / "socket", bytes):
            found = {
                str(path.relative_to(folder)): oct(stat.S_IMODE(path.lstat().st_mode))
                for path in folder.rglob("*")
            }
    return found


# --- TLS --------------------------------------------------------------------------

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def tls(folder: Path) -> Table:
    """Which versions each kind of server speaks, to whom it was certified for and to strangers."""
    kit = folder / "kit"
    create_kit(kit, CipherParameters("plain", 8, 14))
    for role, name in (("coordinator", "coordinator"), ("shard", "shard-0"), ("client", "a")):
        issue(kit, role, name)  # type: ignore[arg-type]
    files = {name: TlsFiles(kit, name, load_public(kit).ca) for name in ("coordinator", "shard-0")}
    coordinator = CoordinatorServer(
        Tls(files["coordinator"]), EchoServer(), "127.0.0.1:0", lambda *_: None
    )
    shard = ShardServer(
        Tls(files["shard-0"]),
        "shard-0",
        EchoServer(),
        "127.0.0.1:0",
        lambda *_: None,
        1 << 20,
        1 << 18,
    )
    (folder / "state").mkdir()
    with serve_metrics(Metrics(), "0.0.0.0:0", folder / "state", files["coordinator"]) as metrics:
        ports = {"metrics": int(metrics.rpartition(":")[2])}
        for name, server in (("coordinator", coordinator), ("shard", shard)):
            server.start()
            ports[name] = server.port
        try:
            return {
                f"{name}, {version.name}, {'certified' if shows else 'a stranger'}": _greeted(
                    kit, name, port, version, shows
                )
                for name, port in ports.items()
                for version in VERSIONS
                for shows in (True, False)
            }
        finally:
            coordinator.stop(0)
            shard.stop(0)


def _greeted(kit: Path, name: str, port: int, version: ssl.TLSVersion, shows: bool) -> bool:
    """Whether a server goes on with whoever speaks this version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(kit / "public" / "tls" / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as contexts of Python 3.13 do by themselves
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    if shows:
        context.load_cert_chain(kit / "public" / "tls" / "a.pem", kit / "private" / "a" / "tls.key")
    of = "shard-0" if name == "shard" else "coordinator"
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 20) as line,
        context.wrap_socket(line, server_hostname=tls_name(of)) as secured,
    ):
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
        metrics = secured.selected_alpn_protocol() is None
        secured.sendall(b"GET /metrics HTTP/1.0\r\n\r\n" if metrics else preface)
        return bool(secured.recv(1))
    return False


# --- HTTP -------------------------------------------------------------------------


def headers(folder: Path) -> Table:
    """Of a dashboard's answers, and how its cookie is set."""
    with opened(full()) as browser:
        status, entered, _ = browser.get(f"/enter?{browser.address.query}")
        assert status == 303
        cookie = entered.pop("set-cookie")
        browser.cookie = cookie.partition(";")[0]
        _, page, _ = browser.get("/")
    measured = {"content-length", "date", "etag", "last-modified", "location"}
    return {
        "the cookie": re.sub(r"^secureps-\d+=[\w-]{43}; ", "", cookie),
        **{name: value for name, value in page.items() if name not in measured},
    }


# --- what starts parties ----------------------------------------------------------


def pod_constants(folder: Path) -> Table:
    """Of all pods: whatever is alike in them but names, commands and memory."""
    specs = pods()
    prepare = specs[0]["initContainers"][0]["command"][-1]
    keys = [each for each in specs[0]["volumes"] if each["name"] == "keys"]
    server = next(each for each in specs if "startupProbe" in each["containers"][0])
    probes = {
        f"{kind}Probe": {
            key: value
            for key, value in server["containers"][0][f"{kind}Probe"].items()
            if key != "exec"
        }
        for kind in ("startup", "liveness", "readiness")
    }
    jobs = [each["spec"] for each in of_kind("Job")]
    image = (ROOT / "Containerfile").read_text()
    return {
        "pods": _alike(
            {key: each.get(key) for key in ("securityContext", "automountServiceAccountToken")}
            | {key: each.get(key) for key in ("enableServiceLinks", "hostNetwork", "hostPID")}
            | {"terminationGracePeriodSeconds": each.get("terminationGracePeriodSeconds")}
            for each in specs
        ),
        "containers": _alike(
            container["securityContext"]
            for each in specs
            for container in (*each["initContainers"], *each["containers"])
        ),
        "keys": oct(keys[0]["secret"]["defaultMode"]),
        "umask": re.findall(r"^umask (\d+)$", prepare, re.MULTILINE),
        "modes of a volume": re.findall(r"chmod -R (\S+)", prepare),
        "mode of a key": re.findall(r"install -m (\d+)", prepare),
        "probes": probes,
        "jobs": _alike(
            {
                "backoffLimit": each["backoffLimit"],
                "podReplacementPolicy": each["podReplacementPolicy"],
                "restartPolicy": each["template"]["spec"]["restartPolicy"],
                "statuses": [
                    (rule["action"], rule.get("onExitCodes", {}).get("values"))
                    for rule in each["podFailurePolicy"]["rules"]
                ],
            }
            for each in jobs
        ),
        "the image's user": re.findall(r"^USER (\S+)$", image, re.MULTILINE),
    }


def _alike(found: Iterator[Table]) -> Table:
    first, *others = found
    assert all(each == first for each in others)
    return first


def batch_constants(folder: Path) -> Table:
    """Of all batch files: the notice before a job's end, and how long servers go on after a run."""
    write_batch(folder / "run")
    jobs = {path.stem: path.read_text() for path in (folder / "run").glob("*.sbatch")}
    return {
        "every job": _alike(
            {key: directives(text)[key] for key in ("signal", "requeue", "open-mode", "time")}
            for text in jobs.values()
        ),
        "seconds that servers stay": re.findall(r"^sleep (\d+) & wait", jobs["aggregator"], re.M),
        "files": sorted(
            {oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder / "run").glob("*.sbatch")}
        ),
    }


PRIVATE, SHARED = "0o600", "0o644"
CLOSED, LISTED, GROUP = "0o700", "0o755", "0o775"

CONSTANTS: dict[str, tuple[Callable[[Path], Table], Table]] = {
    "modes": (
        modes,
        {
            "kit": GROUP,
            "kit/ca": CLOSED,
            "kit/ca/ca.key": PRIVATE,
            "kit/ca/cipher.json": SHARED,
            "kit/ca/holds.json": SHARED,
            "kit/ca/turn": PRIVATE,
            "kit/private": CLOSED,
            "kit/private/keys-0": CLOSED,
            "kit/private/keys-0/0000000000000000": CLOSED,
            "kit/private/keys-0/0000000000000000/envelope-1.key": PRIVATE,
            "kit/private/keys-0/envelope.key": PRIVATE,
            "kit/private/keys-0/envelope.pub": PRIVATE,
            "kit/private/keys-0/identity.key": PRIVATE,
            "kit/private/keys-0/tls.key": PRIVATE,
            "kit/public": LISTED,
            "kit/public/ca.pub": SHARED,
            "kit/public/holders": LISTED,
            "kit/public/holders/keys-0.envelope.pub": SHARED,
            "kit/public/roster.json": SHARED,
            "kit/public/tls": LISTED,
            "kit/public/tls/ca.pem": SHARED,
            "kit/public/tls/keys-0.pem": SHARED,
            "kit/requests": LISTED,
            "kit/requests/keys-0.json": SHARED,
            "state": CLOSED,
            "state/acts.jsonl": PRIVATE,
            "state/acts.turn": PRIVATE,
            "state/folder-number": PRIVATE,
            "state/journal.db": PRIVATE,
            "state/journal.db-shm": PRIVATE,
            "state/journal.db-wal": PRIVATE,
            "state/journal.db.height": PRIVATE,
            "state/journal.db.lock": PRIVATE,
            "state/metrics-address": PRIVATE,
            "state/seed": PRIVATE,
            "state/spool": CLOSED,
            "state/spool/key": PRIVATE,
            "socket": "0o660",
            "copy": CLOSED,
            "copy/acts.jsonl": PRIVATE,
            "copy/journal.db": PRIVATE,
            "copy/journal.db.height": PRIVATE,
            "copy/seed": PRIVATE,
            "copy/spool": CLOSED,
            "copy/spool/key": PRIVATE,
            "ledgers": CLOSED,
            "ledgers/me.db": PRIVATE,
            "ledgers/me.db.height": PRIVATE,
            "ledgers/me.db.lock": PRIVATE,
            "ledgers/me.db.turn": PRIVATE,
            "checkpoints": GROUP,
            "checkpoints/000001": GROUP,
            "checkpoints/000001/shard-0.safetensors": SHARED,
            "deployed": GROUP,
            "deployed/servers": CLOSED,
            "deployed/servers/0-keys.yaml": PRIVATE,
        },
    ),
    "TLS": (
        tls,
        {
            f"{server}, {version.name}, {caller}": (version.name, caller)
            == ("TLSv1_3", "certified")
            for server in ("coordinator", "shard", "metrics")
            for version in VERSIONS
            for caller in ("certified", "a stranger")
        },
    ),
    "headers": (
        headers,
        {
            "the cookie": "HttpOnly; Path=/; SameSite=strict",
            "content-type": "text/html; charset=utf-8",
            "server": "secureps",
            "content-security-policy": (
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'; require-trusted-types-for 'script'"
            ),
            "cache-control": "no-store",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=()",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
        },
    ),
    "pods": (
        pod_constants,
        {
            "pods": {
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10001,
                    "runAsGroup": 10001,
                    "fsGroup": 10001,
                    "fsGroupChangePolicy": "OnRootMismatch",
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "hostNetwork": None,
                "hostPID": None,
                "terminationGracePeriodSeconds": None,  # Kubernetes' own: 30
            },
            "containers": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "keys": "0o400",
            "umask": ["077"],
            "modes of a volume": ["go-rwx,g-s"],
            "mode of a key": ["600"],
            "probes": {
                "startupProbe": {"periodSeconds": 10, "failureThreshold": 90, "timeoutSeconds": 15},
                "livenessProbe": {"periodSeconds": 60, "failureThreshold": 5, "timeoutSeconds": 30},
                "readinessProbe": {"periodSeconds": 20, "timeoutSeconds": 15},
            },
            "jobs": {
                "backoffLimit": 100,
                "podReplacementPolicy": "Failed",
                "restartPolicy": "Never",
                "statuses": [("FailJob", [78]), ("Ignore", None), ("Ignore", [143])],
            },
            "the image's user": ["10001:10001"],
        },
    ),
    "batch files": (
        batch_constants,
        {
            "every job": {
                "signal": "B:USR1@120",
                "requeue": "",
                "open-mode": "append",
                "time": "1-00:00:00",
            },
            "seconds that servers stay": ["60"],
            "files": [PRIVATE],
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTANTS)
def test_what_is_there_is_what_the_table_says(name: str, tmp_path: Path) -> None:
    look, table = CONSTANTS[name]
    assert look(tmp_path) == table
