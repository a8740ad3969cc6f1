"""Decides who may call a server, and how many places and bytes of memory one caller takes.

A thief with a copy of a party's key could take all of the party's places. So they are shared among
the party's connections: a connection whose calls end well is trusted more, and does not wait for a
connection that breaks its calls off.

A block takes only the memory of its received bytes; announcing a block takes none. The place of an
upload is as large as its block, so all blocks that are read at once fit into memory. One party may
take a third of the places and of the memory, so that two attackers together leave a third to the
others. A broken upload keeps its bytes. If memory runs short, uploads that are not being read are
dropped, the oldest first. `Refusals` and `Uploads` are thread-safe; all else runs on the server's
loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import math
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from grpc.aio import EOF

from secureps.buffers import Buffers
from secureps.errors import (
    Busy,
    ClientError,
    ConfigError,
    Malformed,
    Oversized,
    Refused,
    SecurepsError,
    Unreachable,
    WrongRun,
)
from secureps.messages.format import FORMAT, describe_peer_format
from secureps.messages.records import RefusedRequests
from secureps.messages.requests import PutBlock, Stored
from secureps.messages.run import wrong_run
from secureps.messages.submission import BlockHeader
from secureps.wire.grpc.framing import Claim, Link, read_claim
from secureps.wire.transport import Endpoint

JITTER = random.Random()
"""Draws the waits of refused senders. Python's global generator is not used, because a client that
trains in this process seeds it, and has to draw the same numbers in every run."""

QUIET = 0.5
"""Seconds without movement after which a call gives way to one of another connection."""
TURN = 60.0
"""Seconds after which a call gives its place to a waiting one, and continues later."""
TRUST = 8
"""The highest trust of a connection, in calls that ended well."""
REMEMBERED = 256
"""The number of a party's connections whose trust is remembered, those of the newest calls."""

_BESIDE = "another connection of {} goes before a call on which nothing moves"
_OVER = "others wait, and this call has had its turn; go on with it later"


@dataclass(eq=False, slots=True)
class Place:
    """A call that waits for its `turn` and then for `room`, or has had a place `since` then.

    `moved` is the time of its last byte; `ousted` is the reason why it must give way, if any.
    """

    peer: str
    size: int
    limit: asyncio.Timeout
    turn: asyncio.Future[None]
    room: asyncio.Future[None]
    moved: float
    since: float = math.inf
    ousted: str = ""

    def move(self) -> None:
        self.moved = asyncio.get_running_loop().time()

    def pause(self) -> None:
        """Notes that the call waits for the server, so that its silence does not count."""
        self.moved = math.inf

    def oust(self, why: str) -> None:
        self.ousted = why
        self.limit.reschedule(0.0)


class Connections:
    """The trust in the connections of each party, from -TRUST to TRUST.

    A call that ends well adds one; a call that gives way or is broken off subtracts one.
    """

    def __init__(self) -> None:
        self._trust: defaultdict[str, OrderedDict[str, int]] = defaultdict(OrderedDict)

    def trust(self, party: str, peer: str) -> int:
        return self._trust[party].get(peer, 0)

    def note(self, party: str, peer: str, good: bool) -> None:
        known = self._trust[party]
        known[peer] = max(-TRUST, min(TRUST, known.get(peer, 0) + (1 if good else -1)))
        known.move_to_end(peer)
        while len(known) > REMEMBERED:
            known.popitem(last=False)


