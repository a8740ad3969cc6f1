"""Pulls of a table of which a part fits in a shard's memory, beside one that has all in memory.

Two shards serve the same table. One holds it in its process; the other's versions lie in files, and
its memory cgroup bounds files and buffers together. Three clients, processes of their own, ask over
TLS for row-blocks under Zipf's law (exponent 1.1); the shards take turns. CPU is the shard's alone.

    python -m benchmarks.tiers
    python -m benchmarks.tiers --table 64 --memory 32 --turns 1 --pulls 600   # ten seconds
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.report import Row, report
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.encoding import file_hasher, payload_digest
from secureps.messages.orders import Commit
from secureps.messages.records import RunPinned
from secureps.messages.requests import GetBlock, Prepared
from secureps.messages.run import (
    GroupPlacement,
    Placement,
    RunInfo,
    Schema,
    ShardAddress,
    TensorSpec,
)
from secureps.policy.plan import Plan
from secureps.roles.shard.state import MakeState, ShardState
from secureps.service.malloc import keep_pieces
from secureps.service.process import Party, make_link
from secureps.service.shard.states import ShardFolders
from secureps.service.shard.worker import ShardNoise, ShardWorker
from secureps.store.checkpoint import digest_of_file, write_state
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.keyring import load_private, load_public
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.client import GrpcTransport

SHARD, CLIENTS = "shard-0", ("client-0", "client-1", "client-2")
WIDTH, ROWS = 1024, 64
"""Values of a row, and rows of a row-block."""
MIB = 1 << 20
BLOCK = 4 * WIDTH * ROWS
TURNS, PULLS = 5, 3000
SERVED = ('checkpoints = "checkpoints"', 'coordinator = "127.0.0.1:1"')
PATIENCE = 120.0
"""Seconds in which a shard has begun to serve."""
ALL = "all in memory"


class Turn(NamedTuple):
    """Pulls a second; the shard's CPU seconds for one, and bytes that it had the disk read."""

    rate: float
    cpu: float
    read: float
    bits: str


# --- shards -----------------------------------------------------------------------


def plan_of(initial: Path, table: int) -> Plan:
    """A plan of a table of so many bytes, whose file of version 0 is written here."""
    rows = table // BLOCK * ROWS
    values = np.random.default_rng(5).standard_normal((rows, WIDTH), np.float32)
    write_state(initial, {"table": values}, {}, None)
    rule = {"name": "buffered", "buffer": 2, "minimum": 2}
    common = {"clip": 30.0, "range": 4.0, "weighting": "uniform", "rule": rule}
    sparse = {"pattern": "table", "sparse": {"rows": rows, "block": ROWS}}
    body = {"name": "tiers", "versions": 1000, "shards": 1, "initial": str(initial)}
    body |= {"cipher": {"name": "plain"}, "group": [{"name": "table", **common, **sparse}]}
    return Plan(parse(PlanSection, body, "tiers"), digest_of_file(initial, file_hasher).hex())


