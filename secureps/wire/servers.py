"""gRPC servers: the coordinator's (asyncio) and a shard's (threads).

Both authenticate the sender of every request, hand the message to an `Endpoint`, and
send back its answer or its SecurepsError; health alone (`wire.health`) is anybody's. What
must not live here: what messages mean, keys, and the dialling side (`wire.rpc`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn

import grpc
import grpc.aio

from secureps.errors import (
    Busy,
    InternalError,
    Malformed,
    OperatorError,
    SecurepsError,
    Unreachable,
)
from secureps.messages.requests import (
    GetBlock,
    GetSum,
    Payload,
    PutBlock,
    Stored,
    Subscribe,
)
from secureps.wire.codec import decode, encode
from secureps.wire.framing import (
    COORDINATOR_SERVICE,
    COORDINATOR_TELL,
    GET,
    NOT_TOLD,
    PUT,
    SERVER_OPTIONS,
    SHARD_SERVICE,
    SHARD_TELL,
    WATCH,
    open_frame,
    options,
    part,
    pieces,
    refuse,
    sender_of,
    signed_request,
)
from secureps.wire.health import AsyncHealth, Health
from secureps.wire.intake import Intake
from secureps.wire.transport import Endpoint, outcome, told

Authenticate = Callable[[str, bytes, bytes], None]
"""(party, signed bytes, signature): raises Unsigned or UnknownParty."""

WATCH_QUEUE = 1024
"""Orders that may wait for one watcher before its stream is ended."""
THREADS = 12
"""Requests that a shard works on at once; CONCURRENT more may wait."""
CONCURRENT = 256
CLOSING = 1.0
"""Seconds that gRPC gets to end calls that it has cancelled."""


class _Gate:
    """Lets authenticated messages in."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    def open(self, method: str, envelope: bytes, context: Any) -> tuple[str, Any]:
        """(sender, message): the signature is verified before anything is parsed."""
        party, signature = sender_of(context.invocation_metadata())
        self._authenticate(party, signed_request(method, envelope), signature)
        return party, decode(envelope)

    def tell(self, method: str, envelope: bytes, context: Any) -> tuple[str, Any]:
        party, message = self.open(method, envelope, context)
        if isinstance(message, NOT_TOLD):
            raise Malformed(f"{type(message).__name__} has a method of its own")
        return party, message


class CoordinatorServer:
    """Serves `Tell` and `Watch` on an event loop in a thread of its own.

    Args:
        endpoint: its methods are called on the loop and must return at once.
        listen: HOST:PORT; port 0 takes a free one.
        authenticate: called for every request, on the loop.
    """

    def __init__(self, endpoint: Endpoint, listen: str, authenticate: Authenticate) -> None:
        self._endpoint = endpoint
        self._listen = listen
        self._gate = _Gate(authenticate)
        self._health = AsyncHealth(COORDINATOR_SERVICE)
        self._started: Future[int] = Future()
        self._watchers: set[asyncio.Queue[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="coordinator-rpc", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._grace = 0.0

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._started.result(0)

    def set_ready(self, ready: bool) -> None:
        """What its health says from now on, until it stops; from any thread."""
        self._health.set_ready(ready)

    def start(self) -> None:
        """Begins to serve; OperatorError if it cannot listen there."""
        self._thread.start()
        self._started.result()

    def stop(self, grace: float = 1.0) -> None:
        """Ends all watches, gives requests `grace` seconds, and returns when all is closed.

        Requests without an answer by then end in Unreachable at who asked.
        """
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._grace = grace
            with suppress(RuntimeError):  # the loop ended meanwhile
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join(grace + 2 * CLOSING)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(options=options(SERVER_OPTIONS))
        handlers: dict[str, Any] = {
            "Tell": grpc.unary_unary_rpc_method_handler(self._tell),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(COORDINATOR_SERVICE, handlers),
                self._health.handlers(),
            )
        )
        try:
            port = _bind(server, self._listen)
            await server.start()
            self._started.set_result(port)
            await self._stop.wait()
            self._health.end()
            for queue in tuple(self._watchers):
                _push(queue, _stopping())
        finally:
            await server.stop(self._grace)
            # gRPC's own tasks see their calls end a little later. What is left of them when
            # `asyncio.run` returns it cancels, and gRPC prints a traceback for each.
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSING)

    async def _tell(self, envelope: bytes, context: Any) -> bytes:
        try:
            party, message = self._gate.tell(COORDINATOR_TELL, envelope, context)
            return encode(await _answer(self._endpoint.request(party, message)))
        except Exception as error:
            refusal = refuse(told(error))
        await context.abort(*refusal)
        raise AssertionError("abort returned")

    async def _watch(self, envelope: bytes, context: Any) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Any] = asyncio.Queue(WATCH_QUEUE)
        loop = asyncio.get_running_loop()

        def deliver(order: Any) -> None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(_push, queue, order)

        try:
            party, message = self._gate.open(WATCH, envelope, context)
            if not isinstance(message, Subscribe):
                raise Malformed(f"Watch takes Subscribe, not {type(message).__name__}")
            if self._stop is not None and self._stop.is_set():
                raise _stopping()  # nobody would end this stream
            cancel = self._endpoint.subscribe(party, message, deliver)
            self._watchers.add(queue)
            try:
                while not isinstance(order := await queue.get(), SecurepsError):
                    yield encode(order)
            finally:
                self._watchers.discard(queue)
                cancel()
            refusal = refuse(order)
        except Exception as error:
            refusal = refuse(told(error))
        await context.abort(*refusal)