class Places:
    """Places for calls: `most` in all and `each` of one party; other calls wait.

    A call may take several, or as many as one party has if it wants more.

    A call on which nothing moved for `silent` seconds gives way to another party's call, so that
    several attackers together cannot keep all places.
    """

    def __init__(self, most: int, each: int, connections: Connections, silent: float) -> None:
        self._free, self._each, self._silent = most, each, silent
        self._queue: deque[Place] = deque()
        """Calls that have their turn and wait for room."""
        self._calls: defaultdict[str, list[Place]] = defaultdict(list)
        self._connections = connections

    @asynccontextmanager
    async def take(self, party: str, peer: str, size: int = 1) -> AsyncIterator[Place]:
        """Waits for places and holds them; `party` must be authenticated, to bound the names.

        Busy if the call gave way to another connection of the party, or its turn ended while others
        waited. The sender continues its payload later.
        """
        good, loop = False, asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        turn, room = loop.create_future(), loop.create_future()
        place = Place(peer, min(size, self._each), limit, turn, room, loop.time())
        try:
            async with limit:
                await self._enter(party, place)
                await self._wait_for_room(party, place)
                place.move()
                place.since = place.moved
                yield place
                good = True
        except SecurepsError as error:  # an answer, unless the message did not arrive
            good = not isinstance(error, Unreachable)
            raise
        except TimeoutError:
            if not place.ousted:
                raise
            raise Busy(place.ousted, JITTER.uniform(*RETRY_SECONDS)) from None
        finally:
            self._connections.note(party, peer, good)
            self._leave(party, place)

    def oust(self, party: str, peer: str) -> bool:
        """Makes a call of another connection give way, if the rules allow; returns whether."""
        return self._oust(party, self.waiting(party), peer) or self._oust(
            party, self.active(party), peer
        )

    def active(self, party: str) -> list[Place]:
        return [place for place in self._calls[party] if place.turn.done()]

    def waiting(self, party: str) -> list[Place]:
        return [place for place in self._calls[party] if not place.turn.done()]

    async def _enter(self, party: str, place: Place) -> None:
        self._calls[party].append(place)
        self._give_turns(party)
        while not place.turn.done():
            self._oust(party, self.active(party), place.peer)
            await asyncio.wait({place.turn}, timeout=QUIET)

    def _leave(self, party: str, place: Place) -> None:
        self._calls[party].remove(place)
        if place.room.done():
            self._free += place.size
        elif place in self._queue:
            self._queue.remove(place)
        self._give_turns(party)
        self._give_room()

    async def _wait_for_room(self, party: str, place: Place) -> None:
        """Waits until enough of the `most` places are free; a call of another party gives way."""
        self._queue.append(place)
        self._give_room()
        while not place.room.done() and not (await asyncio.wait({place.room}, timeout=QUIET))[0]:
            now = asyncio.get_running_loop().time()
            late = [
                each
                for other in self._calls
                if other != party
                for each in self.active(other)
                if each.since <= now - TURN or max(each.since, each.moved) <= now - self._silent
            ]
            if late and not any(each.ousted for each in late):
                min(late, key=lambda each: each.since).oust(_OVER)

    def _give_room(self) -> None:
        """Gives free places to the calls that wait for them, in their order."""
        while self._queue and self._queue[0].size <= self._free:
            place = self._queue.popleft()
            self._free -= place.size
            place.room.set_result(None)

    def _give_turns(self, party: str) -> None:
        """Gives turns to the most trusted connection, then to the one with the fewest calls."""
        while waiting := self.waiting(party):
            held = self.active(party)
            has = Counter(place.peer for place in held)

            def order(place: Place, has: Counter[str] = has) -> tuple[int, int]:
                return -self._connections.trust(party, place.peer), has[place.peer]

            next = min(waiting, key=order)
            if sum(place.size for place in held) + next.size > self._each:
                return
            next.turn.set_result(None)

    def _oust(self, party: str, places: Iterable[Place], peer: str) -> bool:
        """Makes one of these calls give way to a call of this connection, if the rules allow.

        A call of a less trusted connection gives way at once. A call of an equally trusted one
        gives way when its turn is over, or when nothing moves and its connection has more calls.
        """
        here = [place for place in places if not place.ousted]
        has = Counter(place.peer for place in here)
        trust, now = self._connections.trust, asyncio.get_running_loop().time()
        own = trust(party, peer)

        def gives(place: Place) -> bool:
            known = trust(party, place.peer)
            quiet = now - place.moved >= QUIET and has[place.peer] > has[peer]
            late = place.since <= now - TURN
            return place.peer != peer and (known < own or (known == own and (quiet or late)))

        def order(place: Place) -> tuple[int, int, float]:
            return trust(party, place.peer), -has[place.peer], place.moved

        victim = min(filter(gives, here), key=order, default=None)
        if victim is not None:
            victim.oust(_BESIDE.format(party))
        return victim is not None


COUNTED = (ClientError, ConfigError, Refused, Busy)
"""Errors that are a sender's fault; other errors are normal in a run."""

