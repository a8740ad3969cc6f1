"""Which runs a holder's key has served, and how far: files beside the key, so that a lost ledger
or an older copy of one is missed.

A coordinator chooses a run's nonce: it could found a run of last month again, bit for bit, before
holders that began in an empty folder, and have what was recorded then summed in other cohorts. A
holder with an empty ledger therefore refuses every run of this file, and one whose whole folder
came back as it was earlier finds in RUN.height that it had come further.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secureps.errors import DamagedStore, KitError
from secureps.messages.records import RunPinned
from secureps.store.atomic_file import write_durably
from secureps.store.journal import Journal, WrappedJournal
from secureps.store.journal_height import Height, read_height

RUNS = "runs"
"""Name of the file, beside a holder's keys."""
_ID_BYTES = 32


def served_runs(path: Path) -> frozenset[bytes]:
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
        known = served_runs(self._path)
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
