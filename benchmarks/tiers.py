"""Pulls of a table of which a part fits in a shard's memory, beside one that has all in memory.

Two federations of one shard serve the same table. One shard holds it in its process; the other's
versions lie in files, and its memory cgroup bounds files and buffers together. Three clients,
processes of their own, ask over TLS for row-blocks under Zipf's law (exponent 1.1); the shards take
turns. CPU is the shard's alone.

    python -m benchmarks.tiers
    python -m benchmarks.tiers --table 64 --memory 32 --turns 1 --pulls 600   # ten seconds
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.crowd import start_servers
from benchmarks.deployed import Deployed
from benchmarks.report import Row, report
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetBlock
from secureps.messages.run import Schema, TensorSpec
from secureps.service.malloc import keep_pieces
from secureps.service.process import Party, make_link
from secureps.store.backup import read_run
from secureps.store.checkpoint import write_state
from secureps.store.keyring import load_private, load_public
from secureps.wire.grpc.client import GrpcTransport

SHARD, CLIENTS = "shard-0", 3
WIDTH, ROWS = 1024, 64
"""Values of a row, and rows of a row-block."""
MIB = 1 << 20
BLOCK = 4 * WIDTH * ROWS
TURNS, PULLS = 5, 3000
ALL = "all in memory"

_PLAN = """
name = "tiers"
versions = {{versions}}
shards = 1
initial = "{initial}"
[cipher]
name = "{{cipher}}"
[[group]]
name = "table"
pattern = "table"
clip = 30.0
range = 4.0
weighting = "uniform"
[group.rule]
name = "buffered"
buffer = 2
minimum = 2
[group.sparse]
rows = {rows}
block = {block}
"""


class Turn(NamedTuple):
    """Pulls a second; the shard's CPU seconds for one, and bytes that it had the disk read."""

    rate: float
    cpu: float
    read: float
    bits: str


# --- shards -----------------------------------------------------------------------


def write_table(path: Path, table: int) -> None:
    """Writes a file of version 0 with a table of so many bytes."""
    rows = table // BLOCK * ROWS
    values = np.random.default_rng(5).standard_normal((rows, WIDTH), np.float32)
    write_state(path, {"table": values}, {}, None)


class Serving(Deployed):
    """A federation whose one shard serves the table; nobody trains.

    `run`, `groups` and `kind`, what limits the shard's memory, are known once it `listens`.
    """

    def __init__(self, folder: Path, initial: Path, table: int, memory: int | None) -> None:
        self.name = ALL if memory is None else f"{memory // MIB} MiB"
        self.kind, self.run, self._memory = "none", b"", memory
        rows = table // BLOCK * ROWS
        plan = _PLAN.format(initial=initial, rows=rows, block=ROWS)
        super().__init__(folder / self.name.replace(" ", "-"), "plain", CLIENTS, 1000, plan=plan)
        if memory is not None:
            self.settings[SHARD] = f'memory = "{self.name}"'
        layout = self.plan.layout(Schema((TensorSpec("table", (rows, WIDTH), "float32"),)))
        self.groups = tuple(group.name for group in layout.groups)
        self.known = self.folder / SHARD / "address"

    def listens(self) -> None:
        """Founds the run, and starts the shard anew; from then on its memory is limited."""
        start_servers(self)
        self.wait(lambda: self.reached(0), "version 0")
        self.run = read_run(self.folder / "coordinator" / "journal.db") or b""
        self.kill(SHARD)
        for path in (self.folder / SHARD / "states").iterdir():  # it is in the memory of its writer
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.known.unlink()
        self.start(SHARD)
        self.wait(self.known.is_file, SHARD)
        self.shard = psutil.Process(self.pid(SHARD))
        if self._memory is not None:
            self.kind = limit(self._memory, self.shard.pid)

    def spent(self) -> tuple[float, int]:
        """CPU seconds of the shard, and bytes that it had disks read."""
        times = self.shard.cpu_times()
        return times.user + times.system, self.shard.io_counters().read_bytes

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for group, _ in cgroups(self.pid(SHARD)):
            if group.exists():
                group.rmdir()


def limit(memory: int, pid: int) -> str:
    """Gives a process so much memory beyond what it has; says how that is enforced, if it is."""
    for group, most in cgroups(pid):
        try:
            group.mkdir()
            (group / most).write_text(str(memory))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            continue
        return "memory cgroup"
    return "none: files take what memory there is"


