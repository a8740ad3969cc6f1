"""`secureps preflight`, `health` and `takeover`: checks and orders on a party's own machine.

`preflight` says whether a party could take part from this machine: each check prints one line with
what to do, and changes nothing. `health` asks a server whether it can work, for probes in its pod:
over mutual TLS, because kubelet's own probes show no certificate. `takeover` makes a standby take
over from its coordinator; the coordinator's kit is required.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from secureps.config.sections import parse, read_toml
from secureps.config.site_files import ServeSection
from secureps.crypto.roster import Certificate
from secureps.errors import OperatorError, SecurepsError, Unreachable
from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR, is_address, is_on_loopback, split_addresses
from secureps.run.options import PassphraseFd
from secureps.run.status_client import StatusClient
from secureps.service.process import make_link
from secureps.store.keyring import (
    PublicKit,
    certificate_end,
    default_state,
    load_credentials,
    load_holder_secret,
    load_private,
    load_public,
)
from secureps.store.kit_files import Passphrases
from secureps.wire.grpc.framing import DIRECT, find_way
from secureps.wire.grpc.servers import ask
from secureps.wording import duration, named, printable, size

Outcome = Literal["ok", "look", "no"]

SOON = timedelta(hours=6)
"""The time before an expiry in which a check warns of it."""

SLOW = 1.0
"""Seconds to write PROBE bytes above which a disk would delay every version."""
PROBE = 4 << 20
LEAST = 1 << 30
"""Free bytes of a disk below which a check warns."""

APART, FAR_APART = 30.0, 600.0
"""Seconds between this clock and the coordinator's above which a check warns, and fails."""

TRIED = 5.0
"""Seconds to wait for a connection."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `no` prevents this party from taking part, `look` is a warning."""

    what: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Departure:
    """The party that would take part, and its files.

    Args:
        server: HOST:PORT of the coordinator, and after a comma its standby's; None: not dialled.
        state: the party's state folder; None: the default one.
        site, plan: files; if both are given, the plan is checked against the site's policy.
    """

    kit: Path
    name: str
    server: str | None = None
    state: Path | None = None
    site: Path | None = None
    plan: Path | None = None
    ca_fingerprint: str | None = None
    insecure: bool = False
    passphrases: Passphrases = field(default_factory=Passphrases)


def preflight(whom: Departure) -> Iterator[Finding]:
    """Yields one check after another; without a kit no other check makes sense."""
    try:
        public = load_public(whom.kit, whom.ca_fingerprint)
        own = public.roster.find(whom.name)
    except SecurepsError as error:
        yield Finding("kit", "no", printable(str(error)))
        return
    yield Finding("kit", "ok", f"{own.role} {own.name} is on roster {public.roster.number}")
    yield _try_check("keys", lambda: _check_keys(whom, own))
    expires = public.roster.expires
    end = datetime.fromtimestamp(expires, UTC) if expires else None
    yield _check_end("roster", end, "secureps roster renew")
    # The TLS check advises `keys rotate`, which a party without any keys cannot do.
    if not whom.insecure and (whom.kit / "private" / whom.name).is_dir():
        yield _try_check("TLS", lambda: _check_certificate(whom, public))
    if whom.server is not None:
        yield from _check_servers(whom, whom.server)
    yield _try_check("disk", lambda: _check_disk(whom.state or default_state(whom.kit, whom.name)))
    yield _try_check("kernels", _check_kernels)
    if whom.site is not None and whom.plan is not None:
        plan, site = whom.plan, whom.site
        yield _try_check("site", lambda: _check_site(plan, site))


