"""One wave of a party: it starts from its journal, hears a batch, says what it has, and ends.

Whatever outlives the wave lies in the state folder. What the party will ask first in its next wave
goes along, so that the answer comes with it.

A key holder hears its waves by a local socket: whoever relays them reads none of its files. No
process may ask that could read them: the same user's, or root's. File modes hold the others off. A
frame is a kind (uint8: a batch, or an error in words), a length (uint64, little endian), and as
many bytes; one goes each way, and the connection ends.
"""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from secureps.crypto.identity import Identity
from secureps.errors import (
    ConfigError,
    KitError,
    Malformed,
    NotReady,
    OperatorError,
    Oversized,
    ScriptFailed,
    SecurepsError,
    Unreachable,
    WrongRun,
)
from secureps.messages.records import RunPinned
from secureps.messages.run import COORDINATOR, other_run
from secureps.roles.machine import Call, Fold, Halt
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor, replayed
from secureps.service.kit_watch import ActWatch, KitWatch
from secureps.service.logs import tell
from secureps.service.loop import WaveLoop
from secureps.store.atomic_file import one_at_a_time, own
from secureps.store.backup import demand_owner
from secureps.store.journal import DatedJournal, Journal, SqliteJournal, WrappedJournal
from secureps.store.journal_rows import Record
from secureps.store.keyring import PublicKit
from secureps.store.spool import DiskSpool
from secureps.wire.msgpack import encode
from secureps.wire.waves.batch import (
    MOST_BYTES,
    WAVE_DOMAIN,
    Batch,
    Entry,
    Kind,
    about,
    opened,
    sealed,
)
from secureps.wire.waves.transport import WaveTransport

MOST = 64 << 20
"""Bytes of a key holder's batch: receipts of a cohort, and no payloads."""
SECONDS = 120.0
"""Seconds in which a frame comes or goes."""

_BATCH, _ERROR = 0, 1
_HEAD = struct.Struct("<BQ")
_PEER = struct.Struct("3i")
"""Linux's word for who is at the other end: process, user, group."""


@contextmanager
def answering(
    party: str, path: Path, answer: Callable[[bytes], bytes], test: bool = False
) -> Iterator[None]:
    """Listens on a socket, and answers one batch after another, while the context is open.

    SecurepsErrors of `answer` go back in words. In a `test` no real records are at stake: whoever
    asks may read this party's files.

    Raises:
        OperatorError: it cannot listen there.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            line: socket.socket = self.request
            line.settimeout(SECONDS)
            try:
                batch = _received(line)
                if not test:
                    refuse_reader(line)
                kind, data = _BATCH, answer(batch)
            except SecurepsError as error:
                tell(party, "Complaint", str(error), logging.WARNING)
                kind, data = _ERROR, str(error).encode()
            except OSError:
                return  # who asked is gone, and asks again
            with suppress(OSError):
                line.sendall(_HEAD.pack(kind, len(data)) + data)

    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):  # of a process that was killed
                path.unlink()
        server = socketserver.UnixStreamServer(str(path), Handler)
        path.chmod(0o660)
    except OSError as error:
        raise OperatorError(f"socket: cannot listen at {path}: {error}") from None
    thread = threading.Thread(target=server.serve_forever, name="waves", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)


def refuse_reader(line: socket.socket) -> None:
    """ConfigError if who asks could read this process's files, or its memory, whatever their modes.

    One in a container of its own has no process id here, nor our files.
    """
    process, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    own = os.geteuid()
    if process and user in (0, own):
        raise ConfigError(
            f"the app that relays runs as user {user} and this key holder as {own}: code of the "
            "run could read its keys and ledger. Give the key holder a user of its own, its node "
            "another that is not root, and the socket's folder a group of both (chmod 2750)"
        )


def asked(path: Path, batch: bytes) -> bytes:
    """What a party at a socket answers; Unreachable if nobody does, NotReady if it refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SECONDS)
            line.connect(str(path))
            line.sendall(_HEAD.pack(_BATCH, len(batch)) + batch)
            kind, data = _frame(line)
    except OSError as error:
        raise Unreachable(f"nobody answers at {path}: {error}; is the key holder up?") from None
    if kind == _ERROR:
        raise NotReady(data.decode(errors="replace")[:500])
    return data


def _received(line: socket.socket) -> bytes:
    kind, data = _frame(line)
    if kind != _BATCH:
        raise Malformed("a party is sent batches")
    return data


def _frame(line: socket.socket) -> tuple[int, bytes]:
    kind, length = _HEAD.unpack(_exactly(line, _HEAD.size))
    if length > MOST:
        raise Oversized(f"a batch of {length} bytes; at most {MOST} are allowed")
    return kind, _exactly(line, length)


