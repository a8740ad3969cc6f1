"""grpc.health.v1: whether a server is ready for work, for load balancers and orchestrators.

Its requests need no signature: a probe learns one bit, over a connection that shows any certificate
of the kit. It never reaches an endpoint.

Its messages are protobuf of a field each, written here as they lie; the asyncio servicer of
grpcio-health-checking forgets watchers when another one leaves (1.81).
https://github.com/grpc/grpc/blob/master/src/proto/grpc/health/v1/health.proto
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
from grpc.aio import EOF

from secureps.errors import Unreachable

SERVICE = "grpc.health.v1.Health"

WATCHERS = 64
"""Streams that may be open at a time; more are refused: no party is counted here."""
ASKING = 64
"""Calls whose question has not come yet; for one more the oldest ends."""
QUESTION_SECONDS = 10.0
WATCH_SECONDS = 600.0
"""Seconds after which a stream ends, because it is not signed; its watcher asks again."""

_SERVING, _NOT_SERVING, _UNKNOWN = (bytes([0x08, status]) for status in (1, 2, 3))
"""A HealthCheckResponse: the number of its status, in field 1."""


def _question(service: str) -> bytes:
    """The HealthCheckRequest of a service, whose name is in field 1; "" is left out."""
    return bytes([0x0A, len(service)]) + service.encode() if service else b""


def ask(channel: grpc.Channel, timeout: float) -> bool:
    """Asks whether a server can work now; Unreachable if it does not answer in time."""
    check: Any = channel.unary_unary(f"/{SERVICE}/Check")
    try:
        answer: bytes = check(_question(""), timeout=timeout)
    except grpc.RpcError as error:
        raise Unreachable(str(error.code().name)) from None
    return answer == _SERVING


class Health:
    """Answers `Check` and `Watch`. `handlers` and `end` are called on the server's loop.

    Args:
        service: the name of the server's service; "" asks for the same.
    """

    def __init__(self, service: str) -> None:
        self._known = (_question(""), _question(service))
        self._ready = self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: dict[asyncio.Timeout, None] = {}
        self._watchers: set[asyncio.Event] = set()

    def set_ready(self, ready: bool) -> None:
        """Sets the answer; until then it is NOT_SERVING. Thread-safe."""
        self._ready = ready
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._tell)

    def end(self) -> None:
        """Answers NOT_SERVING from now on."""
        self._ended = True
        self._tell()

    def handlers(self) -> Any:
        self._loop = asyncio.get_running_loop()
        methods: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _tell(self) -> None:
        for changed in self._watchers:
            changed.set()

    async def _asked(self, context: Any) -> bytes:
        """Reads the question of a call; a call that never asks keeps no place from others."""
        data: Any = EOF
        if len(self._asking) >= ASKING:
            oldest = next(iter(self._asking))
            del self._asking[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(QUESTION_SECONDS) as limit:
                self._asking[limit] = None
                try:
                    data = await context.read()
                finally:
                    self._asking.pop(limit, None)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no question came")
        if data is EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no question of grpc.health.v1")
        return bytes(data)

    async def _check(self, _: Any, context: Any) -> bytes:
        question = await self._asked(context)
        if question not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._response(question)

    async def _watch(self, _: Any, context: Any) -> None:
        question = await self._asked(context)
        if len(self._watchers) >= WATCHERS:
            text = f"{WATCHERS} watch the health of this server already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        changed, last = asyncio.Event(), b""
        self._watchers.add(changed)
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                while True:
                    changed.clear()
                    response = self._response(question)
                    if response != last:
                        await context.write(response)
                        last = response
                    await changed.wait()
        except TimeoutError:
            return
        finally:
            self._watchers.discard(changed)

    def _response(self, question: bytes) -> bytes:
        if question not in self._known:
            return _UNKNOWN
        return _SERVING if self._ready and not self._ended else _NOT_SERVING
