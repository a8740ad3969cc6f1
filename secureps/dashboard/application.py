"""A dashboard of a run, served over HTTP: an entrance, a page with its files, its news.

Theory of operation. A dashboard only reads, unless it has acts. `dashboard` opens one with
a party's kit. On loopback its address has a token, which lets one browser in as that party;
elsewhere it accepts only connections with a certificate of the kit, and each party sees its own
pages. `sources` read status, journals, ledgers and audit logs again and again, and put `Facts` on a
`Board`. `observation`, `operator_view` and `holder_view` make pages of facts, and `access` decides
who may look, and does what a viewer may do. This module answers requests, each in its own thread.

What happens to one request:

    connected  `service.web.Port` reads a whole request, and notes the certificate's name
    guarded    `access` refuses what no viewer's browser would send
    admitted   `viewer` finds who asks, by certificate or by cookie; `enter` takes the token once
    answered   a file of `site`; or `pages` of what the board has now, for which a page asks every
               second
    acted      `act` has `access.Acts` do one act

What survives a kill: nothing here, because sources read everything again. Acts are in journals or
in signed lines, durable before the act. A new process has a new token and a new cookie.

Guards. `Access.find_objection` stops another site's page, and a page whose name points at loopback
(DNS rebinding). HEADERS keep scripts of others out, and nothing is cached. `pages` shows names only
to viewers who may see them, and a client's own page only to that client. `service.web` stops
strangers who would fill the memory, all connections or the log.

Look first at `pages` for what a viewer sees, and at `sources` for a new fact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import typer

from secureps.crypto.identity import Role, tls_name
from secureps.dashboard import Json
from secureps.dashboard.access import Access, Acts, OwnActs, RunActs, Viewer, build_sender
from secureps.dashboard.observation import Facts, Seen, add_journal
from secureps.dashboard.operator_view import ROWS, officer_view, operator_view
from secureps.dashboard.sources import (
    Board,
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
from secureps.errors import ConfigError, KitError, SecurepsError
from secureps.messages.run import LOOPBACK, is_on_loopback
from secureps.run.status import StatusTarget
from secureps.run.up.folder import METRICS, RunFolder
from secureps.service.web import LENGTH, PARTY, Port, host_names
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

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# --- opening ---------------------------------------------------------------------

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
    with Port("dashboard", looking.listen, OPEN, secured) as line:
        host, port = looking.listen.rpartition(":")[0], line.server_port
        hosts = (host, tls_name(name)) if secured else LOOPBACK
        named = host_names(hosts, port, 443 if secured else 80)
        access = Access(named, secured is not None, None if secured else viewer)
        party = partial(_party, looking.kit)
        line.set_app(application(board, access, party, f"secureps-{port}", acts))
        with line.serving(), feed(board, sources):
            entrance = f"/enter?token={access.token}"
            yield f"https://{host}:{port}/" if secured else f"http://{host}:{port}{entrance}"


@contextmanager
def show_beside(looking: Looking) -> Iterator[None]:
    """Shows a run while the `with` lasts, and prints its address; raises as `dashboard` does."""
    with dashboard(looking) as address:
        typer.echo(f"dashboard: {address}")
        yield


def _secured(looking: Looking, viewer: Viewer) -> TlsFiles | None:
    """Returns the certificates of connections, if it is not on loopback; else ConfigError."""
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
    return TlsFiles(looking.kit, viewer.name, ca, passphrases=looking.passphrases)


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


# --- answers ---------------------------------------------------------------------

LONGEST = 16384
"""The most bytes of a request."""

OPEN = 64
"""The most open connections."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "content-type": "text/plain; charset=utf-8",
    "server": "secureps",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer. Scripts and styles are files of this server alone."""

SITE = Path(__file__).parent / "site"

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
"""Types of the site's files, by the ends of their names."""

Answer = tuple[int, str, dict[str, str]]
"""The status, the text and further headers of an answer."""

STRANGER = "Open the address that secureps printed when it began: its token lets in once.\n"


