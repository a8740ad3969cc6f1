"""Callers that are slow, silent, wrong or too many keep nobody from being served."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from secureps.dashboard import application
from secureps.dashboard.application import LONGEST, OPEN, bound, serving
from secureps.errors import OperatorError

LIMIT = 20.0
"""Seconds after which something did not happen."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/fails":
        raise RuntimeError("a secret in an error")
    if scope["path"] == "/stays":
        await stays(send)
    await PlainTextResponse("here")(scope, receive, send)


async def stays(send: Send) -> None:
    """A stream, which says something again and again."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"news", "more_body": True})
        await asyncio.sleep(0.01)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(application, "PATIENCE", 0.3)
    line = bound("127.0.0.1:0")
    with serving(app, line, None):
        yield line.getsockname()[1]


def asked(port: int, text: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    """The first bytes of the answer; none if the connection just ends."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as line:
        with suppress(ConnectionResetError, BrokenPipeError):
            line.sendall(text)
            return line.recv(1 << 16)
        return b""


def ends(line: socket.socket) -> bool:
    line.settimeout(LIMIT)
    with suppress(ConnectionResetError):
        while line.recv(1 << 16):
            pass
    return True


def test_a_request_is_answered(port: int) -> None:
    assert asked(port).startswith(b"HTTP/1.1 200 ")
    assert b"server:" not in asked(port)


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_stays_half_is_let_go(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as line:
        line.sendall(said)
        assert ends(line)
        assert asked(port).startswith(b"HTTP/1.1 200 ")


def test_a_request_that_comes_drop_by_drop_has_no_longer(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as line:
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not over.wait(0.05):
                    line.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        began = time.monotonic()
        assert ends(line)
        assert time.monotonic() - began < LIMIT / 2
        over.set()
        dripping.join()


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: " + b"b" * 99 * LONGEST + b"\r\n\r\n",
        b"GET /" + b"a" * 99 * LONGEST + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\x00" * 4096,
    ],
)
def test_what_is_no_request_or_too_long_is_refused(port: int, said: bytes) -> None:
    answer = asked(port, said)
    assert not answer.startswith(b"HTTP/1.1 2")
    assert asked(port).startswith(b"HTTP/1.1 200 ")


def test_the_oldest_connection_goes_for_one_too_many(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "PATIENCE", 10 * LIMIT)
    with ExitStack() as stack:
        lines = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
            for _ in range(OPEN + 4)
        ]
        assert ends(lines[0])
        assert asked(port).startswith(b"HTTP/1.1 200 ")


def test_a_stream_stays_however_many_strangers_come(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "PATIENCE", 10 * LIMIT)
    with ExitStack() as stack:

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))

        stream = connected()
        stream.sendall(b"GET /stays HTTP/1.1\r\nHost: x\r\n\r\n")
        assert stream.recv(1 << 16)
        strangers = [connected() for _ in range(OPEN + 4)]
        assert ends(strangers[0])
        assert asked(port).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):
            assert b"news" in stream.recv(1 << 16)


def test_an_error_tells_nobody_what_it_was(
    port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = asked(port, b"GET /fails HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in answer
    assert "secret" not in caplog.text
    assert capfd.readouterr() == ("", "")


def test_an_address_that_is_taken_is_said(port: int) -> None:
    for listen in (f"127.0.0.1:{port}", "192.0.2.1:0"):
        with pytest.raises(OperatorError, match=r"^dashboard: cannot listen on "):
            bound(listen)
