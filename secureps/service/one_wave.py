"""One wave of a party: it starts from its journal, hears a batch, says what it has, and ends.

Whatever outlives the wave lies in the state folder. What the party will ask first in its next wave
goes along, so that the answer comes with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from secureps.crypto.identity import Identity
from secureps.errors import KitError, Malformed, ScriptFailed, WrongRun
from secureps.messages.records import RunPinned
from secureps.messages.run import COORDINATOR, other_run
from secureps.roles.machine import Call, Fold, Halt
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor, replayed
from secureps.service.kit_watch import ActWatch, KitWatch
from secureps.service.logs import tell
from secureps.service.loop import WaveLoop
from secureps.store.atomic_file import one_at_a_time, own
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
        return DatedJournal(SqliteJournal(self.state / "journal.db", least=LEAST), time.time)

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
