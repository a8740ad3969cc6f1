"""Plays one wave of a party: the party starts from its journal, answers one batch, and ends.

The answer also has the requests with which the party will begin its next wave, so that the next
batch brings their answers.

A key holder gets its waves through a local socket, so that the app that relays them needs no access
to the holder's files. The socket refuses processes of the same user or of root, because they could
read these files; file modes keep others out. A frame is a kind (uint8: a batch, or an error as
text), a length (uint64, little endian) and that many bytes. Each side sends one frame.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import BufferedIOBase
from pathlib import Path

from secureps.crypto.roster import Roster
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
from secureps.messages.run import COORDINATOR, wrong_run
from secureps.roles.machine import Call, Halt
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor, replay
from secureps.service.logs import tell
from secureps.service.loop import WaveLoop
from secureps.service.process import ActWatch, KitWatch, Party
from secureps.store.atomic_file import one_at_a_time, secure_folder
from secureps.store.backup import JOURNAL, demand_owner, read_run
from secureps.store.journal import DatedJournal, Journal, SqliteJournal
from secureps.store.spool import DiskSpool
from secureps.wire.msgpack import encode
from secureps.wire.waves.batch import (
    MOST_BYTES,
    WAVE_DOMAIN,
    Batch,
    Entry,
    Kind,
    WaveTransport,
    open_batch,
    request_digest,
    seal_batch,
)

MOST = 64 << 20
"""The most bytes of a key holder's batch: receipts of a cohort, and no payloads."""
SECONDS = 120.0
"""Timeout of a frame."""

_BATCH, _ERROR = 0, 1
_HEAD = struct.Struct("<BQ")
_PEER = struct.Struct("3i")
"""Linux's credentials of the other end: process, user, group."""


@contextmanager
def answer_batches(
    party: str, path: Path, answer: Callable[[bytes], bytes], test: bool = False
) -> Iterator[None]:
    """Listens on a socket, and answers one batch after another, while the context is open.

    SecurepsErrors of `answer` go back as text. A `test`, which has no real records, also answers
    processes that can read this party's files.
    """

    class Handler(socketserver.StreamRequestHandler):
        timeout = SECONDS

        def handle(self) -> None:
            try:
                kind, batch = _read_frame(self.rfile)
                if kind != _BATCH:
                    raise Malformed("a party is sent batches")
                if not test:
                    refuse_reader(self.connection)
                kind, data = _BATCH, answer(batch)
            except SecurepsError as error:
                tell(party, "Complaint", str(error), logging.WARNING)
                kind, data = _ERROR, str(error).encode()
            except OSError:
                return  # the caller is gone, and will ask again
            with suppress(OSError):
                self.wfile.write(_HEAD.pack(kind, len(data)) + data)

    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):  # a killed process left it
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
    """Raises ConfigError if the asking process could read this one's files or memory.

    A process in another container shows no process id here, and cannot see our files.
    """
    process, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    own = os.geteuid()
    if process and user in (0, own):
        raise ConfigError(
            f"the app that relays runs as user {user} and this key holder as {own}: code of the "
            "run could read its keys and ledger. Give the key holder a user of its own, its node "
            "another that is not root, and the socket's folder a group of both (chmod 2750)"
        )


def ask_party(path: Path, batch: bytes) -> bytes:
    """Asks the party at a socket; Unreachable if nobody answers, NotReady if it refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SECONDS)
            line.connect(str(path))
            line.sendall(_HEAD.pack(_BATCH, len(batch)) + batch)
            with line.makefile("rb") as file:
                kind, data = _read_frame(file)
    except OSError as error:
        raise Unreachable(f"nobody answers at {path}: {error}; is the key holder up?") from None
    if kind == _ERROR:
        raise NotReady(data.decode(errors="replace")[:500])
    return data


def _read_frame(file: BufferedIOBase) -> tuple[int, bytes]:
    kind, length = _HEAD.unpack(_read_exactly(file, _HEAD.size))
    if length > MOST:
        raise Oversized(f"a batch of {length} bytes; at most {MOST} are allowed")
    return kind, _read_exactly(file, length)


def _read_exactly(file: BufferedIOBase, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise ConnectionError("the connection ended in the middle of a batch")
    return data


Make = Callable[[Stores, Environment], Executor]
"""Makes the party's executor; called twice in a wave."""


