"""A holder's envelope keys, and the runs that these keys have served.

    KIT/private/NAME/envelope.key        0600  number 0, which the CA certified, for every run
    KIT/private/NAME/RUN/envelope-N.key  0600  later keys of one run, made by the holder
    ... .erased                                a key that is being overwritten
    KIT/private/NAME/runs                      the ids of served runs
    KIT/private/NAME/RUN.height                how many rows the holder's ledger of the run has

RUN is the beginning of the run's id. A run erases only its own keys and the kit's. Keys are under
the passphrase of the other private files, and in no database or backup. A key is erased by
overwriting and deleting its file. SSDs and copy-on-write file systems may keep the old bytes for a
while; an encrypted volume or a RAM disk for KIT/private helps against that.

The last two files show that a ledger is lost or an older copy. A malicious coordinator chooses a
run's nonce, so it could repeat an old run, bit for bit, with holders whose ledger is empty, and
have recorded updates summed in other cohorts. A holder with an empty ledger therefore refuses all
served runs, and a holder whose state folder was set back learns that from RUN.height.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secureps.crypto.bfv import BfvSecretKey
from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.secret import Secret
from secureps.errors import DamagedStore, KitError
from secureps.file_access import NO_LINK
from secureps.messages.records import RunPinned
from secureps.store import durability
from secureps.store.atomic_file import put_in_place, sync, write_durably
from secureps.store.journal import Journal, WrappedJournal
from secureps.store.journal_rows import Height, read_height
from secureps.store.keyring import ENVELOPE, HolderSecret, load_holder_secret, load_public
from secureps.store.kit_files import Passphrases, make_folder, read_secret, write_new

ABANDONED = 24 * 3600.0
"""Seconds without a new key or ledger row after which another run erases a run's keys."""

_NAME = re.compile(r"envelope-([1-9][0-9]{0,9})\.key")
_RUN = re.compile(r"[0-9a-f]{16}")
_ERASED = ".erased"
"""The end of the name of a key file that is being overwritten."""


class EnvelopeKeys(Secret):
    """A holder's keys for one run, by number, in memory; number 0 is the kit's key."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[int, EnvelopeKey]) -> None:
        self._keys = dict(keys)

    @property
    def oldest(self) -> int:
        return min(self._keys, default=1)

    def for_run(self, run: bytes) -> EnvelopeKeys:
        return self

    def get(self, number: int) -> EnvelopeKey | None:
        return self._keys.get(number)

    def make(self, number: int) -> EnvelopeKey:
        """Makes the key of a number durably, or returns it if it exists; OSError of the disk."""
        if number not in self._keys:
            key = self._generate(number)
            self._keys = {**self._keys, number: key}  # a new dict: other threads may be reading
        return self._keys[number]

    def erase(self, below: int) -> None:
        """Erases the keys below a number; OSError if the disk refuses."""
        for number in [n for n in self._keys if n < below]:
            self._remove(number)
            self._keys = {n: key for n, key in self._keys.items() if n != number}

    def _generate(self, number: int) -> EnvelopeKey:
        return EnvelopeKey.from_os()

    def _remove(self, number: int) -> None:
        pass


class EnvelopeKeyFiles(EnvelopeKeys):
    """The keys in a holder's private folder: the kit's, and after `for_run` also those of a run.

    Raises:
        KitError: the kit's key is damaged, open to others, or not certified; or it is missing, and
            no run can have erased it.
    """

    __slots__ = ("_folder", "_passphrases", "_run")

    def __init__(self, kit: Path, name: str, passphrases: Passphrases | None = None) -> None:
        self._folder = kit / "private" / name
        self._passphrases = passphrases or Passphrases()
        self._run: Path | None = None
        keys = dict[int, EnvelopeKey]()
        if os.path.lexists(self._path(0)) or not read_served_runs(self._folder / RUNS):
            first = load_holder_secret(kit, name, self._passphrases)
            assert isinstance(first, EnvelopeKey)
            keys[0] = first
        super().__init__(keys)

    def for_run(self, run: bytes) -> EnvelopeKeys:
        """Returns itself; the first call reads the run's keys, and erases ABANDONED ones of others.

        Raises:
            KitError: a key is damaged, or open to others.
            OSError: the disk refuses.
        """
        if self._run is None:
            self._run = own = run_folder(self._folder, run)
            for path in (*self._folder.glob(f"*{_ERASED}"), *own.glob(f"*{_ERASED}")):
                _overwrite(path)  # a killed holder did not finish this
            files = os.listdir(own) if own.is_dir() else []
            if files:  # a killed holder may not have synced their names
                sync(own)
            found = (_NAME.fullmatch(each) for each in files)
            for number in [int(each[1]) for each in found if each]:
                path = self._path(number)
                key = read_secret(EnvelopeKey.from_bytes, path, "", self._passphrases)
                self._keys = {**self._keys, number: key}
            self._erase_abandoned()
        return self

    def _path(self, number: int) -> Path:
        if not number:
            return self._folder / ENVELOPE.secret_file
        assert self._run is not None
        return self._run / f"envelope-{number}.key"

    def _generate(self, number: int) -> EnvelopeKey:
        key, path = EnvelopeKey.from_os(), self._path(number)
        make_folder(path.parent, 0o700)
        write_new(path, self._passphrases.lock(key.to_bytes()))
        return key

    def _remove(self, number: int) -> None:
        _erase_file(self._path(number))

    def _erase_abandoned(self) -> None:
        for folder in self._folder.iterdir():
            if _RUN.fullmatch(folder.name) and folder != self._run and not folder.is_symlink():
                known = (folder, ledger_height(folder))
                last = max(path.stat().st_mtime for path in known if path.exists())
                if time.time() - last > ABANDONED:
                    for path in [*folder.iterdir()]:
                        _erase_file(path)
                    folder.rmdir()


def wrap_secret(secret: HolderSecret) -> BfvSecretKey | EnvelopeKeys:
    return EnvelopeKeys({0: secret}) if isinstance(secret, EnvelopeKey) else secret


def load_keys(
    kit: Path, name: str, passphrases: Passphrases | None = None
) -> BfvSecretKey | EnvelopeKeys:
    """Loads a holder's key material: one secret key, or all of its envelope keys.

    Raises:
        KitError: as `load_holder_secret`, or as `EnvelopeKeyFiles`.
    """
    public = load_public(kit)
    if name in public.holder_keys and public.opening is Opening.COMMITTEE:
        return EnvelopeKeyFiles(kit, name, passphrases)
    return wrap_secret(load_holder_secret(kit, name, passphrases))


def _erase_file(path: Path) -> None:
    """Renames a key's file, then overwrites and deletes it.

    Under its own name a half overwritten file would be a damaged key, and no holder would start.
    """
    erased = path.with_name(path.name + _ERASED)
    with contextlib.suppress(FileNotFoundError):
        put_in_place(path, erased)
    _overwrite(erased)


def _overwrite(path: Path) -> None:
    """Overwrites and deletes a file: deleting alone leaves the bytes on the disk."""
    with contextlib.suppress(FileNotFoundError):
        with open(path, "r+b", opener=lambda path, flags: os.open(path, flags | NO_LINK)) as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            durability.sync(file.fileno())
        path.unlink()


# --- served runs -------------------------------------------------------------------

RUNS = "runs"
"""Name of the file of served runs, beside a holder's keys."""
_ID_BYTES = 32


