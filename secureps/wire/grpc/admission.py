"""Decides who may call a server, and how much of it one caller takes, before it reads a message.

Everything here runs on the server's loop, except `Refusals`. An unknown caller is refused by its
metadata and takes nothing. A known one has at most CALLS under way, and the server waits at most
STALLED seconds for a message of it.

A thief with a copy of a party's key has the party's places too. So a party's places are shared out
among its connections: a connection whose calls end well is trusted more than one that breaks them
off, and does not wait for it.

Refused requests are counted, in bounded memory.

A block takes as much memory as has come of it; announcing one takes none. Uploads take turns: the
server reads as many at once as fit into memory when they are whole. A turn begins when a piece is
here, and ends after SILENT seconds without one. One sender may take a third of the memory, so that
two senders together leave a third to the others. A broken upload keeps what came, and its sender
continues from there; where memory runs short, uploads that are not being read go first, the oldest
before all others. A large payload comes into a buffer of an earlier one (`buffers`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import math
import random
import threading
import time
from collections import Counter, OrderedDict, defaultdict
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
from secureps.messages.format import FORMAT, other_peer
from secureps.messages.records import RefusedRequests
from secureps.messages.requests import AskBlock, PutBlock, Stored
from secureps.messages.run import other_run
from secureps.messages.submission import BlockHeader
from secureps.wire.grpc.framing import Claim, Link, claim_of
from secureps.wire.transport import Endpoint

QUIET = 0.5
"""Seconds without movement after which a call gives way to one of another connection."""
TURN = 60.0
"""Seconds after which a call gives its place to one that waits, and goes on later."""
TRUST = 8
"""The most that a connection is trusted: the number of calls that it has ended well."""
REMEMBERED = 256
"""Connections of a party whose trust is remembered: those of the newest calls."""

_BESIDE = "another connection of {} goes before a call on which nothing moves"
_OVER = "others wait, and this call has had its turn; go on with it later"


@dataclass(eq=False, slots=True)
class Place:
    """A call that waits for its `turn`, or has had it `since` then (infinite before).

    `moved` is when anything of it came or went last; `ousted` says why it has to go.
    """

    peer: str
    limit: asyncio.Timeout
    turn: asyncio.Future[None]
    moved: float
    since: float = math.inf
    ousted: str = ""

    def move(self) -> None:
        self.moved = asyncio.get_running_loop().time()

    def pause(self) -> None:
        """Notes that the call waits for the server: it is not silent itself."""
        self.moved = math.inf

    def oust(self, why: str) -> None:
        self.ousted = why
        self.limit.reschedule(0.0)


class Connections:
    """The trust in the connections of each party, from -TRUST to TRUST.

    A call that ends well adds one; a call that gives way, or is broken off, takes one.
    """

    def __init__(self) -> None:
        self._trust: defaultdict[str, OrderedDict[str, int]] = defaultdict(OrderedDict)

    def of(self, party: str, peer: str) -> int:
        return self._trust[party].get(peer, 0)

    def note(self, party: str, peer: str, good: bool) -> None:
        known = self._trust[party]
        known[peer] = max(-TRUST, min(TRUST, known.get(peer, 0) + (1 if good else -1)))
        known.move_to_end(peer)
        while len(known) > REMEMBERED:
            known.popitem(last=False)


class Places:
    """Calls that go on at once: `most` in all and `each` of one party; the others wait in turn.

    A call on which nothing moved for `silent` seconds gives way to another party's, so that several
    parties together cannot keep all places.
    """

    def __init__(self, most: int, each: int, connections: Connections, silent: float) -> None:
        self._each, self._silent = each, silent
        self._all = asyncio.Semaphore(most)
        self._calls: defaultdict[str, list[Place]] = defaultdict(list)
        self._connections = connections

    @asynccontextmanager
    async def taken(self, party: str, peer: str) -> AsyncIterator[Place]:
        """Waits for a place and holds it; `party` is authenticated, so that names are few.

        Raises:
            Busy: another connection of the party goes first, and nothing came on this one; or its
                turn has ended and others wait. The sender goes on with its payload later.
        """
        good, loop = False, asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        place = Place(peer, limit, loop.create_future(), loop.time())
        try:
            async with limit:
                await self._enter(party, place)
                await self._room(party)
                try:
                    place.move()
                    place.since = place.moved
                    yield place
                finally:
                    self._all.release()
                good = True
        except SecurepsError as error:  # it was answered, unless it did not come
            good = not isinstance(error, Unreachable)
            raise
        except TimeoutError:
            if not place.ousted:
                raise
            raise Busy(place.ousted, random.uniform(*RETRY_SECONDS)) from None
        finally:
            self._connections.note(party, peer, good)
            self._calls[party].remove(place)
            self._give_turns(party)

    def oust(self, party: str, peer: str) -> bool:
        """Makes a call of another connection give way, if one must; returns whether one did."""
        return self._oust(party, self.waiting(party), peer) or self._oust(
            party, self.held(party), peer
        )

    def held(self, party: str) -> list[Place]:
        return [place for place in self._calls[party] if place.turn.done()]

    def waiting(self, party: str) -> list[Place]:
        return [place for place in self._calls[party] if not place.turn.done()]

    async def _enter(self, party: str, place: Place) -> None:
        self._calls[party].append(place)
        self._give_turns(party)
        while not place.turn.done():
            self._oust(party, self.held(party), place.peer)
            await asyncio.wait({place.turn}, timeout=QUIET)

    async def _room(self, party: str) -> None:
        """Waits for one of the places of all; another party's call gives up its own after TURN."""
        if not self._all.locked():
            await self._all.acquire()  # at once
            return
        room = asyncio.ensure_future(self._all.acquire())
        try:
            while not (await asyncio.wait({room}, timeout=QUIET))[0]:
                now = asyncio.get_running_loop().time()
                late = [
                    place
                    for other in self._calls
                    if other != party
                    for place in self.held(other)
                    if place.since <= now - TURN
                    or max(place.since, place.moved) <= now - self._silent
                ]
                if late and not any(place.ousted for place in late):
                    min(late, key=lambda place: place.since).oust(_OVER)
        except BaseException:
            if not room.cancel():
                self._all.release()
            raise

    def _give_turns(self, party: str) -> None:
        """Gives free places to the most trusted connection first, then to one that has few."""
        while (waiting := self.waiting(party)) and len(held := self.held(party)) < self._each:
            has = Counter(place.peer for place in held)

            def order(place: Place, has: Counter[str] = has) -> tuple[int, int]:
                return -self._connections.of(party, place.peer), has[place.peer]

            min(waiting, key=order).turn.set_result(None)

    def _oust(self, party: str, places: Iterable[Place], peer: str) -> bool:
        """Makes one of these calls give way to a call of this connection, if one must.

        A call of a connection that is trusted less gives way at once. A call of an equal connection
        that has more of them gives way when nothing moves, or when its turn is over.
        """
        here = [place for place in places if not place.ousted]
        has = Counter(place.peer for place in here)
        trust, now = self._connections.of, asyncio.get_running_loop().time()
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
"""Errors of a sender that asked wrongly or too much; all others belong to the course of a run."""

