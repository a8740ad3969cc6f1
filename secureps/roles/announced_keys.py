"""The newest envelope key of every holder, by the holder's own signature and nobody else's word.

The coordinator has them to hand on and a client to seal by. Neither goes back to an older one:
whoever serves a key that was stolen in the meantime is not followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from secureps.crypto.envelope import EnvelopePublicKey
from secureps.crypto.identity import PublicIdentity
from secureps.crypto.roster import Roster
from secureps.errors import Malformed, Refused, UnknownParty, WrongRun
from secureps.messages.envelope_keys import MOST_KEYS, EnvelopeKeyAnnounced, announcement_bytes


@dataclass(slots=True)
class AnnouncedKeys:
    """What one party knows; `newest` by holder, of those that have announced any."""

    newest: Mapping[str, EnvelopeKeyAnnounced] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def apply(self, record: EnvelopeKeyAnnounced) -> None:
        """Folds one journalled announcement; those who read `newest` meanwhile have the old one."""
        self.newest = {**self.newest, record.holder: record}
        self._counts[record.holder] += 1

    def count(self, holder: str) -> int:
        """How many announcements of a holder are on record."""
        return self._counts[holder]

    def number(self, holder: str) -> int:
        """Of a holder's newest key; 0 is the kit's."""
        known = self.newest.get(holder)
        return 0 if known is None else known.number

    def least(self, holder: str) -> int:
        """A holder has erased its keys below this number."""
        known = self.newest.get(holder)
        return 0 if known is None else known.least

    def is_news(self, told: EnvelopeKeyAnnounced, run: bytes, roster: Roster) -> bool:
        """Whether an announcement says more than is known, verified.

        Raises:
            UnknownParty, Unsigned: no holder of the roster signed it.
            WrongRun: it is another run's.
            Malformed: no number or key that can be.
            Refused: an older key than is known, or another under the same number.
        """
        known = self.newest.get(told.holder)
        if told == known:
            return False
        holder = roster.find(told.holder)
        if holder.role != "holder" or not holder.cipher_key_digest:
            raise UnknownParty(f"{told.holder} is no key holder, and has no envelope key")
        _verify(told, holder.public_key)
        # A key that a holder announced for another run is erased by that one's rules.
        if told.run != run:
            raise WrongRun(f"key {told.number} of {told.holder} was announced for another run")
        if not 0 < told.number < MOST_KEYS or not 0 <= told.least <= told.number:
            raise Malformed(f"{told.holder} announces key {told.number}, least {told.least}")
        EnvelopePublicKey(told.key)
        if known is None or told.number > known.number:
            return True
        if told.number < known.number or told.least < known.least:
            raise Refused(
                f"key {told.number} of {told.holder} is older than its key {known.number}, which "
                "is known: nothing is sealed for a key that may be stolen by now"
            )
        if told.key != known.key:
            raise Refused(f"key {told.number} of {told.holder} is another than was announced")
        return told.least > known.least


@lru_cache(64)
def _verify(told: EnvelopeKeyAnnounced, key: bytes) -> None:
    """Unsigned unless the holder with this key signed it; once for all clients of a process."""
    PublicIdentity(key).verify(*announcement_bytes(told), told.signature)
