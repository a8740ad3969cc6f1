"""A proxy that connects by HTTP CONNECT, as hospitals have one, on loopback."""

import asyncio
import base64
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"
HEAD = 8 << 10
"""The most bytes of a request's head."""


def refusal(status: int) -> bytes:
    return f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode()


class ConnectProxy:
    """Passes connections on to servers that only it can find; `with` ends it.

    Args:
        servers: where a HOST:PORT is in truth; others are refused with 403.
        user: NAME:PASSWORD, in Latin-1, without which it refuses with 407.
        cut: bytes from the client after which it ends a connection.
        answer: what it says instead of connecting; b"" is nothing, so that the client waits.
    """

    def __init__(
        self,
        servers: Mapping[str, Callable[[], str]],
        user: str | None = None,
        cut: int | None = None,
        answer: bytes | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.up = self.cuts = 0
        self.servers, self.user, self.cut, self.answer = dict(servers), user, cut, answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
            await asyncio.sleep(0)  # transports close in the loop's next turn

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._connect(near, back)
        finally:
            back.close()

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        head = (await near.readuntil(b"\r\n\r\n")).decode()
        assert len(head) <= HEAD
        method, target, _ = head.split("\r\n")[0].split(" ")
        assert method == "CONNECT"
        self.asked.append(target)
        answer = self._judge(target, head)
        if answer != OPENED:
            back.write(answer)
            await (back.drain() if answer else asyncio.Event().wait())
            return
        host, _, port = self.servers[target]().rpartition(":")
        far, on = await asyncio.open_connection(host, int(port))
        back.write(OPENED)
        down = asyncio.ensure_future(self._pass(far, back, None))
        try:
            await self._pass(near, on, self.cut)
        finally:
            down.cancel()
            on.transport.abort()
            back.transport.abort()

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

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: int | None
    ) -> None:
        """Passes bytes on; `left` (from the client): so many until the connection is cut."""
        while data := await source.read(16 << 10):
            if left is not None:
                self.up += len(data)
                left -= len(data)
                if left < 0:
                    self.cuts += 1
                    return
            sink.write(data)
            await sink.drain()
