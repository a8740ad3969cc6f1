"""What a shard does with a table of eight times the memory that it may have, beside one that fits.

A shard's worker alone, in a process of its own: 2,048 row-blocks of 256 KiB are asked for under
Zipf's law (exponent 1.1, so that a tenth of them are four of five uses). Pulls are in line, as many
at a time as a shard has of all clients, then as many as it has of one: the worker fetches one while
others are sent through a socket, one after another; then one at a time, each asked for when the one
before has been sent. An update is two
clients' of one row-block: both pull it, their updates come, are summed and stepped, and the version
is durable. Then all row-blocks are pulled in line from files of which the system has nothing in
memory (scan), beside the same files read by `read` (disk). Under a memory cgroup, where this
process may make one, or else under RLIMIT_DATA, of the program's own need, the budget and
`ALLOWANCE`; a process that wants more dies, and the benchmark fails. Both sides end in the same
bits, or it fails.

    python -m benchmarks.tiers
    python -m benchmarks.tiers --table 64 --budget 8   # MiB, in ten seconds
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.report import Row, report
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.encoding import file_hasher, payload_digest
from secureps.messages.records import RunPinned
from secureps.messages.requests import PutBlock, Telemetry
from secureps.messages.run import GroupPlacement, Placement, RunInfo, ShardAddress
from secureps.messages.schema import Schema, TensorSpec
from secureps.messages.shard_records import BlockSpooled, StateCommitted
from secureps.messages.submission import UPDATE, BlockHeader, Cohort, Member, SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.shard.keys import model_key, sum_key
from secureps.roles.shard.memory_limit import Limit
from secureps.roles.shard.memory_report import memory_used
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import MakeState, StateReady, StepState, SumCohort, SumsReady
from secureps.roles.tasks import Prune
from secureps.service.malloc import give_back_payloads
from secureps.service.shard.folders import ShardFolders
from secureps.service.shard.noise import ShardNoise
from secureps.service.shard.worker import ShardWorker
from secureps.store.checkpoint import digest_of_file, write_state
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.servers import TRANSFERS, TRANSFERS_EACH

SHARD, CLIENTS = "shard-0", ("client-0", "client-1")
WIDTH, ROWS = 1024, 64
"""Values of a row, and rows of a row-block: 256 KiB of float32."""
MIB = 1 << 20
BLOCK = 4 * WIDTH * ROWS
ALLOWANCE = 64 * MIB
"""Bytes for what a budget is not about: payloads and sums of one block, messages, records."""
EXPONENT = 1.1
UPDATES, PULLS = 400, 4000


@dataclass(frozen=True)
class Asked:
    """What a child is to do; `memory` in bytes, None: all resident, and no limit of the process."""

    initial: str
    digest: str
    table: int
    memory: int | None
    updates: int
    pulls: int

    @property
    def blocks(self) -> int:
        return self.table // BLOCK


@dataclass(frozen=True)
class Pace:
    """Pulls a second; CPU seconds of one, and bytes that it had disks read, on average."""

    rate: float
    cpu: float
    read: float


@dataclass(frozen=True)
class Measured:
    """What a child says; things a second of the clock, bytes."""

    kind: str
    updates: float
    paces: dict[str, Pace]
    hits: float
    resident: int
    anonymous: int
    scan: float
    disk: float
    model: str


def plan_of(asked: Asked) -> Plan:
    group = {
        "name": "table",
        "pattern": "table",
        "sparse": {"rows": asked.blocks * ROWS, "block": ROWS},
        "clip": 30.0,
        "range": 4.0,
        "weighting": "uniform",
        "rule": {"name": "buffered", "buffer": 2, "minimum": 2},
    }
    body = {
        "name": "tiers",
        "versions": 1000,
        "shards": 1,
        "initial": asked.initial,
        "cipher": {"name": "plain", "capacity": 8},
        "group": [group],
    }
    return Plan(parse(PlanSection, body, "tiers"), asked.digest)


class Shard:
    """A shard's worker, and a state to which its records are applied at once."""

    def __init__(self, asked: Asked, folder: Path) -> None:
        self.plan = plan_of(asked)
        schema = Schema((TensorSpec("table", (asked.blocks * ROWS, WIDTH), "float32"),))
        layout = self.plan.layout(schema)
        self.groups = tuple(group.name for group in layout.groups)
        self.run = RunInfo(self.plan.text, schema, layout.digest, b"", b"", b"")
        placed = tuple(GroupPlacement(name, (SHARD,)) for name in self.groups)
        record = RunPinned(
            self.run, Placement(1, (SHARD,), placed), (ShardAddress(SHARD, "", 1.0),)
        )
        self.state = ShardState(SHARD)
        self.state.apply(record)
        self.folder = folder
        folders = ShardFolders(folder / "states", folder / "checkpoints")
        noise = ShardNoise(UnsafeSeed(1), {})
        spool, limit = DiskSpool(folder / "spool"), Limit(asked.memory)
        self.worker = ShardWorker(SHARD, self.state, spool, folders, noise, limit=limit)
        self.reports: dict[str, Telemetry] = {}
        self.sequence = 0
        self.layout = layout

    def found(self) -> None:
        for group in self.groups:
            self._made(MakeState(group, None))
            self._commit(group, 0)

    def _made(self, task: Any) -> StateReady:
        done = self.worker.work(task)
        assert isinstance(done, StateReady), done
        self.state.apply(done.made)
        if done.telemetry is not None:
            self.reports[SHARD] = done.telemetry
        return done

    def _commit(self, group: str, version: int) -> None:
        keep = max(0, version - 1)
        self.state.apply(StateCommitted(group, version, keep))
        self.worker.work(Prune((), group, version, keep))

    def key(self, group: str) -> str:
        return model_key(group, self.state.group(group).committed, 0)

    def pull(self, group: str) -> memoryview:
        return memoryview(self.worker.fetch(self.key(group)))

    def update(self, group: str) -> None:
        """One version of a row-block, of both clients' updates."""
        version, self.sequence = self.state.group(group).committed, self.sequence + 1
        ids = [SubmissionId(client, group, self.sequence) for client in CLIENTS]
        payload = self._payload(group)
        for id in ids:
            own = (id.client, UPDATE, group, id.sequence, 0)
            header = BlockHeader(self.run.id, *own, len(payload), payload_digest(payload))
            self.worker.take(PutBlock(header), payload)()
            self.state.apply(BlockSpooled(header))
        members = tuple(Member(id, 1, version) for id in ids)
        number = version
        cohort = Cohort(group, number, version + 1, 2, members)
        keys = tuple((self.state.block_key(id, 0) or "",) for id in ids)
        sums = self.worker.work(SumCohort(cohort, keys))
        assert isinstance(sums, SumsReady), sums
        self.state.apply(sums.made)
        self._made(StepState(cohort, None, None))
        gone = (*(key for own in keys for key in own), sum_key(group, number, 0))
        self._commit(group, version + 1)
        self.worker.work(Prune(gone))

    def _payload(self, group: str) -> bytes:
        code, layout = self.plan.weights(group), self.layout.group(group)
        levels = self.plan.grid(group, layout.sent).levels
        body = np.random.default_rng(self.sequence).integers(0, levels, layout.sent, endpoint=True)
        return np.concatenate([code.digits(code.most), body]).astype("<u2").tobytes()

    def model(self) -> str:
        """A digest of the newest blocks of all groups."""
        found = hashlib.sha256()
        for group in self.groups:
            held = self.state.group(group)
            found.update(held.states[held.committed].blocks[0])
        return found.hexdigest()

    def files(self) -> list[Path]:
        return sorted((self.folder / "states").glob("*.safetensors"))


