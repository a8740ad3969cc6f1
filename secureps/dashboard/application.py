"""A dashboard of a run, served over HTTP: an entrance, a page with its files, its news.

Theory of operation. A dashboard only reads, unless it has acts. `dashboard` opens one with
a party's kit. On loopback its address has a token, which lets one browser in as that party;
elsewhere it accepts only connections with a certificate of the kit, and each party sees its own
pages. `sources` read status, journals, ledgers and audit logs again and again, and put `Facts` on a
`Board`. `observation`, `operator_view` and `holder_view` make pages of facts, and `access` decides
who may look, and does what a viewer may do. This module serves them in one thread.

What happens to one request:

    connected  `Connection` notes the certificate's name, and waits PATIENCE for a whole request
    guarded    `Guard` refuses what no viewer's browser would send
    admitted   `viewer` finds who asks, by certificate or by cookie; `enter` takes the token once
    answered   a file of `site`; or `pages` of what the board has now, for which a page asks every
               second
    acted      `act` has `access.Acts` do one act, in another thread

What survives a kill: nothing here, because sources read everything again. Acts are in journals or
in signed lines, durable before the act. A new process has a new token and a new cookie.

Guards. `Access.find_objection` stops another site's page, and a page whose name points at loopback
(DNS rebinding). HEADERS keep scripts of others out, and nothing is cached. `pages` shows names only
to viewers who may see them, and a client's own page only to that client. LONGEST, PATIENCE and OPEN
stop strangers who would fill the memory or all connections: if there are too many, the oldest ends,
first among those without an answer. Nothing is logged, so that strangers cannot fill the log.

Look first at `pages` for what a viewer sees, and at `sources` for a new fact.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import typer
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

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
from secureps.errors import ConfigError, KitError, OperatorError, SecurepsError
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
    line = bind(looking.listen)
    host, port = looking.listen.rpartition(":")[0], line.getsockname()[1]
    hosts = (host, tls_name(name)) if secured else LOOPBACK
    named = host_names(hosts, port, 443 if secured else 80)
    access = Access(named, secured is not None, None if secured else viewer)
    app = application(board, access, partial(_party, looking.kit), f"secureps-{port}", acts)
    with serve(app, line, secured), feed(board, sources):
        entrance = f"/enter?token={access.token}"
        yield f"https://{host}:{port}/" if secured else f"http://{host}:{port}{entrance}"


@contextmanager
def show_beside(looking: Looking) -> Iterator[None]:
    """Shows a run while the `with` lasts, and prints its address; raises as `dashboard` does."""
    with dashboard(looking) as address:
        typer.echo(f"dashboard: {address}")
        yield


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
    return server_context(TlsFiles(looking.kit, viewer.name, ca, passphrases=looking.passphrases))


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
"""The most bytes of a request's headers and query, or of an incomplete request."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer. Scripts and styles are files of this server alone."""

STRANGER = "Open the address that secureps printed when it began: its token lets in once.\n"


