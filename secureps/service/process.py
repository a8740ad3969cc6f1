"""Runs one party as an operating-system process, from its journal to its end.

It opens the journal, the loop, the transport, the executor and perhaps a server, and closes them
when the machine halts, something fails or a signal comes. A killed process starts again from its
journal, on the same port.

`KitWatch` and `ActWatch` tell the machine when files change while the party runs: the public part
of its kit, and the acts of a data holder, which the dashboard writes into the state folder.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secureps import __version__
from secureps.crypto.identity import Identity, PublicIdentity
from secureps.crypto.roster import Roster
from secureps.errors import (
    ConfigError,
    DiskFailed,
    KitError,
    OperatorError,
    SecurepsError,
    UnknownParty,
    Unsigned,
)
from secureps.exhaustion import (
    FIRST_THREADS,
    Starved,
    demand_descriptors,
    name_limit,
    naming_limits,
    probe,
    unstarted_threads,
)
from secureps.extras import from_extras
from secureps.messages.format import FORMAT
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.messages.records import RefusedRequests
from secureps.messages.requests import Trouble
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import WORKER, Halt, KitRead
from secureps.service.environment import Environment, Meter, Stores
from secureps.service.executor import Executor
from secureps.service.logs import tell
from secureps.service.loop import RealLoop
from secureps.service.malloc import give_back_payloads, keep_pieces
from secureps.service.shutdown import Shutdown
from secureps.store.act_lines import FILE, ActLine, read_acts
from secureps.store.atomic_file import replace_text, secure_folder
from secureps.store.backup import demand_owner
from secureps.store.durability import oldest_wait
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.journal_rows import NO_SPACE
from secureps.store.keyring import TlsFiles, read_offered_keys, roster_file, untimely_certificate
from secureps.store.kit_files import Passphrases, read
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.admission import Authenticate
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN, Link, Tls
from secureps.wire.grpc.servers import Server
from secureps.wire.transport import Endpoint

if TYPE_CHECKING:
    from secureps.service.tracing import Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
"""OpenTelemetry's variables; tracing needs one of them."""

EXPORTERS = ("otlp", "console")

CALL_TIMEOUT = 30.0
"""Seconds after which an unanswered call counts as lost and is repeated."""

GRACE = 1.0
"""Seconds that a stopping server gives its open requests."""

LAST_RESORT = 3.0
"""Seconds after a signal, or an exhausted limit, at which the process ends in any case."""


CERTIFICATE_SECONDS = 1.0
"""Seconds between two checks of the certificates."""

STILL = 20.0
"""Seconds of one event, or of one read or write, after which the party counts as hanging."""

PROBE_SECONDS = 5.0
"""Seconds between two probes that open a file and start a thread."""


class Probing:
    """Probes the limits of one process; one failure is ignored, two in a row are raised.

    `stalled` returns a text if the process's connections have broken for good, else "".
    """

    def __init__(self, stalled: Callable[[], str] = str) -> None:
        self._stalled = stalled
        self._failed = False
        self._starting = frozenset[threading.Thread]()

    def look(self) -> None:
        """Probes; raises the second failure in a row. Starved also means calls that hang."""
        before, self._starting = self._starting, unstarted_threads()
        try:
            if hung := before & self._starting:  # the starting thread would wait for ever
                raise Starved(f"thread {min(hung, key=id).name} was started, and never ran")
            probe()
            if text := self._stalled():  # after SIGCONT this may be a false alarm, once
                raise Starved(text)
        except (OSError, RuntimeError, MemoryError, Starved) as error:
            if self._failed and name_limit(error):
                raise
            self._failed = True
        else:
            self._failed = False


class Hangs:
    """Notices when a party hangs: its loop is stuck in one event, or its disk does not answer.

    Such a process looks alive, because gRPC has its own threads. So the main thread looks, and
    tells the log, `secureps health`, and by `report` the coordinator.
    """

    def __init__(
        self, party: str, loop: RealLoop, executor: Executor, report: Callable[[str], object]
    ) -> None:
        self._party, self._loop, self._executor = party, loop, executor
        self._report = report
        self._said = ""

    def look(self) -> None:
        stands = self._executor.begun and self._loop.age > STILL  # a long journal is no hang
        text = f"hangs: it has been at one event for more than {STILL:g} s" if stands else ""
        if oldest_wait() > STILL:
            text = (
                f"hangs: a read or write of its disk has not ended in {STILL:g} s; look at its "
                "disk or its network file system"
            )
        if text != self._said:
            self._said = text
            if text:
                tell(self._party, "Hangs", text, logging.WARNING)
            else:
                tell(self._party, "GoesOn", "goes on")
            self._executor.hangs(text)
        if text and stands:
            self._report(text)


