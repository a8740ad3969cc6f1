"""Runs that were stopped in the middle, by whichever version: read whole, and gone on with."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto import envelope
from secureps.crypto.sharing import HolderShare
from secureps.errors import ConfigError, KitError
from secureps.messages.encoding import to_plain
from secureps.messages.format import BLAKE2_CHECKPOINT, FORMAT, OLDEST_CHECKPOINT
from secureps.messages.member_records import UpdateReleased
from secureps.messages.submission import (
    BlockHeader,
    Receipt,
    ciphertext_root,
    enveloped_part,
    sharing_id,
    signing_bytes,
)
from secureps.policy.plan import Plan, load_plan
from secureps.run.export import read_model
from secureps.store.budget import BudgetLedger
from secureps.store.checkpoint import (
    Manifest,
    latest_good,
    load_checkpoint,
    read_metadata,
    read_state,
    write_manifest,
    write_state,
)
from secureps.store.envelope_keys import EnvelopeKeys, load_keys
from secureps.store.journal import SqliteJournal, last_row
from secureps.store.journal_height import height_path, read_height
from secureps.store.keyring import load_public
from tests.golden.stage import FORMATS, Stage, read_json, unpack

RUNS = {
    number: sorted((folder / "runs").glob("*.tar.xz")) for number, folder in sorted(FORMATS.items())
}


def of(*numbers: int) -> Any:
    """For the runs of these formats."""
    return pytest.mark.parametrize(
        "archive",
        [path for number in numbers for path in RUNS.get(number, ())],
        ids=lambda path: f"{path.parent.parent.name}-{path.name.partition('.')[0]}",
    )


STORED = of(*RUNS)
TODAYS = of(FORMAT)
OLDER = of(*(number for number in RUNS if number < FORMAT))


@pytest.fixture
def folder(archive: Path, tmp_path: Path) -> Path:
    made = tmp_path / "run"
    unpack(archive, made)
    return made


def known_of(archive: Path) -> Any:
    return read_json(archive.with_name(f"{archive.name.partition('.')[0]}.json"))


def journals(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.db"))
    assert len(found) >= 6
    return found


def records(path: Path) -> list[Any]:
    journal = SqliteJournal(path)
    try:
        return [record for _, record in journal.replay()]
    finally:
        journal.close()


def parts(value: Any) -> Iterator[Any]:
    """A record and all that is inside it."""
    if isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif is_dataclass(value):
        yield value
        for field in fields(value):
            yield from parts(getattr(value, field.name))


def manifest_of(folder: Path) -> Manifest:
    _, manifest, _ = latest_good(folder / "state" / "checkpoints")
    return manifest


def all_parts(folder: Path) -> list[Any]:
    return [part for path in journals(folder) for record in records(path) for part in parts(record)]


@TODAYS
def test_it_goes_on_to_the_same_bits(archive: Path, folder: Path) -> None:
    known = known_of(archive)
    stage = Stage(folder, known["now"])
    try:
        stage.play()
        assert stage.ending() == known["ending"]
    finally:
        stage.halt()


@OLDER
def test_a_run_of_an_older_format_is_refused(archive: Path, folder: Path) -> None:
    refused = pytest.raises((ConfigError, KitError), match="finish the run with the version that")
    with refused:
        Stage(folder)


@TODAYS
def test_every_row_is_read_and_written_again(archive: Path, folder: Path) -> None:
    for path in journals(folder):
        with closing(sqlite3.connect(path)) as base:
            rows = base.execute("SELECT kind, body FROM journal ORDER BY seq").fetchall()
        read = records(path)
        texts = [json.dumps(to_plain(each), separators=(",", ":")) for each in read]
        assert [body for _, body in rows] == texts
        assert [kind for kind, _ in rows] == [type(each).__name__ for each in read]
        assert read_height(height_path(path)) == last_row(path)


@TODAYS
def test_every_signature_holds_and_every_digest_fits(archive: Path, folder: Path) -> None:
    roster = load_public(folder / "kit").roster
    found = all_parts(folder)
    receipts = {part for part in found if isinstance(part, Receipt)}
    headers = {part for part in found if isinstance(part, BlockHeader)}
    assert receipts
    assert headers
    for receipt in receipts:
        roster.find(receipt.id.client).identity.verify(*signing_bytes(receipt), receipt.signature)
        root = ciphertext_root(receipt.blocks, receipt.correction)
        assert not receipt.blocks or receipt.root == root
    for header in headers:
        roster.find(header.author).identity.verify(*signing_bytes(header), header.signature)


@TODAYS
def test_every_envelope_opens_for_its_holder(archive: Path, folder: Path) -> None:
    public, plan = load_public(folder / "kit"), load_plan(folder / "plan.toml")
    sealed = {part for part in all_parts(folder) if isinstance(part, Receipt) and part.envelopes}
    assert bool(sealed) == archive.name.startswith("rlwe")
    for index, holder in enumerate(sorted(public.holder_keys) if sealed else ()):
        keys = load_keys(folder / "kit", holder)
        assert isinstance(keys, EnvelopeKeys)
        committee, opened = plan.committee(tuple(sorted(public.holder_keys))), 0
        for receipt in sealed:
            key = keys.of(receipt.run).get(receipt.keys[index])
            if key is None:
                assert receipt.keys[index] < keys.oldest, "it is erased"
                continue
            own = receipt.envelopes[index]
            bound = enveloped_part(receipt, holder)
            seeds = envelope.open(key, own, bound, committee.seed_bytes)
            named = sharing_id(receipt.run, receipt.id)
            HolderShare(committee, index, named, seeds).check(receipt.commitments)
            opened += 1
        assert opened == len(sealed) or (opened and archive.name.startswith("rlwe-thin"))


@STORED
def test_every_checkpoint_is_read_and_written_again(
    archive: Path, folder: Path, tmp_path: Path
) -> None:
    found = sorted((folder / "state" / "checkpoints").iterdir())
    assert found
    for directory in found:
        manifest, again = load_checkpoint(directory), tmp_path / "again" / directory.name
        assert OLDEST_CHECKPOINT <= manifest.format <= FORMAT
        assert Plan.from_text(manifest.run.plan).text == load_plan(folder / "plan.toml").text
        assert read_model(directory).number == manifest.number
        for part in manifest.files:
            tensors, metadata = read_state(directory / part.file)
            assert metadata == read_metadata(directory / part.file)
            made = write_state(again / part.file, tensors, metadata)
            assert (again / part.file).read_bytes() == (directory / part.file).read_bytes()
            assert (made == part.digest) == (manifest.format > BLAKE2_CHECKPOINT)
        write_manifest(again, manifest)
        assert load_checkpoint(again) == manifest
    assert manifest.number == len(found) - 1


@STORED
def test_a_ledger_over_all_runs_counts_what_it_counted(archive: Path, folder: Path) -> None:
    for path in sorted((folder / "ledgers").glob("*.db")):
        facts = BudgetLedger(path).facts()
        assert {run for run, _ in facts} == {bytes.fromhex(manifest_of(folder).id)}
        if archive not in RUNS.get(FORMAT, ()):
            continue
        own = records(folder / "state" / path.stem / "journal.db")
        sealed = {part for each in own for part in parts(each) if isinstance(part, Receipt)}
        spent = [(each.run, each.fact) for each in sealed if each.fact is not None]
        assert sorted(facts, key=repr) == sorted(spent, key=repr)
        before = last_row(path)
        (first, *_) = (
            row for _, row in BudgetLedger(path).rows() if isinstance(row, UpdateReleased)
        )
        assert BudgetLedger(path).release([first]) == [""]
        assert last_row(path) == before, "what is on record costs nothing more"


def test_a_ledger_is_among_them() -> None:
    assert {path.name for path in RUNS[2]} >= {
        f"{name}.tar.xz" for name in ("rlwe-sync", "rlwe-buffered", "bfv-sync", "plain-private")
    }
