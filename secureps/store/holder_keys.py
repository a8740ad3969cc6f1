"""The kinds of key pairs that key holders have: one for each way of opening a sum.

    BFV       KIT/public/holders/NAME.bfv.pub       KIT/private/NAME/bfv.key
    ENVELOPE  KIT/public/holders/NAME.envelope.pub  KIT/private/NAME/envelope.key

Every file begins with a tag of its own, so that none is taken for another; the CA certifies
the digest of the whole public file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from secureps.crypto.bfv import BfvPublicKey, BfvSecretKey
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.envelope import EnvelopeKey, EnvelopePublicKey
from secureps.crypto.suite import cipher

HolderSecret = BfvSecretKey | EnvelopeKey


@dataclass(frozen=True, slots=True)
class KeyKind:
    """How keys of one kind are made and read.

    Args:
        name: what its files are called after.
        generate: a fresh pair: the secret file's bytes and the public file's.
        public: what clients seal under, from the public file's bytes; Malformed or Oversized
            if it is not of this kind.
        secret: the holder's key, from the secret file's bytes; raises alike.
    """

    name: str
    generate: Callable[[], tuple[bytes, bytes]]
    public: Callable[[bytes], bytes]
    secret: Callable[[bytes], HolderSecret]

    @property
    def secret_file(self) -> str:
        """Name of a holder's private file."""
        return f"{self.name}.key"


def _bfv_pair() -> tuple[bytes, bytes]:
    from secureps.crypto.bfv_seal import generate

    secret, public = generate()
    return secret.to_bytes(), public.to_bytes()


def _bfv_public(data: bytes) -> bytes:
    BfvPublicKey.from_bytes(data)
    return data


def _envelope_pair() -> tuple[bytes, bytes]:
    secret = EnvelopeKey.from_os()
    return secret.to_bytes(), secret.public.to_bytes()


def _envelope_public(data: bytes) -> bytes:
    return EnvelopePublicKey.from_bytes(data).key


BFV: Final = KeyKind("bfv", _bfv_pair, _bfv_public, BfvSecretKey.from_bytes)
ENVELOPE: Final = KeyKind("envelope", _envelope_pair, _envelope_public, EnvelopeKey.from_bytes)
KINDS: Final[Mapping[Opening, KeyKind]] = MappingProxyType(
    {Opening.HOLDER: BFV, Opening.COMMITTEE: ENVELOPE}
)
"""What holders have, by what opens a sum."""


def kind_for(parameters: CipherParameters) -> KeyKind | None:
    """What the holders of a plan have; None under a cipher without keys. Raises as `cipher`."""
    return KINDS.get(cipher(parameters).opening)
