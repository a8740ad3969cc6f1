"""`secureps takeover`: has a standby on this machine take over from its coordinator.

Whoever has the coordinator's kit may order it: the standby is asked over a connection of that kit.
"""

from __future__ import annotations

from pathlib import Path

from secureps.config.sections import parse, read_toml
from secureps.config.serve import ServeSection
from secureps.messages.following import TakeOver
from secureps.messages.run import COORDINATOR
from secureps.run.health import PATIENCE, local, written
from secureps.service.process import link_of
from secureps.store.keyring import load_private, load_public
from secureps.store.kit_files import Passphrases
from secureps.wire.grpc.authentication import REQUEST_DOMAIN
from secureps.wire.grpc.client import GrpcTransport


def take_over(config: Path, passphrase_fd: int | None = None) -> None:
    """Asks the standby that a file configures to take over; it does so at once, or says why not.

    Args:
        passphrase_fd: an open file whose first line is the passphrase of its private keys.

    Raises:
        ConfigError, KitError: the file or its kit is not good.
        Refused: it does not have all that was acknowledged, or is the coordinator already.
        Unreachable: nobody answers.
    """
    section = parse(ServeSection, read_toml(config), str(config))
    base = config.parent.resolve()
    kit, state = (base / section.kit).resolve(), (base / section.state).resolve()
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
    finally:
        transport.close()
