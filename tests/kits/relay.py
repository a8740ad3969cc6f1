"""TCP on loopback: free ports, and a relay of connections that are cut, fall silent or are slow."""

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PORTS = range(10_000, 32_768)
"""Below those that the kernel gives."""


def free_port() -> int:
    """A port of loopback that nobody has now, nor is given before it is used, a second later."""
    while True:
        port = secrets.choice(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Relay:
    """Passes every connection on to `target`, and does with it what a bad link does.

    Args:
        target: HOST:PORT, or what tells it of each connection.
        cut: bytes after which a connection is closed, whichever way they went.
        silent: bytes after which nothing more passes, and nobody is told; of the first connection.
        rate: bytes a second, in each direction, of all connections together.
        keeps: whether `streams` has all bytes of each direction of each connection.
    """

    def __init__(
        self,
        target: str | Callable[[], str],
        cut: int | None = None,
        silent: int | None = None,
        rate: float | None = None,
        keeps: bool = False,
    ) -> None:
        self.connections = 0
        self.streams: list[bytearray] = []
        self._keeps = keeps
        self.up = self.down = 0
        self._target = target
        self._cut, self._silent = cut, silent
        self._buckets = [_Bucket(rate), _Bucket(rate)]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        with self._lock:
            for each in self._open:
                _end(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            target = self._target if isinstance(self._target, str) else self._target()
            host, _, port = target.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            with self._lock:
                self.connections += 1
                self._open += [near, far]
                link = _Link(self._cut, self._silent if self.connections == 1 else None)
            for up, source, sink in ((True, near, far), (False, far, near)):
                args = (link, up, source, sink)
                threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(self, link: "_Link", up: bool, source: socket.socket, sink: socket.socket) -> None:
        kept = bytearray()
        self.streams.append(kept)
        with suppress(OSError):
            while data := source.recv(16 << 10):
                self._buckets[up].take(len(data))
                with self._lock:
                    if link.passed(len(data)):
                        continue
                    if link.left == 0:
                        break
                    kept += data if self._keeps else b""
                    self.up += len(data) * up
                    self.down += len(data) * (not up)
                sink.sendall(data)
        _end(source)
        _end(sink)


class _Link:
    """What one connection may still carry."""

    def __init__(self, cut: int | None, silent: int | None) -> None:
        self.left, self._silent = cut, silent

    def passed(self, count: int) -> bool:
        """Whether these bytes are lost without a word."""
        if self.left is not None:
            self.left = max(0, self.left - count)
        if self._silent is None:
            return False
        self._silent -= count
        return self._silent < 0


class _Bucket:
    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + count / self._rate
            wait = self._free_at - now
        time.sleep(wait)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
