"""When a key holder takes another envelope key, and when the old ones are erased.

A key serves so many released cohorts and so many seconds as the plan says, by the holder's own
ledger and calendar. One that was replaced is erased as soon as the coordinator needs it no more,
and KEPT seconds later whatever it says; all are when the run is over. The kit's own key, which may
be of any age, is replaced when the run begins.
"""

from __future__ import annotations

from secureps.config.plan import CipherSection
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.holder_records import KeyReplaced, KeysErased
from secureps.roles.holder.fold import KeyFold

KEPT = 24 * 3600.0
"""Seconds after which a key that was replaced is erased at the latest."""


class KeyRotation:
    """Of one holder: the fold of its journal.

    Args:
        announced: its newest key, None while that is the kit's; least: those below are erased.
    """

    def __init__(self) -> None:
        self.announced: EnvelopeKeyAnnounced | None = None
        self.least = 0
        self._served = 0
        self._began = 0.0
        self._replaced: dict[int, float] = {}  # by number: when those below it were replaced

    def apply(self, record: KeyReplaced | KeysErased) -> None:
        """Folds one record."""
        match record:
            case KeyReplaced(announced, unix) if announced.number > self.number:
                self._replaced[announced.number] = unix
                self._served, self._began, self.announced = 0, unix, announced
            case KeyReplaced(announced):
                self.announced = announced
            case KeysErased(below):
                self.least = max(self.least, below)
                self._replaced = {n: at for n, at in self._replaced.items() if n > below}

    def folded(self) -> KeyFold:
        """What its records came to; for reading."""
        return KeyFold(self.announced, self.least, self._served, self._began, self._replaced)

    def unfold(self, known: KeyFold) -> None:
        """Takes up what earlier records came to."""
        self.announced, self.least = known.announced, known.least
        self._served, self._began, self._replaced = known.served, known.began, known.replaced

    def serve(self) -> None:
        """A cohort is released."""
        self._served += 1

    @property
    def number(self) -> int:
        """Of the newest key; 0 is the kit's."""
        return 0 if self.announced is None else self.announced.number

    def due(self, section: CipherSection, unix: float | None) -> int | None:
        """The number of the key to announce now; None: the newest goes on, and all is said of it.

        Args:
            unix: what the calendar says; None where nobody looks at any.
        """
        if self.least > self.number:
            return None  # the run is over
        served = self._served >= section.envelope_versions
        if self.announced is None:
            return 1 if unix is not None or served else None
        late = unix is not None and unix - self._began >= section.envelope_seconds
        if served or late:
            return self.number + 1
        return self.number if self.announced.least < self.least else None

    def overdue(self, unix: float | None) -> int:
        """The keys below this number are erased now, whoever may still want them."""
        old = [n for n, at in self._replaced.items() if unix is not None and unix - at >= KEPT]
        return max(old, default=self.least)