class Founded:
    """A kit, a state folder with version 0 of a table, and what a shard's journal says of it."""

    def __init__(self, folder: Path, table: int) -> None:
        plan = plan_of(folder / "initial", table)
        schema = Schema((TensorSpec("table", (table // BLOCK * ROWS, WIDTH), "float32"),))
        layout = plan.layout(schema)
        self.groups = tuple(group.name for group in layout.groups)
        self.run = RunInfo(plan.text, schema, layout.digest, b"", b"", b"")
        placed = tuple(GroupPlacement(name, (SHARD,)) for name in self.groups)
        placement, address = Placement(1, (SHARD,), placed), ShardAddress(SHARD, "", 1.0)
        self.records: list[Any] = [RunPinned(self.run, placement, (address,))]
        state = ShardState(SHARD)
        state.apply(self.records[0])
        folders = ShardFolders(folder / "state" / "states", folder / "state" / "checkpoints")
        spool = DiskSpool(folder / "state" / "spool")
        noise = ShardNoise(state, spool, UnsafeSeed(1), {})
        worker = ShardWorker(state, spool, folders, noise)
        for group in self.groups:
            done = worker.work(MakeState(group, None))
            assert done is not None
            assert isinstance(done.made, Prepared), done
            for record in (done.made, Commit(1, group, 0, 0)):
                state.apply(record)
                self.records.append(record)
        create_kit(folder / "kit", plan.cipher_parameters)
        issue(folder / "kit", "coordinator", "coordinator")
        issue(folder / "kit", "shard", SHARD)
        for name in CLIENTS:
            issue(folder / "kit", "client", name)


class Serving:
    """A process that serves the table, from files and a journal of its own.

    `address` and `kind`, what limits its memory, are known once it `listens`.
    """

    def __init__(self, folder: Path, founded: Founded, name: str, memory: int | None) -> None:
        self.name, self._memory, self.address, self.kind = name, memory, "", "none"
        self._own = folder / name.replace(" ", "-")
        self._log = self._own.with_suffix(".log")
        shutil.copytree(folder / "state", self._own)
        for path in (self._own / "states").iterdir():  # it is in the memory of who wrote it
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        rows = SqliteJournal(self._own / "journal.db")
        journal = DatedJournal(rows, SHARD, "shard", time.time)
        journal.append(0.0, founded.records)
        journal.close()
        config = self._own.with_suffix(".toml")
        lines = [f'name = "{SHARD}"', 'kit = "kit"', f'state = "{self._own.name}"', *SERVED]
        lines += [] if memory is None else [f'memory = "{memory // MIB} MiB"']
        config.write_text("\n".join(lines))
        command = [sys.executable, "-m", "secureps", "serve", "shard", "--config", str(config)]
        with self._log.open("wb") as said:
            self._process = psutil.Popen(command, stdout=said, stderr=said)

    def listens(self) -> None:
        """Waits until it serves; from then on its memory is limited."""
        end, known = time.monotonic() + PATIENCE, self._own / "address"
        while not known.is_file():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"it does not serve: {self._log.read_text()}")
            time.sleep(0.02)
        self.address = known.read_text().strip()
        if self._memory is not None:
            self.kind = limit(self._memory, self._process.pid)

    def spent(self) -> tuple[float, int]:
        """CPU seconds, and bytes that it had disks read."""
        times = self._process.cpu_times()
        return times.user + times.system, self._process.io_counters().read_bytes

    def end(self) -> None:
        """SystemExit if it had ended by itself, as for want of memory."""
        if (ended := self._process.poll()) is None:
            self._process.kill()
            self._process.wait()
        for group, _ in cgroups(self._process.pid):
            if group.exists():
                group.rmdir()
        if ended is not None:
            raise SystemExit(f"{self.name}: it ended with {ended}: {self._log.read_text()}")


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
        founded, shards = Founded(Path(at), table), list[Serving]()
        for name, bound in ((ALL, None), (f"{memory // MIB} MiB", memory)):
            shards.append(Serving(Path(at), founded, name, bound))
            stack.callback(shards[-1].end)
        spawn = multiprocessing.get_context("spawn")
        clients = stack.enter_context(ProcessPoolExecutor(len(CLIENTS), spawn))

        def turn(shard: Serving, asked: Sequence[str]) -> Turn:
            cpu, read = shard.spent()
            began, to = time.perf_counter(), (Path(at) / "kit", founded.run.id, shard.address)
            shares = [asked[first :: len(CLIENTS)] for first in range(len(CLIENTS))]
            bits = "".join(clients.map(partial(pulled, *to), CLIENTS, shares))
            seconds, (cpu_now, read_now) = time.perf_counter() - began, shard.spent()
            count = len(asked)
            return Turn(count / seconds, (cpu_now - cpu) / count, (read_now - read) / count, bits)

        for shard in shards:  # all that may be in memory comes, then what is hot stays
            shard.listens()
            turn(shard, founded.groups)
            turn(shard, asked_for(founded.groups, pulls, 1))
        found: dict[str, list[Turn]] = {each.name: [] for each in shards}
        for number in range(turns):
            for shard in shards[:: -1 if number % 2 else 1]:
                found[shard.name].append(turn(shard, asked_for(founded.groups, pulls, 2 + number)))
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