MOST = 64
"""Pairs of a party and an error that are counted apart."""

NOBODY, OTHERS = "(nobody known)", "(others)"
"""Names for senders without a signature that holds, and for all senders above MOST."""


class Refusals:
    """Counts the refused requests of one server, by party and error; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, party: str, error: SecurepsError) -> None:
        """Counts one, if its error is COUNTED.

        Args:
            party: whose signature it bears; NOBODY without one that holds.
        """
        if not isinstance(error, COUNTED):
            return
        name = type(error).__name__
        with self._lock:
            known = (party, name) in self._counts or len(self._counts) < MOST
            self._counts[party if known else OTHERS, name] += 1

    def take(self) -> tuple[RefusedRequests, ...]:
        """Returns all counts, sorted by name and error, and begins anew."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return tuple(RefusedRequests(*pair, count) for pair, count in sorted(counts.items()))


Authenticate = Callable[[str, bytes, bytes], None]
"""(party, signed bytes, signature): raises Unsigned or UnknownParty."""

CALLS = 64
"""Calls of one party that are under way at once, its stream of orders among them."""
STALLED = 60.0
"""Seconds without the next message of a call, or without anybody taking what it sends, that end
it. A piece takes 34 on a line of 1 Mbit/s that four uploads share."""


class Callers:
    """Lets authenticated calls in, a bounded number of each party; `run` is empty before one."""

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
    def admitted(self, method: str, context: Any) -> Iterator[Claim]:
        """Judges a call before its message is taken, and counts it while it lasts.

        Raises:
            Unsigned, UnknownParty, Malformed: it has no known sender, or comes over another party's
                connection.
            Unreachable: it is for another server.
            ConfigError: its party has another format.
            WrongRun: its party is in another run.
            Busy: too many of its party's are under way.
        """
        with self._counted(NOBODY):
            claim = self._known(method, context)
        with self._counted(claim.party):
            if claim.run and (ours := self._run()) and claim.run != ours:
                raise WrongRun(other_run(claim.party, claim.run, ours))
            peer, full = context.peer(), self._calls[claim.party] >= CALLS
            if full and not any(each.oust(claim.party, peer) for each in self._places):
                text = f"{CALLS} calls of {claim.party} are under way"
                raise Busy(text, random.uniform(*RETRY_SECONDS))
            self._calls[claim.party] += 1
            try:
                yield claim
            finally:
                self._calls[claim.party] -= 1

    @contextmanager
    def _counted(self, party: str) -> Iterator[None]:
        try:
            yield
        except SecurepsError as error:
            self.refusals.note(party, error)
            raise

    def _known(self, method: str, context: Any) -> Claim:
        """Reads whose call it is; raises as `admitted`."""
        claim = claim_of(context.invocation_metadata())
        if claim.to != self._name:
            raise Unreachable(f"{claim.to} is asked, and this is {self._name}; check the address")
        if claim.format != FORMAT:  # before anything of it is judged that may mean something else
            raise ConfigError(other_peer(claim.party, claim.format, self._name))
        self._link.check(claim.party, context)
        self._authenticate(claim.party, claim.signed(method), claim.signature)
        return claim

    def places(self, most: int, each: int, silent: float = STALLED) -> Places:
        """Makes places for calls; a party without room for another call loses one of these."""
        made = Places(most, each, self._connections, silent)
        self._places.append(made)
        return made


