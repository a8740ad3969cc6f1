"""What a party has announced is on the disk after a power cut or a kill at any moment.

Each test plays a writer on a disk that records its steps, and checks every folder that a cut
between two steps may leave.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity, Role
from secureps.errors import ConfigError, DamagedStore
from secureps.messages.charge import Charge
from secureps.messages.encoding import payload_digest
from secureps.messages.records import Incarnated, RunPinned
from secureps.messages.requests import CopyPart
from secureps.store.act_lines import ActLines
from secureps.store.backup import (
    CopyParts,
    backup,
    begin_from_copy,
    find_half_moved,
    has_copy,
    is_numbered,
    load_folder_number,
    restore,
    set_aside,
)
from secureps.store.budget import BudgetLedger
from secureps.store.checkpoint import (
    checkpoint_directories,
    load_newest,
    read_state,
    write_state,
)
from secureps.store.envelope_keys import RUNS, EnvelopeKeyFiles, ServedJournal, read_served_runs
from secureps.store.issuing import approve, create_kit, make_keys, rotate
from secureps.store.journal import SqliteJournal, read_rows
from secureps.store.journal_rows import height_path, read_height
from secureps.store.keyring import (
    ENVELOPE,
    load_credentials,
    load_holder_secret,
    load_private,
    load_public,
    load_seed,
)
from secureps.store.spool import DiskSpool
from tests.kits.ledgers import charge
from tests.kits.recorded_disk import Cut, RecordedDisk, recorded
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run
from tests.store.test_checkpoint import write_checkpoint

PLAN = make_plan()
PINNED = RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES)
RUN = PINNED.run.id
CHARGE = Charge("me", "all", 0, 1.1, 0.01, 100)

Writer = Callable[[RecordedDisk], object]
Check = Callable[[Cut], object]


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Sets umask 0, so that privacy does not depend on it."""
    before = os.umask(0)
    yield
    os.umask(before)


def hold(
    disk: RecordedDisk, write: Writer, check: Check, beside: Path, private: bool = True
) -> None:
    """Checks a promise after every possible cut, and that no file was ever open to others."""
    with disk.recording():
        write(disk)
    if private:
        assert disk.open_to_others == set()
        assert len(disk.moments) > 4, "nothing was recorded"
    for cut in disk.cuts(beside / "cuts"):
        try:
            check(cut)
        except Exception as error:
            raise AssertionError(f"after {cut.after!r}, in {cut.folder}: {error!r}") from error


def hold_twice(write: Writer, check: Check, folder: Path, before: Writer | None = None) -> None:
    """As `hold`, and also with a writer that was killed at any moment and started again."""
    disk = recorded(folder)
    if before is not None:
        before(disk)
    hold(disk, write, check, folder)
    for number, again in enumerate(disk.kills(folder / "kills")):
        hold(again, write, check, folder / "kills" / f"{number}", private=False)


# --- what was acknowledged --------------------------------------------------------


def test_a_block_that_was_acknowledged_is_there_whole(tmp_path: Path) -> None:
    first, second, third = (bytes([n]) * 3000 for n in (1, 2, 3))
    kept = f"sums/{payload_digest(third).hex()}"
    may_be = {"update/a/0": {first, second}, "update/b/0": {first}, kept: {third}}

    def write(disk: RecordedDisk) -> None:
        spool = DiskSpool(disk.root / "state" / "spool")
        for key, payload in (("update/a/0", first), ("update/b/0", first), ("update/a/0", second)):
            spool.put(key, payload[:1000], payload[1000:])
            disk.say((key, payload))
        spool.keep("sums", [third[:1], third[1:]])
        disk.say((kept, third))

    def check(cut: Cut) -> None:
        spool = DiskSpool(cut.folder / "state" / "spool")
        found = {key: spool.get(key) for key in spool.keys("")}
        assert all(payload in may_be[key] for key, payload in found.items())
        said = dict(cut.said)
        assert found.keys() >= said.keys()
        assert said.get("update/a/0") != second or found["update/a/0"] == second

    hold_twice(write, check, tmp_path, lambda disk: (disk.root / "state").mkdir(0o700))