def _try_check(what: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except (SecurepsError, OSError) as error:
        return Finding(what, "no", printable(str(error)))


def _check_keys(whom: Departure, own: Certificate) -> Finding:
    load_private(whom.kit, whom.name, whom.passphrases)
    if own.cipher_key_digest:
        load_holder_secret(whom.kit, whom.name, whom.passphrases)
    return Finding("keys", "ok", "its private keys are here, and are those on the roster")


def _check_end(what: str, end: datetime | None, how: str) -> Finding:
    if end is None:
        return Finding(what, "ok", "it holds for ever")
    now, mend = datetime.now(UTC), f"`{how}`, at whoever issues keys"
    text = f"it holds until {end:%Y-%m-%d %H:%M} UTC"
    if now >= end:
        clock = f"or this machine's clock is wrong, by which it is {now:%Y-%m-%d %H:%M} UTC"
        return Finding(what, "no", f"{text}: {mend}; {clock}")
    if end - now < SOON:
        return Finding(what, "look", f"{text}: {mend}")
    return Finding(what, "ok", text)


def _check_certificate(whom: Departure, public: PublicKit) -> Finding:
    load_credentials(whom.kit, whom.name, public.ca, whom.passphrases)
    return _check_end("TLS", certificate_end(whom.kit, whom.name), "secureps keys renew")


def _check_servers(whom: Departure, server: str) -> Iterator[Finding]:
    """Dials the coordinator's addresses, one of which has to answer, and then every shard."""
    reached = [_check_address(whom, COORDINATOR, each) for each in split_addresses(server)]
    if all(each.outcome == "no" for each in reached):
        yield from reached
        return
    yield from (replace(each, outcome="look") if each.outcome == "no" else each for each in reached)
    status: Status | None = None
    seconds = 0.0

    def ask_status() -> Finding:
        nonlocal status, seconds
        client = StatusClient(whom.kit, whom.name, server, whom.insecure, whom.passphrases)
        began = time.perf_counter()
        with closing(client):
            status = client.status()
        elapsed = time.perf_counter() - began
        seconds, took = time.time() - elapsed / 2, duration(elapsed)
        run = f"run {status.run.hex()[:16]}" if status.run else "no run is founded yet"
        over = f", over: {printable(status.finished)}" if status.finished else ""
        return Finding("answer", "ok", f"it knows {whom.name}, after {took}: {run}{over}")

    yield _try_check("answer", ask_status)
    if status is not None and status.clock > 0:
        yield _check_clock(seconds - status.clock)
    for shard in () if status is None else status.shards:
        yield _check_address(whom, shard.name, shard.advertise)


def _check_clock(ahead: float) -> Finding:
    apart = abs(ahead)
    way = "ahead of" if ahead > 0 else "behind"
    text = f"this machine's is {duration(min(apart, 1e9))} {way} the coordinator's"
    if apart <= APART:
        return Finding("clock", "ok", text)
    mend = "certificates and rosters hold by either: set the wrong one, as by NTP"
    return Finding("clock", "look" if apart <= FAR_APART else "no", f"{text}: {mend}")


def _check_address(whom: Departure, party: str, address: str) -> Finding:
    return _try_check(printable(party), lambda: _connect(whom, party, printable(address)))


def _connect(whom: Departure, party: str, address: str) -> Finding:
    """Connects to a server as a run would: directly, or through the proxy of the environment."""
    began = time.perf_counter()
    if not is_address(address):
        raise OperatorError(f"{address} is not HOST:PORT")
    proxy, option = find_way(address)
    at = f"the proxy {proxy}" if proxy else address
    way = f"through {at}" if proxy else "directly"
    host, _, port = (proxy or address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TRIED).close()
    except (OSError, UnicodeError) as error:
        why = f"nothing came within {TRIED:g} s"
        why = str(error) if isinstance(error, UnicodeError) else error.strerror or why
        text = f"{at} cannot be reached ({why}): is it up, its port open to this machine"
        if isinstance(error, socket.gaierror | UnicodeError):
            text = f"nobody knows an address of {host} ({why}): is its name right"
        raise OperatorError(f"{text}, and https_proxy as this network needs it?") from None
    if proxy:  # only gRPC's own handshake with the server shows whether the proxy lets it pass
        link = make_link(whom.kit, whom.name, load_public(whom.kit).ca, False, whom.passphrases)
        with link.channel(party, address, (option,)) as channel:
            ask(channel, TRIED, f"{party} at {address} {way}")
    took = duration(time.perf_counter() - began)
    return Finding(printable(party), "ok", f"{address} takes a connection within {took}, {way}")


def _check_disk(state: Path) -> Finding:
    """Writes PROBE bytes to the disk of the state folder, and removes them."""
    folder = state
    while not folder.exists():
        folder = folder.parent
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(PROBE))
            os.fsync(file.fileno())
    except OSError as error:
        return Finding("disk", "no", f"{folder} cannot be written: {error.strerror}")
    took, free = time.perf_counter() - began, shutil.disk_usage(folder).free
    text = f"{size(free)} are free for {state}; {size(PROBE)} are durable after {duration(took)}"
    if took > SLOW:
        return Finding("disk", "look", f"{text}: every version waits for it; is it a network's?")
    if free < LEAST:
        return Finding("disk", "look", f"{text}: `secureps check PLAN` says what a plan needs")
    return Finding("disk", "ok", text)