MOST = 64
"""Pairs of a party and an error that are counted separately."""

NOBODY, OTHERS = "(nobody known)", "(others)"
"""Names for senders without a valid signature, and for all pairs above MOST."""


class Refusals:
    """Counts the refused requests of one server, by party and error; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, party: str, error: SecurepsError) -> None:
        """Counts a request of an authenticated sender, or NOBODY, if its error is COUNTED."""
        if not isinstance(error, COUNTED):
            return
        name = type(error).__name__
        with self._lock:
            known = (party, name) in self._counts or len(self._counts) < MOST
            self._counts[party if known else OTHERS, name] += 1

    def take(self) -> tuple[RefusedRequests, ...]:
        """Returns all counts, sorted by name and error, and resets them."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return tuple(RefusedRequests(*pair, count) for pair, count in sorted(counts.items()))


Authenticate = Callable[[str, bytes, bytes], None]
"""(party, signed bytes, signature): raises Unsigned or UnknownParty."""

CALLS = 64
"""The most open calls of one party, its stream of orders included."""
STALLED = 60.0
"""Seconds after which a call ends if no message arrives or leaves. A piece takes 34 seconds on a
line of 1 Mbit/s that four uploads share."""


class Callers:
    """Admits authenticated calls, a bounded number of each party; `run` returns the run's id."""

    def __init__(
        self, link: Link, name: str, run: Callable[[], bytes], authenticate: Authenticate
    ) -> None:
        self._link = link
        self._name, self._run, self._authenticate = name, run, authenticate
        self._calls: Counter[str] = Counter()
        self._connections = Connections()
        self._places: list[Places] = []
        self.refusals = Refusals()

    @contextmanager
    def admit(self, method: str, context: Any) -> Iterator[Claim]:
        """Judges a call before its message is read, and counts it while it lasts.

        Busy if the party has too many open calls; other errors if the sender is unknown, or the
        call is for another server, run or format.
        """
        with self._count_refusal(NOBODY):
            claim = self._identify(method, context)
        with self._count_refusal(claim.party):
            if claim.run and (ours := self._run()) and claim.run != ours:
                raise WrongRun(wrong_run(claim.party, claim.run, ours))
            peer, full = context.peer(), self._calls[claim.party] >= CALLS
            if full and not any(each.oust(claim.party, peer) for each in self._places):
                text = f"{CALLS} calls of {claim.party} are under way"
                raise Busy(text, JITTER.uniform(*RETRY_SECONDS))
            self._calls[claim.party] += 1
            try:
                yield claim
            finally:
                self._calls[claim.party] -= 1

    @contextmanager
    def _count_refusal(self, party: str) -> Iterator[None]:
        try:
            yield
        except SecurepsError as error:
            self.refusals.note(party, error)
            raise

    def _identify(self, method: str, context: Any) -> Claim:
        claim = read_claim(context.invocation_metadata())
        if claim.to != self._name:
            raise Unreachable(f"{claim.to} is asked, and this is {self._name}; check the address")
        if claim.format != FORMAT:  # first: in another format the rest may mean something else
            raise ConfigError(describe_peer_format(claim.party, claim.format, self._name))
        self._link.check(claim.party, context)
        self._authenticate(claim.party, claim.signed(method), claim.signature)
        return claim

    def make_places(self, most: int, each: int, silent: float = STALLED) -> Places:
        """Makes places for calls, one of which a party loses if it exceeds CALLS."""
        made = Places(most, each, self._connections, silent)
        self._places.append(made)
        return made


async def receive(context: Any) -> bytes | None:
    """Reads the next message of a call, None at its end; Unreachable if none arrives."""
    try:
        async with asyncio.timeout(STALLED):
            data = await context.read()
    except TimeoutError:
        raise Unreachable(f"nothing came for {STALLED:.0f} seconds; send it again") from None
    return None if data is EOF else data


async def send(context: Any, data: bytes, place: Place | None = None) -> None:
    """Sends a message; Unreachable if the other end does not read it."""
    try:
        async with asyncio.timeout(STALLED):
            await context.write(data)
    except TimeoutError:
        raise Unreachable(f"nothing was read for {STALLED:.0f} seconds") from None
    if place is not None:
        place.move()


