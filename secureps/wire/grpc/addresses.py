"""Where servers are: some, such as a coordinator with a standby, are at one of several addresses.

A list is as its setting has it (`messages.run.each_address`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from secureps.errors import SecurepsError, Unreachable
from secureps.messages.run import each_address

TURN = 0.5
"""Seconds between two turns: what fails together is one failure."""


class Addresses:
    """The address of each server that is dialled now; to be used under a lock.

    Args:
        given: by name, one address or several with commas between them.
        clock: seconds.
    """

    def __init__(
        self, given: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known = {party: deque(each_address(several)) for party, several in given.items()}
        self._turned: dict[str, float] = {}
        self._clock = clock

    def of(self, party: str) -> str | None:
        """The address that is dialled now; None if nobody has told any."""
        known = self._known.get(party)
        return None if known is None else known[0]

    def several(self, party: str) -> bool:
        """Whether a server may be elsewhere."""
        return len(self._known.get(party, ())) > 1

    def set(self, party: str, address: str) -> bool:
        """Notes an address; whether it is another one than before."""
        other = self.of(party) != address
        if other:
            self._known[party] = deque([address])
        return other

    def failed(self, party: str, error: SecurepsError) -> bool:
        """A call came back: whether another address is dialled from now on."""
        now = self._clock()
        soon = now - self._turned.get(party, -TURN) < TURN
        if not isinstance(error, Unreachable) or not self.several(party) or soon:
            return False
        self._turned[party] = now
        self._known[party].rotate(-1)
        return True