Serve = Callable[[Link, Endpoint, str, Authenticate], Server]
"""Makes a server from its link, its endpoint, HOST:PORT, and the check of callers."""


@dataclass(frozen=True)
class Party:
    """The party of a process."""

    name: str
    identity: Identity
    link: Link
    roster: Roster
    state: Path
    kit: Path

    @property
    def role(self) -> str:
        return self.roster.find(self.name).role if self.name in self.roster else "client"

    def sign(self, request: bytes) -> bytes:
        return self.identity.sign(REQUEST_DOMAIN, request)


def make_link(
    kit: Path,
    name: str,
    ca: PublicIdentity,
    insecure: bool,
    passphrases: Passphrases | None = None,
) -> Link:
    """Makes a party's link: with its kit's certificates, or in the clear on loopback."""
    return PLAINTEXT if insecure else Tls(TlsFiles(kit, name, ca, passphrases=passphrases))


def tracing(party: str, role: str, environment: Mapping[str, str] | None = None) -> Tracing | None:
    """Sets up a party's tracing if OpenTelemetry's variables ask for it.

    The variables may be meant for other programs of the machine: a wrong value is only logged.
    """
    asked = os.environ if environment is None else environment
    exporter = asked.get(EXPORTER, "otlp" if any(map(asked.get, ENDPOINTS)) else "none").strip()
    if asked.get(DISABLED, "").strip().lower() == "true" or exporter in ("", "none"):
        return None
    try:
        if exporter not in EXPORTERS:
            known = ", ".join(EXPORTERS)
            raise ConfigError(f"{EXPORTER}: {exporter!r} is not known here; known are {known}")
        with from_extras():
            from secureps.service.tracing import Tracing

            return Tracing.exported(party, role, exporter)
    except Exception as error:  # a library refuses the value of a variable
        tell(party, "NotTraced", f"no traces: {error}", logging.WARNING)
        return None


def await_certificates(kit: Path, name: str) -> None:
    """Waits while a party's certificates are not valid by this machine's clock.

    A machine without a battery starts with a wrong year, until NTP sets its clock.
    """
    told = ""
    while text := untimely_certificate(kit, name):
        if text != told:
            how = "waits until the clock is set, or the issuer's public/ is fetched with a new one"
            tell(name, "Untimely", f"{text}: {how} (secureps keys renew)", logging.WARNING)
            told = text
        time.sleep(CERTIFICATE_SECONDS)


def authenticator(roster: Callable[[], Roster]) -> Authenticate:
    """Makes a function that verifies a request's signature by the server's newest roster."""

    def authenticate(party: str, request: bytes, signature: bytes) -> None:
        known = roster()
        if party not in known:
            raise UnknownParty(
                f"nobody named {party[:80]!r} is on the roster, which is number {known.number}: it "
                "was revoked, or comes with a later one that its server does not have yet"
            )
        try:
            known.identity(party).verify(REQUEST_DOMAIN, request, signature)
        except Unsigned:
            raise Unsigned(
                f"the signature is not {party}'s: take the kit that the CA made for this run"
            ) from None

    return authenticate


def turn(loop: RealLoop, executor: Executor) -> None:
    try:
        loop.run()
    except BaseException as error:  # the party would do nothing more, and look alive
        executor.fail(error)


