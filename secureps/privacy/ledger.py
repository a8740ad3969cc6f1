"""The append-only record of what was spent; accountants read it and never change it.

What must not live here: epsilon (`privacy.accountant`), budgets, and durability, which
is the journal's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from secureps.errors import Conflict, Malformed
from secureps.messages.charge import Charge


def demand_sound(charge: Charge) -> None:
    """Malformed if a charge states what cannot have happened."""
    name = f"the charge of {charge.party!r} for {charge.group!r} version {charge.version}"
    if charge.version < 0:
        raise Malformed(f"{name}: a version is at least 0")
    if not (math.isfinite(charge.noise_multiplier) and charge.noise_multiplier >= 0):
        raise Malformed(f"{name}: the noise multiplier {charge.noise_multiplier} is no number >= 0")
    if not 0 <= charge.sample_rate <= 1:
        raise Malformed(f"{name}: the sample rate {charge.sample_rate} is not in [0, 1]")
    if charge.steps < 0:
        raise Malformed(f"{name}: {charge.steps} steps were not taken")


class Ledger:
    """All charges so far, in the order in which they were made; none is ever taken back.

    A charge is known by (party, group, version). A client that trained once for several
    groups charges each of them, which never counts less than was spent.
    """

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self._known: dict[tuple[str, str, int], Charge] = {}
        self._of: dict[str, list[Charge]] = {}
        for charge in charges:
            self.append(charge)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All of them, in order."""
        return tuple(self._known.values())

    def of(self, party: str) -> tuple[Charge, ...]:
        """The charges of one party, in order."""
        return tuple(self._of.get(party, ()))

    def new(self, charge: Charge) -> bool:
        """Whether `charge` would add to what was spent: False if it is on record.

        Raises:
            Malformed: the charge's numbers are out of range.
            Conflict: other facts are on record for the same party, group and version.
        """
        demand_sound(charge)
        known = self._known.get((charge.party, charge.group, charge.version))
        if known is not None and known != charge:
            raise Conflict(
                f"{charge.party!r} was charged for {charge.group!r} version "
                f"{charge.version} before, with other facts"
            )
        return known is None

    def append(self, charge: Charge) -> None:
        """Adds one charge; the same charge again changes nothing. Raises as `new` does."""
        if self.new(charge):
            self._known[charge.party, charge.group, charge.version] = charge
            self._of.setdefault(charge.party, []).append(charge)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.charges == other.charges

    __hash__ = None  # type: ignore[assignment]
