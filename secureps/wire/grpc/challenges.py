"""A server's challenges: every request is signed under one, and under each with a number once.

Giving one out costs the server nothing, it keeps none that nobody has used: a challenge carries its
own time and a MAC under a key of this process. What it keeps is which numbers an authenticated
party used under it: those of the last WINDOW, as a bitmap (as RFC 4303, section 3.4.3, does for
packets), and nothing older than LIFETIME. Whatever else is asked is not fresh, and its sender signs
it anew: that costs a round trip, and is no error.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import time
from collections import defaultdict
from collections.abc import Callable

from secureps.errors import NotFresh
from secureps.wire.grpc.authentication import CHALLENGE_BYTES, Claim

LIFETIME = 600.0
"""Seconds that a challenge is good for."""
WINDOW = 256
"""Numbers behind the highest one that may still come: requests overtake one another."""
EACH = 64
"""Challenges that one party may have in use; the oldest goes for the next one."""

_TIME = struct.Struct("<d")
_MAC_BYTES = 16
_SALT_BYTES = CHALLENGE_BYTES - _TIME.size - _MAC_BYTES


class _Used:
    """Which numbers came under one challenge."""

    __slots__ = ("highest", "seen")

    def __init__(self) -> None:
        self.highest, self.seen = 0, 0

    def take(self, number: int) -> bool:
        """Whether it comes for the first time; bit b of `seen` is the number `highest - b`."""
        ahead = number - self.highest
        if ahead > 0:
            self.seen = (self.seen << ahead) & ((1 << WINDOW) - 1) if ahead < WINDOW else 0
            self.highest = number
        behind = self.highest - number
        if behind >= WINDOW or self.seen >> behind & 1:
            return False
        self.seen |= 1 << behind
        return True


class Challenges:
    """Those of one process of a server; to be used on its loop.

    Args:
        now: seconds, of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._key = os.urandom(32)
        self._used: defaultdict[str, dict[bytes, _Used]] = defaultdict(dict)
        self._floor: dict[str, float] = {}
        """By party: what is as old as this was in use once, and is in use no more."""
        self._next_sweep = now() + LIFETIME

    def fresh(self) -> bytes:
        """A new one: CHALLENGE_BYTES that no other is, and that nobody can make."""
        head = _TIME.pack(self._now()) + os.urandom(_SALT_BYTES)
        return head + self._mac(head)

    def check(self, claim: Claim) -> None:
        """NotFresh unless this process gave the claim's challenge out, not too long ago."""
        head, mac = claim.challenge[:-_MAC_BYTES], claim.challenge[-_MAC_BYTES:]
        ours = hmac.compare_digest(mac, self._mac(head))  # in the same time, however much is right
        if not ours or _made(claim.challenge) <= self._now() - LIFETIME:
            raise self._refusal()

    def use(self, claim: Claim) -> None:
        """Notes that an authenticated party has used this number; NotFresh if it did before."""
        self._sweep()
        party, challenge = claim.party, claim.challenge
        mine = self._used[party]
        if challenge not in mine:
            over = self._now() - LIFETIME  # by now, and its numbers are forgotten
            if _made(challenge) <= max(over, self._floor.get(party, over)):
                raise self._refusal()
            mine[challenge] = _Used()
            if len(mine) > EACH:
                oldest = min(mine, key=_made)
                self._floor[party] = _made(oldest)
                del mine[oldest]
        if challenge not in mine or not mine[challenge].take(claim.number):
            raise self._refusal()

    def _sweep(self) -> None:
        """Now and then: a challenge that is over by its own time needs no bitmap."""
        if self._now() < self._next_sweep:
            return
        over, self._next_sweep = self._now() - LIFETIME, self._now() + LIFETIME
        for party, mine in tuple(self._used.items()):
            for challenge in [known for known in mine if _made(known) <= over]:
                del mine[challenge]
            if not mine:
                del self._used[party]
                self._floor.pop(party, None)  # what was older is over too

    def _refusal(self) -> NotFresh:
        return NotFresh("sign it under this challenge, and send it again", challenge=self.fresh())

    def _mac(self, head: bytes) -> bytes:
        return hashlib.blake2b(head, digest_size=_MAC_BYTES, key=self._key).digest()


def _made(challenge: bytes) -> float:
    """When; of a challenge that `check` has let pass."""
    made: float = _TIME.unpack_from(challenge)[0]
    return made
