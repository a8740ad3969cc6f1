"""The gRPC servers of coordinators and shards, each on an event loop in its own thread.

Theory of operation. A server knows nothing of rounds or cohorts. It authenticates a caller, gives
the message to an `Endpoint` (`service.executor.Executor`), and sends back the answer, or the
SecurepsError. `admission` decides who may call and how much one caller may take, `framing` has
what both ends share, and `client` is the other end. A waiting call holds no thread.

What happens to one call:

    admitted   `Callers.admit` judges the signed claim in the metadata, before a message is read
    placed     `Places.take` waits for a free place, so that no caller takes all
    read       `receive_request` reads the message, and compares it with the signed digest
    answered   `Server._tell` asks the endpoint, and sends its answer
    streamed   `CoordinatorServer._watch` sends orders in bundles as they come
    uploaded   `ShardServer._put` asks the endpoint about the header first, and then waits for a
               place as large as the block. Its pieces arrive (`Uploads`), and the whole block goes
               to the endpoint.
    sent       `ShardServer._get` asks the endpoint for the payload, and sends it in pieces

What survives a kill: nothing, because the endpoint's journal has all that counts. Callers repeat
their requests, and watchers subscribe anew. A broken upload continues where it was while the
process lives.

Guards. No message of a stranger is read (`Callers.admit`). A flood from one party, or from a thief
of its key, leaves places and memory to others (`Places`, `Uploads`). A huge block is refused by its
header before it takes memory (`_put`). A watcher that is too slow loses its stream, so that its
orders do not fill the memory (`_push`). A flood of connections leaves the party file descriptors
for its own files (`connection_limit`).

`Health` answers `Check` of grpc.health.v1 for load balancers. These requests are not signed: a
probe, with any certificate of the kit, learns one bit and reaches no endpoint.
https://github.com/grpc/grpc/blob/master/src/proto/grpc/health/v1/health.proto

Look first at `_handlers` for the methods, and at `framing` for their bytes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from grpc.aio import EOF

from secureps.errors import (
    Busy,
    InternalError,
    Malformed,
    OperatorError,
    SecurepsError,
    UnknownParty,
    Unreachable,
)
from secureps.exhaustion import most_files
from secureps.messages.records import RefusedRequests
from secureps.messages.requests import (
    AskBlock,
    GetBlock,
    GetSum,
    Payload,
    Status,
    Stored,
    Subscribe,
)
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import BlockHeader
from secureps.wire.grpc import framing
from secureps.wire.grpc.admission import (
    SHARES,
    SILENT,
    STALLED,
    Authenticate,
    Callers,
    Place,
    Upload,
    Uploads,
    receive,
    receive_request,
    send,
)
from secureps.wire.grpc.framing import Link, read_error
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import Endpoint, error_for_sender

WATCH_QUEUE = 1024
"""Orders that may wait for one watcher before its stream ends."""
TELLING, TELLING_EACH = 64, 8
"""Small messages that are read at once, in all and of one party."""
TRANSFERS, TRANSFERS_EACH = 12, 4
"""Payloads that a shard receives at once, and that it sends at once, in all and of one party; fewer
if they are so long that they would not fit into IN_FLIGHT_BYTES."""
IN_FLIGHT_BYTES = 96 << 20
"""Payload bytes that a shard holds at a time; further uploads wait unread."""
NEWEST = 8
"""Orders whose encoded bytes are cached: all holders get the same receipts of a cohort."""
CLOSING = 1.0
"""Seconds that gRPC gets to end cancelled calls."""
MOST_CONNECTIONS = 1 << 14

T = TypeVar("T")


class Server(ABC):
    """The common part of both servers: thread, loop, `Tell`, health and stop.

    Args:
        endpoint: its methods are called on the loop and must return at once.
        listen: HOST:PORT; port 0 takes a free one.
        authenticate: called for every request, on the loop.
    """

    SERVICE: str
    TELL: str

    def __init__(
        self, link: Link, name: str, endpoint: Endpoint, listen: str, authenticate: Authenticate
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._listen = listen
        self._callers = Callers(link, name, lambda: endpoint.run, authenticate)
        self._telling = self._callers.make_places(TELLING, TELLING_EACH)
        self._health = Health(self.SERVICE)
        self._watchers: set[asyncio.Queue[Any]] = set()
        self._started: Future[int] = Future()
        name = f"{self.SERVICE.rpartition('.')[2].lower()}-rpc"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._grace = 0.0

    @property
    def port(self) -> int:
        return self._started.result(0)

    def refused(self) -> tuple[RefusedRequests, ...]:
        return self._callers.refusals.take()

    def set_ready(self, ready: bool) -> None:
        self._health.ready = ready

    def start(self) -> None:
        self._thread.start()
        self._started.result()

    def stop(self, grace: float = 1.0) -> None:
        """Ends all watches, gives requests `grace` seconds, and returns when all is closed."""
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
        most = ("grpc.max_allowed_incoming_connections", connection_limit())
        # Keeps gRPC's poller for the life of the process. Otherwise the last server ends it, in
        # whatever thread that is collected. If that server could not begin it, for want of a thread
        # or descriptor, this is a segmentation fault (grpcio 1.85), and no error says why.
        grpc.aio.init_grpc_aio()
        server = grpc.aio.server(options=(*framing.SERVER_OPTIONS, most))
        # All methods are streams on this side: gRPC would read the message of a unary call before
        # the server can authenticate its sender.
        tell: Any = grpc.stream_unary_rpc_method_handler(_make_method(self._tell))
        handlers = {"Tell": tell, **self._handlers()}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(self.SERVICE, handlers),
                self._health.handlers(),
            )
        )
        try:
            port = _bind(self._link, server, self._listen)
            await server.start()
            self._started.set_result(port)
            await self._stop.wait()
            self._health.stopping = True
            for queue in tuple(self._watchers):  # other calls get the grace
                _push(queue, _stopping_error())
        finally:
            await server.stop(self._grace)
            # Wait for gRPC's own tasks: `asyncio.run` would cancel them, and gRPC would print a
            # traceback for each.
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSING)

    @abstractmethod
    def _handlers(self) -> Mapping[str, Any]:
        """The service's methods except `Tell`."""

    async def _tell(self, context: Any) -> bytes:
        with self._callers.admit(self.TELL, context) as claim:
            async with self._telling.take(claim.party, context.peer()):
                data = await receive_request(context, claim, framing.REQUEST_LIMIT)
            envelopes = framing.unbundle(data)
            several = len(envelopes) > 1
            handled = [self._reply(claim.party, each, several) for each in envelopes]
            replies = await asyncio.gather(*handled) if several else [await handled[0]]
        for reply in replies:
            if isinstance(reply, SecurepsError):
                self._callers.refusals.note(claim.party, reply)
        if several:  # one refused message does not fail the others of its bundle
            return framing.bundle(
                [framing.encode_refusal(r) if isinstance(r, SecurepsError) else r for r in replies]
            )
        if isinstance(replies[0], SecurepsError):
            raise replies[0]
        return replies[0]

    async def _reply(self, party: str, envelope: bytes, several: bool) -> bytes | SecurepsError:
        try:
            message = decode(envelope)
            if isinstance(message, framing.OWN_METHOD):
                raise Malformed(f"{type(message).__name__} has a method of its own")
            if several and isinstance(message, framing.ALONE):
                raise Malformed(f"{type(message).__name__} goes in no bundle")
            answer = await _answer(self._endpoint.request(party, message))
            return encode(self._complete_answer(party, message, answer))
        except Exception as error:
            return error_for_sender(error)

    def _complete_answer(self, party: str, message: Any, answer: Any) -> Any:
        return answer


