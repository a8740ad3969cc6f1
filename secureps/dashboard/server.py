"""Serves an application on an address, from a thread of its own.

Connections that say nothing, or say it slowly, are let go, and for one too many the oldest goes, of
those first that are answered nothing: nothing that somebody sends or leaves out keeps others from
being served. Nothing is logged.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from secureps.errors import OperatorError

PATIENCE = 10.0
"""Seconds in which a request has to come whole."""
OPEN = 64
"""Connections at a time."""
LONGEST = 16384
"""Bytes of a request that is not whole yet."""
GRACE = 1
"""Seconds in which answers may end when the server does; streams do not end by themselves."""


class Connection(H11Protocol):
    """One connection; who is slower than PATIENCE is let go."""

    since = 0.0
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes whose certificate it has, and ends another connection for one too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.since = self.loop.time()
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "party": _common_name(certificate)}
        others = {each for each in self.connections if isinstance(each, Connection)} - {self}
        if len(others) >= OPEN:  # what strangers are told is short: who is answered is no stranger
            min(others, key=lambda each: (each.answering, each.since)).transport.abort()
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Takes bytes in; a request that is not whole by its deadline is none."""
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the deadline."""
        self._forget()
        super().connection_lost(exc)

    @property
    def answering(self) -> bool:
        """Whether an answer is under way, such as a stream of news."""
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
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            if name == "commonName":
                return value
    return ""


def bound(listen: str) -> socket.socket:
    """A socket that listens on HOST:PORT; port 0 takes a free one. OperatorError if it cannot."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise OperatorError(f"dashboard: cannot listen on {listen}: {error}") from None


@contextmanager
def serving(app: ASGIApp, line: socket.socket, secured: ssl.SSLContext | None) -> Iterator[None]:
    """Answers on a bound socket while the `with` lasts."""
    logging.getLogger("uvicorn.error").disabled = True  # what callers send fills nobody's log
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a caller's word for who it is
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
