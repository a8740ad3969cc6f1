"""What an operator may do from a dashboard, if it was begun for that (`--act`).

Most acts are requests to the coordinator, signed by its own key, which journals them. Two work on a
run of `up` on this machine alone: to end it, and to export its model. Each of these is a line of
RUN/acts.jsonl, signed by whoever looks, and durable there before it is done
(`store.act_lines`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from secureps.crypto.identity import Identity
from secureps.dashboard.access import Viewer
from secureps.errors import ConfigError, NotReady
from secureps.messages.acts import Act, Deed
from secureps.messages.run import COORDINATOR
from secureps.run.act import told
from secureps.run.export import export
from secureps.run.status import StatusTarget
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import RunFolder
from secureps.run.up.runs import stop
from secureps.store.act_lines import ActLine, ActLines
from secureps.store.passphrases import Passphrases


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
        self._folder, self._say = folder, say
        self._lines = None if folder is None else ActLines(folder.root, who, me, clock)
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
        return () if self._lines is None else self._lines.done

    def may(self, viewer: Viewer) -> bool:
        """Who may know names may act: by whose keys is decided where the dashboard is begun."""
        return viewer.names

    def do(self, what: str, of: Mapping[str, str]) -> str:
        """As `Acts`; of a client says which, and any act why."""
        with self._lock:
            if what not in self.offered:
                raise ConfigError(f"{what!r:.40} is nothing that can be done here")
            if self._folder is not None and self._lines is not None and what in KINDS:
                self._lines.note(what)
                return KINDS[what](self._folder)
            act = Act(what, of.get("client", ""), of.get("reason", ""))
            self._say(act)
            return told(act)


def saying(target: StatusTarget, passphrases: Passphrases) -> Callable[[Act], None]:
    """Tells a run's coordinator of acts, with its own key; NotReady while it is being started."""

    def say(act: Act) -> None:
        server = target.server or (target.folder and target.folder.server)
        if not server:
            raise NotReady("the coordinator is being started")
        own = StatusClient(target.kit, COORDINATOR, server, target.insecure, passphrases)
        try:
            own.act(act)
        finally:
            own.close()

    return say


def _end(folder: RunFolder) -> str:
    return stop(folder.root)


def _export(folder: RunFolder) -> str:
    out = folder.root / "exported.safetensors"
    model = export(folder.root, out)
    return f"version {model.version} is in {out}"


KINDS: Mapping[str, Callable[[RunFolder], str]] = {"end": _end, "export": _export}
"""End the run in order (`secureps resume` goes on), and export the newest model."""