@contextmanager
def drained() -> Iterator[Callable[[memoryview], None]]:
    """Sends bytes through a socket to a thread that throws them away."""
    here, there = socket.socketpair()

    def drain() -> None:
        room = bytearray(1 << 20)
        while there.recv_into(room):
            pass

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        yield here.sendall
    finally:
        here.close()
        thread.join()
        there.close()


def pull_in_line(
    shard: Shard, groups: Iterable[str], send: Callable[[memoryview], None], in_flight: int
) -> None:
    """As a shard's service does it: what was sent makes room for who asks next, on its thread."""
    keys = map(shard.key, groups)
    line, sending = SimpleQueue[str | None](), SimpleQueue[memoryview | None]()

    def ask() -> None:
        key = next(keys, None)
        if key is not None:
            shard.worker.expect(key)
        line.put(key)

    def sender() -> None:
        while (payload := sending.get()) is not None:
            send(payload)
            del payload
            ask()

    for _ in range(in_flight):
        ask()
    thread = threading.Thread(target=sender)
    thread.start()
    try:
        while (key := line.get()) is not None:
            sending.put(memoryview(shard.worker.fetch(key)))
    finally:
        sending.put(None)
        thread.join()


def pull_each(shard: Shard, groups: Iterable[str], send: Callable[[memoryview], None]) -> None:
    """Each when the one before has been sent."""
    for group in groups:
        send(shard.pull(group))