def run_process(
    party: Party,
    addresses: Mapping[str, str],
    build: Callable[[Stores, Environment], Executor],
    serve: Serve | None = None,
    listen: str = "",
) -> Halt:
    """Runs one party until it halts (the result says why), a signal stops it, or an error ends it.

    Args:
        addresses: of the servers that the party knows from the start, by name.
        serve: makes the party's server, if it is one. The server binds `listen` (HOST:PORT, from
            `choose_address`), and the process writes it to `STATE/address` once it answers.
    """
    secure_folder(party.state)
    if serve is not None:
        demand_descriptors(len(party.roster.certificates))
    try:
        with naming_limits():
            probe(FIRST_THREADS)
            with Shutdown() as shutdown:
                halt = _run(party, addresses, build, serve, listen, shutdown)
    except OSError as error:
        kind = DiskFailed if error.errno in NO_SPACE else OperatorError
        raise kind(f"{error.filename or party.state}: {error.strerror or error}") from error
    if halt.error is not None:
        raise halt.error(halt.reason)
    return halt


def _run(
    party: Party,
    addresses: Mapping[str, str],
    build: Callable[[Stores, Environment], Executor],
    serve: Serve | None,
    listen: str,
    shutdown: Shutdown,
) -> Halt:
    server: Server | None = None

    def refused() -> tuple[RefusedRequests, ...]:
        return () if server is None else server.refused()

    own_journal = SqliteJournal(party.state / "journal.db")
    beats = party.role in ("shard", "holder")  # a client's machine sends its own heartbeats
    way = GrpcTransport(party.link, party.name, party.sign, addresses, CALL_TIMEOUT, beats)
    with (
        closing(DatedJournal(own_journal, party.name, party.role, time.time, refused)) as journal,
        closing(way) as transport,
    ):
        demand_owner(party.state, party.role, party.name)
        if party.role != "client":  # a data holder's terminal shows only its script's progress
            text = f"runs secureps {__version__}, format {FORMAT}"
            tell(party.name, "Version", text, fields={"version": __version__, "format": FORMAT})
        loop = RealLoop(journal.last)
        jitter = random.SystemRandom()
        traces = tracing(party.name, party.role)
        meter = Meter() if traces is None else traces
        around = Environment(transport, loop, lambda: jitter.uniform(0.5, 1.5), meter)
        stores = Stores(journal, DiskSpool(party.state / "spool"), party.state)
        executor = build(stores, around)
        executor.halted.add_done_callback(lambda _: shutdown.ring())

        def report(text: str) -> None:
            if party.role in ("shard", "holder", "client"):
                transport.call(COORDINATOR, Trouble(party.name, text))

        thread = threading.Thread(target=turn, args=(loop, executor), name="loop", daemon=True)
        before = threading.excepthook
        threading.excepthook = partial(_fail_on_limit, executor, before)
        try:
            (keep_pieces if serve is None else give_back_payloads)()  # before threads start
            executor.start()
            KitWatch(party.name, executor, party.kit).start()
            if party.role == "client":
                ActWatch(party.name, executor, party.state, party.identity.public).start()
            thread.start()
            if serve is not None:

                def roster() -> Roster:
                    followed = executor.roster or party.roster
                    return max(party.roster, followed, key=lambda each: each.place)

                server = serve(party.link, executor, listen, authenticator(roster))
                server.start()
                replace_text(party.state / "address", f"{listen}\n", 0o600)
                known = {"address": listen}
                tell(party.name, "Listening", f"listens on {listen}", fields=known)
            probing, hangs = Probing(transport.stalled), Hangs(party.name, loop, executor, report)

            def look() -> None:
                probing.look()
                hangs.look()

            number = shutdown.wait(PROBE_SECONDS, look)
            if number is not None:
                known = {"signal": number.name}
                tell(party.name, "Signal", f"ends on {number.name}", fields=known)
                shutdown.end_within(LAST_RESORT, 0)
            else:
                executor.halted.result()
        except Exception as error:
            if limit := name_limit(error):  # closing may need a thread, and hang for want of one
                tell(party.name, "Limit", limit, logging.ERROR)
                shutdown.end_within(LAST_RESORT, 1)
            raise
        finally:
            # Answer open requests first, because `server.stop` waits for them. Work that is not
            # acknowledged may be lost here, as by a kill -9.
            executor.stop()
            if server is not None:
                server.stop(GRACE)
            loop.stop()
            if thread.is_alive():
                thread.join()
            if traces is not None:
                traces.close()
            threading.excepthook = before
    return executor.halted.result()


def _fail_on_limit(
    executor: Executor, otherwise: Callable[[Any], object], ended: threading.ExceptHookArgs
) -> None:
    """Fails the party if any thread, even one of gRPC, ended at a limit: its work is missing."""
    if name_limit(ended.exc_value) and ended.exc_value is not None:
        executor.fail(ended.exc_value)
    else:
        otherwise(ended)


