"""Real servers as processes, and as many clients as wanted inside this one.

Each client is a machine, a worker and a transport of its own; they share one loop with few
workers, so that 50 of them need no 50 processes. Their journals are in memory, their
outboxes on disk. Where one process cannot play them all,

    python -m benchmarks.crowd FOLDER --server HOST:PORT [--shape ROWS COLUMNS] NAME ...

plays some clients of the servers in a folder until its input ends, and then writes to its output
what was acknowledged to them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks import still_client
from secureps.client.runner import make_member
from secureps.client.trainer import Trainer
from secureps.client.worker import Site
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import SecurepsError
from secureps.messages.member_records import Sealed
from secureps.messages.requests import Reply, Request, Submit
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import FOUNDING, SubmissionId
from secureps.roles.machine import Record
from secureps.service.environment import Environment, Meter, Stores
from secureps.service.executor import Executor
from secureps.service.loop import RealLoop
from secureps.service.malloc import PIECES, keep_pieces
from secureps.service.process import CALL_TIMEOUT, Party, make_link
from secureps.store.journal import MemoryJournal
from secureps.store.keyring import PublicKit, load_private, load_public
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.client import GrpcTransport
from tests.kits.federations import Walker
from tests.kits.processes import Processes

M_TRIM_THRESHOLD = -1
"""Of mallopt(3)."""

SHAPE = (1000, 1000)
WORKERS = 2
"""Threads that train and seal for all clients of a crowd."""

_PLAN = """
name = "million"
versions = {{versions}}
shards = 2
block_size = 262144
lease = 120.0
local = ["*.count"]
[cipher]
name = "{{cipher}}"
capacity = 64
[[group]]
clip = 3.0
range = 0.02
most_examples = 64
[group.rule]
quorum = {clients}
minimum = 5
deadline = 600.0
[group.optimizer]
name = "adam"
learning_rate = 0.1
"""


def million_plan(clients: int) -> str:
    """A plan for `Processes`: one group of a million values, all clients waited for."""
    return _PLAN.format(clients=clients)


class Served(Protocol):
    """Servers that run, and who their clients are: `Processes` is such."""

    folder: Path
    insecure: bool

    @property
    def clients(self) -> Sequence[str]:
        """Their names."""

    @property
    def server(self) -> str:
        """Where the coordinator is dialled."""


def nothing(name: str) -> Meter:
    """Observes nothing of a client."""
    return Meter()


class Crowd:
    """The clients of a federation of processes; `with` lets them join, and stops them.

    `meter` observes each, by name. `trainer` trains in place of all of them.
    """

    def __init__(
        self,
        processes: Served,
        shape: tuple[int, ...] = SHAPE,
        meter: Callable[[str], Meter] = nothing,
        trainer: Trainer | None = None,
    ) -> None:
        self._meter = meter
        self._loop = RealLoop(workers=WORKERS)
        self._thread = threading.Thread(target=self._loop.run, name="crowd", daemon=True)
        self._transports: list[GrpcTransport] = []
        public = load_public(processes.folder / "kit")  # once: it has a certificate of each
        self._members = [
            self._member(processes, public, name, trainer or Walker(number, shape))
            for number, name in enumerate(processes.clients)
        ]

    def __enter__(self) -> Crowd:
        self._thread.start()
        for member in self._members:
            member.start()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.stop()
        self._loop.stop()
        self._thread.join()
        for transport in self._transports:
            transport.close()

    def finished(self) -> bool:
        """Whether every client has heard that the run is over; raises what ended one before."""
        ended = [member.halted for member in self._members if member.halted.done()]
        for halted in ended:
            if halted.result().error:
                raise SecurepsError(halted.result().reason)
        return len(ended) == len(self._members)

    def _member(
        self, processes: Served, public: PublicKit, name: str, trainer: Trainer
    ) -> Executor:
        state, kit = processes.folder / name, processes.folder / "kit"
        identity = load_private(kit, name, roster=public.roster)
        link = make_link(kit, name, public.ca, processes.insecure)
        party = Party(name, identity, link, public.roster, state, kit)
        server = {COORDINATOR: processes.server}
        transport = GrpcTransport(link, name, party.sign, server, CALL_TIMEOUT)
        self._transports.append(transport)
        site = Site(name, trainer, identity, UnsafeSeed(3), public.holder_keys, state / "local")
        stores = Stores(MemoryJournal(), DiskSpool(state / "outbox"), state)
        jitter = partial(random.uniform, 0.5, 1.5)
        around = Environment(transport, self._loop, jitter, self._meter(name))
        return make_member(public, site, stores, around)


def start_servers(processes: Processes) -> None:
    """Starts coordinator, shards and holders, and waits until clients can dial them."""

    def start(*names: str) -> None:
        for name in names:
            processes.start(name)
        listening = [processes.folder / n / "address" for n in names if n not in processes.holders]
        processes.wait(lambda: all(path.is_file() for path in listening), "servers")

    start("coordinator")
    start(*processes.shards, *processes.holders)


def memory(pid: int, what: str = "VmHWM") -> int:
    """Bytes of a process's memory: VmHWM is the most that was ever resident, VmRSS is now."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return 1024 * int(found[1])


Updates = dict[SubmissionId, tuple[float, float]]
"""When each update was sealed, and when it was acknowledged."""


class Acknowledged(Meter):
    """When each update of some clients was sealed, and when it was acknowledged."""

    def __init__(self) -> None:
        self._sealed: dict[SubmissionId, float] = {}
        self._lock = threading.Lock()
        self.updates: Updates = {}
        self.retries = 0

    def on_records(self, records: Sequence[Record]) -> None:
        """Notes what is sealed."""
        for record in records:
            if isinstance(record, Sealed) and record.receipt.purpose != FOUNDING:
                self._sealed[record.receipt.id] = time.time()

    def on_retry(self, to: str) -> None:
        """Counts calls that are tried again later."""
        self.retries += 1

    def on_call(self, message: Request, answer: Future[Reply]) -> None:
        """Notes a receipt that is sent, and waits for its answer."""
        if not isinstance(message, Submit) or message.receipt.id not in self._sealed:
            return
        id = message.receipt.id
        answer.add_done_callback(lambda done: self._answered(id, done))

    def _answered(self, id: SubmissionId, done: Future[Reply]) -> None:
        if not done.cancelled() and done.exception() is None:
            with self._lock:
                self.updates.setdefault(id, (self._sealed[id], time.time()))


@dataclass
class Seats:
    """Some clients of the servers in a folder."""

    folder: Path
    clients: Sequence[str]
    server: str
    insecure: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", required=True)
    parser.add_argument(
        "--shape", type=int, nargs=2, help="of the model; default: a still client's"
    )
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    # What a process has once, a client has a part of here: waiting threads that gRPC wakes for
    # nothing, and the end of a heap that is kept.
    keep_pieces()
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, len(given.names) * 2 * PIECES)
    seen = Acknowledged()
    trainer = None if given.shape else still_client.Still(0)
    seats = Seats(given.folder, given.names, given.server)
    with Crowd(seats, tuple(given.shape or ()), meter=lambda name: seen, trainer=trainer):
        sys.stdin.read() if given.shape else threading.Event().wait()  # until it is killed
        updates = [(i.client, i.group, i.sequence, *at) for i, at in seen.updates.items()]
        print(json.dumps({"updates": updates, "retries": seen.retries}), flush=True)


if __name__ == "__main__":
    main()
