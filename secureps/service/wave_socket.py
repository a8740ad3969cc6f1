"""A local socket by which a party hears its waves: whoever relays them reads none of its files.

A frame is a kind (uint8: a batch, or an error in words), a length (uint64, little endian), and as
many bytes; one goes each way, and the connection ends. What must not live here: what a batch says
(`wire.waves.batch`), of which both its signatures are looked at where it is read.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from secureps.errors import (
    Malformed,
    NotReady,
    OperatorError,
    Oversized,
    SecurepsError,
    Unreachable,
)
from secureps.service.logs import tell

MOST = 64 << 20
"""Bytes of a key holder's batch: receipts of a cohort, and no payloads."""
SECONDS = 120.0
"""Within which a frame comes or goes."""

_BATCH, _ERROR = 0, 1
_HEAD = struct.Struct("<BQ")


@contextmanager
def answering(party: str, path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Listens on a socket, and answers one batch after another, while the context is open.

    Args:
        party: for the log; answer: of a batch; its SecurepsErrors go back in words.

    Raises:
        OperatorError: it cannot listen there.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            line: socket.socket = self.request
            line.settimeout(SECONDS)
            try:
                kind, data = _BATCH, answer(_received(line))
            except SecurepsError as error:
                tell(party, "Complaint", str(error), logging.WARNING)
                kind, data = _ERROR, str(error).encode()
            except OSError:
                return  # who asked is gone, and asks again
            with suppress(OSError):
                line.sendall(_HEAD.pack(kind, len(data)) + data)

    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):  # of a process that was killed
                path.unlink()
        server = socketserver.UnixStreamServer(str(path), Handler)
        path.chmod(0o660)
    except OSError as error:
        raise OperatorError(f"socket: cannot listen at {path}: {error}") from None
    thread = threading.Thread(target=server.serve_forever, name="waves", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)


def asked(path: Path, batch: bytes) -> bytes:
    """What a party at a socket answers to a batch.

    Raises:
        Unreachable: nobody answers there.
        NotReady: it refuses, and says why.
    """
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SECONDS)
            line.connect(str(path))
            line.sendall(_HEAD.pack(_BATCH, len(batch)) + batch)
            kind, data = _frame(line)
    except OSError as error:
        raise Unreachable(f"nobody answers at {path}: {error}; is the key holder up?") from None
    if kind == _ERROR:
        raise NotReady(data.decode(errors="replace")[:500])
    return data


def _received(line: socket.socket) -> bytes:
    kind, data = _frame(line)
    if kind != _BATCH:
        raise Malformed("a party is sent batches")
    return data


def _frame(line: socket.socket) -> tuple[int, bytes]:
    kind, length = _HEAD.unpack(_exactly(line, _HEAD.size))
    if length > MOST:
        raise Oversized(f"a batch of {length} bytes; at most {MOST} are allowed")
    return kind, _exactly(line, length)


def _exactly(line: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = line.recv(min(1 << 20, length - len(data)))
        if not piece:
            raise ConnectionError("the connection ended in the middle of a batch")
        data += piece
    return bytes(data)
