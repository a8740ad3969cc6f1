"""TCP on loopback: free ports, bad links, and a proxy that connects by HTTP CONNECT."""

import asyncio
import base64
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

PORTS = range(10_000, 32_768)
"""Below those that the kernel gives."""

OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"
HEAD = 8 << 10
"""The most bytes of a request's head."""


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

    _cuts_down = True

    def __init__(
        self,
        target: str | Callable[[], str],
        cut: int | None = None,
        silent: int | None = None,
        rate: float | None = None,
        keeps: bool = False,
    ) -> None:
        self.connections = self.cuts = self.up = self.down = 0
        self.streams: list[bytearray] = []
        self._target, self._keeps = target, keeps
        self._cut, self._silent = cut, silent
        self._rate, self._free_at = rate, [0.0, 0.0]
        self._open: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        # a connection that was just accepted begins a task of its own
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for each in self._open:
                each.transport.abort()
            await asyncio.sleep(0)  # transports close in the loop's next turn

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._open.append(back)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._connect(near, back)
        finally:
            back.close()

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        target = self._target if isinstance(self._target, str) else self._target()
        await self._pass_on(target, near, back)

    async def _pass_on(
        self, target: str, near: asyncio.StreamReader, back: asyncio.StreamWriter, said: bytes = b""
    ) -> None:
        """Connects, says so to whoever asked, and passes bytes until one side ends."""
        host, _, port = target.rpartition(":")
        far, on = await asyncio.open_connection(host, int(port))
        self._open.append(on)
        back.write(said)
        self.connections += 1
        link = _Link(self._cut, self._silent if self.connections == 1 else None)
        ways = ((True, near, on), (False, far, back))
        pumps = [asyncio.ensure_future(self._pump(link, *way)) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            on.close()

    async def _pump(
        self, link: "_Link", up: bool, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        kept = bytearray()
        self.streams.append(kept)
        with suppress(OSError):
            while data := await source.read(16 << 10):
                await self._wait(up, len(data))
                if link.passed(len(data), up or self._cuts_down):
                    continue
                self.up += len(data) * up
                self.down += len(data) * (not up)
                if link.left == 0:
                    self.cuts += 1
                    return
                kept += data if self._keeps else b""
                sink.write(data)
                await sink.drain()

    async def _wait(self, up: bool, count: int) -> None:
        if self._rate is not None:
            now = self._loop.time()
            self._free_at[up] = max(now, self._free_at[up]) + count / self._rate
            await asyncio.sleep(self._free_at[up] - now)


class _Link:
    """What one connection may still carry."""

    def __init__(self, cut: int | None, silent: int | None) -> None:
        self.left, self._silent = cut, silent

    def passed(self, count: int, counts: bool) -> bool:
        """Whether these bytes are lost without a word; `counts`: towards the cut."""
        if self.left is not None and counts:
            self.left = max(0, self.left - count)
        if self._silent is None:
            return False
        self._silent -= count
        return self._silent < 0


def refusal(status: int) -> bytes:
    return f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode()


class ConnectProxy(Relay):
    """Passes connections on to servers that only it can find, as a hospital's HTTP proxy does.

    Args:
        servers: where a HOST:PORT is in truth; others are refused with 403.
        user: NAME:PASSWORD, in Latin-1, without which it refuses with 407.
        cut: bytes from the client after which it ends a connection.
        answer: what it says instead of connecting; b"" is nothing, so that the client waits.
        rate: bytes a second, in each direction.
    """

    _cuts_down = False

    def __init__(
        self,
        servers: Mapping[str, Callable[[], str]],
        user: str | None = None,
        cut: int | None = None,
        answer: bytes | None = None,
        rate: float | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.servers, self.user, self.answer = dict(servers), user, answer
        super().__init__("", cut, rate=rate)

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        head = (await near.readuntil(b"\r\n\r\n")).decode()
        assert len(head) <= HEAD
        method, target, _ = head.split("\r\n")[0].split(" ")
        assert method == "CONNECT"
        self.asked.append(target)
        answer = self._judge(target, head)
        if answer == OPENED:
            await self._pass_on(self.servers[target](), near, back, answer)
            return
        back.write(answer)
        await (back.drain() if answer else asyncio.Event().wait())

    def _judge(self, target: str, head: str) -> bytes:
        if self.answer is not None:
            return self.answer
        if self.user is not None:
            right = f"Basic {base64.b64encode(self.user.encode('latin-1')).decode()}"
            lines = [line.partition(":") for line in head.split("\r\n")]
            shown = [value.strip() for name, _, value in lines if name == "Proxy-Authorization"]
            if shown != [right]:
                return refusal(407)
        return OPENED if target in self.servers else refusal(403)
