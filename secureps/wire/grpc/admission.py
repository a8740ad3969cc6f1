"""Who may call a server, and how much of it one caller takes: judged before a message is.

Everything here runs on the server's loop. A caller whom nobody knows is told so from its
metadata, and takes nothing; one who is known has CALLS under way, no more, and no message of
its own may keep the server waiting for longer than STALLED.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grpc.aio import EOF

from secureps.errors import (
    Busy,
    ConfigError,
    Malformed,
    Oversized,
    SecurepsError,
    Unreachable,
    WrongRun,
)
from secureps.messages.format import FORMAT, other_peer
from secureps.messages.run import other_run
from secureps.wire.grpc.authentication import Claim, claim_of
from secureps.wire.grpc.concurrency import Connections, Place, Places
from secureps.wire.grpc.links import Link
from secureps.wire.grpc.refusals import NOBODY, Refusals
from secureps.wire.grpc.uploads import RETRY_SECONDS

Authenticate = Callable[[str, bytes, bytes], None]
"""(party, signed bytes, signature): raises Unsigned or UnknownParty."""

CALLS = 64
"""Calls of one party that are under way at once, its stream of orders among them."""
STALLED = 60.0
"""Seconds without the next message of a call, or without anybody taking what it sends, that end
it. A piece takes 34 on a line of 1 Mbit/s that four uploads share."""


class Callers:
    """Lets authenticated calls in, so many of each party.

    Args:
        link: whose connections they come over.
        name: the server that they call.
        run: id of the run that it serves; empty before there is one.
        authenticate: called once for every call.
    """

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
        """Who calls, while the call lasts.

        All that is known of a call is judged here, before any of its message is taken.

        Raises:
            Unsigned, UnknownParty, Malformed: nobody's call, or over another's connection.
            Unreachable: one for another server.
            ConfigError: of a party with another format.
            WrongRun: of a party in another run.
            Busy: too many of this party's are under way.
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
        """Of which a call takes one; where a party has no room for more calls, those there go."""
        made = Places(most, each, self._connections, silent)
        self._places.append(made)
        return made

    def _make_room(self, party: str, peer: str) -> None:
        if self._calls[party] < CALLS or any(each.oust(party, peer) for each in self._places):
            return
        raise Busy(f"{CALLS} calls of {party} are under way", random.uniform(*RETRY_SECONDS))


async def arrived(context: Any) -> bytes | None:
    """The next message of a call, or None if there is none; Unreachable if it does not come."""
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
    """The one message of a call, as it was signed; Oversized beyond `limit` bytes."""
    data = await arrived(context)
    if data is None:
        raise Malformed("a call without a message")
    if len(data) > limit:
        raise Oversized(f"a message of {len(data)} bytes; at most {limit} are allowed")
    return claim.envelope(data)