def application(
    board: Board,
    access: Access,
    party: Callable[[str], Viewer | None],
    cookie: str,
    acts: Acts | None = None,
) -> ASGIApp:
    """Builds the application.

    Args:
        party: returns the viewer with a certificate of this name, on the newest roster.
        cookie: its name, by which browsers tell servers of one host apart.
        acts: that viewers may do, if any.
    """

    def viewer(request: Request) -> Viewer | None:
        name = request.scope.get("state", {}).get("party")
        if isinstance(name, str):
            return party(name)
        return access.find_viewer(request.cookies.get(cookie))

    async def enter(request: Request) -> Response:
        if request.method == "HEAD":  # a link preview must not use the token up
            return PlainTextResponse(STRANGER, 401)
        session = access.enter(request.query_params.get("token", ""))
        if session is None and viewer(request) is None:
            return PlainTextResponse(STRANGER, 401)
        answer = RedirectResponse("/", 303)
        if session is not None:
            answer.set_cookie(cookie, session, httponly=True, samesite="strict")
        return answer

    async def news(request: Request) -> Response:
        who = viewer(request)
        if who is None:
            return PlainTextResponse(STRANGER, 401)
        return Response(pages(board.facts, who), media_type="application/json")

    async def act(request: Request) -> Response:
        who = viewer(request)
        if who is None:
            return PlainTextResponse(STRANGER, 401)
        if acts is None or not acts.may(who) or "origin" not in request.headers:
            return PlainTextResponse("this is not yours to do\n", 403)
        try:
            try:
                of = dict(request.query_params)
                text = await asyncio.to_thread(acts.do, request.path_params["what"], of)
            finally:
                done = acts.done
                board.put(lambda facts: replace(facts, acts=done))
        except SecurepsError as error:
            return PlainTextResponse(f"{error}\n", 409)
        return PlainTextResponse(text)

    mimetypes.add_type("text/javascript", ".js")  # the registry of Windows may say otherwise
    site = StaticFiles(packages=[("secureps.dashboard", "site")], html=True)

    async def file(scope: Scope, receive: Receive, send: Send) -> None:
        known = viewer(Request(scope)) is not None
        await (site if known else PlainTextResponse(STRANGER, 401))(scope, receive, send)

    routes = [
        Route("/enter", enter, methods=["GET"]),
        Route("/news", news, methods=["GET"]),
        Route("/act/{what}", act, methods=["POST"]),
        Mount("/", file),
    ]
    return Guard(Starlette(routes=routes), access)


class Guard:
    """Refuses requests that no viewer's browser would send, before other code reads them."""

    def __init__(self, inner: ASGIApp, access: Access) -> None:
        self._inner = inner
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        headers = Headers(scope=scope)
        long = sum(
            map(len, (scope["query_string"], *(part for each in headers.raw for part in each)))
        )
        if long > LONGEST:
            await PlainTextResponse("this is longer than any page asks\n", 431)(
                scope, receive, told
            )
            return
        entrance = scope["path"] == "/enter"  # its link may have been clicked on any page
        why = self._access.find_objection(
            {name: value for name, value in headers.items() if not (entrance and name in _SITE)},
            headers.getlist("host"),
            scope["path"],
        )
        if why:
            await PlainTextResponse(f"{why}\n", 403)(scope, receive, told)
            return
        await self._inner(scope, receive, told)


_SITE = ("sec-fetch-site", "origin")


# --- connections -----------------------------------------------------------------

PATIENCE = 10.0
"""Seconds in which a request must be complete."""
OPEN = 64
"""The most open connections."""
GRACE = 1
"""Seconds for answers to finish when the server ends."""


class Connection(H11Protocol):
    """One connection; a client that is slower than PATIENCE loses it."""

    since = 0.0
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes its certificate's name, and ends another connection if there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.since = self.loop.time()
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "party": _common_name(certificate)}
        others = {each for each in self.connections if isinstance(each, Connection)} - {self}
        if len(others) >= OPEN:  # strangers get short answers: a long one goes to a viewer
            min(others, key=lambda each: (each.answering, each.since)).transport.abort()
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    @property
    def answering(self) -> bool:
        """True if an answer is under way, which an act may take long to give."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        if self.answering or self.transport.is_closing():
            self._forget()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(PATIENCE, self.transport.abort)

    def _forget(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def _common_name(certificate: dict[str, tuple[tuple[tuple[str, str], ...], ...]]) -> str:
    parts = (part for each in certificate.get("subject", ()) for part in each)
    return next((value for name, value in parts if name == "commonName"), "")


def bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise OperatorError(f"dashboard: cannot listen on {listen}: {error}") from None


@contextmanager
def serve(app: ASGIApp, line: socket.socket, secured: ssl.SSLContext | None) -> Iterator[None]:
    logging.getLogger("uvicorn.error").disabled = True  # else strangers could fill the log
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # they would let a caller claim another address
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=LONGEST,
        timeout_graceful_shutdown=GRACE,
    )
    config.load()
    config.ssl = secured
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([line],), name="dashboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        line.close()


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
