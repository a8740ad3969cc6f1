"""Does a run go on as it began? Many clients push encrypted updates to real servers under TLS.

    python -m benchmarks.soak --seconds 600 --clients 1000

A thousand identities, in a few processes, push to a coordinator, two shards and three key holders
without rounds, as fast as these take it in, and connections are cut at random all the while. A
tenth of the time is one row: updates a second, seconds from sealed to acknowledged, memory and
journals of the servers. In the end every server is stopped, and its journal says what became of
each update that was acknowledged. Exit code 1 where a promise is broken: they are in
`Course.promises`. How soon a party starts from its journal, `benchmarks.long_run` measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.crowd import Updates, memory, start_servers
from benchmarks.deployed import Deployed
from benchmarks.report import Row, report
from secureps.crypto.identity import Role
from secureps.messages.coordinator_records import (
    CohortBurnt,
    CohortClosed,
    SubmissionsDropped,
    VersionCommitted,
)
from secureps.messages.records import ReceiptSummary
from secureps.messages.requests import Submit
from secureps.messages.submission import SubmissionId
from secureps.store.issuing import create_kit, issue_all
from secureps.store.journal import read_rows
from secureps.store.journal_rows import LEAST, read_only

SHAPE = (200, 10)
WINDOWS = 10
CUT_EVERY = 1.0
"""Seconds between two cuts (`CutLine.cut`)."""
BEGIN = 900.0
"""Seconds in which all clients join and the first versions are made, at most."""
SLACK_MB = 16.0
"""By which memory may differ for no reason."""

_PLAN = """
name = "soak"
versions = {{versions}}
shards = 2
lease = 600.0
checkpoint_every = 10
local = ["*.count"]
[cipher]
name = "{{cipher}}"
capacity = {capacity}
holders = 3
threshold = 2
[[group]]
clip = 3.0
range = 0.5
most_examples = 2048
[group.rule]
name = "buffered"
buffer = {buffer}
max_staleness = 1000
deadline = 5.0
[group.optimizer]
name = "adam"
learning_rate = 0.01
"""


SHARE = 100
"""Of how many connections one is cut at a time, and at least one."""


class CutLine:
    """Forwards ports on loopback to servers, and cuts connections; its own thread does it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)
        self._thread.start()
        self.cuts = 0

    def port(self, server: Path) -> int:
        """A new port that leads to the server whose address stands in a file, when it does."""

        async def listen() -> int:
            async def taken(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
                await self._joined(near, back, server)

            made = await asyncio.start_server(taken, "127.0.0.1", 0, backlog=1024)
            return int(made.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result()

    def cut(self) -> None:
        """Ends some connections at once, in the middle of whatever they carry."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        some = random.sample(self._open, min(len(self._open), 1 + len(self._open) // SHARE))
        for writer in some:
            writer.transport.abort()
        self.cuts += len(some)

    async def _joined(
        self, near: asyncio.StreamReader, back: asyncio.StreamWriter, server: Path
    ) -> None:
        try:
            host, _, port = server.read_text().strip().rpartition(":")
            far, on = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):  # it does not listen yet
            back.transport.abort()
            return
        self._open.append(back)
        await asyncio.gather(_pumped(near, on), _pumped(far, back))
        self._open.remove(back)


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()


class Soaked(Deployed):
    """Servers for so many clients, dialled through a line that can be cut."""

    def __init__(self, folder: Path, clients: int, line: CutLine) -> None:
        buffer = max(5, clients // 20)
        super().__init__(
            folder,
            "rlwe",
            clients,
            versions=10**6,
            plan=_PLAN.format(buffer=buffer, capacity=4 * buffer),
        )
        self._port = line.port(folder / "coordinator" / "address")
        for name in self.shards:
            port = line.port(folder / name / "address")
            self.settings[name] = f'advertise = "127.0.0.1:{port}"'

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _make_kit(self) -> None:
        create_kit(self._kit, self.plan.cipher_parameters)
        roles: list[tuple[Role, str]] = [("coordinator", "coordinator")]
        roles += [("shard", name) for name in self.shards]
        roles += [("holder", name) for name in self.holders]
        issue_all(self._kit, [*roles, *(("client", name) for name in self.clients)])


# --- clients ----------------------------------------------------------------------

PROCESSES = 4
"""That the clients are in."""


class Crowds:
    """The processes of all clients of a federation, which they share out; `with` ends them."""

    def __init__(self, parties: Deployed, shape: tuple[int, int]) -> None:
        words = [sys.executable, "-m", "benchmarks.crowd", "--server", parties.server]
        words += ["--shape", *map(str, shape), str(parties.folder)]
        shares = [parties.clients[start::PROCESSES] for start in range(PROCESSES)]
        self._running = [
            subprocess.Popen(
                [*words, *share],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=parties.environment,
                text=True,
            )
            for share in shares
            if share
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.kill()
            each.wait()

    def over(self) -> tuple[Updates, int]:
        """Stops all clients; what was acknowledged to them, and how often they tried again."""
        for each in self._running:
            assert each.stdin is not None
            each.stdin.close()
        updates: Updates = {}
        retries = 0
        for each in self._running:
            assert each.stdout is not None
            found = json.loads(each.stdout.readline())
            retries += found["retries"]
            for client, group, sequence, sealed, known in found["updates"]:
                updates[SubmissionId(client, group, sequence)] = (sealed, known)
        return updates, retries


# --- journals ---------------------------------------------------------------------
#
# Rows are compacted once those after the fold reach 2 MiB and the fold's size. A fold has what is
# known of each client and waits, and a digest of each version; an archive has the ledger.

TRANSACTION = 1 << 20
"""Bytes of rows that are written at once, and compacted after that, at most."""

FOUNDING = 1 << 17
"""Bytes of a fold whatever the run has: the plan, the placement, the newest version."""

PER_CLIENT = 6000
"""Bytes of a fold for each client: the newest fates of its updates, and what it said."""

PER_WAITING = 16_000
"""Bytes of a fold for each update that waits: its whole receipt, with envelopes where there are."""

MOST_WAITING = 2
"""Updates of a client that wait, at most."""

PER_VERSION = 150
"""Bytes of a fold for each version: its digest; with privacy what each client spent on it."""

PER_UPDATE = 800
"""Bytes of an archive for each update."""


@dataclass(frozen=True, slots=True)
class JournalSize:
    """Bytes of a journal's parts, and of the file that has them."""

    rows: int
    fold: int
    archive: int
    file: int


def grown(sizes: Sequence[JournalSize], clients: int, versions: int, updates: int) -> Iterator[str]:
    """What of a journal took more than a run of so many versions and updates needs.

    Args:
        sizes: at several moments of the run, the last at its end.
    """
    fold = max(size.fold for size in sizes)
    rows = 2 * (max(LEAST, fold) + TRANSACTION)
    each = PER_CLIENT + MOST_WAITING * PER_WAITING
    archive = FOUNDING + PER_UPDATE * updates
    allowed = {
        "rows": rows,
        "fold": FOUNDING + each * clients + PER_VERSION * versions,
        "archive": archive,
        "file": 2 * (rows + fold + archive),  # pages of what is gone are used again
    }
    for part, most in allowed.items():
        if (size := max(getattr(size, part) for size in sizes)) > most:
            yield f"{part} of {size:,} bytes, and {most:,} are enough"


def journal_size(path: Path) -> JournalSize:
    """Of a journal that some process may be writing."""
    with read_only(path) as base:
        base.execute("BEGIN")
        queries = (
            "SELECT total(length(CAST(body AS BLOB))) FROM journal",
            "SELECT total(length(CAST(body AS BLOB))) FROM fold",
            "SELECT total(length(rows)) FROM archive",
        )
        rows, fold, archive = (int(base.execute(query).fetchone()[0]) for query in queries)
    return JournalSize(rows, fold, archive, path.stat().st_size)


# --- servers ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """The servers at one moment: megabytes of memory, and sizes of the journal, by name."""

    at: float
    memory: Mapping[str, float]
    journals: Mapping[str, JournalSize]


def sample(parties: Soaked) -> Sample:
    """The servers now."""
    names = ("coordinator", *parties.shards, *parties.holders)
    journals = {name: parties.folder / name / "journal.db" for name in names}
    return Sample(
        time.time(),
        {name: memory(parties.pid(name), "VmRSS") / 1e6 for name in names},
        {name: journal_size(path) for name, path in journals.items()},
    )


@dataclass
class Account:
    """What the coordinator's journal says of all updates.

    Args:
        received: all that were; counted: how often each is part of a version.
        dropped: why; contents: how often an update of a client is part of a version.
    """

    received: set[SubmissionId] = field(default_factory=set)
    counted: Counter[SubmissionId] = field(default_factory=Counter)
    contents: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    dropped: dict[SubmissionId, str] = field(default_factory=dict)
    versions: int = 0


def account(journal: Path) -> Account:
    """Reads a coordinator's journal, its archive too."""
    found, opened = Account(), dict[str, CohortClosed]()
    for row in read_rows(journal):
        match row.record:
            case Submit(receipt) | (ReceiptSummary() as receipt):
                found.received.add(receipt.id)
            case CohortClosed(cohort):
                opened[cohort.group] = row.record
            case CohortBurnt(group=group, reason=reason):
                burnt = opened.pop(group).cohort.members
                found.dropped |= dict.fromkeys((member.id for member in burnt), reason)
            case SubmissionsDropped(ids=ids, reason=reason):
                found.dropped |= dict.fromkeys(ids, reason)
            case VersionCommitted(group=group) if group in opened:
                found.versions += 1
                for member in opened.pop(group).cohort.members:
                    found.counted[member.id] += 1
                    found.contents[member.id.client, member.update] += 1
            case _:
                pass
    return found


# --- what is promised -------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """All that was seen of a run.

    Args:
        samples: at the beginning of the first window, and at the end of each.
        updates: when each that was acknowledged was sealed, and when acknowledged.
    """

    clients: Sequence[str]
    samples: Sequence[Sample]
    updates: Mapping[SubmissionId, tuple[float, float]]
    account: Account

    def windows(self) -> Iterator[Row]:
        """A row for each window."""
        for number, (before, after) in enumerate(zip(self.samples, self.samples[1:]), 1):
            waits = sorted(
                known - sealed
                for sealed, known in self.updates.values()
                if before.at < known <= after.at
            )
            kept = [sum(each.archive for each in s.journals.values()) for s in (before, after)]
            yield {
                "window": number,
                "updates/s": len(waits) / (after.at - before.at),
                "p50 s": _quantile(waits, 0.5),
                "p99 s": _quantile(waits, 0.99),
                "coordinator MB": after.memory["coordinator"],
                "shards MB": max(m for name, m in after.memory.items() if "shard" in name),
                "holders MB": max(m for name, m in after.memory.items() if "holder" in name),
                "rows MB": sum(each.rows for each in after.journals.values()) / 1e6,
                "folds MB": sum(each.fold for each in after.journals.values()) / 1e6,
                "archives MB": kept[1] / 1e6,
                "archived bytes/update": (kept[1] - kept[0]) / max(1, len(waits)),
            }

    def promises(self) -> Iterator[tuple[str, bool]]:
        """What is promised, with what came of it, and whether that is kept."""
        rows = list(self.windows())
        first, last = rows[2], rows[-1]
        known, counted = self.account, self.account.counted
        lost = [id for id in self.updates if id not in known.received]
        yield f"updates that were acknowledged and are not on record: {len(lost)}", not lost
        silent = [id for id in known.received if not (id in counted or id in known.dropped)]
        waiting = len(silent) <= 2 * len(self.clients)
        yield f"updates that wait at the end: {len(silent)}, two a client at most", waiting
        double = [id for id, times in (counted + known.contents).items() if times > 1]
        both = [id for id in counted if id in known.dropped]
        yield f"updates that were counted twice: {len(double)}", not double
        yield f"updates that were counted and dropped: {len(both)}", not both
        each = Counter(id.client for id in self.updates)
        least, mean = min(each[name] for name in self.clients), each.total() / len(self.clients)
        text = f"updates of the client that had the fewest: {least}, of all {mean:.1f} on average"
        yield f"{text}; a quarter of that at least", least >= int(mean / 4)
        speeds = [float(row["updates/s"]) for row in rows[2:]]
        middle, slow = statistics.median(speeds[:4]), statistics.median(speeds[-4:])
        text = f"updates a second, early and late: {middle:.1f}, {slow:.1f}"
        yield f"{text}; a loss of a quarter at most", slow >= 0.75 * middle
        early = statistics.median(float(row["p99 s"]) for row in rows[2:6])
        late = statistics.median(float(row["p99 s"]) for row in rows[-4:])
        yield (
            f"p99 early and late: {early:.2f}, {late:.2f} s; half as much again",
            late <= (1.5 * early + 0.5),
        )
        for who in ("coordinator MB", "shards MB", "holders MB"):
            was, now = float(first[who]), float(last[who])
            yield f"{who}, early and late: {was:.0f}, {now:.0f}", now <= 1.15 * was + SLACK_MB
        yield from self._journals()

    def _journals(self) -> Iterator[tuple[str, bool]]:
        """What `grown` says of each server's journal, at whichever moment it was worst."""
        of = (len(self.clients), self.account.versions, len(self.account.received))
        for name in self.samples[-1].journals:
            seen = [sample.journals[name] for sample in self.samples]
            wrong = "; ".join(grown(seen, *of))
            most = max(each.rows + each.fold for each in seen) / 1e6
            archive = seen[-1].archive / 1e6
            text = f"journal of {name}: {most:.1f} MB at most, and an archive of {archive:.1f} MB"
            yield f"{text}; {wrong or 'no more than its clients, versions and updates'}", not wrong


def _quantile(ascending: Sequence[float], part: float) -> float:
    return ascending[int(part * (len(ascending) - 1))] if ascending else 0.0


@contextmanager
def cutting(line: CutLine) -> Iterator[None]:
    """Cuts connections of a line while the `with` lasts."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(CUT_EVERY * random.uniform(0.5, 1.5)):
            line.cut()

    thread = threading.Thread(target=cut, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def play(folder: Path, clients: int, seconds: float) -> tuple[Course, int, int]:
    """Plays a run; what was seen, how many connections were cut, how often clients tried again."""
    line = CutLine()
    with ExitStack() as stack:
        parties = stack.enter_context(Soaked(folder, clients, line))
        start_servers(parties)
        crowds = stack.enter_context(Crowds(parties, SHAPE))
        wait_for_versions(parties)
        samples = [sample(parties)]
        with cutting(line):
            for _ in range(WINDOWS):
                time.sleep(seconds / WINDOWS)
                samples.append(sample(parties))
        updates, retries = crowds.over()
        for name in ("coordinator", *parties.shards, *parties.holders):
            parties.stop(name)
        found = account(folder / "coordinator" / "journal.db")
        return Course(parties.clients, samples, updates, found), line.cuts, retries


def wait_for_versions(parties: Soaked, version: int = 3) -> None:
    """Returns when all has begun; AssertionError if it does not in BEGIN seconds."""
    end = time.monotonic() + BEGIN
    while time.monotonic() < end:
        status = parties.status()
        if status is not None and status.groups and status.groups[0].version >= version:
            return
        time.sleep(0.2)
    raise AssertionError(f"no version {version} in {BEGIN:.0f} s: {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="secureps-soak-") as folder:
        course, cuts, retries = play(Path(folder), given.clients, given.seconds)
    title = f"{given.clients} clients, {given.seconds:.0f} s, {cuts} connections cut"
    report("soak", f"{title}, {retries} calls tried again", list(course.windows()))
    kept = list(course.promises())
    for text, good in kept:
        print(f"{'kept  ' if good else 'BROKEN'} {text}")
    sys.exit(not all(good for _, good in kept))


if __name__ == "__main__":
    main()
