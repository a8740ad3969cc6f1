"""A holder's envelope keys by number: files in its private folder, or in memory for a simulation.

    KIT/private/NAME/envelope.key        0600  number 0, which the CA certified, for every run
    KIT/private/NAME/RUN/envelope-N.key  0600  those that follow in one run, made by a holder
    ... .erased                                one of them while it is written over

RUN is the beginning of the run's id: runs at the same time, or one after another, have keys of
their own, and each erases none but its own and the kit's. They are under the passphrase of the
other private files, where there is one, in no database and in no backup: to erase one is to write
over its file, and to remove it. A disk that moves what is written (an SSD, a file system that
copies on write) may keep the old bytes until it uses their place again; where that counts,
KIT/private lies on an encrypted volume, or in memory.

Which runs a holder's key has served, and how far: files beside the key, so that a lost ledger
or an older copy of one is missed.

A coordinator chooses a run's nonce: it could found a run of last month again, bit for bit, before
holders that began in an empty folder, and have what was recorded then summed in other cohorts. A
holder with an empty ledger therefore refuses every run of this file, and one whose whole folder
came back as it was earlier finds in RUN.height that it had come further.
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
"""Seconds without a new key, or a row in its ledger, after which another run erases its keys."""

_NAME = re.compile(r"envelope-([1-9][0-9]{0,9})\.key")
_RUN = re.compile(r"[0-9a-f]{16}")
_ERASED = ".erased"
"""What the name of a key's file ends with while it is written over."""


class EnvelopeKeys(Secret):
    """The keys that a holder has for one run, by number; these are in memory.

    Args:
        keys: number 0 is the kit's.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[int, EnvelopeKey]) -> None:
        self._keys = dict(keys)

    @property
    def newest(self) -> int:
        """The greatest number of a key that is here; 0 if none is."""
        return max(self._keys, default=0)

    @property
    def oldest(self) -> int:
        """The least number of a key that is here; 1 if none is."""
        return min(self._keys, default=1)

    def for_run(self, run: bytes) -> EnvelopeKeys:
        return self

    def get(self, number: int) -> EnvelopeKey | None:
        """The key of a number; None if it is erased, or was never made."""
        return self._keys.get(number)

    def make(self, number: int) -> EnvelopeKey:
        """Makes the key of a number, durably, if it is not there; OSError if it cannot."""
        if number not in self._keys:
            key = self._generate(number)
            self._keys = {**self._keys, number: key}  # others read meanwhile
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
    """The keys in a holder's private folder: the kit's at first, and with `for_run` those of a run.

    Raises:
        KitError: the kit's is damaged, open to others, or not what the CA certified; or it is not
            there, and no run can have erased it.
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
        """Returns itself; the first call says for which run, and reads the keys that it has.

        Keys of other runs are erased whose ledgers have stood still for ABANDONED.

        Raises:
            KitError: a key is damaged, or open to others.
            OSError: the disk refuses.
        """
        if self._run is None:
            self._run = own = run_folder(self._folder, run)
            for path in (*self._folder.glob(f"*{_ERASED}"), *own.glob(f"*{_ERASED}")):
                _write_over(path)  # a holder was killed meanwhile
            files = os.listdir(own) if own.is_dir() else []
            if files:  # a holder that was killed may not have waited for their names
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
    """What the holder of this secret key opens with."""
    return EnvelopeKeys({0: secret}) if isinstance(secret, EnvelopeKey) else secret


def load_keys(
    kit: Path, name: str, passphrases: Passphrases | None = None
) -> BfvSecretKey | EnvelopeKeys:
    """What a holder opens with: one secret key, or all of its envelope keys.

    Raises:
        KitError: as `load_holder_secret`, or as `EnvelopeKeyFiles`.
    """
    public = load_public(kit)
    if name in public.holder_keys and public.opening is Opening.COMMITTEE:
        return EnvelopeKeyFiles(kit, name, passphrases)
    return wrap_secret(load_holder_secret(kit, name, passphrases))


def _erase_file(path: Path) -> None:
    """Takes a key's file out of use, then writes over it.

    Under its own name a file that is half written over would be a damaged key, with which no
    holder starts.
    """
    erased = path.with_name(path.name + _ERASED)
    with contextlib.suppress(FileNotFoundError):
        put_in_place(path, erased)
    _write_over(erased)


def _write_over(path: Path) -> None:
    """Writes over a file before its name goes: a name alone leaves the bytes on the disk."""
    with contextlib.suppress(FileNotFoundError):
        with open(path, "r+b", opener=_no_link) as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            durability.sync(file.fileno())
        path.unlink()


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINK)


# --- served runs -------------------------------------------------------------------

RUNS = "runs"
"""Name of the file, beside a holder's keys."""
_ID_BYTES = 32


def read_served_runs(path: Path) -> frozenset[bytes]:
    """The run ids in the file, one a line in hex; none if there is no file, KitError if damaged."""
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
    """What a holder's private folder has for one run: its name is the beginning of the run's id."""
    return folder / run.hex()[:16]


def ledger_height(run: Path) -> Path:
    """The file beside a `run_folder` that says how far the holder's ledger of that run has come."""
    return run.with_suffix(".height")


class ServedJournal(WrappedJournal):
    """A ledger that tells the files of the run in it, before anybody hears what was journalled.

    Raises:
        KitError: a file cannot be read or written.
        DamagedStore: the ledger ends before what it was.
    """

    def __init__(self, ledger: Journal, path: Path) -> None:
        super().__init__(ledger)
        self._path = path
        self._height: Height | None = None
        before = () if ledger.fold is None else ledger.fold.records
        rows = (record for _, record in ledger.replay())
        self._note([*before, *rows])  # killed between the two

    def append(self, at: float, records: Sequence[Any]) -> None:
        super().append(at, records)
        self._note(records)

    def close(self) -> None:
        super().close()
        if self._height is not None:
            self._height.close()
            self._height = None

    def _note(self, records: Sequence[Any]) -> None:
        pinned = [record.run.id for record in records if isinstance(record, RunPinned)]
        for run in pinned:  # one at most
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
