"""A local socket by which a party hears its waves: whoever relays them reads none of its files.

Who asks may not be a process that could read them: the same user's, or root's. File modes hold the
others off.

A frame is a kind (uint8: a batch, or an error in words), a length (uint64, little endian), and as
many bytes; one goes each way, and the connection ends.
"""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from secureps.errors import (
    ConfigError,
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
_PEER = struct.Struct("3i")
"""Linux's word for who is at the other end: process, user, group."""


@contextmanager
def answering(
    party: str, path: Path, answer: Callable[[bytes], bytes], test: bool = False
) -> Iterator[None]:
    """Listens on a socket, and answers one batch after another, while the context is open.

    SecurepsErrors of `answer` go back in words. In a `test` no real records are at stake: whoever
    asks may read this party's files.

    Raises:
        OperatorError: it cannot listen there.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            line: socket.socket = self.request
            line.settimeout(SECONDS)
            try:
                batch = _received(line)
                if not test:
                    refuse_reader(line)
                kind, data = _BATCH, answer(batch)
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


def refuse_reader(line: socket.socket) -> None:
    """ConfigError if who asks could read this process's files, or its memory, whatever their modes.

    One in a container of its own has no process id here, nor our files.
    """
    process, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    own = os.geteuid()
    if process and user in (0, own):
        raise ConfigError(
            f"the app that relays runs as user {user} and this key holder as {own}: code of the "
            "run could read its keys and ledger. Give the key holder a user of its own, its node "
            "another that is not root, and the socket's folder a group of both (chmod 2750)"
        )


def asked(path: Path, batch: bytes) -> bytes:
    """What a party at a socket answers; Unreachable if nobody does, NotReady if it refuses."""
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
