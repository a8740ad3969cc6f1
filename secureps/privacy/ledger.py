"""The append-only record of what was spent; accountants read it and never change it.

What must not live here: epsilon (`privacy.accountant`), budgets, and durability, which
is the journal's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Ledger:
    """All charges so far, in the order in which they were made.

    A charge is known by (party, group, version). A client that trained once for several
    groups charges each of them, which never counts less than was spent.
    """

    charges: tuple[Charge, ...] = ()

    def append(self, charge: Charge) -> Ledger:
        """A ledger with one more charge; the same charge again changes nothing.

        Raises:
            Malformed: the charge's numbers are out of range.
            Conflict: other facts are on record for the same party, group and version.
        """
        demand_sound(charge)
        key = (charge.party, charge.group, charge.version)
        for known in self.charges:
            if (known.party, known.group, known.version) == key:
                if known != charge:
                    raise Conflict(
                        f"{charge.party!r} was charged for {charge.group!r} version "
                        f"{charge.version} before, with other facts"
                    )
                return self
        return Ledger((*self.charges, charge))

    def of(self, party: str) -> tuple[Charge, ...]:
        """The charges of one party, in order."""
        return tuple(charge for charge in self.charges if charge.party == party)