@contextmanager
def choose_address(state: Path, listen: str) -> Iterator[str]:
    """Chooses HOST:PORT to listen on: the port of `listen`, or the last one, or a free one.

    While the `with` lasts a bound socket keeps the port from processes that ask for any free port.
    gRPC's server can still bind the port: two sockets with SO_REUSEADDR may be bound to one port
    until one listens (socket(7), ip(7) of Linux). Raises ConfigError if binding fails.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"listen: {listen!r} is not HOST:PORT")
    if port != "0":
        yield listen
        return
    last = state / "address"
    port = (last.read_text().strip().rpartition(":")[2] if last.is_file() else "") or "0"
    name = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((name, int(port)))
        except OSError as error:
            if port == "0":
                raise ConfigError(f"listen: cannot bind {listen}: {error}") from None
        else:  # otherwise another process has the last port, and the server will report that
            port = str(held.getsockname()[1])
        yield f"{host}:{port}"


# --- kit watch ---------------------------------------------------------------------


class _Watch(ABC):
    LOOK: float
    """Seconds between two looks."""

    def __init__(self, party: str, executor: Executor) -> None:
        self._party, self._executor = party, executor

    def start(self) -> None:
        """Looks now, and every LOOK seconds while the party runs; thread-safe."""
        self._executor.later(self._look_on)

    def once(self) -> None:
        self._executor.later(self._look)

    def _look_on(self) -> None:
        self._look()
        self._executor.later(self._look_on, self.LOOK)

    @abstractmethod
    def _look(self) -> None: ...


class KitWatch(_Watch):
    """Gives a party's state machine the date, and the kit's roster after it has changed."""

    LOOK = 5.0

    def __init__(self, party: str, executor: Executor, kit: Path) -> None:
        super().__init__(party, executor)
        self._kit = kit
        self._seen: list[tuple[int, int]] | None = None
        self._told = ""

    def _look(self) -> None:
        self._executor.post(WORKER, KitRead(time.time(), *self._read_changes()))

    def _read_changes(self) -> tuple[str, tuple[bytes, ...]]:
        """Returns the roster's text and the holders' keys if one of their files changed."""
        roster = roster_file(self._kit)
        try:
            files = [roster, *sorted((roster.parent / "holders").glob("*"))]
            seen = [(status.st_mtime_ns, status.st_size) for status in map(Path.stat, files)]
            if seen == self._seen:
                return "", ()
            self._seen = seen
            return read(roster, "").decode(errors="replace"), read_offered_keys(self._kit)
        except (OSError, KitError) as error:
            if (text := f"goes on by the roster that it has: {error}") != self._told:
                tell(self._party, "KitRead", text, logging.WARNING)
            self._told = text
            return "", ()


class ActWatch(_Watch):
    """Tells a client's machine its data holder's acts, once the client has a run."""

    LOOK = 1.0

    def __init__(self, party: str, executor: Executor, state: Path, key: PublicIdentity) -> None:
        super().__init__(party, executor)
        self._path, self._key = state / FILE, key
        self._seen: tuple[int, int, int] | None = None

    def _look(self) -> None:
        if not self._executor.run:
            return
        try:
            for line in self._read_changes():
                self._executor.post(WORKER, own_act(line))
        except (OSError, SecurepsError, ValueError) as error:
            text = f"does nothing of what its data holder wants: {error}"
            tell(self._party, "OwnAct", text, logging.WARNING)

    def _read_changes(self) -> tuple[ActLine, ...]:
        if not self._path.is_file():
            return ()
        found = self._path.stat()
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return ()
        self._seen = seen
        return read_acts(self._path.read_bytes(), self._key)


def own_act(line: ActLine) -> OwnAct:
    """Parses an act's line; ValueError if it names no deed of a client."""
    what, _, budget = line.what.partition(" ")
    return OwnAct(line.number, OwnDeed(what).value, float(budget) if budget else None)


def act_text(what: OwnDeed, budget: float | None = None) -> str:
    """Writes the text that `own_act` parses."""
    return what.value if budget is None else f"{what.value} {budget!r}"
