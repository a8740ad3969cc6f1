"""What a committee of key holders costs, and the ring of the plan's sums.

Seeds, envelopes and answers belong to a key, whose length is the ring's degree. So a holder's
traffic grows with the clients of a cohort, not with the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from secureps.codec.grid import MOST_BITS, levels
from secureps.config.plan import MOST_CAPACITY
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.ring import (
    COEFFICIENT_BYTES,
    GUIDELINES_LOG_Q,
    HINTED_SIGMA,
    ML_KEM_768,
    choose,
    core_svp,
)
from secureps.errors import PlanRefused
from secureps.model.layout import GroupLayout
from secureps.policy.explain.visibility import count_withstood
from secureps.policy.plan import Plan, envelope_bytes, value_bytes

RECEIPT_BYTES = 300
"""Approximate bytes of a receipt as holders get it: names, digests, charge and signature, no keys.
"""
TIMES_SENT = 2
"""A holder gets a receipt twice: on arrival, to check its envelope, and with the cohort."""
SECURITY_BITS = 128
SOURCE = "Security Guidelines for Implementing Homomorphic Encryption (2024), table 5.2"


@dataclass(frozen=True, slots=True)
class CommitteeCost:
    """The cost of a plan's committee.

    Args:
        holders: n.
        threshold: t, how many must agree.
        withstood: corrupt holders from which a malicious aggregator gains nothing.
        degree: N of the ring.
        modulus_bits: of the ring's q.
        most_modulus_bits: what `source` allows for `security_bits` against classical attacks.
        core_svp: bits of the primal attack on a key after a sum was opened, classical and quantum
            (`crypto.ring`).
        envelope: the same for ML-KEM-768, in envelopes and TLS.
        digits: values in a coefficient.
        bits, capacity: the largest that cost no more bytes per value.
        submission: bytes of a submission's envelopes, commitments and correction.
        down, up: bytes that a holder receives and sends for a version of the largest cohorts.
    """

    holders: int
    threshold: int
    withstood: int
    degree: int
    modulus_bits: int
    most_modulus_bits: int
    security_bits: int
    source: str
    core_svp: tuple[float, float]
    envelope: tuple[float, float]
    digits: int
    bits: int
    capacity: int
    submission: int
    down: int
    up: int

    @property
    def weakest(self) -> str:
        """What breaks first if an attacker records everything and later has a quantum computer."""
        links = {"the ring": self.core_svp, "ML-KEM-768 in envelopes and TLS": self.envelope}
        first, then = sorted(links, key=lambda name: links[name][1])
        return (
            f"{first}: {links[first][1]:.0f} bits of core-SVP against a quantum computer; "
            f"{then}: {links[then][1]:.0f}"
        )


def committee_cost(plan: Plan, groups: tuple[GroupLayout, ...]) -> CommitteeCost | None:
    if plan.opening is not Opening.COMMITTEE:
        return None
    committee = plan.unnamed_committee
    parameters = plan.fit_cipher(groups[0])
    own = choose(parameters)
    ring, shared = own.ring, envelope_bytes(committee, own.ring.degree)
    correction = ring.degree * COEFFICIENT_BYTES  # no holder gets it
    receipt = RECEIPT_BYTES + shared - correction
    receipts = sum(plan.bounds(group.name).most * receipt for group in groups)
    return CommitteeCost(
        holders=plan.holders,
        threshold=plan.threshold,
        withstood=count_withstood(plan.threshold, plan.holders),
        degree=ring.degree,
        modulus_bits=ring.modulus.bit_length(),
        most_modulus_bits=GUIDELINES_LOG_Q[ring.degree],
        security_bits=SECURITY_BITS,
        source=SOURCE,
        core_svp=core_svp(ring.degree, ring.modulus, HINTED_SIGMA),
        envelope=core_svp(*ML_KEM_768),
        digits=own.digits,
        bits=_most_bits(parameters),
        capacity=_most_capacity(parameters),
        submission=shared,
        down=TIMES_SENT * receipts,
        up=len(groups) * correction,
    )


def advice(plan: Plan, group: GroupLayout) -> Iterator[str]:
    if plan.opening is not Opening.COMMITTEE:
        return
    own, part = plan.fit_cipher(group), group.sent / group.size
    now, bits = part * value_bytes(own), _bits(own.levels)
    largest = max(plan.bounds(name).most for name in plan.all_groups) + plan.noisy_shards
    tight = part * value_bytes(replace(own, capacity=largest))
    if tight < now:
        yield (
            f"cipher.capacity: no cohort is larger than {largest}; that capacity would take "
            f"{tight:.2f} bytes a value in place of {now:.2f}"
        )
    for fewer in range(bits - 1, max(1, bits - 3), -1):
        less = part * value_bytes(replace(own, levels=levels(fewer)))
        if less < now:
            yield (
                f"bits: {fewer} would take {less:.2f} bytes a value in place of {now:.2f}, in "
                f"steps {2 ** (bits - fewer)} times as large"
            )
            return


def _bits(levels: int) -> int:
    return (levels // 2).bit_length() + 1


def _costs_more(own: CipherParameters, capacity: int, most: int) -> bool:
    """True if a larger capacity or grid takes more bytes per value, or is impossible."""
    try:
        return value_bytes(replace(own, capacity=capacity, levels=most)) > value_bytes(own)
    except PlanRefused:
        return True


def _most_bits(own: CipherParameters) -> int:
    more = range(_bits(own.levels) + 1, MOST_BITS + 1)
    costs = partial(_costs_more, own, own.capacity)
    return _bits(own.levels) + bisect_left(more, True, key=lambda bits: costs(levels(bits)))


def _most_capacity(own: CipherParameters) -> int:
    more = range(own.capacity + 1, MOST_CAPACITY + 1)
    return own.capacity + bisect_left(more, True, key=lambda n: _costs_more(own, n, own.levels))