class CoordinatorServer(Server):
    """Serves `Tell` and `Watch`; `clock` is this machine's, in seconds since 1970."""

    SERVICE = framing.COORDINATOR_SERVICE
    TELL = framing.COORDINATOR_TELL

    def __init__(
        self,
        link: Link,
        endpoint: Endpoint,
        listen: str,
        authenticate: Authenticate,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(link, COORDINATOR, endpoint, listen, authenticate)
        self._clock = clock
        self._encode = lru_cache(NEWEST)(encode)

    def _complete_answer(self, party: str, message: Any, answer: Any) -> Any:
        """Adds this machine's clock to a Status, because certificates need a right clock."""
        return replace(answer, clock=self._clock()) if isinstance(answer, Status) else answer

    def _handlers(self) -> Mapping[str, Any]:
        return {"Watch": grpc.stream_stream_rpc_method_handler(_make_method(self._watch))}

    async def _watch(self, context: Any) -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue(WATCH_QUEUE)
        loop = asyncio.get_running_loop()

        def deliver(order: Any) -> None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(_push, queue, order)

        with self._callers.admit(framing.WATCH, context) as claim:
            async with self._telling.take(claim.party, context.peer()):
                message = decode(await receive_request(context, claim, framing.REQUEST_LIMIT))
            if not isinstance(message, Subscribe):
                raise Malformed(f"Watch takes Subscribe, not {type(message).__name__}")
            if self._stop is not None and self._stop.is_set():
                raise _stopping_error()  # this stream would never end
            cancel = self._endpoint.subscribe(claim.party, message, deliver)
            self._watchers.add(queue)
            try:
                while True:
                    await send(context, await self._orders(queue))
            finally:
                self._watchers.discard(queue)
                cancel()

    async def _orders(self, queue: asyncio.Queue[Any]) -> bytes:
        """Waits for orders and bundles them; raises the error that ends the stream."""
        taken: list[bytes] = []
        while not taken or (not queue.empty() and framing.has_room(taken)):
            order = await queue.get()
            if isinstance(order, SecurepsError):  # `_push` has dropped all others
                raise order
            taken.append(self._encode(order))
        return framing.bundle(taken)


class StandbyServer(CoordinatorServer):
    """Serves `Tell` for a coordinator's standby.

    It never refuses a sender as unknown, because the coordinator may know a newer roster.
    """

    def __init__(
        self, link: Link, endpoint: Endpoint, listen: str, authenticate: Authenticate
    ) -> None:
        super().__init__(link, endpoint, listen, partial(_authenticate_at_standby, authenticate))

    def refused(self) -> tuple[RefusedRequests, ...]:
        """Returns nothing: a standby refuses all callers and journals no rows of its own."""
        return ()


class ShardServer(Server):
    """Serves `Put`, `Get` and `Tell`.

    Args:
        in_flight_bytes: the most payload bytes held at once, and as many again of blocks from other
            shards; with one limit two shards full of blocks for each other would wait for ever.
        max_block_bytes: the most bytes of a Put's payload; longer ones get Oversized.
    """

    SERVICE = framing.SHARD_SERVICE
    TELL = framing.SHARD_TELL

    def __init__(
        self,
        link: Link,
        name: str,
        endpoint: Endpoint,
        listen: str,
        authenticate: Authenticate,
        in_flight_bytes: int,
        max_block_bytes: int,
    ) -> None:
        super().__init__(link, name, endpoint, listen, authenticate)
        self._intake = Uploads(in_flight_bytes, max_block_bytes)
        self._passed_on = Uploads(in_flight_bytes, max_block_bytes)
        self._least = in_flight_bytes // TRANSFERS
        room = in_flight_bytes, in_flight_bytes // SHARES, SILENT
        self._uploads, self._forwards = (self._callers.make_places(*room) for _ in range(2))
        self._downloads = self._callers.make_places(TRANSFERS, TRANSFERS_EACH, SILENT)

    @property
    def bytes_in_flight(self) -> int:
        return self._intake.bytes_held + self._passed_on.bytes_held

    def _handlers(self) -> Mapping[str, Any]:
        return {
            "Put": grpc.stream_unary_rpc_method_handler(_make_method(self._put)),
            "Get": grpc.stream_stream_rpc_method_handler(_make_method(self._get)),
        }

    def _complete_answer(self, party: str, message: Any, answer: Any) -> Any:
        if not isinstance(message, AskBlock):
            return answer
        header = message.header
        return self._uploads_of(party, header).add_progress(party, header, answer)

    def _uploads_of(self, party: str, header: BlockHeader) -> Uploads:
        return self._intake if header.author == party else self._passed_on

    async def _put(self, context: Any) -> bytes:
        with self._callers.admit(framing.PUT, context) as claim:
            async with self._telling.take(claim.party, context.peer()):
                message, length = framing.read_put(claim, await receive(context) or b"")
            # An announced block takes no place and no memory before the machine has checked its
            # sender, its signature, its length, and whether this shard wants the block.
            wanted = await _answer(self._endpoint.request(claim.party, AskBlock(message.header)))
            if wanted.have is None:
                return encode(wanted)
            size = max(message.header.length, self._least)
            intake = self._uploads_of(claim.party, message.header)
            places = self._uploads if intake is self._intake else self._forwards
            async with places.take(claim.party, context.peer(), size) as place:
                upload = intake.begin(claim.party, message, length)
                if isinstance(upload, Stored):
                    return encode(upload)
                stored = await self._receive_upload(context, upload, place)
                place.pause()
                return encode(await _answer_in_time(stored))

    async def _receive_upload(self, context: Any, upload: Upload, place: Place) -> Future[Any]:
        """Reads an upload piece by piece; returns the endpoint's future answer."""
        with upload:
            while (piece := await receive(context)) is not None:
                upload.add(piece)
                place.move()
                del piece  # free it before waiting for the next one
            return upload.hand_over(self._endpoint)

    async def _get(self, context: Any) -> None:
        with self._callers.admit(framing.GET, context) as claim:
            async with self._telling.take(claim.party, context.peer()):
                message = decode(await receive_request(context, claim, framing.HEADER_LIMIT))
            if not isinstance(message, GetBlock | GetSum):
                raise Malformed(f"Get takes GetBlock or GetSum, not {type(message).__name__}")
            async with self._downloads.take(claim.party, context.peer()) as place:
                place.pause()
                reply = await _answer_in_time(self._endpoint.request(claim.party, message))
                place.move()
                if not isinstance(reply, Payload):
                    raise InternalError(f"Get answered by a {type(reply).__name__}")
                rest = framing.cut_payload(reply, message)
                head = framing.frame_head(encode(reply), len(rest))
                for piece in framing.pieces(rest, head):
                    await send(context, piece, place)


def _authenticate_at_standby(
    authenticate: Authenticate, party: str, request: bytes, signature: bytes
) -> None:
    """Authenticates a sender; an unknown one gets Unreachable, for it may have joined since."""
    try:
        authenticate(party, request, signature)
    except UnknownParty:
        raise Unreachable(
            "a standby is here that does not know the sender: the coordinator rules elsewhere"
        ) from None


def connection_limit() -> int:
    """Limits a server's connections to half of the files that its process may open.

    Otherwise a flood of connections could leave no descriptor for the party's own files.
    """
    files = most_files()
    return MOST_CONNECTIONS if files is None else min(files // 2, MOST_CONNECTIONS)


def _bind(link: Link, server: Any, listen: str) -> int:
    try:
        port = link.bind(server, listen)
    except RuntimeError:
        port = 0
    if port == 0:
        raise OperatorError(f"cannot listen on {listen}: in use, or no address of this machine")
    return port


def _stopping_error() -> Unreachable:
    return Unreachable("the coordinator is stopping")


def _push(queue: asyncio.Queue[Any], order: Any) -> None:
    """Queues an order; a watcher that is too slow, or gets an error, loses its stream."""
    if queue.full():
        order = Busy(f"{queue.qsize()} orders were waiting; subscribe again")
    if isinstance(order, SecurepsError):
        while not queue.empty():
            queue.get_nowait()
    queue.put_nowait(order)


async def _answer(future: Future[Any]) -> Any:
    """Awaits an endpoint's future, which must survive if the caller goes away."""
    if future.done() and not future.cancelled():  # saves a turn of the loop
        return future.result()
    waiting = asyncio.wrap_future(future)
    # otherwise asyncio logs a traceback for an error that no call awaits any more
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if future.cancelled():
            raise Unreachable("the server stopped before it answered") from None
        raise


async def _answer_in_time(future: Future[Any]) -> Any:
    """Awaits an answer with or to a payload; Unreachable if the endpoint's disk does not answer."""
    try:
        async with asyncio.timeout(STALLED):
            return await _answer(future)
    except TimeoutError:
        raise Unreachable(f"no answer came in time, in {STALLED:.0f} seconds; ask again") from None


def _make_method(handle: Callable[[Any], Awaitable[T]]) -> Callable[[Any, Any], Awaitable[T]]:

    async def handled(_: Any, context: Any) -> T:
        try:
            return await handle(context)
        except Exception as error:
            refusal = framing.encode_error(error_for_sender(error))
        await context.abort(*refusal)
        raise AssertionError("abort returned")

    return handled


# --- health ------------------------------------------------------------------------

SERVICE = "grpc.health.v1.Health"

ASKING = 64
"""The most calls whose request has not arrived; one more ends the oldest."""
QUESTION_SECONDS = 10.0

_SERVING, _NOT_SERVING = (bytes([0x08, status]) for status in (1, 2))
"""HealthCheckResponses: the status is field 1."""


def _encode_question(service: str) -> bytes:
    """Encodes a HealthCheckRequest: the service's name is field 1, and "" is omitted."""
    return bytes([0x0A, len(service)]) + service.encode() if service else b""


def ask(channel: grpc.Channel, timeout: float, to: str) -> bool:
    """Asks whether a server, which errors call `to`, can work now; errors are as of any call."""
    check: Any = channel.unary_unary(f"/{SERVICE}/Check")
    try:
        answer: bytes = check(_encode_question(""), timeout=timeout)
    except grpc.RpcError as error:
        raise read_error(error, to) from None
    return answer == _SERVING


class Health:
    """Answers NOT_SERVING until the server is `ready`, and again once it is `stopping`.

    A question about "" asks for the same as one about the server's `service`.
    """

    def __init__(self, service: str) -> None:
        self._known = (_encode_question(""), _encode_question(service))
        self.ready = self.stopping = False
        self._asking: dict[asyncio.Timeout, None] = {}

    def handlers(self) -> Any:
        check: Any = grpc.stream_unary_rpc_method_handler(self._check)
        return grpc.method_handlers_generic_handler(SERVICE, {"Check": check})

    async def _read_question(self, context: Any) -> bytes:
        """Reads a call's request; a silent call gives way to newer ones."""
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
        question = await self._read_question(context)
        if question not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _SERVING if self.ready and not self.stopping else _NOT_SERVING
