"""A holder's envelope keys: their files, and what is left of an erased key."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.envelope import EnvelopeKey
from secureps.errors import KitError, PlanRefused
from secureps.messages.records import Incarnated, RunPinned
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.holder import HolderRules
from secureps.roles.pinned_run import check_minimum
from secureps.store.envelope_keys import (
    ABANDONED,
    RUNS,
    EnvelopeKeyFiles,
    EnvelopeKeys,
    ServedJournal,
    ledger_height,
    load_keys,
    read_served_runs,
    run_folder,
)
from secureps.store.issuing import approve, create_kit, issue, make_keys
from secureps.store.journal import MemoryJournal
from secureps.store.keyring import ENVELOPE
from tests.kits.committee_kit import Bench
from tests.kits.party_kits import phrase
from tests.kits.roles_kit import make_plan


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    create_kit(tmp_path / "kit", CipherParameters("rlwe", 32, 65_534))
    issue(tmp_path / "kit", "holder", "keys-0")
    return tmp_path / "kit"


RUN, OTHER = bytes(32), b"\1" * 32


def folder(kit: Path, run: bytes = RUN) -> Path:
    return run_folder(kit / "private" / "keys-0", run)


def keys_of(kit: Path, run: bytes = RUN) -> EnvelopeKeys:
    keys = load_keys(kit, "keys-0")
    assert isinstance(keys, EnvelopeKeys)
    return keys.for_run(run)


def has_served(kit: Path, *runs: bytes) -> None:
    (kit / "private" / "keys-0" / RUNS).write_text("".join(f"{run.hex()}\n" for run in runs))


@pytest.mark.parametrize("memory", [True, False])
def test_keys_go_by_number(memory: bool, kit: Path) -> None:
    keys = EnvelopeKeys({0: EnvelopeKey.from_os()}) if memory else keys_of(kit)
    assert (keys.oldest, keys.newest, keys.get(1)) == (0, 0, None)
    first = keys.make(1)
    assert keys.make(1) is first
    keys.make(5)
    assert (keys.oldest, keys.newest) == (0, 5)
    keys.erase(5)
    keys.erase(5)
    assert (keys.oldest, keys.newest, keys.get(0), keys.get(1)) == (5, 5, None, None)
    keys.erase(9)
    assert (keys.newest, keys.get(5)) == (0, None)


def test_what_a_killed_holder_left_is_taken_up(kit: Path) -> None:
    keys = keys_of(kit)
    has_served(kit, RUN)
    keys.make(1)
    keys.make(2)
    (folder(kit) / "envelope-3.key.new").write_bytes(b"half")
    again = keys_of(kit)
    again.erase(2)
    assert (again.oldest, again.make(3).public) == (2, keys_of(kit).make(3).public)
    (folder(kit) / "envelope-2.key").unlink()
    again.erase(3)
    assert again.oldest == 3


def test_runs_of_one_kit_have_keys_of_their_own(kit: Path) -> None:
    one, other = keys_of(kit), keys_of(kit, OTHER)
    has_served(kit, RUN, OTHER)
    mine, theirs = one.make(1), other.make(1)
    assert mine.public != theirs.public
    one.make(2)
    one.erase(2)
    again = keys_of(kit, OTHER)
    assert (again.oldest, again.newest, again.make(1).public) == (1, 1, theirs.public)
    assert other.get(0) is not None, "a run that plays has it in memory until it erases it"
    other.erase(1)
    assert keys_of(kit).oldest == 2
    fresh = keys_of(kit, b"\2" * 32)
    assert (fresh.oldest, fresh.newest, fresh.get(0)) == (1, 0, None)


@pytest.mark.parametrize("moved", [None, "folder", "ledger"])
def test_keys_of_a_run_that_nobody_plays_are_erased_by_the_next(
    moved: str | None, kit: Path
) -> None:
    keys_of(kit).make(1)
    path, height = folder(kit) / "envelope-1.key", ledger_height(folder(kit))
    height.touch()
    days_ago = time.time() - ABANDONED - 60
    for name, known in (("folder", folder(kit)), ("ledger", height)):
        if name != moved:
            os.utime(known, (days_ago, days_ago))
    other = kit / "private" / "keys-0" / "notes"
    other.mkdir()
    with path.open("rb", buffering=0) as held:
        keys_of(kit).make(1)
        assert path.exists(), "it is no other run"
        if moved is None:
            os.utime(folder(kit), (days_ago, days_ago))
        keys_of(kit, OTHER)
        assert (set(held.read()) == {0}) == (not path.exists()) == (moved is None)
    assert folder(kit).exists() == (moved is not None)
    assert other.exists()
    assert height.exists()


def test_a_key_that_others_may_read_or_that_is_none(kit: Path) -> None:
    keys_of(kit).make(1)
    path = folder(kit) / "envelope-1.key"
    path.chmod(0o640)
    with pytest.raises(KitError, match=f"chmod 600 {path}"):
        keys_of(kit)
    path.chmod(0o600)
    path.write_bytes(b"x")
    with pytest.raises(KitError, match=r"envelope-1\.key is damaged"):
        keys_of(kit)
    path.unlink()
    (kit / "private" / "keys-0" / "envelope.key").unlink()
    with pytest.raises(KitError, match="missing: if it is lost, `secureps keys rotate"):
        load_keys(kit, "keys-0")


def test_a_link_is_not_followed_to_what_it_names(kit: Path, tmp_path: Path) -> None:
    keys, other = keys_of(kit), tmp_path / "other"
    other.write_bytes(b"somebody's")
    keys.make(1)
    path = folder(kit) / "envelope-1.key"
    keys.make(2)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        keys.erase(2)
    assert other.read_bytes() == b"somebody's"


def test_under_a_passphrase_the_next_keys_are_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.store.kit_files._N", 1 << 7)
    kit, words = tmp_path / "kit", phrase("six words")
    create_kit(kit, CipherParameters("rlwe", 32, 65_534))
    approve(kit, [make_keys(kit, "holder", "keys-0", ENVELOPE, words)])
    made = EnvelopeKeyFiles(kit, "keys-0", words).for_run(RUN).make(1)
    assert made.to_bytes()[-96:] not in (folder(kit) / "envelope-1.key").read_bytes()
    assert (
        EnvelopeKeyFiles(kit, "keys-0", phrase("six words")).for_run(RUN).make(1).public
        == made.public
    )


# --- runs that a key has served -------------------------------------------------------


def pinned(bench: Bench) -> RunPinned:
    return RunPinned(bench.run, bench.placement, bench.addresses)


def test_a_run_that_is_journalled_is_noted_and_nothing_else(tmp_path: Path) -> None:
    path, bench = tmp_path / "runs", Bench()
    inner = MemoryJournal()
    journal = ServedJournal(inner, path)
    journal.append(0.0, [Incarnated(1)])
    assert not path.exists()
    assert read_served_runs(path) == frozenset()
    journal.append(0.0, [Incarnated(2), pinned(bench)])
    assert read_served_runs(path) == {bench.run.id}
    assert list(journal.replay()) == inner.rows
    journal.close()
    with pytest.raises(Exception, match="closed"):
        inner.append(0.0, [Incarnated(3)])


def test_killed_between_ledger_and_file_it_is_noted_at_the_next_start(tmp_path: Path) -> None:
    path, bench = tmp_path / "runs", Bench()
    path.write_text("ab" * 32 + "\n")
    inner = MemoryJournal()
    inner.append(0.0, [pinned(bench)])
    ServedJournal(inner, path)
    assert read_served_runs(path) == {bench.run.id, bytes([0xAB]) * 32}


@pytest.mark.parametrize("strict", [HolderRules(2, threshold=4), HolderRules(3)])
def test_a_restarted_holder_insists_on_what_it_insisted_on(strict: HolderRules) -> None:
    bench = Bench()
    holder = CommitteeHolder(bench.names[0], bench.kit.public.roster, strict)
    with pytest.raises(PlanRefused, match=r"this party insists on 4|opens none of fewer than 3"):
        holder.apply(0.0, pinned(bench))


def test_cohorts_of_metrics_are_no_smaller_than_its_own_minimum_either() -> None:
    """The mean of few clients' held-out records tells about each of them."""
    metrics: dict[str, Any] = {"every": 1, "metrics": {"accuracy": 1.0}}
    for least in (2, 3):
        rule = {"name": "sync", "quorum": 3, "minimum": least}
        plan = make_plan("rlwe", {"minimum": 3}, evaluation=metrics | {"rule": rule})
        if least == 3:
            check_minimum(plan, 3)
            continue
        with pytest.raises(PlanRefused, match="2 members of evaluation may be a cohort"):
            check_minimum(plan, 3)


@pytest.mark.parametrize("text", ["xy\n", "ab\n", "é"])
def test_a_damaged_file_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KitError, match="damaged"):
        read_served_runs(path)


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="cannot read"):
        read_served_runs(tmp_path)
    journal = ServedJournal(MemoryJournal(), tmp_path / "nowhere" / "runs")
    with pytest.raises(KitError, match="cannot write"):
        journal.append(0.0, [pinned(Bench())])
