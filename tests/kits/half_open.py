"""A peer that speaks HTTP/2 by hand, to leave undone what gRPC's own client always ends."""

import base64
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.kits.transport_kit import PATIENCE

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
FRAME = 16384
Secured = Callable[[socket.socket], ssl.SSLSocket]
QUIET = 0.2
"""Seconds in which nothing comes after which nothing more is expected: a smaller one would only
find less than there is to find."""


class HalfOpen:
    """One connection with calls whose messages never end.

    `sent` are the bytes of messages that the server's flow control has let in; `ended` the calls
    that the server has answered or reset.

    Args:
        secured: puts a connection under TLS; None: it stays in the clear.
    """

    def __init__(self, port: int, secured: Secured | None = None) -> None:
        line = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._line = line if secured is None else secured(line)
        self._line.settimeout(QUIET)
        self._got = b""
        self._id = -1
        self._initial = self._window = 65535
        self._calls: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.over = False
        self.sent = 0
        self._line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))

    def begin(self, method: str, metadata: Iterable[tuple[str, Any]], announced: int) -> int:
        """Begins a call with a message that is said to have so many bytes."""
        self._id += 2
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "it"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *((key, _text(value)) for key, value in metadata),
        ]
        block = b"".join(b"\0" + _string(key) + _string(value) for key, value in fields)
        self._line.sendall(_frame(HEADERS, END_HEADERS, self._id, block))
        self._calls[self._id] = [self._initial, announced + 4]  # all but the last byte
        self._send(self._id, b"\0" + struct.pack(">I", announced))
        return self._id

    def push(self, ended: int = 0) -> None:
        """Sends whatever is let in of all messages but their last bytes.

        It stops when nothing more is heard, and so many calls have ended.
        """
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for stream in tuple(self._calls):
                if stream not in self.ended:
                    self._fill(stream)
            if not self._hear(QUIET) and len(self.ended) >= ended:
                return

    def closed(self, within: float) -> bool:
        """Whether the server ends the connection within so many seconds; pings are answered."""
        until = time.monotonic() + within
        while not self.over and time.monotonic() < until:
            self._hear(QUIET)
        return self.over

    def close(self) -> None:
        self._line.close()

    def _fill(self, stream: int) -> None:
        while (room := min(self._window, *self._calls[stream], FRAME)) > 0:
            self._send(stream, b"x" * room)

    def _send(self, stream: int, data: bytes) -> None:
        self._line.sendall(_frame(DATA, 0, stream, data))
        self._window -= len(data)
        self._calls[stream] = [count - len(data) for count in self._calls[stream]]
        self.sent += len(data)

    def _hear(self, patience: float) -> bool:
        """Takes in whatever the server has said; False if that was nothing."""
        heard = False
        while self._more(0.0 if heard else patience):
            try:
                data = self._line.recv(1 << 16)
            except TimeoutError:  # what came was TLS's own
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self.ended |= set(self._calls)
                self.over = True
                return False
            heard = True
            self._got += data
        while len(self._got) >= 9:
            length = int.from_bytes(self._got[:3], "big")
            if len(self._got) < 9 + length:
                break
            kind, flags = self._got[3], self._got[4]
            stream = int.from_bytes(self._got[5:9], "big") & 0x7FFFFFFF
            body, self._got = self._got[9 : 9 + length], self._got[9 + length :]
            self._take(kind, flags, stream, body)
        return heard

    def _more(self, patience: float) -> bool:
        """Whether there is something to take in, which TLS may have taken already."""
        if isinstance(self._line, ssl.SSLSocket) and self._line.pending():
            return True
        return bool(select.select([self._line], [], [], patience)[0])

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == WINDOW_UPDATE:
            more = int.from_bytes(body, "big")
            if stream == 0:
                self._window += more
            elif stream in self._calls:
                self._calls[stream][0] += more
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                key, value = struct.unpack(">HI", body[at : at + 6])
                if key == INITIAL_WINDOW_SIZE:
                    for call in self._calls.values():
                        call[0] += value - self._initial
                    self._initial = value
            self._line.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._line.sendall(_frame(PING, ACK, 0, body))
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _string(text: str) -> bytes:
    """HPACK's, without Huffman's code."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, more = len(data) - 127, bytearray((127,))
    while rest >= 128:
        more.append(rest % 128 + 128)
        rest //= 128
    more.append(rest)
    return bytes(more) + data


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else base64.b64encode(value).decode().rstrip("=")