class ShardServer:
    """Serves `Put`, `Get` and `Tell` with a pool of threads.

    Args:
        endpoint: its methods are called in the pool's threads.
        listen: HOST:PORT; port 0 takes a free one.
        authenticate: called for every request, in the pool's threads.
        in_flight_bytes: payload bytes of Puts that may be held at once; more get Busy.
        max_block_bytes: the longest payload of a Put; longer ones get Oversized.

    Raises:
        ConfigError: as `Intake` does.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        listen: str,
        authenticate: Authenticate,
        in_flight_bytes: int,
        max_block_bytes: int,
    ) -> None:
        self._endpoint = endpoint
        self._listen = listen
        self._gate = _Gate(authenticate)
        self._health = Health(SHARD_SERVICE)
        self._intake = Intake(in_flight_bytes, max_block_bytes)
        self._server: grpc.Server | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._port

    @property
    def bytes_in_flight(self) -> int:
        """Payload bytes of Puts that it holds now."""
        return self._intake.taken

    def set_ready(self, ready: bool) -> None:
        """What its health says from now on, until it stops; from any thread."""
        self._health.set_ready(ready)

    def start(self) -> None:
        """Begins to serve; OperatorError if it cannot listen there."""
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="shard-rpc")
        server = grpc.server(
            pool, options=options(SERVER_OPTIONS), maximum_concurrent_rpcs=THREADS + CONCURRENT
        )
        handlers: dict[str, Any] = {
            "Tell": grpc.unary_unary_rpc_method_handler(self._tell),
            "Put": grpc.stream_unary_rpc_method_handler(self._put),
            "Get": grpc.unary_stream_rpc_method_handler(self._get),
        }
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SHARD_SERVICE, handlers),
                self._health.handlers(),
            )
        )
        try:
            self._port = _bind(server, self._listen)
            server.start()
        except BaseException:
            server.stop(None).wait()
            pool.shutdown()
            raise
        self._server, self._pool = server, pool

    def stop(self, grace: float = 1.0) -> None:
        """Gives requests `grace` seconds and returns when all is closed.

        Whatever handlers wait for then, the rest of a payload, a reader that does not read
        or the endpoint, ends with their calls, which gRPC cancels: in Unreachable at who asked.
        """
        self._health.end()
        if self._server is not None and self._pool is not None:
            closed = self._server.stop(grace).wait(grace + CLOSING)
            self._pool.shutdown(wait=closed, cancel_futures=True)
            self._server = self._pool = None

    def _tell(self, envelope: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            party, message = self._gate.tell(SHARD_TELL, envelope, context)
            answer = _wait(self._endpoint.request(party, message), context)
            return encode(self._intake.known(party, message, answer))
        except Exception as error:
            _abort(context, error)

    def _put(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            envelope, length, begin = open_frame(next(stream, b""))
            party, message = self._gate.open(PUT, envelope, context)
            if not isinstance(message, PutBlock):
                raise Malformed(f"Put takes PutBlock, not {type(message).__name__}")
            upload = self._intake.begin(party, message, length)
            if isinstance(upload, Stored):
                return encode(upload)
            with upload:
                if begin:
                    upload.add(begin)
                del begin  # no piece is held while the next one is on its way
                for piece in stream:
                    upload.add(piece)
                    del piece
                answer = upload.hand_over(self._endpoint)
            return encode(_wait(answer, context))
        except grpc.RpcError:
            _abort(context, Unreachable("the sender hung up"))
        except Exception as error:
            _abort(context, error)

    def _get(self, envelope: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            party, message = self._gate.open(GET, envelope, context)
            if not isinstance(message, GetBlock | GetSum):
                raise Malformed(f"Get takes GetBlock or GetSum, not {type(message).__name__}")
            reply = _wait(self._endpoint.request(party, message), context)
            if not isinstance(reply, Payload):
                raise InternalError(f"Get answered by a {type(reply).__name__}")
            frame = pieces(encode(reply), part(reply, message))
        except Exception as error:
            _abort(context, error)
        yield from frame


def _bind(server: Any, listen: str) -> int:
    try:
        port: int = server.add_insecure_port(listen)
    except RuntimeError:
        port = 0
    if port == 0:
        raise OperatorError(f"cannot listen on {listen}: in use, or no address of this machine")
    return port


def _stopping() -> Unreachable:
    return Unreachable("the coordinator is stopping")


def _push(queue: asyncio.Queue[Any], order: Any) -> None:
    """Queues an order; a watcher that is too slow, or told to go, loses its stream."""
    if queue.full():
        order = Busy(f"{queue.qsize()} orders were waiting; subscribe again")
    if isinstance(order, SecurepsError):
        while not queue.empty():
            queue.get_nowait()
    queue.put_nowait(order)


async def _answer(future: Future[Any]) -> Any:
    """The end of an endpoint's future, which a caller that goes away must not cancel."""
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        if future.cancelled():
            raise Unreachable("the server stopped before it answered") from None
        raise


def _wait(future: Future[Any], context: grpc.ServicerContext) -> Any:
    """The end of an endpoint's future; raises when it fails, or when the caller is gone."""
    first: Future[Any] = Future()

    def end(result: Any) -> None:
        with suppress(InvalidStateError):
            first.set_result(result)

    future.add_done_callback(lambda done: end(outcome(done)))
    gone = Unreachable("the caller is gone")
    if not context.add_callback(lambda: end(gone)):
        end(gone)
    result = first.result()
    if isinstance(result, SecurepsError):
        raise result
    return result


def _abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    code, details, trailing = refuse(told(error))
    context.set_trailing_metadata(trailing)
    context.abort(code, details)
    raise AssertionError("abort returned")
