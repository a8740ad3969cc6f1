"""Who may call a server, and how much of it one caller takes: judged before a message is.

Everything here runs on the server's loop, but for `Refusals`. A caller whom nobody knows is told so
from its metadata, and takes nothing; one who is known has CALLS under way, no more, and no message
of its own may keep the server waiting for longer than STALLED.

Whoever has a copy of a party's key has the party's places too. So they are shared out among its
connections: one whose calls come to their end is trusted more than one that leaves them undone,
and does not wait for it.

A refused request changes nothing, and no machine hears of most of them; people ask all the same.
So refusals are counted, within a bound whoever asks how often: names are of the roster, errors of
one tree, and above MOST pairs of both the others are one.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from grpc.aio import EOF

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
from secureps.messages.run import other_run
from secureps.wire.grpc.authentication import Claim, claim_of
from secureps.wire.grpc.links import Link
from secureps.wire.grpc.uploads import RETRY_SECONDS

QUIET = 0.5
"""Seconds in which nothing moves after which a call gives way to another connection's."""
TURN = 60.0
"""Seconds of a place after which its call gives way to one that waits, and goes on later."""
TRUST = 8
"""The most that a connection is trusted: so many calls that it has ended well."""
REMEMBERED = 256
"""Connections of a party of which is known how far they are trusted: those of the newest calls."""

_BESIDE = "another connection of {} goes before a call on which nothing moves"
_OVER = "others wait, and this call has had its turn; go on with it later"


@dataclass(eq=False, slots=True)
class Place:
    """A call that waits for its `turn`, or has it `since` then (infinite before).

    `moved` is when anything of it came or went last; `ousted` says for whom it has to go.
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
        """Says that the call waits for the server, which is no silence of its own."""
        self.moved = math.inf

    def oust(self, why: str) -> None:
        """Ends the call, which has a place or waits for one."""
        self.ousted = why
        self.limit.reschedule(0.0)


@dataclass(slots=True)
class Own:
    """The calls of one party that have a place, and those that wait for one."""

    held: list[Place] = field(default_factory=list)
    waiting: list[Place] = field(default_factory=list)


class Connections:
    """How far the connections of each party are trusted, from -TRUST to TRUST.

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

    One party that holds its own for as long as it may leaves the rest to the others. So that
    several parties together cannot keep all places, a call on which nothing moved for `silent`
    seconds gives way to another party's.
    """

    def __init__(self, most: int, each: int, connections: Connections, silent: float) -> None:
        self._each, self._silent = each, silent
        self._all = asyncio.Semaphore(most)
        self._own: defaultdict[str, Own] = defaultdict(Own)
        self._connections = connections

    @asynccontextmanager
    async def taken(self, party: str, peer: str) -> AsyncIterator[Place]:
        """Waits for a place and holds it; `party` is authenticated, so that names are few.

        Raises:
            Busy: another connection of the party goes first, and nothing came on this one; or its
                turn is over and others wait. The sender goes on with its payload later.
        """
        own, good = self._own[party], False
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        place = Place(peer, limit, loop.create_future(), loop.time())
        try:
            async with limit:
                await self._enter(party, own, place)
                await self._room(own)
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
            self._leave(party, own, place)

    def oust(self, party: str, peer: str) -> bool:
        """Whether a call of another connection gives way to one for which there is no room."""
        own = self._own[party]
        victim = self._yielding(party, own.waiting, peer) or self._yielding(party, own.held, peer)
        if victim is not None:
            victim.oust(_BESIDE.format(party))
        return victim is not None

    async def _enter(self, party: str, own: Own, place: Place) -> None:
        own.waiting.append(place)
        self._next(party, own)
        while not place.turn.done():
            victim = self._yielding(party, own.held, place.peer)
            if victim is not None:
                victim.oust(_BESIDE.format(party))
            await asyncio.wait({place.turn}, timeout=QUIET)

    async def _room(self, own: Own) -> None:
        """Waits for one of the places of all, which another party's call gives up after a TURN."""
        if not self._all.locked():
            await self._all.acquire()  # at once
            return
        room = asyncio.ensure_future(self._all.acquire())
        try:
            while not (await asyncio.wait({room}, timeout=QUIET))[0]:
                now = asyncio.get_running_loop().time()
                others = (
                    place for each in self._own.values() if each is not own for place in each.held
                )
                late = [
                    place
                    for place in others
                    if place.since <= now - TURN
                    or max(place.since, place.moved) <= now - self._silent
                ]
                if late and not any(place.ousted for place in late):
                    min(late, key=lambda place: place.since).oust(_OVER)
        except BaseException:
            if not room.cancel():
                self._all.release()
            raise

    def _leave(self, party: str, own: Own, place: Place) -> None:
        for places in (own.held, own.waiting):
            if place in places:
                places.remove(place)
        self._next(party, own)

    def _next(self, party: str, own: Own) -> None:
        """Gives free places to the most trusted connection first, then to one that has few."""
        while own.waiting and len(own.held) < self._each:
            first = min(own.waiting, key=partial(self._order, party, own))
            own.waiting.remove(first)
            own.held.append(first)
            if not first.turn.done():
                first.turn.set_result(None)

    def _order(self, party: str, own: Own, place: Place) -> tuple[int, int]:
        has = sum(each.peer == place.peer for each in own.held)
        return -self._connections.of(party, place.peer), has

    def _yielding(self, party: str, places: Iterable[Place], peer: str) -> Place | None:
        """The call that gives way to a call of this connection; None if none does.

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

        return min(filter(gives, here), key=order, default=None)


COUNTED = (ClientError, ConfigError, Refused, Busy)
"""Errors by which somebody asked wrongly or too much: all others are of the course of a run."""

MOST = 64
"""Pairs of a party and an error that are counted apart."""

NOBODY, OTHERS = "(nobody known)", "(others)"
"""Names for senders without a signature that holds, and for all senders above MOST."""


class Refusals:
    """Counts the refused requests of one server, by party and error; safe from any thread."""

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
    """Lets authenticated calls in, so many of each party; `run` is empty before there is one."""

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
            Unsigned, UnknownParty, Malformed: it is nobody's, or over another party's connection.
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
            self._make_room(claim.party, context.peer())
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
        """Whose call it is; raises as `admitted`."""
        claim = claim_of(context.invocation_metadata())
        if claim.to != self._name:
            raise Unreachable(f"{claim.to} is asked, and this is {self._name}; check the address")
        if claim.format != FORMAT:  # before anything of it is judged that may mean something else
            raise ConfigError(other_peer(claim.party, claim.format, self._name))
        self._link.check(claim.party, context)
        self._authenticate(claim.party, claim.signed(method), claim.signature)
        return claim

    def places(self, most: int, each: int, silent: float = STALLED) -> Places:
        """Makes places for calls; where a party has no room for another call, one of these goes."""
        made = Places(most, each, self._connections, silent)
        self._places.append(made)
        return made

    def _make_room(self, party: str, peer: str) -> None:
        if self._calls[party] < CALLS or any(each.oust(party, peer) for each in self._places):
            return
        raise Busy(f"{CALLS} calls of {party} are under way", random.uniform(*RETRY_SECONDS))


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