def _exactly(line: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = line.recv(min(1 << 20, length - len(data)))
        if not piece:
            raise ConnectionError("the connection ended in the middle of a batch")
        data += piece
    return bytes(data)


Make = Callable[[Stores, Environment], Executor]
"""Puts the party together; called twice in a wave."""


LEAST = 256 << 10
"""Bytes of rows before which the journal is not compacted: every wave reads them all."""

TOLD = (WrongRun, KitError)
"""Complaints whose words its server hears: others may tell of records, or what a site keeps to
itself, and it hears of which class they are."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What a party says in a wave: its batch; and, in words for its server, why it takes part no
    more, if it does not."""

    batch: bytes
    ended: str = ""


@dataclass(frozen=True, eq=False)
class OneWave:
    """A party whose process lives for a wave, by its name, keys, kit and state folder."""

    name: str
    identity: Identity
    kit: PublicKit
    folder: Path
    state: Path

    def play(self, data: bytes, payloads: Mapping[bytes, bytes], make: Make) -> Answer:
        """Hears one batch of the servers', and answers it; `payloads` go by their digests.

        Raises:
            WrongRun: the batch is of another run than the one that the state folder is of.
            SecurepsError: it is not this run's server's, or whatever ended this party.
        """
        own(self.state)
        batch = opened(data, MOST_BYTES, self._verify)
        if batch.sender != COORDINATOR or batch.to not in ("", self.name):
            raise Malformed(f"a batch from {batch.sender} to {batch.to}, and none for {self.name}")
        ended = ""
        with (
            one_at_a_time(self.state / "wave"),
            closing(self._journal()) as journal,
        ):
            demand_owner(self.state, self._role, self.name)
            kept = _ReadOnce(journal)
            ours = next((r.run.id for r in kept.records() if isinstance(r, RunPinned)), b"")
            if batch.run and ours and batch.run != ours:
                raise WrongRun(other_run(self.name, ours, batch.run))
            transport = WaveTransport(one_wave=True)
            transport.take(batch.entries, payloads)
            loop = WaveLoop(journal.last)
            around = Environment(transport, loop, lambda: 1.0)
            stores = Stores(kept, DiskSpool(self.state / "spool"), self.state)
            executor = make(stores, around)
            executor.start()
            KitWatch(self.name, executor, self.folder).once()
            ActWatch(self.name, executor, self.state, self.identity.public).once()
            loop.run(executor.halted.done)
            said = transport.out()
            if executor.halted.done():
                halt = executor.halted.result()
                if halt.error is ScriptFailed:  # it may train the next time, and told more than we
                    raise ScriptFailed(halt.reason)
                ended = self._ended(halt)
            else:
                first = tuple(_first(make(stores, around), kept, loop.now()))
                said = (*_drop_repeated(said, first), *first)
            executor.stop()
        answer = Batch(self.name, COORDINATOR, executor.run, batch.challenge, said)
        return Answer(sealed(answer, self._sign), ended)

    def _journal(self) -> DatedJournal:
        rows = SqliteJournal(self.state / "journal.db", least=LEAST)
        return DatedJournal(rows, self.name, self._role, time.time)

    @property
    def _role(self) -> str:
        roster = self.kit.roster
        return roster.find(self.name).role if self.name in roster else "client"

    def _ended(self, halt: Halt) -> str:
        """Logs why it takes part no more; returns what its server hears of that."""
        if halt.error is None:
            return halt.reason
        tell(self.name, "Ended", halt.reason, logging.ERROR)
        if issubclass(halt.error, TOLD):
            return halt.reason
        return f"{halt.error.__name__}; the node's log says why"

    def _sign(self, data: bytes) -> bytes:
        return self.identity.sign(WAVE_DOMAIN, data)

    def _verify(self, party: str, data: bytes, signature: bytes) -> None:
        self.kit.roster.identity(party).verify(WAVE_DOMAIN, data, signature)


class _ReadOnce(WrappedJournal):
    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._rows: list[tuple[float, Record]] | None = None

    def append(self, at: float, records: Sequence[Record]) -> None:
        super().append(at, records)
        if self._rows is not None:
            self._rows += ((at, record) for record in records)

    def records(self) -> Iterator[Record]:
        """The records that its machine applies, but for what the fold says otherwise."""
        yield from () if self.fold is None else self.fold.records
        yield from (record for _, record in self.replay())

    def replay(self) -> Iterator[tuple[float, Record]]:
        if self._rows is None:
            self._rows = list(super().replay())
        return iter(self._rows)

    def pack(self) -> bool:
        while not super().pack():  # the next wave's process would begin anew
            pass
        return True

    def compact(self, fold: Fold) -> None:
        super().compact(fold)
        self._rows = []


def _first(executor: Executor, journal: _ReadOnce, now: float) -> Iterator[Entry]:
    """The requests that a party's next process makes before it hears anything, by its journal."""
    machine = executor.machine
    for _ in replayed(machine, journal):
        pass
    for effect in machine.resume(now).effects:
        if isinstance(effect, Call):
            yield Entry(Kind.FIRST, effect.to.encode(), encode(effect.message))
    yield Entry(Kind.WATCH, envelope=encode(machine.subscription()))


def _drop_repeated(said: tuple[Entry, ...], first: tuple[Entry, ...]) -> Iterator[Entry]:
    """Drops what the next process asks anyway."""
    asked = {about(each.name.decode(), each.envelope) for each in first if each.name}
    for each in said:
        repeated = each.name and about(each.name.decode(), each.envelope) in asked
        if not repeated and each.kind not in (Kind.WATCH, Kind.UNWATCH):
            yield each
