"""A key holder's word that its envelopes are sealed for another key from now on.

The kit's key has number 0, by the CA's certificate; each that follows has the holder's own
signature, under the identity that the roster names.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.encoding import signed_part

MOST_KEYS = 1 << 31
"""Numbers of keys are below it: one a second, for 68 years."""


@dataclass(frozen=True, slots=True)
class EnvelopeKeyAnnounced:
    """The newest public key of a holder: said to the coordinator, and on by it to clients.

    Args:
        run: run id, 32 bytes: it counts in no other run.
        holder: whose; number: of the key, above those of all before it in this kit.
        key: raw, 1216 bytes (`crypto.envelope`).
        least: the keys below this number are erased; it is `number` at most.
        signature: the holder's (Ed25519), over everything else.
    """

    run: bytes
    holder: str
    number: int
    key: bytes
    least: int
    signature: bytes = b""


def announcement_bytes(announced: EnvelopeKeyAnnounced) -> tuple[bytes, bytes]:
    """Returns the domain and the bytes that the holder signs."""
    return b"secureps-envelope-key", signed_part(announced)
