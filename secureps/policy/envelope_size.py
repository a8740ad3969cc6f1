"""How many bytes a submission carries for a committee, whatever it updates.

Envelopes, commitments and the correction belong to the key of a submission, whose length is the
ring's degree and not the model's.
"""

from __future__ import annotations

from secureps.crypto import envelope
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import COEFFICIENT_BYTES, choose
from secureps.crypto.sharing import Committee
from secureps.messages.encoding import DIGEST_BYTES


def value_bytes(parameters: CipherParameters) -> float:
    """Bytes of a value in a full block."""
    return choose(parameters).block_bytes(parameters.slots) / parameters.slots


def envelope_bytes(committee: Committee, degree: int) -> int:
    """Of one submission, for all holders together."""
    return (
        len(committee.holders) * (committee.seed_bytes + envelope.OVERHEAD)
        + len(committee.subsets) * DIGEST_BYTES
        + degree * COEFFICIENT_BYTES
    )
