"""Files that a party finds on its disk: its own, or what somebody put there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from secureps.audit import entries as chained_file
from secureps.audit.entries import Begin, End, Entry, Spent, dump
from secureps.audit.ledger_statement import party_of, read_verified, sign_statement
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity
from secureps.errors import Malformed
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import digest, file_digest, payload_digest, to_plain
from secureps.messages.format import FORMAT
from secureps.messages.records import Dated, Incarnated, RunPinned
from secureps.messages.run import GroupVersion
from secureps.roles.machine import Fold
from secureps.store import checkpoint, issuing
from secureps.store.backup import backup, restore
from secureps.store.budget import BudgetLedger
from secureps.store.checkpoint import (
    MANIFEST,
    Manifest,
    ShardFile,
    Tally,
    checkpoint_path,
    load_checkpoint,
    map_state,
    read_metadata,
    read_state,
    write_state,
)
from secureps.store.envelope_keys import read_served_runs
from secureps.store.issuing import create_kit
from secureps.store.journal import DatedJournal, SqliteJournal, read_rows
from secureps.store.journal_rows import (
    RECORDS,
    Mark,
    chain_digest,
    encode_record,
    height_path,
    read_height,
    read_row,
)
from secureps.store.kit_files import write
from secureps.store.spool import DiskSpool
from tests.fuzz.target import Target, in_file
from tests.golden.values import full, row
from tests.kits.ledgers import charge
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run
from tests.kits.unset import unset

ME = Identity(b"m" * 32)
PLAN = make_plan()
RUN = make_run(PLAN)
PINNED = RunPinned(RUN, make_placement(PLAN), ADDRESSES)


def targets(folder: Path) -> list[Target]:
    files = (*_journals(folder), *_checkpoints(folder), *_lists(folder))
    return [*files, _audit_log(), _statement(folder / "ledger.db")]


def _journals(folder: Path) -> list[Target]:
    honest = folder / "honest"
    rows = [PINNED, Incarnated(1), *(full(kind) for kind in (Charge, Release)), Incarnated(2)]
    honest.mkdir()
    writer = DatedJournal(
        SqliteJournal(honest / "journal.db"), "coordinator", "coordinator", lambda: 1.7e9
    )
    for at, record in enumerate(rows):
        writer.append(float(at), [record])
        if at in (1, 3):  # a fold, and rows that are in the archive alone
            writer.compact(Fold((PINNED,), {"rows": at}))
    began = [writer.fold, *(record for _, record in writer.replay())]
    writer.close()
    DiskSpool(honest / "spool").put("update/a/all/0/0", b"payload")
    whole = [each.record for each in read_rows(honest / "journal.db")]
    assert isinstance(whole[0], Dated)
    backup(honest, copy := folder / "copy")
    base = (copy / "journal.db").read_bytes()
    height = height_path(copy / "journal.db").read_bytes()
    torn = folder / "torn"
    shutil.copytree(copy, torn)
    path = torn / "journal.db"

    def read(data: bytes) -> bytes:
        _only(path, data, height)
        found = [each.record for each in read_rows(path)]
        return data if found == whole else b"other records under the same digests"

    def opened(data: bytes) -> bytes:
        _only(path, data, height)
        again = DatedJournal(SqliteJournal(path), "coordinator", "coordinator", lambda: 1.7e9)
        try:
            found = [again.fold, *(record for _, record in again.replay())]
        finally:
            again.close()
        return data if found == began else b"other records under the same digests"

    def restored(data: bytes) -> bytes:
        """A copy with another journal comes back as it was, or not at all."""
        _only(path, data, height)
        state = folder / "restored"
        shutil.rmtree(state, ignore_errors=True)
        restore(torn, state, "coordinator", folder)
        return opened(data)

    def high(data: bytes) -> bytes:
        mark = _mark(folder / "a.height", data)
        assert mark is not None
        return data if mark == Mark(len(whole), mark.chain) else b"another height"

    texts = tuple(
        f"{name}:{row(make(kind))}".encode()
        for name, kind in RECORDS.items()
        for make in (full, unset)
    )
    copies = ("store.backup:_find", "store.backup:_copy_journal")
    writes = ("store.journal:SqliteJournal._connect", "store.journal_rows:_parse_slot")
    parts = ("store.journal_rows:_parse_fold", "store.journal_rows:_unpack_row")
    reads = ("store.journal_rows:read_only", "store.journal_rows:read_row", *parts)
    return [
        Target("journal-row", ("store.journal_rows:read_row",), texts, _row),
        Target("journal", reads, (base,), read, cost=30),
        Target("journal-opened", writes, (base,), opened, cost=120),
        Target("backup", copies, (base,), restored, cost=300),
        Target("height", ("store.journal_rows:_parse_slot",), (height,), high, cost=3),
    ]


def _only(path: Path, base: bytes, height: bytes) -> None:
    for beside in path.parent.glob("journal.db*"):
        beside.unlink()
    path.write_bytes(base)
    height_path(path).write_bytes(height)


def _mark(path: Path, data: bytes) -> Mark | None:
    path.write_bytes(data)
    return read_height(path)


def _row(data: bytes) -> bytes:
    """One row, whose digest is right: what it holds is read again as it is."""
    try:
        kind, _, body = data.decode().partition(":")
    except UnicodeDecodeError:
        raise Malformed("SQLite has no such text") from None
    chain = chain_digest(b"", 1, 0.0, kind, body)
    read = read_row(Path("journal.db"), b"", 1, 0.0, kind, body, chain)
    text = encode_record(read.record)
    chain = chain_digest(b"", 1, 0.0, kind, text)
    again = read_row(Path("journal.db"), b"", 1, 0.0, kind, text, chain)
    return data if again.record == read.record else text.encode()


def _checkpoints(folder: Path) -> list[Target]:
    there = checkpoint_path(folder, 7)
    values = np.arange(9, dtype=np.float32)
    tensors = {"all/0003": values, "all/0003/m": values * 2, "all/0003/steps": np.array(7)}
    state = there / "shard-0.safetensors"
    known = write_state(state, tensors, {"shard": "shard-0", "epoch": "1"})
    honest = state.read_bytes()
    part = ShardFile("shard-0", state.name, known, len(honest))
    versions = (GroupVersion("all", 3),)
    manifest = Manifest(
        FORMAT,
        7,
        RUN.id.hex(),
        RUN,
        versions,
        (part,),
        make_placement(PLAN),
        unsafe=("c1",),
        tallies=(Tally(3, full(Charge)), Tally(1, release=full(Release))),
    )
    text = checkpoint._encode_manifest(to_plain(manifest))
    changed = folder / "state.safetensors"

    def load(data: bytes) -> bytes:
        (there / MANIFEST).write_bytes(data)
        return checkpoint._encode_manifest(to_plain(load_checkpoint(there)))

    def trusted(data: bytes) -> bytes:
        """As it is: nothing in it is larger than the file."""
        changed.write_bytes(data)
        found, metadata = read_state(changed)
        assert metadata == read_metadata(changed)
        size = sum(array.nbytes for array in found.values())
        return data if size <= len(data) else b"more than is in the file"

    def digested(data: bytes) -> bytes:
        changed.write_bytes(data)
        read_state(changed, digest=known)
        return data

    def mapped(data: bytes) -> bytes:
        changed.write_bytes(data)
        whole = map_state(changed, None)
        read, _ = read_state(changed, digest=payload_digest(data))
        assert list(whole) == list(read)
        for name, array in whole.items():
            assert array.tobytes() == read[name].tobytes()
        size = sum(array.nbytes for array in whole.values())
        return data if size <= len(data) else b"more than is in the file"

    begins = "store.checkpoint:header_end"
    views = ("store.checkpoint:find_tensors", "store.checkpoint:_view", begins)
    return [
        Target(
            "manifest",
            ("store.checkpoint:load_checkpoint", "store.checkpoint:read_manifest"),
            (text,),
            load,
            mend=_manifest_mended,
            cost=10,
        ),
        Target("state", views, (honest,), trusted, cost=10),
        Target("state-digested", views, (honest,), digested, signed=True, cost=5),
        Target("state-mapped", views, (honest,), mapped, cost=10),
    ]


def _manifest_mended(data: bytes) -> bytes:
    """With its digest made right, as far as it can be read at all."""
    try:
        plain = json.loads(data)
        del plain["digest"]
        body = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        own = digest("secureps-manifest", f"Manifest:{body}".encode()).hex()
        return json.dumps({"digest": own, **plain}, indent=1).encode() + b"\n"
    except (ValueError, TypeError, KeyError, RecursionError):
        return data


def _lists(folder: Path) -> list[Target]:
    kit = folder / "kit"
    create_kit(kit, CipherParameters("plain", 8, 14))
    runs = "".join(f"{bytes([n]).hex() * 32}\n" for n in range(3)).encode()
    revoked = (json.dumps([bytes([n]).hex() * 32 for n in range(3)], indent=1) + "\n").encode()
    parameters = (kit / "ca" / "cipher.json").read_bytes()

    def kept(name: str, take: Callable[[Path], Any]) -> Callable[[bytes], bytes]:
        def taken(data: bytes) -> bytes:
            write(kit / "ca" / name, data, 0o600)
            take(kit)
            return data

        return taken

    spool = DiskSpool(folder / "spool")
    keys = (b"update/hospital-1/all/3/0", b"sum/all/7/1", b"kept/all/" + b"a" * 64)

    def key(data: bytes) -> bytes:
        path = spool.path(data.decode("latin-1"))
        inside = path.parent == folder / "spool" and not path.name.startswith("~")
        return data if inside and len(path.name.encode()) < 256 else str(path).encode()

    return [
        Target(
            "served-runs",
            ("store.envelope_keys:read_served_runs",),
            (runs,),
            in_file(folder / "served", read_served_runs),
            cost=3,
        ),
        Target(
            "revoked",
            ("store.issuing:_read_revoked",),
            (revoked,),
            kept("revoked.json", issuing._read_revoked),
            cost=10,
        ),
        Target(
            "roster-seconds",
            ("store.issuing:_read_validity",),
            (b"86400", b"0"),
            kept("holds.json", issuing._read_validity),
            cost=10,
        ),
        Target(
            "cipher-parameters",
            ("store.issuing:_read_kind",),
            (parameters,),
            kept("cipher.json", issuing._read_kind),
            cost=10,
        ),
        Target("spool-key", ("store.spool:check_key",), keys, key),
    ]


def _audit_log() -> Target:
    begin = Begin(FORMAT, "coordinator", "coordinator", RUN.id, RUN)

    def entry(number: int) -> Entry:
        return Entry(
            number, bytes([number]) * 32, number / 3, None, "client joined", {"client": "c"}
        )

    def end(entries: int, last: int) -> End:
        return End(entries, last, bytes([last]) * 32, (Spent("c1", 1.5), Spent("c2", None)))

    first = dump(b"", begin, [entry(number) for number in (2, 3, 5)], end(3, 6), ME)
    whole = first + dump(first, begin, [entry(number) for number in (7, 8)], end(5, 9), ME)

    def verified(data: bytes) -> bytes:
        chained_file.load(data)
        chained_file.verify_end(data, ME.public)
        return data

    reads = ("audit.entries:_parse", "audit.entries:verify_end")
    return Target("audit-log", reads, (first, whole), verified, signed=True, mend=_chained, cost=3)


def _statement(path: Path) -> Target:
    ledger = BudgetLedger(path, clock=lambda: 1.7e9)
    for version in range(2):
        charge(ledger, b"r" * 32, Charge("one", "all", version, 1.1, 0.05, 20))
    honest = sign_statement(ledger, "one", ME)

    def read(data: bytes) -> bytes:
        party_of(data)
        read_verified(data, ME.public)
        return data

    of = ("audit.ledger_statement:read_verified", "audit.ledger_statement:_body")
    return Target("ledger-statement", of, (honest,), read, signed=True, cost=3)


def _chained(data: bytes) -> bytes:
    """With every line's digest of the line before made right; nobody's signature is."""
    lines, before = [], b""
    for line in data.split(b"\n"):
        try:
            body = json.loads(line)
            body["previous"] = file_digest(before).hex() if before else ""
            line = json.dumps(body, separators=(",", ":")).encode()
        except (ValueError, TypeError, RecursionError):
            pass
        lines.append(line)
        before = line
    return b"\n".join(lines)
