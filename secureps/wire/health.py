"""grpc.health.v1: whether a server is ready for work, for load balancers and orchestrators.

Not authenticated, by design: whoever asks has no identity on the roster, and learns one bit.
It never reaches an endpoint. What must not live here: when a party is ready
(`service.snapshot`).

Of grpcio-health-checking only the messages are used. Its asyncio servicer forgets watchers
when another one leaves, and its servicer for threads waits, in whoever sets the status, for
watchers that do not read (1.81).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

SERVICE = "grpc.health.v1.Health"

WATCHERS = 64
"""Streams that may be open at a time; more are refused, for anybody may ask."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Of a server with threads: answers `Check`; `Watch`, which would occupy one, it has not.

    Args:
        service: the name of the server's service; "" asks for the same.
    """

    def __init__(self, service: str) -> None:
        self._known = ("", service)
        self._ready = self._ended = False

    def set_ready(self, ready: bool) -> None:
        """NOT_SERVING until it is told otherwise; from any thread."""
        self._ready = ready

    def end(self) -> None:
        """NOT_SERVING from now on, whatever `set_ready` says."""
        self._ended = True

    def handlers(self) -> Any:
        """To be added to the server."""

        def check(request: Any, context: Any) -> Any:
            if request.service not in self._known:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
            return self._response(request)

        return _handlers(check, None)

    def _response(self, request: Any) -> Any:
        status = _SERVING if self._ready and not self._ended else _NOT_SERVING
        if request.service not in self._known:
            status = _UNKNOWN
        return health_pb2.HealthCheckResponse(status=status)


class AsyncHealth(Health):
    """Of an asyncio server: `Watch` too. `handlers` and `end` are called on its loop."""

    def __init__(self, service: str) -> None:
        super().__init__(service)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchers: set[asyncio.Event] = set()

    def set_ready(self, ready: bool) -> None:
        super().set_ready(ready)
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._tell)

    def end(self) -> None:
        super().end()
        self._tell()

    def handlers(self) -> Any:
        self._loop = asyncio.get_running_loop()

        async def check(request: Any, context: Any) -> Any:
            if request.service not in self._known:
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
            return self._response(request)

        return _handlers(check, self._watch)

    def _tell(self) -> None:
        for changed in self._watchers:
            changed.set()

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if len(self._watchers) >= WATCHERS:
            text = f"{WATCHERS} watch the health of this server already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        changed, last = asyncio.Event(), None
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                response = self._response(request)
                if response != last:
                    yield response
                    last = response
                await changed.wait()
        finally:
            self._watchers.discard(changed)


def _handlers(check: Any, watch: Any) -> Any:
    request = health_pb2.HealthCheckRequest.FromString
    response = health_pb2.HealthCheckResponse.SerializeToString
    methods = {"Check": grpc.unary_unary_rpc_method_handler(check, request, response)}
    if watch is not None:
        methods["Watch"] = grpc.unary_stream_rpc_method_handler(watch, request, response)
    return grpc.method_handlers_generic_handler(SERVICE, methods)
