"""Decides who may look at a dashboard: a token on loopback, a client certificate elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secureps.crypto.identity import Role
from secureps.service.metrics import refuse_host

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
        hosts: the server's names for browsers (`service.metrics`).
        secured: connections are mutual TLS.
        viewer: the holder of the token; None if certificates decide.
    """

    def __init__(self, hosts: frozenset[str], secured: bool, viewer: Viewer | None) -> None:
        self._hosts = hosts
        self._origins = frozenset(f"http{'s' if secured else ''}://{host}" for host in hosts)
        self._viewer = viewer
        self._session = secrets.token_urlsafe(TOKEN_BYTES)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)

    def enter(self, token: str) -> str | None:
        """Exchanges the token, once, for the content of a cookie; None for anything else."""
        if self._viewer is None or not self.token or not _same(token, self.token):
            return None
        self.token = ""
        return self._session

    def find_viewer(self, session: str | None) -> Viewer | None:
        if session is None or not _same(session, self._session):
            return None
        return self._viewer

    def find_objection(self, headers: Mapping[str, str], hosts: Sequence[str], target: str) -> str:
        """Returns why a request is refused, or nothing; names of headers are in lower case."""
        if why := refuse_host(hosts, target, self._hosts):
            return why
        if headers.get("sec-fetch-site", OWN) not in (OWN, NOBODYS):
            return "another site's page asks"
        if headers.get("origin", next(iter(self._origins))) not in self._origins:
            return "another site's page asks"
        return ""


def _same(given: str, known: str) -> bool:
    """Compares in constant time, so that timing does not tell where they differ."""
    return secrets.compare_digest(given.encode(errors="replace"), known.encode())