async def arrived(context: Any) -> bytes | None:
    """Reads the next message of a call, None at its end; Unreachable if it does not come."""
    try:
        async with asyncio.timeout(STALLED):
            data = await context.read()
    except TimeoutError:
        raise Unreachable(f"nothing came for {STALLED:.0f} seconds; send it again") from None
    return None if data is EOF else data


async def sent(context: Any, data: bytes, place: Place | None = None) -> None:
    """Sends a message; Unreachable if nobody takes it."""
    try:
        async with asyncio.timeout(STALLED):
            await context.write(data)
    except TimeoutError:
        raise Unreachable(f"nothing was read for {STALLED:.0f} seconds") from None
    if place is not None:
        place.move()


async def request(context: Any, claim: Claim, limit: int) -> bytes:
    """Reads the one message of a call, as it was signed; Oversized beyond `limit` bytes."""
    data = await arrived(context)
    if data is None:
        raise Malformed("a call without a message")
    if len(data) > limit:
        raise Oversized(f"a message of {len(data)} bytes; at most {limit} are allowed")
    return claim.envelope(data)


# --- uploads on their way into one server, within a bound of memory ----------------

HUGE = 2 << 20
"""Bytes of a huge page. A shorter part of a payload takes its own length, not a page."""
LARGE = 5 << 18
"""Bytes of the shortest payload that comes into a buffer; shorter ones are in the heap, where a
server's allocator maps longer ones page by page and gives them back (`service.malloc`)."""


