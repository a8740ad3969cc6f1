"""What may be done from a dashboard of a run of `up`, if it was begun for that (`--act`).

Each act is a line of RUN/acts.jsonl, chained to the line before, signed by whoever looks, and
durable there before it is done: `previous` is BLAKE2b-256 of the line before, the signature is
Ed25519 in the domain DOMAIN over the line with an empty one. What must not live here: HTTP, and how
a run is ended, or a model exported.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from secureps.audit.entries import date_of
from secureps.crypto.identity import Identity, PublicIdentity
from secureps.errors import ConfigError, DamagedStore, OperatorError, Unsigned
from secureps.messages.encoding import file_digest
from secureps.run.export import export
from secureps.run.up.folder import RunFolder
from secureps.run.up.stop import stop
from secureps.store.atomic_file import write_durably

DOMAIN = b"secureps-dashboard-act"


@dataclass(frozen=True, slots=True)
class Act:
    """Something that was begun: its number, when, by whom, and what."""

    number: int
    date: str
    who: str
    what: str
    previous: str
    signature: str = ""

    @property
    def line(self) -> bytes:
        """As it stands in the file."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class Acts:
    """The acts of one run; one at a time.

    Args:
        who: its name; me: what it signs with.
        clock: Unix seconds.
    """

    def __init__(
        self, folder: RunFolder, who: str, me: Identity, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._who, self._me, self._clock = folder, who, me, clock
        self._path = folder.root / "acts.jsonl"
        self._lock = threading.Lock()

    @property
    def done(self) -> tuple[Act, ...]:
        """All that were begun, oldest first; DamagedStore if the file was changed."""
        return read_acts(self._path.read_bytes() if self._path.exists() else b"", self._me.public)

    def do(self, what: str) -> str:
        """Does one of KINDS; what came of it, in words.

        Raises:
            ConfigError: there is no such act.
            SecurepsError: what was in the way.
        """
        with self._lock:
            if what not in KINDS:
                raise ConfigError(f"{what!r:.40} is nothing that can be done here")
            self._note(what)
            return KINDS[what](self._folder)

    def _note(self, what: str) -> None:
        known = self.done
        previous = file_digest(known[-1].line).hex() if known else ""
        act = Act(len(known) + 1, date_of(self._clock()), self._who, what, previous)
        signed = replace(act, signature=self._me.sign(DOMAIN, act.line).hex())
        try:
            write_durably(self._path, [each.line + b"\n" for each in (*known, signed)])
        except OSError as error:
            raise OperatorError(
                f"{self._path}: cannot be written, nothing was done: {error}"
            ) from None


def read_acts(data: bytes, key: PublicIdentity) -> tuple[Act, ...]:
    """The acts in a file; DamagedStore names the first that was changed, removed or added."""
    found: list[Act] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            act = Act(**json.loads(line))
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


def _end(folder: RunFolder) -> str:
    return stop(folder.root)


def _export(folder: RunFolder) -> str:
    out = folder.root / "exported.safetensors"
    model = export(folder.root, out)
    return f"version {model.version} is in {out}"


KINDS: Mapping[str, Callable[[RunFolder], str]] = {"end": _end, "export": _export}
"""End the run in order (`secureps resume` goes on), and export the newest model."""