async def receive_request(context: Any, claim: Claim, limit: int) -> bytes:
    """Reads the only message of a call and checks its digest; Oversized beyond `limit` bytes."""
    data = await receive(context)
    if data is None:
        raise Malformed("a call without a message")
    if len(data) > limit:
        raise Oversized(f"a message of {len(data)} bytes; at most {limit} are allowed")
    return claim.envelope(data)


# --- uploads -----------------------------------------------------------------------

HUGE = 2 << 20
"""Bytes of a huge page, from which a payload gets its whole buffer."""
LARGE = 5 << 18
"""Bytes from which a payload is collected in a reused buffer; a shorter one lies in the heap (see
`service.malloc.PAYLOAD`)."""


class PayloadBuffer:
    """Collects a payload's bytes; takes at most twice the memory of the received bytes."""

    def __init__(self, length: int, buffers: Buffers) -> None:
        self.have = 0
        self._length = length
        self._buffers = buffers
        self._small = io.BytesIO()
        self._large: memoryview | None = None

    def add(self, piece: memoryview) -> None:
        """Adds the next bytes; the caller has checked that they fit."""
        end = self.have + len(piece)
        if self._large is None and self._length >= LARGE:
            enough = end >= min(HUGE, self._length)
            fresh = self._buffers.lend if enough else self._buffers.lend_kept
            self._large = fresh(self._length)
            if self._large is not None:
                self._large[: self.have] = self._small.getbuffer()
                self._small = io.BytesIO()
        if self._large is None:
            self._small.write(piece)
        else:
            self._large[self.have : end] = piece
        self.have = end

    def whole(self) -> bytes | memoryview:
        return self._small.getvalue() if self._large is None else self._large.toreadonly()


SHARES = 3
"""One sender may take 1/SHARES of the memory; the longest block fits into that."""
SILENT = 1.0
"""Seconds without a piece after which an upload gives way to another party's, if one waits."""
UNFINISHED = 64
"""The most unfinished blocks of one sender; one more replaces the oldest."""
RETRY_SECONDS = (0.05, 0.25)
"""The range of random seconds that a refused sender waits, so that senders spread."""


