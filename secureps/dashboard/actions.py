"""What an operator may do from a dashboard, if it was begun for that (`--act`).

Most acts are requests to the coordinator, signed by its own key, which journals them. Two work on a
run of `up` on this machine alone: to end it, and to export its model. Each of these is a line of
RUN/acts.jsonl, chained to the line before, signed by whoever looks, and durable there before it is
done: `previous` is BLAKE2b-256 of the line before, the signature is Ed25519 in the domain DOMAIN
over the line with an empty one. What must not live here: HTTP, how a run is ended, or a model
exported, and what a coordinator does (`roles.coordinator.acts`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from secureps.audit.entries import date_of
from secureps.crypto.identity import Identity, PublicIdentity
from secureps.dashboard.access import Viewer
from secureps.errors import ConfigError, DamagedStore, NotReady, OperatorError, Unsigned
from secureps.messages.acts import Act, Deed
from secureps.messages.encoding import file_digest
from secureps.messages.run import COORDINATOR
from secureps.run.act import told
from secureps.run.export import export
from secureps.run.status import StatusTarget
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import RunFolder
from secureps.run.up.stop import stop
from secureps.store.atomic_file import write_durably
from secureps.store.passphrases import Passphrases

DOMAIN = b"secureps-dashboard-act"


@dataclass(frozen=True, slots=True)
class ActLine:
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


class Acts(Protocol):
    """What may be done from one dashboard."""

    @property
    def offered(self) -> tuple[str, ...]:
        """The acts that there are."""
        ...

    @property
    def done(self) -> tuple[ActLine, ...]:
        """What was begun from here and is on record here, oldest first; DamagedStore if changed."""
        ...

    def may(self, viewer: Viewer) -> bool:
        """Whether this viewer may do them."""
        ...

    def do(self, what: str, of: Mapping[str, str]) -> str:
        """Does one, of what is said with it; what came of it, in words.

        Raises:
            ConfigError: there is no such act.
            SecurepsError: what was in the way.
        """
        ...


class RunActs:
    """The acts of an operator on one run; one at a time.

    Args:
        folder: of a run of `up`; None: of another, whose end and model are elsewhere.
        who: its name; me: what it signs lines with.
        say: tells the coordinator of an act, as its own party; raises what it answers.
        clock: Unix seconds.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        who: str,
        me: Identity,
        say: Callable[[Act], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._who, self._me = folder, who, me
        self._say, self._clock = say, clock
        self._lock = threading.Lock()

    @property
    def offered(self) -> tuple[str, ...]:
        """What the coordinator does, and what is done in the folder of a run of `up`."""
        own = KINDS if self._folder is not None else ()
        return (*(deed.value for deed in Deed), *own)

    @property
    def done(self) -> tuple[ActLine, ...]:
        """All that were begun in this folder, oldest first; DamagedStore if the file was changed.

        The coordinator's journal has the others.
        """
        if self._folder is None:
            return ()
        path = _path(self._folder)
        return read_acts(path.read_bytes() if path.exists() else b"", self._me.public)

    def may(self, viewer: Viewer) -> bool:
        """Who may know names may act: by whose keys is decided where the dashboard is begun."""
        return viewer.names

    def do(self, what: str, of: Mapping[str, str]) -> str:
        """As `Acts`; of a client says which, and any act why."""
        with self._lock:
            if what not in self.offered:
                raise ConfigError(f"{what!r:.40} is nothing that can be done here")
            if self._folder is not None and what in KINDS:
                self._note(self._folder, what)
                return KINDS[what](self._folder)
            act = Act(what, of.get("client", ""), of.get("reason", ""))
            self._say(act)
            return told(act)

    def _note(self, folder: RunFolder, what: str) -> None:
        known, path = self.done, _path(folder)
        previous = file_digest(known[-1].line).hex() if known else ""
        act = ActLine(len(known) + 1, date_of(self._clock()), self._who, what, previous)
        signed = replace(act, signature=self._me.sign(DOMAIN, act.line).hex())
        try:
            write_durably(path, [each.line + b"\n" for each in (*known, signed)])
        except OSError as error:
            raise OperatorError(f"{path}: cannot be written, nothing was done: {error}") from None


def _path(folder: RunFolder) -> Path:
    return folder.root / "acts.jsonl"


def saying(target: StatusTarget, passphrases: Passphrases) -> Callable[[Act], None]:
    """Tells a run's coordinator of acts, with its own key; NotReady while it is being started."""

    def say(act: Act) -> None:
        server = target.server or (target.folder and target.folder.address(COORDINATOR))
        if not server:
            raise NotReady("the coordinator is being started")
        own = StatusClient(target.kit, COORDINATOR, server, target.insecure, passphrases)
        try:
            own.act(act)
        finally:
            own.close()

    return say


def read_acts(data: bytes, key: PublicIdentity) -> tuple[ActLine, ...]:
    """The acts in a file; DamagedStore names the first that was changed, removed or added."""
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


def _end(folder: RunFolder) -> str:
    return stop(folder.root)


def _export(folder: RunFolder) -> str:
    out = folder.root / "exported.safetensors"
    model = export(folder.root, out)
    return f"version {model.version} is in {out}"


KINDS: Mapping[str, Callable[[RunFolder], str]] = {"end": _end, "export": _export}
"""End the run in order (`secureps resume` goes on), and export the newest model."""
