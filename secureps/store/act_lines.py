"""A file of a person's acts: each is one signed and chained line, durable before the act is done.

`previous` is the BLAKE2b-256 digest of the line before. The signature is Ed25519 in the domain
DOMAIN over the line with an empty signature.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from secureps.crypto.identity import Identity, PublicIdentity
from secureps.errors import DamagedStore, OperatorError, Unsigned
from secureps.messages.encoding import file_digest
from secureps.store.atomic_file import one_at_a_time, write_durably

DOMAIN = b"secureps-dashboard-act"

FILE = "acts.jsonl"
"""The file's name, in the folder of a run or in a client's state folder."""


@dataclass(frozen=True, slots=True)
class ActLine:
    """One act: its number, date, author and text."""

    number: int
    date: str
    who: str
    what: str
    previous: str
    signature: str = ""

    @property
    def line(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class ActLines:
    """The acts in one folder; `me` signs the acts of `who`."""

    def __init__(
        self, folder: Path, who: str, me: Identity, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._who, self._me, self._clock = folder / FILE, who, me, clock

    @property
    def done(self) -> tuple[ActLine, ...]:
        """All acts, oldest first; DamagedStore if the file was changed."""
        return read_acts(self._path.read_bytes() if self._path.exists() else b"", self._me.public)

    def note(self, what: str) -> None:
        """Adds an act durably; OperatorError if it cannot be written.

        A lock keeps two processes from overwriting each other's acts.
        """
        try:
            with one_at_a_time(self._path.with_suffix(".turn")):
                known = self.done
                write_durably(
                    self._path, [each.line + b"\n" for each in (*known, self._next(known, what))]
                )
        except OSError as error:
            raise OperatorError(
                f"{self._path}: cannot be written, the act is not on record: {error}"
            ) from None

    def _next(self, known: tuple[ActLine, ...], what: str) -> ActLine:
        previous = file_digest(known[-1].line).hex() if known else ""
        date = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        act = ActLine(len(known) + 1, date, self._who, what, previous)
        return replace(act, signature=self._me.sign(DOMAIN, act.line).hex())


def read_acts(data: bytes, key: PublicIdentity) -> tuple[ActLine, ...]:
    """Reads the acts in a file; DamagedStore names the first one that was forged or moved."""
    found: list[ActLine] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            act = ActLine(**json.loads(line))
            key.verify(DOMAIN, replace(act, signature="").line, bytes.fromhex(act.signature))
            previous = file_digest(found[-1].line).hex() if found else ""
            sound = (act.number, act.previous, act.line) == (number, previous, line)
        except (ValueError, TypeError, RecursionError, Unsigned):
            sound = False
        if not sound:
            raise DamagedStore(
                f"acts.jsonl: act {number} is not what was signed, or not in its place"
            )
        found.append(act)
    return tuple(found)