@pytest.mark.slow
def test_a_row_that_was_journalled_is_there_and_the_journal_is_never_behind(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        with closing(SqliteJournal(disk.root / "state" / "journal.db")) as journal:
            for _ in range(4):
                number = journal.mark.seq + 1
                journal.append(0.0, [Incarnated(number)])
                disk.say(number)

    def check(cut: Cut) -> None:
        path = cut.folder / "state" / "journal.db"
        if cut.said:  # before it is opened, which notes the height anew
            height = read_height(height_path(path))
            assert height is not None
            assert height.seq >= max(cut.said)
        with closing(SqliteJournal(path)) as journal:
            found = [record.number for _, record in journal.replay()]
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= max(cut.said, default=0)

    hold_twice(write, check, tmp_path, lambda disk: (disk.root / "state").mkdir(0o700))


@pytest.mark.slow
def test_a_run_that_a_holder_has_served_is_on_record_beside_its_key(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        with (
            closing(SqliteJournal(disk.root / "state" / "journal.db")) as inner,
            closing(ServedJournal(inner, disk.root / "private" / RUNS)) as journal,
        ):
            for record in (PINNED, Incarnated(1)) if not inner.mark.seq else ():
                journal.append(0.0, [record])
            disk.say("pinned")

    def check(cut: Cut) -> None:
        known = read_served_runs(cut.folder / "private" / RUNS)
        assert not cut.said or known == {RUN}
        with closing(SqliteJournal(cut.folder / "state" / "journal.db")) as inner:
            ServedJournal(inner, cut.folder / "private" / RUNS)
            assert inner.mark.seq or not cut.said

    def before(disk: RecordedDisk) -> None:
        for name in ("state", "private"):
            (disk.root / name).mkdir(0o700)

    hold_twice(write, check, tmp_path, before)


@pytest.mark.slow
def test_what_was_charged_is_in_the_ledger(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        charge(BudgetLedger(disk.root / "ledgers" / "me.db"), RUN, CHARGE)
        disk.say((RUN, CHARGE))

    def check(cut: Cut) -> None:
        assert BudgetLedger(cut.folder / "ledgers" / "me.db").facts() >= [*cut.said]

    hold_twice(write, check, tmp_path)


def test_an_act_that_was_noted_is_in_the_file(tmp_path: Path) -> None:
    me = Identity(bytes(range(32)))

    def write(disk: RecordedDisk) -> None:
        acts = ActLines(disk.root, "client-00", me)
        for what in ("pause", "go-on"):
            acts.note(what)
            disk.say(what)

    def check(cut: Cut) -> None:
        found = [act.what for act in ActLines(cut.folder, "client-00", me).done]
        assert found[: len(cut.said)] == [*cut.said]

    hold(recorded(tmp_path), write, check, tmp_path)


def test_a_version_is_durable_when_its_digest_is_told(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        path = disk.root / "states" / "all-1.safetensors"
        disk.say(write_state(path, {"w": np.arange(500, dtype=np.float32)}, {"version": "1"}))

    def check(cut: Cut) -> None:
        path = cut.folder / "states" / "all-1.safetensors"
        if cut.said or path.exists():
            assert read_state(path)[1] == {"version": "1"}
        assert not cut.said or payload_digest(path.read_bytes()) == cut.said[0]

    hold_twice(write, check, tmp_path)


def test_a_checkpoint_with_a_manifest_is_whole(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        for number in (1, 2):
            write_checkpoint(disk.root / "checkpoints", number)
            disk.say(number)

    def check(cut: Cut) -> None:
        root = cut.folder / "checkpoints"
        if cut.said:
            assert load_newest(root)[1].number >= cut.said[-1]
        for directory in checkpoint_directories(root):
            if (directory / "manifest.json").exists():
                assert load_newest([directory])[0] == directory

    hold(recorded(tmp_path), write, check, tmp_path, private=False)


# --- secret files -----------------------------------------------------------------


@pytest.mark.slow
def test_a_key_that_was_announced_is_on_the_disk(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        disk.say(make_keys(disk.root / "kit", "holder", "me", ENVELOPE))

    def check(cut: Cut) -> None:
        request = make_keys(cut.folder / "kit", "holder", "me", ENVELOPE)
        assert not cut.said or cut.said[0].to_bytes() == request.to_bytes()

    hold_twice(write, check, tmp_path, lambda disk: (disk.root / "kit").mkdir(0o700))


@pytest.mark.slow
def test_keys_that_replace_others_are_on_the_disk_and_the_old_ones_go_last(tmp_path: Path) -> None:
    def ask(disk: RecordedDisk) -> None:
        disk.say(rotate(disk.root / "kit", "me"))

    def asked(cut: Cut) -> None:
        load_private(cut.folder / "kit", "me")
        request = rotate(cut.folder / "kit", "me")
        assert request is not None
        assert not cut.said or cut.said[0].to_bytes() == request.to_bytes()

    def waits(folder: Path) -> bool:
        return (folder / "kit" / "private" / "me" / "next" / "identity.key").exists()

    def certified(disk: RecordedDisk) -> None:
        _private_kit(disk)
        request = rotate(disk.root / "kit", "me")
        assert request is not None
        approve(disk.root / "kit", [request])
        _close(disk)

    def put_in_place(disk: RecordedDisk) -> None:
        if waits(disk.root):
            assert rotate(disk.root / "kit", "me") is None
            disk.say("in place")

    def placed(cut: Cut) -> None:
        if waits(cut.folder):
            assert not cut.said
            assert rotate(cut.folder / "kit", "me") is None
        load_private(cut.folder / "kit", "me")
        load_holder_secret(cut.folder / "kit", "me")
        load_credentials(cut.folder / "kit", "me", load_public(cut.folder / "kit").ca)

    hold_twice(ask, asked, tmp_path / "ask", _private_kit)
    hold_twice(put_in_place, placed, tmp_path / "place", certified)


@pytest.mark.slow
def test_an_envelope_key_is_on_the_disk_before_it_is_announced(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        keys = EnvelopeKeyFiles(disk.root / "kit", "me").for_run(RUN)
        for number in (1, 2):
            disk.say((number, keys.make(number).public))

    def check(cut: Cut) -> None:
        keys = EnvelopeKeyFiles(cut.folder / "kit", "me").for_run(RUN)
        for number, public in cut.said:
            assert keys.make(number).public == public

    hold_twice(write, check, tmp_path, _private_kit)


def test_an_erased_key_is_written_over_before_its_name_goes(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        keys = EnvelopeKeyFiles(disk.root / "kit", "me").for_run(RUN)
        keys.erase(2)
        disk.say("erased")

    def check(cut: Cut) -> None:
        left = {path.read_bytes() for path in cut.folder.rglob("*") if path.is_file()}
        assert not secrets & cut.nameless, "bytes without a name are never written over"
        assert not cut.said or not secrets & left
        keys = EnvelopeKeyFiles(cut.folder / "kit", "me").for_run(RUN)
        assert keys.get(2) is not None
        left = {path.read_bytes() for path in cut.folder.rglob("*") if path.is_file()}
        known = {key.to_bytes() for key in map(keys.get, (0, 1)) if key is not None}
        assert secrets & left == known, "what a restart does not know any more is written over"

    def before(disk: RecordedDisk) -> None:
        _private_kit(disk)
        keys = EnvelopeKeyFiles(disk.root / "kit", "me").for_run(RUN)
        for number in (1, 2):
            keys.make(number)
        secrets.update(each.to_bytes() for each in map(keys.get, (0, 1)) if each is not None)

    secrets = set[bytes]()
    disk = recorded(tmp_path)
    before(disk)
    (disk.root / "kit" / "private" / "me" / RUNS).write_text(f"{RUN.hex()}\n")
    assert len(secrets) == 2
    hold(disk, write, check, tmp_path, private=False)


def test_a_seed_that_noise_came_from_is_the_seed_after_a_cut(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        load_seed(disk.root / "seed")
        disk.say((disk.root / "seed").read_bytes())

    def check(cut: Cut) -> None:
        load_seed(cut.folder / "seed")
        assert (cut.folder / "seed").read_bytes() in (
            cut.said or {(cut.folder / "seed").read_bytes()}
        )

    hold_twice(write, check, tmp_path)


def _private_kit(disk: RecordedDisk) -> None:
    create_kit(disk.root / "kit", CipherParameters("rlwe", 32, 65_534))
    approve(disk.root / "kit", [make_keys(disk.root / "kit", "holder", "me", ENVELOPE)])
    _close(disk)


def _close(disk: RecordedDisk) -> None:
    for path in disk.root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


# --- copies -----------------------------------------------------------------------

ROWS = 2


def _state(folder: Path) -> None:
    folder.mkdir(0o700, exist_ok=True)
    spool = DiskSpool(folder / "spool")
    with closing(SqliteJournal(folder / "journal.db")) as journal:
        for number in range(1, ROWS + 1):
            spool.put(f"payload/{number}", bytes([number]) * 50)
            journal.append(0.0, [Incarnated(number)])


def _demand_whole(folder: Path) -> None:
    spool = DiskSpool(folder / "spool")
    numbers = [row.record.number for row in read_rows(folder / "journal.db")]
    assert numbers == list(range(1, ROWS + 1))
    assert [spool.get(f"payload/{number}") for number in numbers] == [
        bytes([number]) * 50 for number in numbers
    ]


def test_a_copy_that_says_it_is_whole_is_whole(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        disk.say(backup(disk.root / "state", disk.root / "copy"))

    def check(cut: Cut) -> None:
        try:
            restore(cut.folder / "copy", cut.folder / "back", "coordinator", cut.folder)
        except (ConfigError, DamagedStore):
            assert not cut.said
        else:
            _demand_whole(cut.folder / "back")

    disk = recorded(tmp_path)
    _state(disk.root / "state")
    hold(disk, write, check, tmp_path)


def test_a_copy_of_a_damaged_journal_never_says_that_it_is_whole(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        with pytest.raises(DamagedStore, match="does not match its digest"):
            backup(disk.root / "state", disk.root / "copy")

    def check(cut: Cut) -> None:
        with pytest.raises((ConfigError, DamagedStore)):
            restore(cut.folder / "copy", cut.folder / "back", "coordinator", cut.folder)

    disk = recorded(tmp_path)
    _state(disk.root / "state")
    path = disk.root / "state" / "journal.db"
    path.write_bytes(path.read_bytes().replace(b'"number":2', b'"number":9'))
    hold(disk, write, check, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the journal", "the folder"])
def test_a_party_starts_from_a_whole_restored_folder_or_not_at_all(
    lost: str, tmp_path: Path
) -> None:
    role: Role = "client" if lost == "the journal" else "coordinator"

    def write(disk: RecordedDisk) -> None:
        disk.say(restore(disk.root / "copy", disk.root / "state", role, disk.root))

    def check(cut: Cut) -> None:
        state = cut.folder / "state"
        files = [p for p in state.rglob("*") if p.is_file() and p.suffix not in (".lock", ".new")]
        try:
            if files:
                SqliteJournal(state / "journal.db").close()
                _demand_whole(state)
        except (DamagedStore, KeyError):
            assert not cut.said
            restore(cut.folder / "copy", state, role, cut.folder)
            _demand_whole(state)

    def before(disk: RecordedDisk) -> None:
        _state(disk.root / "state")
        backup(disk.root / "state", disk.root / "copy")
        if lost == "the journal":
            (disk.root / "state" / "journal.db").write_bytes(b"")
        else:
            shutil.rmtree(disk.root / "state")

    if lost == "the journal":
        hold_twice(write, check, tmp_path, before)
    else:
        disk = recorded(tmp_path)
        before(disk)
        hold(disk, write, check, tmp_path)


def test_a_standby_that_went_on_from_a_copy_does_not_go_back_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteJournal(tmp_path / "leader.db")) as leader:
        leader.append(0.0, [Incarnated(1)])
        whole = leader.serialize()
    part = CopyPart(payload_digest(whole), len(whole), 0, whole)

    def write(disk: RecordedDisk) -> None:
        state = disk.root / "state"
        CopyParts(state).keep(part)
        disk.say(1)
        begin_from_copy(state, disk.root)
        with closing(SqliteJournal(state / "journal.db")) as journal:
            journal.append(1.0, [Incarnated(2)])
        disk.say(2)

    def check(cut: Cut) -> None:
        state = cut.folder / "state"
        if has_copy(state):
            begin_from_copy(state, cut.folder)
        rows = sum(1 for _ in read_rows(state / "journal.db")) if cut.said else 2
        assert rows >= max(cut.said, default=0)

    # The folder of a copy may stay: its standby was killed before it had removed it.
    monkeypatch.setattr(shutil, "rmtree", lambda folder: None)
    disk = recorded(tmp_path)
    (disk.root / "state").mkdir(0o700)
    hold(disk, write, check, tmp_path)


@pytest.mark.slow
def test_a_journal_that_is_set_aside_is_never_lost(tmp_path: Path) -> None:
    def write(disk: RecordedDisk) -> None:
        if find_half_moved(disk.root / "state") or not is_numbered(disk.root / "state"):
            set_aside(disk.root / "state")
        SqliteJournal(disk.root / "state" / "journal.db").close()  # as a standby begins
        disk.say("set aside")

    def check(cut: Cut) -> None:
        state = cut.folder / "state"
        if not find_half_moved(state) and not (state / "journal.db").exists():
            assert is_numbered(state), "without a number it would begin as a coordinator"
        if find_half_moved(state) or not is_numbered(state):
            assert not cut.said
            set_aside(state)
        assert [row.record for row in read_rows(state / "superseded-1" / "journal.db")] == [
            Incarnated(7)
        ]
        load_folder_number(state)

    def before(disk: RecordedDisk) -> None:
        (disk.root / "state").mkdir(0o700)
        with closing(SqliteJournal(disk.root / "state" / "journal.db")) as journal:
            journal.append(0.0, [Incarnated(7)])

    hold_twice(write, check, tmp_path, before)
