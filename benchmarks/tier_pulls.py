"""Pulls of a table of eight times a shard's memory, as clients make them, beside one that fits.

Two shards are `secureps serve` with the table of `tiers`, one with `memory` under its limit and one
that has all of it in memory. Three clients, processes of their own without a limit, ask by gRPC
over TLS 1.3, with signed requests, for row-blocks under Zipf's law: all at once, so that as many
are under way as their transport and the shard allow. They look at every payload's digest. The
shards take turns, so that other load of the machine meets both. No coordinator is there: a shard
serves what its journal has.

Clients have the same cores: pulls a second of the clock are those of a machine with both. CPU is
the shard's process alone, by the kernel's count.

    python -m benchmarks.tier_pulls
    python -m benchmarks.tier_pulls --table 64 --budget 8 --turns 1 --pulls 600   # ten seconds
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from benchmarks.report import Row, report
from benchmarks.tier_shard import (
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
from secureps.errors import PeerError
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetBlock
from secureps.service.malloc import keep_pieces
from secureps.service.process import Party, link_of
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import load_private, load_public
from secureps.wire.grpc.client import GrpcTransport

CLIENTS = ("client-0", "client-1", "client-2")
TURNS, PULLS = 5, 3000
PATIENCE = 120.0
"""Seconds in which a shard has begun to serve."""
ALL = "all in memory"


@dataclass(frozen=True)
class Turn:
    """Pulls a second; CPU seconds of the shard and of a client for one, bytes that it read."""

    rate: float
    shard: float
    client: float
    read: float


# --- shards -----------------------------------------------------------------------


def made(folder: Path, table: int, budget: int) -> Shard:
    """A kit, and a shard's state folder with version 0 of a table."""
    asked = Asked(str(folder / "initial"), write_initial(folder / "initial", table), table, budget)
    shard = Shard(asked, folder / "state")
    shard.found()
    create_kit(folder / "kit", shard.plan.cipher_parameters)
    issue(folder / "kit", "coordinator", "coordinator")
    issue(folder / "kit", "shard", SHARD)
    for name in CLIENTS:
        issue(folder / "kit", "client", name)
    return shard


class Serving:
    """A process that serves the table, from a state folder and a journal of its own.

    `address` and `kind`, what limits its memory, are known once it `listens`.
    """

    def __init__(self, folder: Path, shard: Shard, name: str, memory: int | None) -> None:
        self.name, self._memory = name, memory
        self.address = self.kind = ""
        self._own = folder / name.replace(" ", "-")
        shutil.copytree(folder / "state", self._own, copy_function=os.link)
        journal = SqliteJournal(self._own / "journal.db")
        journal.append(0.0, shard.records)
        journal.close()
        config = self._own.with_suffix(".toml")
        lines = [f'name = "{SHARD}"', 'kit = "kit"', f'state = "{self._own.name}"']
        lines += ['checkpoints = "checkpoints"', 'coordinator = "127.0.0.1:1"']
        lines += [] if memory is None else [f'memory = "{memory // MIB} MiB"']
        config.write_text("\n".join(lines))
        command = [sys.executable, "-m", "secureps", "serve", "shard", "--config", str(config)]
        with self._log.open("wb") as said:
            self._process = psutil.Popen(command, stdout=said, stderr=said)

    @property
    def _log(self) -> Path:
        return self._own.with_suffix(".log")

    def listens(self) -> None:
        """Waits until it serves; from then on its memory is limited."""
        end, known = time.monotonic() + PATIENCE, self._own / "address"
        while not known.is_file():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"it does not serve: {self._log.read_text()}")
            time.sleep(0.02)
        self.address = known.read_text().strip()
        self.kind = limit(self._memory, self._process.pid)

    def cpu(self) -> float:
        """Seconds that it has spent."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def figure(self, file: str, name: str) -> int:
        return figure(file, name, self._process.pid)

    def end(self) -> None:
        """SystemExit if it had ended by itself, as for want of memory."""
        with limited(self._process.pid):
            ended = self._process.poll()
            self._process.kill()
            self._process.wait()
        if ended is not None:
            raise SystemExit(f"{self.name}: it ended with {ended}: {self._log.read_text()}")


# --- clients ----------------------------------------------------------------------


class Client:
    """A client's process, which pulls what it is told by a line, and says so by a line."""

    def __init__(self, name: str, kit: Path, run: bytes) -> None:
        own = ["--client", name, str(kit), run.hex()]
        command = [sys.executable, "-m", "benchmarks.tier_pulls", *own]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def begin(self, address: str, groups: Sequence[str]) -> None:
        assert self._process.stdin is not None
        print(json.dumps([address, list(groups)]), file=self._process.stdin, flush=True)

    def done(self) -> tuple[str, float]:
        """A digest of what came, and seconds of CPU."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a client ended")
        digest, seconds = json.loads(line)
        return digest, seconds

    def end(self) -> None:
        self._process.communicate()


def client(name: str, kit: Path, run: bytes) -> None:
    """What a client's process does."""
    keep_pieces()
    public = load_public(kit)
    link = link_of(kit, name, public.ca, insecure=False)
    party = Party(name, load_private(kit, name), link, public.roster, kit, kit)
    ways: dict[str, GrpcTransport] = {}
    for line in sys.stdin:
        address, groups = json.loads(line)
        if address not in ways:
            ways[address] = GrpcTransport(link, name, party.sign, {SHARD: address})
            ways[address].belong(run)
        began = time.process_time()
        digest = pulled(ways[address], run, groups)
        print(json.dumps([digest, time.process_time() - began]), flush=True)
    for way in ways.values():
        way.close()