def read_served_runs(path: Path) -> frozenset[bytes]:
    try:
        ids = [bytes.fromhex(line) for line in path.read_text("ascii").split()]
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise KitError(f"cannot read {path}: {error}") from None
    except ValueError:
        raise KitError(f"{path} is damaged: it has one run id a line") from None
    if any(len(id) != _ID_BYTES for id in ids):
        raise KitError(f"{path} is damaged: a run id has {_ID_BYTES} bytes")
    return frozenset(ids)


def run_folder(folder: Path, run: bytes) -> Path:
    return folder / run.hex()[:16]


def ledger_height(run: Path) -> Path:
    """Names the file, beside a `run_folder`, with the height of the holder's ledger of the run."""
    return run.with_suffix(".height")


class ServedJournal(WrappedJournal):
    """A holder's ledger that also writes the files of served runs and heights.

    It writes them before the effects of a record, so that a lost ledger is noticed.

    Raises:
        KitError: a file cannot be read or written.
        DamagedStore: the ledger is shorter than it was.
    """

    def __init__(self, ledger: Journal, path: Path) -> None:
        super().__init__(ledger)
        self._path = path
        self._height: Height | None = None
        before = () if ledger.fold is None else ledger.fold.records
        rows = (record for _, record in ledger.replay())
        self._note([*before, *rows])  # a kill may have come before the file was written

    def append(self, at: float, records: Sequence[Any]) -> None:
        self._journal.append(at, records)
        self._note(records)

    def close(self) -> None:
        self._journal.close()
        if self._height is not None:
            self._height.close()
            self._height = None

    def _note(self, records: Sequence[Any]) -> None:
        pinned = [record.run.id for record in records if isinstance(record, RunPinned)]
        for run in pinned:  # at most one
            self._note_run(run)
            self._begin_height(ledger_height(run_folder(self._path.parent, run)))
        if self._height is not None and not pinned:
            self._height.advance(self.mark)

    def _note_run(self, run: bytes) -> None:
        known = read_served_runs(self._path)
        if run in known:
            return
        text = "".join(f"{id.hex()}\n" for id in sorted(known | {run}))
        try:
            write_durably(self._path, [text.encode()])
        except OSError as error:
            raise KitError(
                f"cannot write {self._path}, in which a key holder keeps the runs that its key has "
                f"served: {error}"
            ) from None

    def _begin_height(self, path: Path) -> None:
        known = read_height(path)
        if known is not None and known.seq > self.mark.seq:
            raise DamagedStore(
                f"this holder's ledger ends at row {self.mark.seq}, and {known.seq} rows were "
                f"written, as {path} says: it is an older copy, and would open again what it "
                "opened; bring back the newest one, or stay out of this run"
            )
        self._height = Height(path, self.mark)