def _check_kernels() -> Finding:
    # `secureps health`, which probes run all the time, does without numba.
    from secureps.compiled import has_all_kernels, kernel_folder, missing

    if missing:
        text = f"numba cannot be imported ({missing}): NumPy seals many times slower"
        return Finding("kernels", "look", f"{text}; pip install numba")
    if has_all_kernels():
        return Finding("kernels", "ok", f"they are compiled, in {kernel_folder()}")
    return Finding("kernels", "look", "the first update compiles them: `secureps warm` does before")


def _check_site(plan: Path, site: Path) -> Finding:
    from secureps.run.check import check_site, is_accepted

    verdicts = check_site(plan, site)
    if is_accepted(verdicts):
        return Finding("site", "ok", f"{site} allows {plan}")
    refused = named([each.key for each in verdicts if each.objection])
    return Finding("site", "no", f"{site} refuses {plan} by {refused}: `secureps check --site`")


# --- `secureps health` and `secureps takeover`: ask a server on this machine -------

PATIENCE = 10.0
"""Seconds that an answer may take."""

_READY = "secureps_ready 1.0"


def health(config: Path) -> bool:
    """Asks the server that a file configures, on this machine, whether it can work.

    A key holder has no port, so its metrics are read instead. Raises ConfigError or KitError for a
    bad file or kit, Unreachable or OperatorError if the server does not answer.
    """
    section, kit, state = read_config(config)
    public = load_public(kit, section.ca_fingerprint)
    if public.roster.find(section.name).role == "holder":
        return _READY in _fetch_metrics(section, state)
    address = dialable(read_address(state / "address"))
    link = make_link(kit, section.name, public.ca, section.insecure)
    with link.channel(section.name, address, (DIRECT,)) as channel:
        return ask(channel, PATIENCE, f"{section.name} at {address}")


def print_health(
    config: Annotated[
        Path, typer.Argument(metavar="FILE", help="What the server was started with.")
    ],
    alive: Annotated[
        bool, typer.Option("--alive", help="Any answer will do, also that it cannot work yet.")
    ] = False,
) -> None:
    """`health` ends with status 1 if the server does not answer, or cannot work yet."""
    ready = health(config)
    typer.echo("it can work" if ready else "it cannot work yet")
    if not ready and not alive:
        raise typer.Exit(1)


def read_config(config: Path) -> tuple[ServeSection, Path, Path]:
    """Reads a server's file (ConfigError); returns it with the paths of its kit and its state."""
    section, base = parse(ServeSection, read_toml(config), str(config)), config.parent.resolve()
    return section, (base / section.kit).resolve(), (base / section.state).resolve()


def _fetch_metrics(section: ServeSection, state: Path) -> str:
    if section.metrics is None or not is_on_loopback(section.metrics):
        raise OperatorError(
            f"{section.name} has no port that says how it is: give it metrics on loopback, "
            'metrics = "127.0.0.1:7700"'
        )
    address = read_address(state / "metrics-address")
    try:
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with directly.open(f"http://{address}/metrics", timeout=PATIENCE) as answer:
            text: bytes = answer.read()
    except OSError as error:
        raise OperatorError(f"{section.name} does not answer at {address}: {error}") from None
    return text.decode()


def read_address(path: Path) -> str:
    """Reads an address that a server wrote into its state folder; OperatorError if it has not."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}: its server has not begun") from None


def dialable(address: str) -> str:
    """Replaces the host "all addresses", on which a server listens, by loopback."""
    host, _, port = address.rpartition(":")
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"{own.get(host, host)}:{port}"


def take_over(
    config: Annotated[
        Path, typer.Argument(metavar="FILE", help="What the standby was started with.")
    ],
    passphrase_fd: PassphraseFd = None,
) -> None:
    """The coordinator ends, if it is still running."""
    # Raises Refused if the standby lacks acknowledged records or already rules.
    section, kit, state = read_config(config)
    load_public(kit, section.ca_fingerprint)
    server = dialable(read_address(state / "address"))
    passphrases = Passphrases(passphrase_fd)
    with closing(StatusClient(kit, section.name, server, section.insecure, passphrases)) as own:
        try:
            own.take_over()
        except Unreachable as error:
            raise OperatorError(
                f"the standby of {config} does not run here: {error}; start it, "
                "or say this where it runs"
            ) from None
    typer.echo(
        "the standby takes over: the run goes on once all shards and enough key holders obey it; "
        "secureps status says whom it waits for"
    )
