"""Decides who may look at a dashboard, and does what a dashboard with `--act` may do.

A viewer shows a token on loopback, a client certificate elsewhere. Most acts of an operator are
requests to the coordinator, signed by the coordinator's own key and journalled there. Ending a run
and exporting its model work only on a run of `up` on this machine, and are lines of RUN/acts.jsonl,
signed by the viewer (`store.act_lines`).

A data holder may leave, pause or lower its budget from its own page. Each act is a line in the
client's state folder, signed by the client's key. The client's process sees it within a second, or
when it next starts. A budget is lowered first in the ledger over all runs, and never raised.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secureps.crypto.identity import Identity, Role
from secureps.dashboard import Json
from secureps.errors import ConfigError, DamagedStore, NotReady
from secureps.messages.acts import Act, Deed
from secureps.messages.member_records import OwnDeed
from secureps.messages.run import COORDINATOR
from secureps.run.act import describe
from secureps.run.export import export
from secureps.run.status import StatusTarget
from secureps.run.up.folder import RunFolder
from secureps.run.up.runs import stop
from secureps.service.process import act_text
from secureps.service.web import refuse_host
from secureps.store.act_lines import ActLine, ActLines
from secureps.store.budget import BudgetLedger
from secureps.wording import finite

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

TOKEN_BYTES = 32

NAMED_TO: frozenset[Role] = frozenset({"coordinator", "observer"})
"""Roles that see clients' names."""

OWN, NOBODYS = "same-origin", "none"
"""Values of Sec-Fetch-Site for requests of the page itself and for a typed address."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A party of the roster that looks at the dashboard."""

    name: str
    role: Role

    @property
    def sees_names(self) -> bool:
        return self.role in NAMED_TO


class Access:
    """Lets viewers in.

    Args:
        hosts: the server's names for browsers (`service.web`).
        secured: connections are mutual TLS.
        viewer: the holder of the token; None if certificates decide.
    """

    def __init__(self, hosts: frozenset[str], secured: bool, viewer: Viewer | None) -> None:
        self._hosts = hosts
        self._origins = frozenset(f"http{'s' if secured else ''}://{host}" for host in hosts)
        self._viewer, self._lock = viewer, threading.Lock()
        self._session = secrets.token_urlsafe(TOKEN_BYTES)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)

    def enter(self, token: str) -> str | None:
        """Exchanges the token, once, for the content of a cookie; None for anything else."""
        with self._lock:
            if self._viewer is None or not self.token or not _same(token, self.token):
                return None
            self.token = ""
        return self._session

    def find_viewer(self, session: str | None) -> Viewer | None:
        if session is None or not _same(session, self._session):
            return None
        return self._viewer

    def find_objection(self, asked: WSGIEnvironment) -> str:
        """Returns why a request is refused, or nothing; the entrance's link may be on any page."""
        if (why := refuse_host(asked, self._hosts)) or asked["PATH_INFO"] == "/enter":
            return why
        own = asked.get("HTTP_SEC_FETCH_SITE", OWN) in (OWN, NOBODYS)
        origin = asked.get("HTTP_ORIGIN")
        alien = origin is not None and origin not in self._origins
        return "another site's page asks" if alien or not own else ""


def _same(given: str, known: str) -> bool:
    """Compares in constant time, so that timing does not tell where they differ."""
    return secrets.compare_digest(given.encode(errors="replace"), known.encode())


class Acts(ABC):
    """The acts of one dashboard, one at a time; recorded in `lines` if there are any."""

    offered: tuple[str, ...]

    def __init__(self, lines: ActLines | None) -> None:
        self._lines, self._lock = lines, threading.Lock()

    @property
    def done(self) -> tuple[ActLine, ...]:
        """The recorded acts, oldest first; DamagedStore if they were changed."""
        return () if self._lines is None else self._lines.done

    @abstractmethod
    def may(self, viewer: Viewer) -> bool: ...

    def do(self, what: str, of: Mapping[str, str]) -> str:
        """Does one act; returns the result in words, or raises what prevented it."""
        with self._lock:
            if what not in self.offered:
                raise ConfigError(f"{what!r:.40} is nothing that can be done here")
            return self._do(what, of)

    @abstractmethod
    def _do(self, what: str, of: Mapping[str, str]) -> str: ...