class Gathering:
    """The bytes of a payload, in order; memory is at most twice what has come."""

    def __init__(self, length: int, buffers: Buffers) -> None:
        self.have = 0
        self._length = length
        self._buffers = buffers
        self._small = io.BytesIO()
        self._large: memoryview | None = None

    def add(self, piece: memoryview) -> None:
        """Adds the next bytes; the caller knows that there is room for them."""
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
        """The payload, read-only, once all of it is here; no copy."""
        return self._small.getvalue() if self._large is None else self._large.toreadonly()


SHARES = 3
"""Parts of the memory, of which one sender may take one; the longest block fits into it."""
SILENT = 1.0
"""Seconds without a piece after which a turn ends; `pacing` cuts pieces that take less."""
UNFINISHED = 64
"""Unfinished blocks of one sender; for one more the oldest goes."""
RETRY_SECONDS = (0.05, 0.25)
"""A refused sender waits for a random time between these, so that senders spread."""


class Uploads:
    """The uploads of one server; safe to use from any thread. Private methods are under its lock.

    Args:
        limit: bytes of blocks that may be held at once, or SHARES of the longest that came.
        longest: bytes of the longest block; longer ones get Oversized.
    """

    def __init__(
        self, limit: int, longest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._longest = limit, longest
        self._clock = clock
        self._buffers = Buffers(limit // 2)
        self._held: Counter[str] = Counter()
        """Bytes by sender, with whole blocks that the endpoint has not answered yet."""
        self._waiting: list[Upload] = []
        """Those that wait for their turn, in order."""
        self._lock = threading.Lock()
        self._uploads: dict[tuple[str, BlockHeader], Upload] = {}
        """Unfinished uploads by sender and block, the last begun at the end."""

    @property
    def taken(self) -> int:
        return self._held.total()

    def known(self, sender: str, message: Any, answer: Any) -> Any:
        """Adds to the endpoint's answer to an AskBlock how much of the wanted block is here.

        The sender continues on another connection: nothing more comes on the old one.
        """
        wanted = isinstance(message, AskBlock) and isinstance(answer, Stored)
        if not wanted or answer.have is None:
            return answer
        with self._lock:
            before = self._uploads.get((sender, message.header))
            if before is None:
                return answer
            upload = Upload(self, sender, message.header, before, before.have)
            self._uploads[sender, message.header] = upload
            return dataclasses.replace(answer, have=upload.have)

    def begin(self, sender: str, message: PutBlock, length: int) -> Upload | Stored:
        """Takes an upload in, of `length` bytes from the message's offset to the block's end.

        Returns an Upload for the bytes, or a Stored that says from where the sender is to go on. An
        older upload of the block ends: its sender has come back on another connection, before this
        server heard that the older one was cut.

        Raises:
            Oversized, Malformed: the sender's fault.
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

    def _give(self, sender: str, count: int) -> None:
        self._held[sender] -= count
        self._let_in()

    def _idle(self) -> list[Upload]:
        return [each for each in self._uploads.values() if not each.reading]

    def _let_in(self) -> None:
        """Gives turns to those that wait, in their order, while there is room."""
        for upload in tuple(self._waiting):
            if not upload.current or self._fits(upload):
                self._waiting.remove(upload)
                upload.begin_turn()

    def _fits(self, upload: Upload) -> bool:
        taken = Counter(self._held)
        for each in self._uploads.values():
            read = each is upload or each.reading
            taken[each.sender] += each.header.length - each.have if read else -each.have
        return taken.total() <= self._limit and taken[upload.sender] <= self._share

    def _take(self, upload: Upload, count: int) -> None:
        """Takes memory for an upload in its turn, if need be that of idle uploads."""
        if not upload.reading:
            others = "as many others are sending as there is memory for"
            raise Busy(others, random.uniform(*RETRY_SECONDS))
        sender = upload.sender
        for idle in self._idle():
            own = self._held[sender] + count > self._share
            if self.taken + count <= self._limit and not own:
                break
            if idle.have and (idle.sender == sender or not own):
                idle._drop()
        self._held[sender] += count


class Upload:
    """One block on its way in; a context, after which what came waits for the rest.

    If a sender sends more than it announced, all of it is dropped.
    """

    def __init__(
        self, intake: Uploads, sender: str, header: BlockHeader, before: Upload | None, at: int
    ) -> None:
        self.sender, self.header = sender, header
        self._turn: Future[None] = Future()
        self._came = -math.inf
        self._intake = intake
        self._bytes = (
            Gathering(header.length, intake._buffers) if before is None else before.forget()
        )
        self._known = self.have - at
        """How many of the bytes that come first are here already."""

    @property
    def have(self) -> int:
        return self._bytes.have

    @property
    def reading(self) -> bool:
        return self._intake._clock() - self._came <= SILENT

    @property
    def current(self) -> bool:
        """Whether its sender continues with this block here, and not on another connection."""
        return self._intake._uploads.get((self.sender, self.header)) is self

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._intake._lock:
            self._came = -math.inf
            if self.current and not self.have:
                self._drop()
            if self in self._intake._waiting:
                self._intake._waiting.remove(self)
            self._intake._let_in()

    def turn(self) -> Future[None]:
        """Asks for a turn, for a piece that is here; returns a future that ends when it begins.

        No event tells that another turn has ended by silence: the caller asks again now and then.
        """
        with self._intake._lock:
            if self.reading:
                self._came = self._intake._clock()
                return self._turn
            if self not in self._intake._waiting:
                self._turn = Future()
                self._intake._waiting.append(self)
            self._intake._let_in()
            return self._turn

    def begin_turn(self) -> None:
        self._came = self._intake._clock()
        self._turn.set_result(None)

    def add(self, piece: bytes | memoryview) -> None:
        """Adds the next bytes.

        Raises:
            Malformed: there are none in it.
            Oversized: more than the block has.
            Busy: it is not this upload's turn.
            Unreachable: the sender goes on with it elsewhere, or others needed its memory.
        """
        with self._intake._lock:
            self._own()
            if not piece:
                self._drop()
                raise Malformed("an empty piece of payload")
            news = memoryview(piece)[self._known :]
            if self.have + len(news) > self.header.length:
                self._drop()
                raise Oversized(f"more than the announced {self.header.length} bytes of payload")
            self._intake._take(self, len(news))
            self._known -= len(piece) - len(news)
            try:
                self._bytes.add(news)
            except BaseException:  # no memory: what did not come takes no room
                self._intake._give(self.sender, len(news))
                raise

    def hand_over(self, endpoint: Endpoint) -> Future[Any]:
        """Gives the whole block to the endpoint; returns its answer.

        Raises:
            Malformed: bytes are missing.
            Unreachable: the sender goes on with this block elsewhere.
        """
        length = self.header.length
        with self._intake._lock:
            self._own()
            if self.have < length:
                raise Malformed(f"{self.have} bytes of payload instead of the announced {length}")
            del self._intake._uploads[self.sender, self.header]
            whole = PutBlock(self.header, self.forget().whole())

        def give(_: object = None) -> None:
            with self._intake._lock:
                self._intake._give(self.sender, length)

        try:
            answer = endpoint.request(self.sender, whole)
        except BaseException:
            give()
            raise
        # Not when the call ends: the endpoint may hold the bytes for longer.
        answer.add_done_callback(give)
        return answer

    def forget(self) -> Gathering:
        held, self._bytes = self._bytes, Gathering(self.header.length, self._intake._buffers)
        return held

    def _drop(self) -> None:
        del self._intake._uploads[self.sender, self.header]
        self._intake._give(self.sender, self.have)
        self.forget()

    def _own(self) -> None:
        if not self.current:
            raise Unreachable("this block goes on over another connection, or begins anew")
