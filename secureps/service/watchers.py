"""The streams of orders that a party gives, one for each party that watches it."""

from __future__ import annotations

from collections.abc import Callable

from secureps.crypto.roster import Roster
from secureps.errors import KitError, SecurepsError, UnknownParty
from secureps.messages.orders import AnyOrder
from secureps.wire.transport import Deliver


class Watchers:
    """All streams that are open; `ended` hears of each that this party ends, and whose it was."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._streams: dict[str, Deliver] = {}
        self._ended = ended

    def begin(self, party: str, deliver: Deliver) -> None:
        """A stream opens. An older one of the same party ends with an error: whoever had it would
        wait for ever.
        """
        if (older := self._streams.get(party)) is not None:
            text = f"another process with {party}'s kit has taken its orders over: a kit is "
            older(KitError(f"{text}for one process at a time, end one of them"))
        self._streams[party] = deliver

    def end(self, party: str, deliver: Deliver) -> None:
        """A stream was closed at its other end, unless it is another one by now."""
        if self._streams.get(party) is deliver:
            del self._streams[party]
            self._ended(party)

    def refuse(self, party: str, error: SecurepsError) -> None:
        """A stream ends, if there is one, and says why."""
        if (deliver := self._streams.pop(party, None)) is not None:
            deliver(error)
            self._ended(party)

    def keep_to(self, roster: Roster) -> None:
        """Whoever is on the roster no more hears no orders from now on."""
        for party in [name for name in self._streams if name not in roster]:
            self.refuse(party, UnknownParty(f"{party} is on the roster no more"))

    def tell(self, party: str, order: AnyOrder) -> None:
        """One order, to whoever watches."""
        if (deliver := self._streams.get(party)) is not None:
            deliver(order)