class Uploads:
    """The uploads of one server; thread-safe. Private methods run under its lock.

    Args:
        limit: bytes of blocks that may be held at once; at least SHARES times the longest block.
        longest: the most bytes of a block; longer ones get Oversized.
    """

    def __init__(self, limit: int, longest: int) -> None:
        self._limit, self._longest = limit, longest
        self._buffers = Buffers(limit // 2)
        self._held: Counter[str] = Counter()
        """Bytes by sender, including whole blocks that the endpoint has not answered yet."""
        self._lock = threading.Lock()
        self._uploads: dict[tuple[str, BlockHeader], Upload] = {}
        """Unfinished uploads by sender and block, the newest last."""

    @property
    def bytes_held(self) -> int:
        return self._held.total()

    def add_progress(self, sender: str, header: BlockHeader, answer: Stored) -> Stored:
        """Adds the number of received bytes to the endpoint's answer to an AskBlock.

        The sender continues on another connection, so the old upload gets no more bytes.
        """
        with self._lock:
            before = self._uploads.get((sender, header))
            if answer.have is None or before is None:
                return answer
            upload = Upload(self, sender, header, before, before.have, reading=False)
            self._uploads[sender, header] = upload
            return dataclasses.replace(answer, have=upload.have)

    def begin(self, sender: str, message: PutBlock, length: int) -> Upload | Stored:
        """Begins an upload of `length` bytes, from the message's offset to the block's end.

        Returns an Upload for the bytes, or a Stored with the offset at which the sender must
        continue. An older upload of the block ends, because its sender has come back on another
        connection. Raises Oversized or Malformed, the sender's fault.
        """
        header, offset = message.header, message.offset
        if length > self._longest or header.length > self._longest:
            raise Oversized(f"a block may have {self._longest} bytes, no more")
        if offset < 0 or offset + length != header.length:
            announced = f"{length} bytes announced" + (f" from byte {offset} on" if offset else "")
            raise Malformed(f"{announced}; the header says {header.length}")
        with self._lock:
            before = self._uploads.get((sender, header))
            have = 0 if before is None else before.have
            if offset > have:
                return Stored(header.digest, have)
            self._uploads.pop((sender, header), None)
            idle = [each for each in self._idle() if each.sender == sender]
            for each in idle[: max(0, len(idle) + 1 - UNFINISHED)]:
                each._drop()  # their headers take memory too
            self._limit = max(self._limit, SHARES * header.length)
            upload = Upload(self, sender, header, before, offset)
            self._uploads[sender, header] = upload
            return upload

    @property
    def _share(self) -> int:
        return self._limit // SHARES

    def _release(self, sender: str, count: int) -> None:
        self._held[sender] -= count

    def _idle(self) -> list[Upload]:
        return [each for each in self._uploads.values() if not each.reading]

    def _take(self, sender: str, count: int) -> None:
        """Takes memory for bytes that are here, if necessary from idle uploads.

        Busy if blocks that the endpoint has not answered yet take the rest: their calls ended, and
        gave their places away.
        """
        for idle in self._idle():
            own = self._held[sender] + count > self._share
            if self.bytes_held + count <= self._limit and not own:
                break
            if idle.have and (idle.sender == sender or not own):
                idle._drop()
        if self.bytes_held + count > self._limit or self._held[sender] + count > self._share:
            raise Busy("there is no memory for it now", JITTER.uniform(*RETRY_SECONDS))
        self._held[sender] += count


class Upload:
    """A block that is being received; used in a `with`, after which its bytes wait for the rest.

    If a sender sends more bytes than announced, all of them are dropped.
    """

    def __init__(
        self,
        intake: Uploads,
        sender: str,
        header: BlockHeader,
        before: Upload | None,
        at: int,
        reading: bool = True,
    ) -> None:
        self.sender, self.header, self.reading = sender, header, reading
        self._intake = intake
        self._bytes = (
            PayloadBuffer(header.length, intake._buffers) if before is None else before.take_bytes()
        )
        self._known = self.have - at
        """The number of coming bytes that are here already."""

    @property
    def have(self) -> int:
        return self._bytes.have

    @property
    def current(self) -> bool:
        """True if this is still the block's newest upload."""
        return self._intake._uploads.get((self.sender, self.header)) is self

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._intake._lock:
            self.reading = False
            if self.current and not self.have:
                self._drop()

    def add(self, piece: bytes | memoryview) -> None:
        """Adds the next bytes.

        Busy if there is no memory; Unreachable if a newer upload has replaced this one.
        """
        with self._intake._lock:
            self._demand_current()
            if not piece:
                self._drop()
                raise Malformed("an empty piece of payload")
            news = memoryview(piece)[self._known :]
            if self.have + len(news) > self.header.length:
                self._drop()
                raise Oversized(f"more than the announced {self.header.length} bytes of payload")
            self._intake._take(self.sender, len(news))
            self._known -= len(piece) - len(news)
            try:
                self._bytes.add(news)
            except BaseException:  # such as MemoryError: do not count bytes that were not stored
                self._intake._release(self.sender, len(news))
                raise

    def hand_over(self, endpoint: Endpoint) -> Future[Any]:
        """Gives the block to the endpoint; returns its answer. Malformed if bytes are missing."""
        length = self.header.length
        with self._intake._lock:
            self._demand_current()
            if self.have < length:
                raise Malformed(f"{self.have} bytes of payload instead of the announced {length}")
            del self._intake._uploads[self.sender, self.header]
            whole = PutBlock(self.header, self.take_bytes().whole())

        def give(_: object = None) -> None:
            with self._intake._lock:
                self._intake._release(self.sender, length)

        try:
            answer = endpoint.request(self.sender, whole)
        except BaseException:
            give()
            raise
        # Release the sender's bytes when the endpoint has answered. The call may end earlier, while
        # the endpoint still holds them.
        answer.add_done_callback(give)
        return answer

    def take_bytes(self) -> PayloadBuffer:
        held, self._bytes = self._bytes, PayloadBuffer(self.header.length, self._intake._buffers)
        return held

    def _drop(self) -> None:
        del self._intake._uploads[self.sender, self.header]
        self._intake._release(self.sender, self.have)
        self.take_bytes()

    def _demand_current(self) -> None:
        if not self.current:
            raise Unreachable("this block goes on over another connection, or begins anew")
