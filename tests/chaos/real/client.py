"""A data holder's script that notes what it seals, in files that nothing happens to.

What is sealed is on record before it can leave: one file for each sealing, by name and root.
"""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from secureps.client.worker import ClientWorker
from secureps.messages.encoding import digest
from secureps.messages.submission import SubmissionId
from secureps.run.own_script import run_client
from secureps.store import keyring
from tests.chaos.evidence import Evidence, Key
from tests.kits.walker_client import make

NOTES = "CHAOS_NOTES"
"""The folder, in the environment."""


class Notes(dict[Key, tuple[NDArray[np.int64], int]]):
    """What was sealed, by what processes of a client that are gone too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __setitem__(self, key: Key, value: tuple[NDArray[np.int64], int]) -> None:
        super().__setitem__(key, value)
        _write(self._path(key), integers=value[0], weight=value[1])

    def __missing__(self, key: Key) -> tuple[NDArray[np.int64], int]:
        try:
            with np.load(self._path(key)) as file:
                return file["integers"], int(file["weight"])
        except FileNotFoundError:
            raise KeyError(key) from None

    def _path(self, key: Key) -> Path:
        id, root = key
        return self._folder / f"{digest('chaos-note', _text(id), root).hex()}.npz"


class Founding(dict[bytes, NDArray[np.float32]]):
    """Models that were offered to found the run with, by the root of their payloads."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __setitem__(self, root: bytes, values: NDArray[np.float32]) -> None:
        super().__setitem__(root, values)
        _write(self._folder / f"{root.hex()}.npz", values=values)

    def __missing__(self, root: bytes) -> NDArray[np.float32]:
        with np.load(self._folder / f"{root.hex()}.npz") as file:
            found: NDArray[np.float32] = file["values"]
            return found


def noted(folder: Path) -> Evidence:
    """What clients have sealed, by their notes."""
    evidence = Evidence()
    evidence.integers, evidence.founding = Notes(folder), Founding(folder)
    return evidence


def _text(id: SubmissionId) -> bytes:
    return repr(id).encode()


def _write(path: Path, **values: Any) -> None:
    fresh = path.with_suffix(f".{os.getpid()}.new")
    with fresh.open("wb") as file:
        np.savez(file, **values)
    fresh.replace(path)


def _watching(evidence: Evidence) -> None:
    """Notes from here on what clients of this process seal."""
    made = ClientWorker.__init__

    def watched(worker: ClientWorker, *given: Any, **named: Any) -> None:
        made(worker, *given, **named)
        evidence.watch_sealing(worker)

    mock.patch.object(ClientWorker, "__init__", watched).start()


if __name__ == "__main__":
    # the coordinator is on another machine, of this test alone
    mock.patch.object(keyring, "is_on_loopback", return_value=True).start()
    _watching(noted(Path(os.environ[NOTES])))
    run_client(make)
