"""Epsilon from charges. The only importer of dp_accounting, which is slow to import.

Record-level differential privacy, adjacency: one record added or removed. What must not
live here: anything that changes a ledger, and mechanisms that no theorem here covers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import dp_accounting
from dp_accounting import pld, rdp

from secureps.errors import PlanRefused
from secureps.messages.charge import Charge
from secureps.privacy.ledger import demand_sound

AccountantName: TypeAlias = Literal["rdp", "pld"]

WHOLE = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Renyi orders for high sampling rates: every choice gives a bound. Whole ones have a closed
form (Mironov et al. 2019, section 3.3), where the series of fractional ones fails."""

HIGH_RATE = 0.1


def epsilon(charges: Iterable[Charge], delta: float, accountant: AccountantName = "rdp") -> float:
    """The epsilon at `delta` of all charges together, for add-or-remove-one of a record.

    Each charge is `steps` Poisson-sampled Gaussian mechanisms, composed adaptively. The
    charges must be about the same records (one party's: `Ledger.of`); those of several
    parties give a bound for a record that all of them hold.

    Args:
        charges: any number; none cost 0.
        delta: in (0, 1).
        accountant: "rdp" (fast), or "pld" (tight, pessimistic discretization).
    Returns:
        an upper bound on epsilon >= 0; infinity if any step was taken without noise.
    Raises:
        PlanRefused: delta out of range, or an unknown accountant.
        Malformed: a charge whose numbers are out of range.
    References:
        Mironov, Talwar and Zhang 2019 (rdp); Koskela et al. 2020 and Doroshenko et al.
        2022 (pld).
    """
    if not 0 < delta < 1:
        raise PlanRefused(f"delta is {delta}: it must lie strictly between 0 and 1")
    if accountant not in get_args(AccountantName):
        raise PlanRefused(f"unknown accountant {accountant!r}: known are rdp, pld")
    mechanisms: Counter[tuple[float, float]] = Counter()
    for charge in charges:
        demand_sound(charge)
        if charge.sample_rate > 0 and charge.steps > 0:
            mechanisms[charge.noise_multiplier, charge.sample_rate] += charge.steps
    if not mechanisms:
        return 0.0
    if any(noise == 0 for noise, _ in mechanisms):
        return math.inf
    return _composed(tuple(sorted(mechanisms.items())), delta, accountant)


@lru_cache(maxsize=1024)
def _composed(
    mechanisms: tuple[tuple[tuple[float, float], int], ...],
    delta: float,
    accountant: AccountantName,
) -> float:
    """Epsilon of ((noise multiplier, sample rate), steps) together; asked again and again."""
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    spent: dp_accounting.PrivacyAccountant = (
        rdp.RdpAccountant(
            WHOLE if max(rate for (_, rate), _ in mechanisms) >= HIGH_RATE else None, relation
        )
        if accountant == "rdp"
        else pld.PLDAccountant(neighboring_relation=relation)
    )
    for (noise, rate), steps in mechanisms:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        spent.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    return float(spent.get_epsilon(delta))