class RunActs(Acts):
    """An operator's acts on one run; most are in the coordinator's journal.

    Args:
        folder: of a run of `up`; None: the run's end and model are elsewhere.
        who, me: name and key that sign lines.
        say: sends an act to the coordinator, as its own party; raises its answer.
    """

    def __init__(
        self, folder: RunFolder | None, who: str, me: Identity, say: Callable[[Act], None]
    ) -> None:
        super().__init__(None if folder is None else ActLines(folder.root, who, me))
        self._folder, self._say = folder, say
        own = RUN_ENDS if folder is not None else ()
        self.offered = (*(deed.value for deed in Deed), *own)

    def may(self, viewer: Viewer) -> bool:
        """Allows viewers who see names; the dashboard's start decided whose keys are used."""
        return viewer.sees_names

    def _do(self, what: str, of: Mapping[str, str]) -> str:
        if self._folder is not None and self._lines is not None and what in RUN_ENDS:
            self._lines.note(what)
            return RUN_ENDS[what](self._folder)
        act = Act(what, of.get("client", ""), of.get("reason", ""))
        self._say(act)
        return describe(act)


def build_sender(target: StatusTarget) -> Callable[[Act], None]:
    """Returns a function that sends an act to a run's coordinator (`StatusTarget.connect`)."""

    def say(act: Act) -> None:
        with closing(target.connect(COORDINATOR)) as own:
            own.act(act)

    return say


def _export(folder: RunFolder) -> str:
    out = folder.root / "exported.safetensors"
    model = export(folder.root, out)
    return f"version {model.version} is in {out}"


RUN_ENDS: Mapping[str, Callable[[RunFolder], str]] = {
    "end": lambda folder: stop(folder.root),
    "export": _export,
}
"""Acts on a run of `up` on this machine: they end it in order (`secureps resume` continues it), or
export its newest model."""


SAID = {
    OwnDeed.PAUSE: "paused: this client sends what it has sealed, and trains no more until it is "
    "to go on",
    OwnDeed.GO_ON: "this client goes on",
    OwnDeed.LOWER_BUDGET: "the budget is {budget:g} from now on, over all runs of this ledger",
    OwnDeed.LEAVE: "this client leaves the run, once what it has sealed has arrived; started "
    "again, it joins again",
}
"""The words that the page shows once an act has begun."""


class OwnActs(Acts):
    """A data holder's acts on its own client.

    Args:
        ledger: over all runs, with the budget of its options.
        view: returns what its page shows now; None before it takes part in a run.
    """

    offered = tuple(deed.value for deed in SAID)
    _lines: ActLines

    def __init__(
        self,
        name: str,
        me: Identity,
        state: Path,
        ledger: BudgetLedger,
        view: Callable[[], Json | None],
    ) -> None:
        super().__init__(ActLines(state, name, me))
        self._name, self._ledger, self._view = name, ledger, view

    def may(self, viewer: Viewer) -> bool:
        """Allows the data holder alone, on its own page."""
        return viewer.role == "client" and viewer.name == self._name

    def _do(self, what: str, of: Mapping[str, str]) -> str:
        if (view := self._view()) is None:
            raise NotReady(f"{self._name} takes part in no run yet")
        if len(self.done) < view["acted"]:
            raise DamagedStore(
                f"acts.jsonl has {len(self.done)} acts, and {self._name} has done {view['acted']}"
            )
        budget = self._lower(view, of) if what == OwnDeed.LOWER_BUDGET else None
        if budget is not None:  # before its line: if interrupted, the budget is already lower
            self._ledger.lower(budget)
        self._lines.note(act_text(OwnDeed(what), budget))
        return SAID[OwnDeed(what)].format(budget=budget or 0.0)

    def _lower(self, view: Json, of: Mapping[str, str]) -> float:
        try:
            budget = finite(float(of.get("budget", "")))
        except ValueError:
            budget = None
        if budget is None or not budget > 0:
            raise ConfigError("a budget is a finite epsilon above 0")
        if view["budget"] is None:
            raise ConfigError(
                f"the plan {view['plan']} trains without privacy, and no budget bounds that: leave "
                "instead"
            )
        return budget
