"""How many bytes a submission has, and what it carries for a committee; and an order to open.

Envelopes, commitments and the correction belong to the key of a submission, whose length is the
ring's degree and not the model's.
"""

from __future__ import annotations

from secureps.crypto import envelope
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import COEFFICIENT_BYTES, choose
from secureps.crypto.sharing import Committee
from secureps.crypto.suite import cipher
from secureps.messages.encoding import DIGEST_BYTES
from secureps.model.layout import GroupLayout

ORDER_BYTES = 200
"""Of an order to open without its members, at the most."""
MEMBER_BYTES = 943
"""Of a member and its receipt in an order, at the most, without the name of its group, which comes
three times, and what is sealed."""
_ENVELOPE_FRAMING, _KEY_NUMBER, _DIGEST_FRAMING = 3, 5, 2


def one_envelope(committee: Committee) -> int:
    """The bytes of the envelope that a submission has for one holder."""
    return committee.seed_bytes + envelope.OVERHEAD


def order_bytes(committee: Committee, members: int, group: str) -> int:
    """Bounds the bytes of an order to open a cohort: every holder gets it with all receipts."""
    each = one_envelope(committee) + _ENVELOPE_FRAMING + _KEY_NUMBER
    sealed = len(committee.holders) * each
    committed = len(committee.subsets) * (DIGEST_BYTES + _DIGEST_FRAMING)
    member = MEMBER_BYTES + 3 * len(group) + sealed + committed
    return ORDER_BYTES + len(group) + members * member


def value_bytes(parameters: CipherParameters) -> float:
    """Bytes of a value in a full block."""
    return choose(parameters).block_bytes(parameters.slots) / parameters.slots


def envelope_bytes(committee: Committee, degree: int) -> int:
    """Bytes of the envelopes, commitments and correction of one submission."""
    return (
        len(committee.holders) * one_envelope(committee)
        + len(committee.subsets) * DIGEST_BYTES
        + degree * COEFFICIENT_BYTES
    )


def bytes_up(parameters: CipherParameters, group: GroupLayout) -> int:
    """Bytes of one sealed update of a group, under a cipher that is fitted to its blocks."""
    sealed = cipher(parameters).block_bytes
    full, last = sealed(group.slots(0)), group.slots(group.blocks - 1)
    return (group.blocks - 1) * full + sealed(last)
