"""`secureps health` and `secureps takeover`: ask a server on this machine.

`health` asks whether it can work, for probes in its pod: over mutual TLS, as others ask it, because
kubelet's own probes show no certificate. `takeover` has a standby take over from its coordinator:
whoever has the coordinator's kit may order it.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

from secureps.config.sections import parse, read_toml
from secureps.config.serve import ServeSection
from secureps.errors import OperatorError, Unreachable
from secureps.messages.requests import TakeOver
from secureps.messages.run import COORDINATOR, on_loopback
from secureps.service.process import link_of
from secureps.store.keyring import load_private, load_public
from secureps.store.kit_files import Passphrases
from secureps.wire.grpc.authentication import REQUEST_DOMAIN
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.health import ask

PATIENCE = 10.0
"""Seconds that an answer may take."""

_READY = "secureps_ready 1.0"


def health(config: Path) -> bool:
    """Asks the server that a file configures whether it can work.

    Args:
        config: the file that it was started with, on the same machine. A key holder, which has no
            port, is asked by its metrics, on loopback.
    Raises:
        ConfigError, KitError: the file or its kit is not good.
        OperatorError: nobody answers.
    """
    section, kit, state = configured(config)
    public = load_public(kit, section.ca_fingerprint)
    if public.roster.find(section.name).role == "holder":
        return _READY in _metrics(section, state)
    address = local(written(state / "address"))
    link = link_of(kit, section.name, public.ca, section.insecure)
    with link.channel(section.name, address, ()) as channel:
        try:
            return ask(channel, PATIENCE)
        except Unreachable as error:
            raise OperatorError(f"{section.name} does not answer at {address}: {error}") from None


def configured(config: Path) -> tuple[ServeSection, Path, Path]:
    """Reads a server's file (ConfigError), and where its kit and its state are."""
    section, base = parse(ServeSection, read_toml(config), str(config)), config.parent.resolve()
    return section, (base / section.kit).resolve(), (base / section.state).resolve()


def _metrics(section: ServeSection, state: Path) -> str:
    if section.metrics is None or not on_loopback(section.metrics):
        raise OperatorError(
            f"{section.name} has no port that says how it is: give it metrics on loopback, "
            'metrics = "127.0.0.1:7700"'
        )
    address = written(state / "metrics-address")
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
            text: bytes = answer.read()
    except OSError as error:
        raise OperatorError(f"{section.name} does not answer at {address}: {error}") from None
    return text.decode()


def written(path: Path) -> str:
    """Reads what a server wrote into its state folder; OperatorError if it has not begun."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}: its server has not begun") from None


def local(address: str) -> str:
    """The address at which this machine reaches a server that listens on all addresses."""
    host, _, port = address.rpartition(":")
    return (
        f"127.0.0.1:{port}" if host == "0.0.0.0" else f"[::1]:{port}" if host == "[::]" else address
    )


def take_over(config: Path, passphrase_fd: int | None = None) -> None:
    """Asks the standby that a file configures to take over; it does so at once, or says why not.

    Args:
        passphrase_fd: an open file whose first line is the passphrase of its private keys.

    Raises:
        ConfigError, KitError: the file or its kit is not good.
        Refused: it does not have all that was acknowledged, or is the coordinator already.
        OperatorError: the standby does not run on this machine.
    """
    section, kit, state = configured(config)
    public, passphrases = load_public(kit, section.ca_fingerprint), Passphrases(passphrase_fd)
    identity = load_private(kit, section.name, passphrases)
    transport = GrpcTransport(
        link_of(kit, section.name, public.ca, section.insecure, passphrases),
        section.name,
        lambda request: identity.sign(REQUEST_DOMAIN, request),
        {COORDINATOR: local(written(state / "address"))},
        PATIENCE,
    )
    try:
        transport.call(COORDINATOR, TakeOver()).result()
    except Unreachable as error:
        raise OperatorError(
            f"the standby of {config} does not run here: {error}; start it, "
            "or say this where it runs"
        ) from None
    finally:
        transport.close()
