"""A line to servers on loopback whose connections are cut at random, in the middle of anything."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from pathlib import Path

SHARE = 100
"""Of how many connections one is cut at a time, and at least one."""


class CutLine:
    """Forwards ports on loopback to servers, and cuts connections; its own thread does it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)
        self._thread.start()
        self.cuts = 0

    def port(self, server: Path) -> int:
        """A new port that leads to the server whose address stands in a file, when it does."""

        async def listen() -> int:
            async def taken(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
                await self._joined(near, back, server)

            made = await asyncio.start_server(taken, "127.0.0.1", 0, backlog=1024)
            return int(made.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result()

    def cut(self) -> None:
        """Ends some connections at once, in the middle of whatever they carry."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        some = random.sample(self._open, min(len(self._open), 1 + len(self._open) // SHARE))
        for writer in some:
            writer.transport.abort()
        self.cuts += len(some)

    async def _joined(
        self, near: asyncio.StreamReader, back: asyncio.StreamWriter, server: Path
    ) -> None:
        try:
            host, _, port = server.read_text().strip().rpartition(":")
            far, on = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):  # it does not listen yet
            back.transport.abort()
            return
        self._open.append(back)
        await asyncio.gather(_pumped(near, on), _pumped(far, back))
        self._open.remove(back)


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()
