"""An HTTP port of this process, for metrics and for dashboards: each connection has one request.

On loopback it speaks HTTP, and answers only under a name of this machine. Elsewhere it speaks
HTTPS, TLS 1.3, with callers that have a certificate of the kit's CA.

A stranger can fill neither the memory nor the table of connections: a request is short, has to be
whole within PATIENCE, and beyond the most connections the oldest one is closed, first among those
without an answer. A connection has its own thread, in which the TLS handshake runs too, so that a
slow caller delays no other. Nothing is logged, so that callers cannot fill the log.
"""

from __future__ import annotations

import io
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import IO, TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from secureps.errors import OperatorError
from secureps.store.keyring import TlsFiles
from secureps.wording import named

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

PATIENCE = 10.0
"""Seconds in which a request must be whole, and of silence after which a reader is let go."""

LONGEST = 1 << 16
"""The most bytes of a request; the rest of a longer one is not read."""

LOOK = 0.1
"""Seconds between two checks for requests that are too slow."""

LENGTH, PARTY = "secureps.length", "secureps.party"
"""Keys of an environment: the request's bytes, and the common name of the caller's certificate."""


class Port(ThreadingMixIn, WSGIServer):
    """A bound port, to be given an app by `set_app`; OperatorError, for `what`, if it is not free.

    Args:
        listen: HOST:PORT.
        most: connections at a time.
        tls: certificates for connections; None: they are in the clear.
    """

    daemon_threads = True
    request_queue_size = 128
    block_on_close = False  # its threads end after PATIENCE

    def __init__(self, what: str, listen: str, most: int, tls: TlsFiles | None) -> None:
        host, _, port = listen.rpartition(":")
        address = host.strip("[]"), int(port)
        self._most, self._lock = most, threading.Lock()
        self._tls, self._used = tls, None if tls is None else tls()
        self._context = None if tls is None else _server_context(tls)
        self._open: dict[socket.socket, float] = {}
        """When each connection began; infinite once its request is being answered."""
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            super().__init__(address, _Asked)
        except OSError as error:
            raise OperatorError(f"{what}: cannot listen on {listen}: {error}") from None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers while the `with` lasts; then the port is free."""
        thread = threading.Thread(target=self.serve_forever, args=(LOOK,), name="web", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def service_actions(self) -> None:
        with self._lock:
            late = [line for line, at in self._open.items() if at < time.monotonic() - PATIENCE]
        for line in late:
            _end(line)

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(PATIENCE)
        if self._tls is not None and (now := self._tls()) is not self._used:
            with suppress(OSError):  # a file is just being changed: the next connection reads it
                self._used, self._context = now, _server_context(self._tls)
        if self._context is not None:
            request = self._context.wrap_socket(
                request, server_side=True, do_handshake_on_connect=False
            )
        with self._lock:
            if len(self._open) >= self._most:
                oldest = min(self._open, key=self._open.__getitem__)
                del self._open[oldest]
                _end(oldest)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError:  # the caller speaks no TLS, has no certificate of the kit, or is gone
            self.shutdown_request(request)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def note_whole(self, line: socket.socket) -> None:
        """Notes that a request is whole: its answer may take long."""
        with self._lock:
            if line in self._open:
                self._open[line] = math.inf

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: a caller's errors fill no log."""


def _end(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)  # wakes its thread


class _Asked(WSGIRequestHandler):
    """One request; the end of one that is too long is missing, and only its length counts."""

    server: Port
    server_version, sys_version = "secureps", ""

    def setup(self) -> None:
        super().setup()
        head = b""
        for line in iter(lambda: self.rfile.readline(LONGEST), b""):
            head += line
            if len(head) > LONGEST or not line.strip():
                break
        else:  # the caller is gone
            head = b""
        self._length, self.rfile = len(head), io.BytesIO(head)
        self.server.note_whole(self.connection)

    def get_environ(self) -> WSGIEnvironment:
        environ = super().get_environ()
        environ[LENGTH] = self._length
        if isinstance(self.connection, ssl.SSLSocket):
            environ[PARTY] = _common_name(self.connection.getpeercert() or {})
        return environ

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def get_stderr(self) -> IO[str]:
        """Discards errors, because callers may leave in the middle of an answer."""
        return io.StringIO()


def _common_name(certificate: Any) -> str:
    parts = (part for each in certificate.get("subject", ()) for part in each)
    return next((value for name, value in parts if name == "commonName"), "")


def _server_context(tls: TlsFiles) -> ssl.SSLContext:
    """Makes a context for mutual TLS 1.3, with the newest certificate."""
    authority, certificate, _ = tls.paths
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority)
    with _key_file(tls) as key:
        context.load_cert_chain(certificate, key)
    return context


@contextmanager
def _key_file(tls: TlsFiles) -> Iterator[str]:
    """Yields the path of a pipe with the private key.

    `ssl` reads keys from files only, and the key on disk may be under a passphrase. A pipe's buffer
    is longer than a key.
    """
    reading, writing = os.pipe()
    try:
        os.write(writing, tls().key)
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def host_names(hosts: Iterable[str], port: int, default: int = 80) -> frozenset[str]:
    """Lists allowed Host headers: HOST:PORT, and also HOST if the port is the default."""
    ends = ("", f":{port}") if port == default else (f":{port}",)
    return frozenset(f"{host}{end}".lower() for host in hosts for end in ends)


def refuse_host(asked: WSGIEnvironment, names: frozenset[str]) -> str:
    """Says why a request is not for the server of these names; empty if it is.

    A web page in the operator's browser may point its own name at 127.0.0.1 and read the answers
    (DNS rebinding). Its requests carry the page's name, so a server on loopback refuses all names
    but its own. A request may name its host in a whole URL too.
    """
    hosts, target = [asked.get("HTTP_HOST", "")], asked["PATH_INFO"]  # commas join several headers
    if not target.startswith("/"):
        hosts.append(target.partition("://")[2].partition("/")[0])
    if names.issuperset(host.lower() for host in hosts):
        return ""
    return f"this server answers to {named(sorted(names))}, and the request names another host"