def application(
    board: Board,
    access: Access,
    party: Callable[[str], Viewer | None],
    cookie: str,
    acts: Acts | None = None,
) -> WSGIApplication:
    """Builds the application.

    Args:
        party: returns the viewer with a certificate of this name, on the newest roster.
        cookie: its name, by which browsers tell servers of one host apart.
        acts: that viewers may do, if any.
    """
    site = {f"/{each.name}": each for each in SITE.iterdir()}
    site["/"] = site["/index.html"]

    def viewer(asked: WSGIEnvironment) -> Viewer | None:
        if name := asked.get(PARTY):
            return party(name)
        given = (each.strip().partition("=") for each in asked.get("HTTP_COOKIE", "").split(";"))
        return access.find_viewer({name: value for name, _, value in given}.get(cookie))

    def enter(asked: WSGIEnvironment, token: str) -> Answer:
        if asked["REQUEST_METHOD"] == "HEAD":  # a link preview must not use the token up
            return 401, STRANGER, {}
        session = access.enter(token)
        if session is None and viewer(asked) is None:
            return 401, STRANGER, {}
        kept = f"{cookie}={session}; HttpOnly; Path=/; SameSite=strict"
        return 303, "", {"location": "/", **({} if session is None else {"set-cookie": kept})}

    def act(who: Viewer, what: str, of: Mapping[str, str], origin: str) -> Answer:
        if acts is None or not acts.may(who) or not origin:
            return 403, "this is not yours to do\n", {}
        try:
            try:
                return 200, acts.do(what, of), {}
            finally:
                done = acts.done
                board.put(lambda facts: replace(facts, acts=done))
        except SecurepsError as error:
            return 409, f"{error}\n", {}

    def answer(asked: WSGIEnvironment) -> Answer:
        path, method = asked["PATH_INFO"], asked["REQUEST_METHOD"]
        given = dict(parse_qsl(asked["QUERY_STRING"]))
        if asked[LENGTH] > LONGEST:
            return 431, "this is longer than any page asks\n", {}
        if why := access.find_objection(asked):
            return 403, f"{why}\n", {}
        looks = method in ("GET", "HEAD")
        if path == "/enter" and looks:
            return enter(asked, given.get("token", ""))
        if (who := viewer(asked)) is None:
            return 401, STRANGER, {}
        if path.startswith("/act/") and method == "POST":
            return act(who, path.removeprefix("/act/"), given, asked.get("HTTP_ORIGIN", ""))
        if not looks:
            return 405, "nothing can be sent here\n", {}
        if path == "/news":
            return 200, pages(board.facts, who), {"content-type": "application/json"}
        if (file := site.get(path)) is None:
            return 404, "nothing is here\n", {}
        return 200, file.read_text(), {"content-type": f"{KINDS[file.suffix[1:]]}; charset=utf-8"}

    def respond(asked: WSGIEnvironment, begin: StartResponse) -> list[bytes]:
        number, text, own = answer(asked)
        status = HTTPStatus(number)
        begin(f"{status.value} {status.phrase}", [*(HEADERS | own).items()])
        return [] if asked["REQUEST_METHOD"] == "HEAD" else [text.encode()]

    return respond


# --- pages -----------------------------------------------------------------------


def pages(facts: Facts, viewer: Viewer) -> str:
    """Builds the pages that this viewer may see, as JSON.

    A client sees its own page, and everybody the operator's if a run is shown. Viewers who see
    names also see the privacy officer's.
    """
    found: dict[str, object] = {}
    facts = replace(facts, seen=add_journal(facts.seen, facts.recalled))
    own = viewer.role == "client" and viewer.name == facts.owner
    if own and facts.own is not None:
        found["holder"] = facts.own
    if facts.asks or facts.course is not None:
        found["operator"] = operator_view(facts, viewer.sees_names)
    if viewer.sees_names:
        found["officer"] = officer_view(facts)
    if facts.acts is not None and (own if facts.owner else viewer.sees_names):
        offered = ("export",) if facts.seen.over and not own else facts.offered
        found["acts"] = {"done": facts.acts, "offered": offered, "clients": _clients(facts.seen)}
    # a text about a damaged file may name a client
    found["troubles"] = dict(facts.troubles) if own or viewer.sees_names else {}
    return json.dumps(found, default=asdict, allow_nan=False, separators=(",", ":"))


def _clients(seen: Seen) -> list[tuple[str, bool]]:
    """Lists the clients that an act may name, and whether an operator has left them out."""
    members = seen.status.members if seen.status is not None else ()
    known = ((each.name, each.state.partition(":")) for each in members[:ROWS])
    return [(name, word == OUT) for name, (word, why, _) in known if word not in GONE or why]


OUT, GONE = "left out", ("left out", "revoked")
"""States of a client that takes no part; an operator's reason follows the first."""
