"""`secureps dashboard`: shows a run in a browser, to an operator, a privacy officer or a client.

The kit's key decides on the pages. On loopback it prints an address with a token, which lets in one
browser; elsewhere it accepts only connections with a certificate of the kit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import typer

from secureps.crypto.identity import Role
from secureps.crypto.tls import tls_name
from secureps.dashboard import Json
from secureps.dashboard.access import Access, Viewer
from secureps.dashboard.actions import Acts, OwnActs, RunActs, build_sender
from secureps.dashboard.application import application, bind, serve
from secureps.dashboard.sources import (
    Board,
    Facts,
    Source,
    course_source,
    feed,
    holder_source,
    ledgers_source,
    logs_source,
    plan_source,
    report_source,
    status_source,
)
from secureps.errors import ConfigError, KitError
from secureps.messages.run import LOOPBACK, is_on_loopback
from secureps.run.status import StatusTarget
from secureps.run.up.folder import METRICS, RunFolder
from secureps.service.metrics import host_names, server_context
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.keyring import (
    TlsFiles,
    default_state,
    find_observer,
    load_private,
    load_public,
    load_roster,
)
from secureps.store.kit_files import Passphrases

LISTEN = "127.0.0.1:0"

ANYWHERE = ("", "0.0.0.0", "[::]", "::")

SERVERS: frozenset[Role] = frozenset({"coordinator", "shard", "holder"})
"""Roles with server certificates."""


@dataclass(frozen=True)
class Looking:
    """The run to show, and the place to show it.

    Args:
        kit: start-up kit of `name` (None: of an observer).
        target: the coordinator to ask, if any.
        state: a client's own state folder, else the coordinator's; None: the default place.
        ledger: a client's own ledger, else a folder of ledgers; None: the default place.
        budget: a client's own, over all runs.
        logs: audit logs to verify.
        acts: viewers may also act on the run.
    """

    kit: Path
    name: str | None
    target: StatusTarget | None = None
    state: Path | None = None
    ledger: Path | None = None
    budget: float | None = None
    logs: tuple[Path, ...] = ()
    listen: str = LISTEN
    acts: bool = False
    passphrases: Passphrases = field(default_factory=Passphrases)

    @property
    def folder(self) -> RunFolder | None:
        return None if self.target is None else self.target.folder


@contextmanager
def dashboard(looking: Looking) -> Iterator[str]:
    """Shows a run; yields its address. ConfigError, KitError or OperatorError if it cannot."""
    roster = load_public(looking.kit).roster
    name = looking.name or find_observer(looking.kit, roster)
    viewer = Viewer(name, roster.find(name).role)
    secured = _secured(looking, viewer)
    sources = list(_sources(looking, viewer))
    owner = viewer.name if viewer.role == "client" else ""
    board = Board(Facts(looking.target is not None, owner))
    acts = _acts(looking, viewer, lambda: board.facts.own)
    if acts is not None:
        done, offered = acts.done, acts.offered
        board.put(lambda facts: replace(facts, acts=done, offered=offered))
    line = bind(looking.listen)
    host, port = looking.listen.rpartition(":")[0], line.getsockname()[1]
    hosts = (host, tls_name(name)) if secured else LOOPBACK
    named = host_names(hosts, port, 443 if secured else 80)
    access = Access(named, secured is not None, None if secured else viewer)
    app = application(board, access, partial(_party, looking.kit), f"secureps-{port}", acts)
    with serve(app, line, secured), feed(board, sources):
        entrance = f"/enter?token={access.token}"
        yield f"https://{host}:{port}/" if secured else f"http://{host}:{port}{entrance}"


def _secured(looking: Looking, viewer: Viewer) -> ssl.SSLContext | None:
    """Returns the TLS of connections; None on loopback. ConfigError if it is missing elsewhere."""
    host, _, port = looking.listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535 or host in ANYWHERE:
        raise ConfigError(
            f"dashboard: {looking.listen!r} is not HOST:PORT, with the host that a browser names"
        )
    if is_on_loopback(looking.listen):
        return None
    if viewer.role not in SERVERS:
        raise ConfigError(
            f"dashboard: {looking.listen} is not on loopback, and {viewer.name}'s certificate is "
            "no server's: listen on 127.0.0.1 and open it through a tunnel (ssh -L), or look with "
            "the coordinator's kit"
        )
    ca = load_public(looking.kit).ca
    files = TlsFiles(looking.kit, viewer.name, ca, passphrases=looking.passphrases)
    return server_context(files)


def _acts(looking: Looking, viewer: Viewer, view: Callable[[], Json | None]) -> Acts | None:
    if not looking.acts:
        return None
    target, own = looking.target, viewer.role == "client"
    named = viewer.sees_names and (looking.folder is not None or viewer.role == "coordinator")
    asks = target is not None and named
    if not (own or asks) or not is_on_loopback(looking.listen):
        raise ConfigError(
            "dashboard: --act is on loopback, for a client's own page, for the folder of a run of "
            "`up`, or for --server with the coordinator's own kit and --name coordinator"
        )
    me = load_private(looking.kit, viewer.name, looking.passphrases)
    if own or target is None:
        state, path = _own_files(looking, viewer)
        return OwnActs(viewer.name, me, state, BudgetLedger(path, looking.budget), view)
    return RunActs(looking.folder, viewer.name, me, build_sender(target))


def _party(kit: Path, name: str) -> Viewer | None:
    """Looks up a certificate's name on the kit's newest roster, which has no revoked party."""
    try:
        _, roster = load_roster(kit)
    except KitError:
        return None
    return Viewer(name, roster.find(name).role) if name in roster else None


def _sources(looking: Looking, viewer: Viewer) -> Iterator[Source]:
    kit, folder = looking.kit, looking.folder
    if looking.target is not None:
        yield status_source(looking.target)
    if looking.logs:
        yield logs_source(looking.logs, kit)
    if viewer.role == "client":
        yield holder_source(viewer.name, kit, *_own_files(looking, viewer), looking.budget)
        return
    states = () if folder is None else folder.rulers
    if looking.state is not None:
        states = (looking.state,)
    if states:
        yield course_source(kit, *states)
    if folder is not None:
        yield plan_source(folder.plan)
        yield report_source(folder.report / METRICS)
    beside_kit = default_ledger(kit, viewer.name).parent
    ledgers = looking.ledger or (None if folder is None else beside_kit)
    if ledgers is not None:
        yield ledgers_source(ledgers)


def _own_files(looking: Looking, viewer: Viewer) -> tuple[Path, Path]:
    kit, folder = looking.kit, looking.folder
    own = default_state(kit, viewer.name) if folder is None else folder.state(viewer.name)
    return looking.state or own, looking.ledger or default_ledger(kit, viewer.name)


@contextmanager
def show_beside(looking: Looking) -> Iterator[None]:
    """Shows a run while the `with` lasts, and prints its address; raises as `dashboard` does."""
    with dashboard(looking) as address:
        typer.echo(f"dashboard: {address}")
        yield