WAYS: dict[str, Callable[[Shard, Iterable[str], Callable[[memoryview], None]], None]] = {
    "pulls": partial(pull_in_line, in_flight=TRANSFERS),
    "one client's": partial(pull_in_line, in_flight=TRANSFERS_EACH),
    "one at a time": pull_each,
}


def paced(action: Callable[[], None], pulls: int) -> Pace:
    """What so many pulls took."""
    read, cpu, began = own_figure("io", "read_bytes"), time.process_time(), time.perf_counter()
    action()
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return Pace(pulls / seconds, used / pulls, (own_figure("io", "read_bytes") - read) / pulls)


def own_figure(file: str, name: str) -> int:
    """What the system counts of this process; 0 if it does not."""
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def asked_for(groups: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Groups under Zipf's law; which of them are hot does not follow from their names."""
    rng = np.random.default_rng(7)
    order = rng.permutation(len(groups))
    weights = 1 / np.arange(1, len(groups) + 1) ** EXPONENT
    drawn = np.random.default_rng(seed).choice(len(groups), count, p=weights / weights.sum())
    return [groups[order[each]] for each in drawn]


def forgotten(files: list[Path]) -> None:
    """The system has nothing of these in memory any more."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def measure(asked: Asked, folder: Path, kind: str) -> Measured:
    """All that a child does, in this process."""
    shard = Shard(asked, folder)
    shard.found()
    with drained() as send:
        pull_each(shard, asked_for(shard.groups, asked.pulls, 1), send)  # what is hot comes
        paces = {}
        for seed, (name, pull) in enumerate(WAYS.items(), 4):
            groups = asked_for(shard.groups, asked.pulls, seed)
            paces[name] = paced(partial(pull, shard, groups, send), asked.pulls)
        began = time.perf_counter()
        for group in asked_for(shard.groups, asked.updates, 3):
            for _ in CLIENTS:
                send(shard.pull(group))
            shard.update(group)
        updates = asked.updates / (time.perf_counter() - began)
        peak = 1024 * own_figure("status", "RssAnon")
        scan = disk = 0.0
        if asked.memory is not None:
            scan, disk = _scanned(shard, send)
    used = memory_used(shard.reports.values()).get(SHARD)
    hits = used.hits / (used.hits + used.waits) if used else 1.0
    resident = used.resident if used else 0
    return Measured(kind, updates, paces, hits, resident, peak, scan, disk, shard.model())


def _scanned(shard: Shard, send: Callable[[memoryview], None]) -> tuple[float, float]:
    """Bytes a second of all row-blocks in order, and of their files."""
    newest = [
        shard.folder / "states" / f"{group}-{shard.state.group(group).committed:06d}.safetensors"
        for group in shard.groups
    ]
    length = sum(path.stat().st_size for path in newest)
    rates = []
    for way in ("disk", "scan", "disk", "scan"):
        forgotten(newest)
        began = time.perf_counter()
        if way == "scan":
            pull_in_line(shard, shard.groups, send, TRANSFERS)
        else:
            room = memoryview(bytearray(MIB))
            for path in newest:
                with open(path, "rb", buffering=0) as file:
                    while file.readinto(room):
                        pass
        rates.append(length / (time.perf_counter() - began))
    return max(rates[1], rates[3]), max(rates[0], rates[2])


# --- limits -----------------------------------------------------------------------


def limit(memory: int | None) -> str:
    """This process may take so much more than it has, and ALLOWANCE; how that is enforced."""
    if memory is None:
        return "none"
    for group, most in cgroups(os.getpid()):
        try:
            group.mkdir()
            (group / most).write_text(str(memory + ALLOWANCE))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            continue
        return "memory cgroup"
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most_bytes = pages * resource.getpagesize() + memory + ALLOWANCE
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    return "RLIMIT_DATA"


def cgroups(pid: int) -> Iterator[tuple[Path, str]]:
    """Where a process may have a group of its own, below this one's, and the file of its limit.

    What the process had before stays with the group above.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        own = f"{path.lstrip('/')}/secureps-tiers-{pid}"
        if kinds == "memory":
            yield Path("/sys/fs/cgroup/memory") / own, "memory.limit_in_bytes"
        elif not kinds:
            yield Path("/sys/fs/cgroup") / own, "memory.max"


def child(asked: Asked, folder: Path) -> None:
    give_back_payloads()  # as a shard's process does
    found = measure(asked, folder, limit(asked.memory))
    sys.stdout.write(json.dumps(asdict(found)))


def play(asked: Asked) -> Measured:
    """A child's run; SystemExit if it wanted more than it may have."""
    with tempfile.TemporaryDirectory(prefix="secureps-tiers-") as folder:
        command = [sys.executable, "-m", "benchmarks.tiers", "--child", json.dumps(asdict(asked))]
        with subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True) as process:
            told, _ = process.communicate()
        for group, _ in cgroups(process.pid):
            if group.exists():
                group.rmdir()
    if process.returncode:
        raise SystemExit(f"with {asked.memory} bytes it ended with {process.returncode}")
    plain = json.loads(told)
    paces = {name: Pace(**each) for name, each in plain["paces"].items()}
    return Measured(**(plain | {"paces": paces}))


