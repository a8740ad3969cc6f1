"""The recorded run: three clients, two shards, and three key holders of whom two open.

Everything that is drawn comes from fixed seeds, so the run repeats byte for byte. Only envelopes
do not: OpenSSL draws inside of ML-KEM. So those of `vectors/run` are used again wherever they are
for the same receipt, and the run's holders open them.
"""

import hashlib
import itertools
import json
import lzma
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.audit.entries import Begin, End, dump, entries, epsilons
from secureps.crypto import envelope
from secureps.crypto.identity import Identity
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.format import FORMAT
from secureps.messages.requests import Submit
from secureps.messages.run import RunInfo
from secureps.messages.submission import UPDATE, BlockHeader, enveloped_part
from secureps.policy.plan import Plan
from secureps.roles.shard.state import model_key
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.service.shard.worker import ShardWorker
from secureps.store.journal import MemoryJournal
from secureps.store.journal_rows import START, Row, encode_record, kind_of
from secureps.store.spool import MemorySpool
from tests.kits.federations import layout_of, pinned_of, small_federation, small_plan
from tests.kits.nursery import ROOT
from tests.kits.privacy_kit import PRIVACY
from tests.kits.walker import Walker

VECTORS = ROOT / "vectors"
JOURNALS = "journals.jsonl.xz"
SHARDS = ("shard-0", "shard-1")
AUDITED = {"coordinator": "coordinator", "holder-0": "holder", "client-00": "client"}
LEAVES = ("holder-2", "client-02")
"""Parties that are gone after version 0 and after version 1."""
BLOCK = 800
"""Values of a block."""
GROUP: dict[str, Any] = {
    "clip": 1.0,
    "bits": 16,
    "weighting": "uniform",
    "codec": [{"name": "support", "one_in": 2}, "rotate"],
    "rule": {"quorum": 3, "minimum": 2, "deadline": 10.0, "extensions": 0},
    "optimizer": {"name": "adam", "learning_rate": 0.1},
}
PRIVATE = {"privacy": PRIVACY | {"placement": "distributed", "honest": 2}}

Files = dict[str, bytes]
"""The content of files by name."""


@contextmanager
def fixed_randomness(known: dict[bytes, bytes]) -> Iterator[None]:
    """Replaces the operating system's randomness, and seals known envelopes as they were."""
    numbers = itertools.count()

    def urandom(size: int) -> bytes:
        return hashlib.shake_256(b"vectors %d" % next(numbers)).digest(size)

    def seal(recipient: Any, plaintext: bytes, associated: bytes) -> bytes:
        return known.get(associated) or sealed(recipient, plaintext, associated)

    sealed = envelope.seal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", urandom)
        patch.setattr(Identity, "generate", lambda: Identity(urandom(32)))
        patch.setattr(envelope, "seal", seal)
        yield


def known_envelopes(files: Files) -> dict[bytes, bytes]:
    """The recorded envelopes, by what each is bound to."""
    known = {}
    for row in rows_of(files):
        if row[3] == "Submit":
            receipt = from_plain(Submit, json.loads(row[4])).receipt
            for number, sealed in enumerate(receipt.envelopes):
                known[enveloped_part(receipt, f"holder-{number}")] = sealed
    return known


def rows_of(files: Files) -> list[Any]:
    """All journals' rows: [party, number, time, class, text, chain]."""
    lines = lzma.decompress(files[JOURNALS]).splitlines() if JOURNALS in files else ()
    return [json.loads(line) for line in lines]


def packed(rows: Iterable[Any]) -> bytes:
    return lzma.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows), preset=9)


class Keeping(MemorySpool):
    """A spool that deletes nothing."""

    def delete(self, key: str) -> None:
        pass


def record(known: Files) -> Files:
    """Plays the run, and returns its files; a party leaves after each of the first versions."""
    journals, spools = dict[str, MemoryJournal](), dict[str, Keeping]()
    conditions = Conditions(
        journal=lambda name: journals.setdefault(name, MemoryJournal()),
        spool=lambda name: spools.setdefault(name, Keeping()),
    )
    plan = small_plan("rlwe-2-of-3", versions=2, block_size=BLOCK, group=[GROUP], **PRIVATE)
    large, made = partial(Walker, shape=(200, 7)), Files()
    with TemporaryDirectory() as folder, fixed_randomness(known_envelopes(known)):
        play = small_federation(plan, Path(folder), conditions, clients=3, kind=large)
        for version in range(3):
            play.run(lambda: play.versions() == {"all": version})  # noqa: B023
            made[f"models/{version}.bin"] = b"".join(published(play, version))
            if version < 2:
                play.kill(LEAVES[version])
        play.run()
    pinned = pinned_of(play)
    public, rows = play._kit.public, {name: chained(own) for name, own in journals.items()}
    for name, role in AUDITED.items():
        me = play._kit.identities[name]
        made[f"audit/{name}.jsonl"] = audit_log(name, role, pinned.run, rows[name], me)
    for shard in SHARDS:
        for header in (row.record for row in rows[shard]):
            if isinstance(header, BlockHeader) and header.purpose == UPDATE:
                name = f"blocks/{header.author}.{header.sequence}.{header.block}.bin"
                made[name] = spools[shard].get(header.key)
    made["run.json"] = as_json(
        {
            "ca": public.ca.key.hex(),
            "roster": public.roster.text,
            "run": to_plain(pinned.run),
            "layout": to_plain(layout_of(play)),
            "owners": pinned.placement.of("all").owners,
        }
    )
    made[JOURNALS] = packed(
        [name, row.seq, row.at, kind_of(row.record), encode_record(row.record), row.chain.hex()]
        for name in ("coordinator", *SHARDS)
        for row in rows[name]
    )
    return made


def audit_log(name: str, role: str, run: RunInfo, rows: Sequence[Row], me: Identity) -> bytes:
    told, last = tuple(entries(run.id, rows)), rows[-1]
    spent = epsilons(Plan.from_text(run.plan), told)
    end = End(len(told), last.seq, last.chain, spent)
    return dump(b"", Begin(FORMAT, name, role, run.id, run), told, end, me)


def chained(journal: MemoryJournal) -> list[Row]:
    told = journal.read_after(START, 0)
    pairs = enumerate(zip(journal.rows, told, strict=True), 1)
    return [Row(seq, at, record, row.chain) for seq, ((at, record), row) in pairs]


def published(play: Simulation, version: int) -> Iterator[bytes]:
    """The blocks of a version, in order."""
    for block, owner in enumerate(pinned_of(play).placement.of("all").owners):
        worker = play.parties[owner].worker
        assert isinstance(worker, ShardWorker)
        yield bytes(worker.fetch(model_key("all", version, block)))


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
