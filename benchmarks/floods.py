"""Does a run go on while somebody floods its servers? Versions a second before, during and after.

Real servers under TLS, clients that train nothing, one flood after another. A flood without a key
opens connections and leaves handshakes undone; one with a client's or a key holder's keys leaves
its calls undone. It fails if a flood took a server more than FLAT memory.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.crowd import Crowd, memory, million_plan, start_servers
from benchmarks.deployed import Deployed
from benchmarks.report import Row, report
from secureps.store.keyring import load_private
from secureps.wire.grpc import framing
from secureps.wire.grpc.framing import REQUEST_DOMAIN, sign_request
from tests.kits.half_open import HalfOpen
from tests.kits.handshakes import WAYS, Begun, secured
from tests.kits.processes import Processes

CLIENTS, SHAPE, VERSIONS = 5, (1000, 100), 100_000
SECONDS = 8.0
"""Of each measurement."""
CALLS = 60
"""Left undone on each server at a time, over one connection."""
CONNECTIONS, CALLS_EACH = 8, 16
"""More of them, and of calls on each, than one party has places for."""
HANDSHAKES = 20
"""Left on each server at a time, in each of the ways to leave one."""
FLAT = 96.0
"""MB by which a server may be larger during or after a flood than before it: sixty messages of a
megabyte that are begun would be 60 by themselves."""


class Flood:
    """What is begun and never ended, anew every second; a context, and over at its end.

    Args:
        owner: whose keys it has; empty: nobody's.
        connections: to each server; with nobody's keys, of each kind of handshake.
    """

    def __init__(self, processes: Processes, owner: str, connections: int) -> None:
        self._targets = {
            name: int((processes.folder / name / "address").read_text().rpartition(":")[2])
            for name in ("coordinator", *processes.shards)
        }
        self._owner, self._connections = owner, connections
        self._kit = processes.folder / "kit"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            lines: list[HalfOpen | Begun] = []
            for name, port in self._targets.items():
                with suppress(OSError):
                    if self._owner:
                        self._calls(name, port, lines)
                    else:
                        self._handshakes(port, lines)
            self._over.wait(1.0)
            for line in lines:
                line.close()

    def _handshakes(self, port: int, lines: list[HalfOpen | Begun]) -> None:
        for way in WAYS * self._connections:
            lines.append(Begun(port, way))

    def _calls(self, name: str, port: int, lines: list[HalfOpen | Begun]) -> None:
        method = framing.COORDINATOR_TELL if name == "coordinator" else framing.PUT
        identity = load_private(self._kit, self._owner)

        def sign(request: bytes) -> bytes:
            return identity.sign(REQUEST_DOMAIN, request)

        metadata = sign_request(self._owner, name, sign, method, b"", b"")
        for _ in range(self._connections):
            lines.append(line := HalfOpen(port, partial(secured, self._kit, self._owner, name)))
            for _ in range(CALLS if self._connections == 1 else CALLS_EACH):
                line.begin(method, metadata, framing.REQUEST_LIMIT)
            line.push()


def pace(processes: Processes) -> tuple[float, float]:
    """Versions a second, from one version's end on; and the most MB that a server had meanwhile."""

    def version() -> int:
        status = processes.status()
        return status.groups[0].version if status is not None else -1

    first = version()
    processes.wait(lambda: version() > first, "a version")
    begun, first, most = time.monotonic(), version(), 0.0
    while time.monotonic() < begun + SECONDS:
        time.sleep(SECONDS / 20)
        sizes = [memory(processes.pid(s), "VmRSS") for s in ("coordinator", *processes.shards)]
        most = max(most, *(size / 1e6 for size in sizes))
    return (version() - first) / (time.monotonic() - begun), most


def main() -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="secureps-floods-") as folder:
        rows += by_clients(Path(folder) / "plain")
        rows += by_a_holder(Path(folder) / "rlwe")
    report("floods", "Versions a second before, during and after a flood", rows)
    assert all(map(flat, rows)), f"a flood took a server more than {FLAT:.0f} MB"


def by_clients(folder: Path) -> list[Row]:
    """By nobody, by a client that nobody waits for, and by one that every version needs."""
    plan = million_plan(CLIENTS)
    with Deployed(folder, "plain", CLIENTS + 1, VERSIONS, plan=plan) as processes:
        own = processes.clients[-1]
        processes.clients = processes.clients[:-1]  # who floods is not waited for
        needed = processes.clients[0]
        kinds = [("without a key", "", HANDSHAKES)]
        kinds += [("with a client's key", own, 1)]
        kinds += [("with the key of a client that is waited for", needed, 1)]
        kinds += [("likewise, over eight connections", needed, CONNECTIONS)]
        return measured(processes, kinds)


def by_a_holder(folder: Path) -> list[Row]:
    """By one of a committee's key holders, under `rlwe`, where every version needs all but one."""
    plan = million_plan(CLIENTS)
    with Deployed(folder, "rlwe", CLIENTS, VERSIONS, plan=plan) as processes:
        holder = processes.holders[0]
        kinds = [("with a key holder's key", holder, 1)]
        kinds += [("likewise, over eight connections", holder, CONNECTIONS)]
        return measured(processes, kinds)


def measured(processes: Processes, kinds: Sequence[tuple[str, str, int]]) -> list[Row]:
    """A row for each flood: what it is called, whose key it has ("": nobody's), its connections."""
    rows: list[Row] = []
    start_servers(processes)
    with Crowd(processes, SHAPE):
        processes.wait(lambda: processes.reached(2), "version 2")
        for name, owner, connections in kinds:
            before, small = pace(processes)
            with Flood(processes, owner, connections):
                during, large = pace(processes)
            after, left = pace(processes)
            speeds = {"before": before, "during": during, "after": after}
            sizes = {"MB before": small, "MB during": large, "MB after": left}
            rows.append({"flood": name, **speeds, **sizes})
    return rows


def flat(row: Row) -> bool:
    """Whether no server grew by more than FLAT."""
    return max(float(row["MB during"]), float(row["MB after"])) - float(row["MB before"]) <= FLAT


if __name__ == "__main__":
    main()
