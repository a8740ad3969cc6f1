"""Which runs a holder's key has served: a file beside the key, so that a lost ledger is missed.

A coordinator chooses a run's nonce: it could found a run of last month again, bit for bit, before
holders that began in an empty folder, and have what was recorded then summed in other cohorts. A
holder with an empty ledger therefore refuses every run of this file. What must not live here:
the ledger itself (`store.journal`), and keys (`store.keyring`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from secureps.errors import KitError
from secureps.messages.records import RunPinned
from secureps.store.journal import Journal

_ID_BYTES = 32


def served_runs(path: Path) -> frozenset[bytes]:
    """The run ids in the file, one a line in hex; nobody's if there is none.

    Raises:
        KitError: it cannot be read, or is damaged.
    """
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


class ServedJournal:
    """A ledger that tells the file of the run in it, before anybody hears what was journalled.

    Raises:
        KitError: the file cannot be read or written.
    """

    def __init__(self, ledger: Journal, path: Path) -> None:
        self._ledger = ledger
        self._path = path
        self._note([record for _, record in ledger.replay()])  # killed between the two

    def append(self, at: float, records: Sequence[Any]) -> None:
        self._ledger.append(at, records)
        self._note(records)

    def replay(self) -> Iterator[tuple[float, Any]]:
        return self._ledger.replay()

    def close(self) -> None:
        self._ledger.close()

    def _note(self, records: Sequence[Any]) -> None:
        pinned = {record.run.id for record in records if isinstance(record, RunPinned)}
        known = served_runs(self._path) if pinned else frozenset()
        if pinned <= known:
            return
        text = "".join(f"{id.hex()}\n" for id in sorted(known | pinned))
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            with fresh.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise KitError(
                f"cannot write {self._path}, in which a key holder keeps the runs that its key has "
                f"served: {error}"
            ) from None