def write_initial(path: Path, table: int) -> str:
    """The file of version 0, and its digest."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((table // BLOCK * ROWS, WIDTH), np.float32)
    write_state(path, {"table": values}, {}, None)
    return digest_of_file(path, file_hasher).hex()


def rows(table: int, budget: int, updates: int, pulls: int) -> list[Row]:
    """One for the table that fits, one for that of which a part does."""
    made: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="secureps-tiers-") as folder:
        initial = Path(folder) / "initial.safetensors"
        begin = (str(initial), write_initial(initial, table), table)
        found = [play(Asked(*begin, memory, updates, pulls)) for memory in (None, budget)]
    for name, each in zip(("all resident", f"{budget // MIB} MiB"), found, strict=True):
        row: dict[str, str | int | float] = {
            "memory": name,
            "limit": each.kind,
            "updates/s": each.updates,
            "updates to all resident": each.updates / found[0].updates,
        }
        for way, pace in each.paces.items():
            whole = found[0].paces[way]
            row |= {f"{way}/s": pace.rate, f"{way}, to it": pace.rate / whole.rate}
            row |= {f"{way}, CPU us": 1e6 * pace.cpu, f"{way}, CPU to it": whole.cpu / pace.cpu}
            row[f"{way}, kB read"] = pace.read / 1e3
        row |= {"hits": each.hits, "resident MiB": each.resident / MIB}
        row |= {"anonymous MiB": each.anonymous / MIB}
        row |= {"scan MB/s": each.scan / 1e6, "disk MB/s": each.disk / 1e6}
        made.append(row)
    if found[0].model != found[1].model:
        raise SystemExit("the models differ")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=int, default=512, help="MiB")
    parser.add_argument("--budget", type=int, default=64, help="MiB")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--pulls", type=int, default=PULLS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(Asked(**json.loads(given.child)), Path(given.folder))
        return
    made = rows(given.table * MIB, given.budget * MIB, given.updates, given.pulls)
    turned: list[Row] = [  # a column for each side
        {"what": name} | {str(row["memory"]): row[name] for row in made}
        for name in made[0]
        if name != "memory"
    ]
    report("tiers", f"{given.table} MiB of values, {given.budget} MiB of memory", turned)


if __name__ == "__main__":
    main()