def cgroups(pid: int) -> Iterator[tuple[Path, str]]:
    """Where a process may have a group of its own, below this one's, and the file of its limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        own = f"{path.lstrip('/')}/secureps-tiers-{pid}"
        if kinds == "memory":
            yield Path("/sys/fs/cgroup/memory") / own, "memory.limit_in_bytes"
        elif not kinds:
            yield Path("/sys/fs/cgroup") / own, "memory.max"


# --- clients ----------------------------------------------------------------------


def pulled(kit: Path, run: bytes, address: str, name: str, groups: Sequence[str]) -> str:
    """Asks for row-blocks, all at once, in a process of a client; a digest of all that came."""
    keep_pieces()
    public = load_public(kit)
    link = make_link(kit, name, public.ca, insecure=False)
    party = Party(name, load_private(kit, name), link, public.roster, kit, kit)
    way = GrpcTransport(link, name, party.sign, {SHARD: address})
    way.bind_run(run)
    asked, whole = deque(way.call(SHARD, GetBlock(run, each, 0, 0)) for each in groups), sha256()
    while asked:
        reply = asked.popleft().result()
        if payload_digest(reply.payload) != reply.digest:
            raise SystemExit("a row-block came damaged")
        whole.update(reply.digest)
    way.close()
    return whole.hexdigest()


# --- turns ------------------------------------------------------------------------


def asked_for(groups: Sequence[str], count: int, seed: int) -> list[str]:
    """Groups under Zipf's law; which of them are hot does not follow from their names."""
    order = np.random.default_rng(7).permutation(len(groups))
    weights = 1 / np.arange(1, len(groups) + 1) ** 1.1
    drawn = np.random.default_rng(seed).choice(len(groups), count, p=weights / weights.sum())
    return [groups[order[each]] for each in drawn]


def rows(table: int, memory: int, turns: int, pulls: int) -> list[Row]:
    """One for each shard: medians of its turns, and the least and most of them."""
    with tempfile.TemporaryDirectory(prefix="secureps-tiers-") as at, ExitStack() as stack:
        initial = Path(at) / "initial"
        write_table(initial, table)
        shards = [
            stack.enter_context(Serving(Path(at), initial, table, bound))
            for bound in (None, memory)
        ]
        spawn = multiprocessing.get_context("spawn")
        clients = stack.enter_context(ProcessPoolExecutor(CLIENTS, spawn))

        def turn(shard: Serving, asked: Sequence[str]) -> Turn:
            cpu, read = shard.spent()
            address = shard.known.read_text().strip()
            began, to = time.perf_counter(), (shard.kit(SHARD), shard.run, address)
            shares = [asked[first::CLIENTS] for first in range(CLIENTS)]
            bits = "".join(clients.map(partial(pulled, *to), shard.clients, shares))
            seconds, (cpu_now, read_now) = time.perf_counter() - began, shard.spent()
            count = len(asked)
            return Turn(count / seconds, (cpu_now - cpu) / count, (read_now - read) / count, bits)

        for shard in shards:  # all that may be in memory comes, then what is hot stays
            shard.listens()
            turn(shard, shard.groups)
            turn(shard, asked_for(shard.groups, pulls, 1))
        found: dict[str, list[Turn]] = {each.name: [] for each in shards}
        for number in range(turns):
            for shard in shards[:: -1 if number % 2 else 1]:
                found[shard.name].append(turn(shard, asked_for(shard.groups, pulls, 2 + number)))
            if len({took[-1].bits for took in found.values()}) > 1:
                raise SystemExit("the shards serve other bits")
        return [_row(each, found[each.name], found[ALL]) for each in shards]


def _row(shard: Serving, turns: Sequence[Turn], whole: Sequence[Turn]) -> Row:
    median, rates = statistics.median, [each.rate for each in turns]
    to_all = [turn.rate / beside.rate for turn, beside in zip(turns, whole, strict=True)]
    return {
        "memory": shard.name,
        "limit": shard.kind,
        "pulls/s": median(rates),
        "least": min(rates),
        "most": max(rates),
        "to all in memory": median(to_all),
        "least, to it": min(to_all),
        "CPU us": 1e6 * median(each.cpu for each in turns),
        "kB read": median(each.read for each in turns) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=int, default=512, help="MiB")
    parser.add_argument("--memory", type=int, default=256, help="MiB")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--pulls", type=int, default=PULLS, help="in a turn")
    given = parser.parse_args()
    made = rows(given.table * MIB, given.memory * MIB, given.turns, given.pulls)
    report("tiers", f"{given.table} MiB of values, {given.memory} MiB of memory", made)


if __name__ == "__main__":
    main()