def pulled(way: GrpcTransport, run: bytes, groups: Sequence[str]) -> str:
    """Asks for row-blocks, all at once; a digest of all that came."""
    came = SimpleQueue[tuple[int, Future[Any]]]()

    def ask(at: int) -> None:
        asked = way.call(SHARD, GetBlock(run, groups[at], 0, 0))
        asked.add_done_callback(lambda done: came.put((at, done)))

    for at in range(len(groups)):
        ask(at)
    digests = dict.fromkeys(range(len(groups)), b"")
    left = len(groups)
    while left:
        at, done = came.get()
        error = done.exception()
        if isinstance(error, PeerError) and error.retry_after is not None:
            ask(at)
            continue
        reply = done.result()
        if payload_digest(reply.payload) != reply.digest:
            raise SystemExit(f"{groups[at]} came damaged")
        digests[at], left = reply.digest, left - 1
    return sha256(b"".join(digests.values())).hexdigest()


# --- turns ------------------------------------------------------------------------


def turn(shard: Serving, clients: Sequence[Client], asked: Sequence[str]) -> tuple[Turn, list[str]]:
    """Has the clients pull their shares of what is asked for; what that took, and digests."""
    read, used = shard.figure("io", "read_bytes"), shard.cpu()
    began = time.perf_counter()
    for at, each in enumerate(clients):
        each.begin(shard.address, asked[at :: len(clients)])
    said = [each.done() for each in clients]
    seconds = time.perf_counter() - began
    pulls = len(asked)
    used, read = shard.cpu() - used, shard.figure("io", "read_bytes") - read
    own = sum(each for _, each in said)
    return Turn(pulls / seconds, used / pulls, own / pulls, read / pulls), [d for d, _ in said]


def rows(table: int, budget: int, turns: int, pulls: int) -> list[Row]:
    """One for each shard: medians of its turns, and the least and most of them."""
    with tempfile.TemporaryDirectory(prefix="secureps-tiers-") as at, ExitStack() as stack:
        folder = Path(at)
        shard = made(folder, table, budget)
        sides = ((ALL, None), (f"{budget // MIB} MiB", budget))
        shards, clients = [], []
        for side in sides:
            shards.append(Serving(folder, shard, *side))
            stack.callback(shards[-1].end)
        for name in CLIENTS:
            clients.append(Client(name, folder / "kit", shard.run.id))
            stack.callback(clients[-1].end)
        found: dict[str, list[Turn]] = {each.name: [] for each in shards}
        for each in shards:  # all that may be in memory comes, then what is hot stays
            each.listens()
            turn(each, clients, shard.groups)
            turn(each, clients, asked_for(shard.groups, pulls, 1))
        for number in range(turns):
            asked = asked_for(shard.groups, pulls, 2 + number)
            bits = []
            for each in shards[:: -1 if number % 2 else 1]:
                took, digests = turn(each, clients, asked)
                found[each.name].append(took)
                bits.append(digests)
            if bits[0] != bits[1]:
                raise SystemExit("the shards serve other bits")
        anonymous = [1024 * each.figure("status", "RssAnon") for each in shards]
    return [
        _row(each, found[each.name], found[ALL], size)
        for each, size in zip(shards, anonymous, strict=True)
    ]


def _row(shard: Serving, turns: Sequence[Turn], whole: Sequence[Turn], anonymous: int) -> Row:
    median = statistics.median
    rates, used = [each.rate for each in turns], [1e6 * each.shard for each in turns]
    best = median(each.rate for each in whole), median(1e6 * each.shard for each in whole)
    return {
        "memory": shard.name,
        "limit": shard.kind,
        "pulls/s": median(rates),
        "least": min(rates),
        "most": max(rates),
        "to all in memory": median(rates) / best[0],
        "shard's CPU us": median(used),
        "CPU, least": min(used),
        "CPU, most": max(used),
        "pulls a CPU second": 1e6 / median(used),
        "CPU, to all in memory": best[1] / median(used),
        "a client's CPU us": median(1e6 * each.client for each in turns),
        "kB read": median(each.read for each in turns) / 1e3,
        "anonymous MiB": anonymous / MIB,
    }


def turned(made: Sequence[Row]) -> list[Row]:
    """A column for each row."""
    return [
        {"what": name} | {str(row["memory"]): row[name] for row in made}
        for name in made[0]
        if name != "memory"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=int, default=512, help="MiB")
    parser.add_argument("--budget", type=int, default=64, help="MiB")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--pulls", type=int, default=PULLS, help="in a turn")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client is not None:
        name, kit, run = given.client
        client(name, Path(kit), bytes.fromhex(run))
        return
    found = rows(given.table * MIB, given.budget * MIB, given.turns, given.pulls)
    title = f"{given.table} MiB of values, {given.budget} MiB of memory, by gRPC and TLS"
    report("tier_pulls", title, turned(found))


if __name__ == "__main__":
    main()
