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
import json
import os
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

from benchmarks.report import Row, report
from benchmarks.tier_shard import (
    CLIENTS,
    MIB,
    SHARD,
    Asked,
    Shard,
    asked_for,
    figure,
    limit,
    limited,
    write_initial,
)
from secureps.roles.shard.memory_report import memory_used
from secureps.service.malloc import give_back_payloads
from secureps.wire.grpc.servers import TRANSFERS, TRANSFERS_EACH

UPDATES, PULLS = 400, 4000


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


@contextmanager
def drained() -> Iterator[Callable[[memoryview], None]]:
    """Sends bytes through a socket, and takes them out of it again on the same thread.

    Another thread would be woken for each 36 KiB, or now and then for all, as it happens: on idle
    cores a pull had one or seven of these wakes, and a thousand or a hundred microseconds of CPU.
    """
    here, there = socket.socketpair()
    room = bytearray(MIB)

    def send(payload: memoryview) -> None:
        while payload:
            count = here.send(payload, socket.MSG_DONTWAIT)
            payload = payload[count:]
            while count:
                count -= there.recv_into(room)

    with here, there:
        yield send


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
    read, cpu, began = figure("io", "read_bytes"), time.process_time(), time.perf_counter()
    action()
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return Pace(pulls / seconds, used / pulls, (figure("io", "read_bytes") - read) / pulls)


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
        peak = 1024 * figure("status", "RssAnon")
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


def child(asked: Asked, folder: Path) -> None:
    give_back_payloads()  # as a shard's process does
    found = measure(asked, folder, limit(asked.memory, os.getpid()))
    sys.stdout.write(json.dumps(asdict(found)))


def play(asked: Asked) -> Measured:
    """A child's run; SystemExit if it wanted more than it may have."""
    with tempfile.TemporaryDirectory(prefix="secureps-tiers-") as folder:
        command = [sys.executable, "-m", "benchmarks.tiers", "--child", json.dumps(asdict(asked))]
        with (
            subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True) as process,
            limited(process.pid),
        ):
            told, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"with {asked.memory} bytes it ended with {process.returncode}")
    plain = json.loads(told)
    paces = {name: Pace(**each) for name, each in plain["paces"].items()}
    return Measured(**(plain | {"paces": paces}))


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
