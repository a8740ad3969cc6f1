"""A key holder's announcement of its next envelope key.

The kit's key has number 0 and is certified by the CA. The holder signs every later one with its
identity of the roster.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.encoding import signed_part

MOST_KEYS = 1 << 31
"""Bounds the numbers of keys: one a second for 68 years."""


@dataclass(frozen=True, slots=True)
class EnvelopeKeyAnnounced:
    """The newest public key of a holder, sent to the coordinator, and by it to clients.

    Args:
        run: run id, 32 bytes; the key counts in no other run.
        number: of the key, above all earlier numbers of this kit.
        key: raw, 1216 bytes (`crypto.envelope`).
        least: keys below this number are erased; at most `number`.
        signature: the holder's (Ed25519), over everything else.
    """

    run: bytes
    holder: str
    number: int
    key: bytes
    least: int
    signature: bytes = b""


def announcement_bytes(announced: EnvelopeKeyAnnounced) -> tuple[bytes, bytes]:
    return b"secureps-envelope-key", signed_part(announced)