LEAST = 256 << 10
"""Bytes of rows from which the journal is compacted: few, because every wave reads all of them."""

SHARED = (WrongRun, KitError)
"""Errors whose text the server gets. The text of other errors may reveal records or a site's
policy, so the server gets only their class."""


def play_wave(
    party: Party, data: bytes, payloads: Mapping[bytes, bytes], make: Make
) -> tuple[bytes, str]:
    """Delivers one batch of the servers' messages to a party whose process lives for a wave.

    `payloads` are those of answers, by digest. Returns the party's own batch, and a text for its
    server if the party leaves the run, else "". Raises WrongRun if the state folder belongs to
    another run, and other SecurepsErrors of the batch or of the party.
    """
    secure_folder(party.state)
    batch = open_batch(data, MOST_BYTES, partial(_verify, party.roster))
    if batch.sender != COORDINATOR or batch.to not in ("", party.name):
        raise Malformed(f"a batch from {batch.sender} to {batch.to}, and none for {party.name}")
    ended = ""
    with one_at_a_time(party.state / "wave"), closing(_open_journal(party)) as journal:
        demand_owner(party.state, party.role, party.name)
        ours = read_run(party.state / JOURNAL) or b""
        if batch.run and ours and batch.run != ours:
            raise WrongRun(wrong_run(party.name, ours, batch.run))
        transport = WaveTransport(batch.entries, payloads)
        loop = WaveLoop(journal.last)
        around = Environment(transport, loop, lambda: 1.0)
        stores = Stores(journal, DiskSpool(party.state / "spool"), party.state)
        executor = make(stores, around)
        executor.start()
        KitWatch(party.name, executor, party.kit).once()
        ActWatch(party.name, executor, party.state, party.identity.public).once()
        loop.run(executor.halted.done)
        said = transport.take_sent()
        if executor.halted.done():
            halt = executor.halted.result()
            if halt.error is not None and issubclass(halt.error, ScriptFailed):
                raise halt.error(halt.reason)  # the script may succeed in the next wave
            ended = explain_end(party.name, halt)
        else:
            first = tuple(_first_requests(make(stores, around), journal, loop.now()))
            said = (*_drop_repeated(said, first), *first)
        executor.stop()
    answer = Batch(party.name, COORDINATOR, executor.run, batch.challenge, said)
    return seal_batch(answer, partial(party.identity.sign, WAVE_DOMAIN)), ended


def _verify(roster: Roster, sender: str, data: bytes, signature: bytes) -> None:
    roster.identity(sender).verify(WAVE_DOMAIN, data, signature)


def _open_journal(party: Party) -> DatedJournal:
    rows = SqliteJournal(party.state / JOURNAL, least=LEAST)
    return DatedJournal(rows, party.name, party.role, time.time)


def explain_end(name: str, halt: Halt) -> str:
    """Logs why a party leaves the run; returns the text for its server."""
    if halt.error is None:
        return halt.reason
    tell(name, "Ended", halt.reason, logging.ERROR)
    if issubclass(halt.error, SHARED):
        return halt.reason
    return f"{halt.error.__name__}; the node's log says why"


def _first_requests(executor: Executor, journal: Journal, now: float) -> Iterator[Entry]:
    machine = executor.machine
    for _ in replay(machine, journal):
        pass
    for effect in machine.resume(now).effects:
        if isinstance(effect, Call):
            yield Entry(Kind.FIRST, effect.to.encode(), encode(effect.message))
    yield Entry(Kind.WATCH, envelope=encode(machine.subscription()))


def _drop_repeated(said: tuple[Entry, ...], first: tuple[Entry, ...]) -> Iterator[Entry]:
    asked = {request_digest(each.name.decode(), each.envelope) for each in first if each.name}
    for each in said:
        repeated = each.name and request_digest(each.name.decode(), each.envelope) in asked
        if not repeated and each.kind is not Kind.WATCH:
            yield each
