"""A party's request that the issuer certify its keys: public keys, and proof that it has theirs.

    core        the request without its three signatures, canonical
    tls_proof   by the TLS key over core (ECDSA with SHA-256, RFC 6979: the same bytes each time)
    old_proof   by the identity that the roster has of this name, over core: only in a rotation
    signature   by the new identity, over all of it

Each is in a domain of its own, so that none is taken for another, or for a certificate. Nobody
else's keys can be requested: a proof is for this name, this role and these keys.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from secureps.crypto.identity import (
    SIGNATURE_BYTES,
    Identity,
    PublicIdentity,
    Role,
    check_identity_key,
    check_party,
    framed,
)
from secureps.crypto.tls import TlsKey, check_public_key, verify_tls
from secureps.errors import Malformed, Unsigned
from secureps.messages.encoding import canonical, digest, from_file, signed_part, to_file

MAX_REQUEST_BYTES = 512 << 10
"""Of a request's file: a bfv key has 131,098 bytes, twice as many as text."""
MAX_CIPHER_KEY_BYTES = 200_000

_REQUEST = b"secureps-key-request"
_TLS = b"secureps-key-request-tls"
_ROTATION = b"secureps-key-request-rotation"
_ECDSA = range(8, 73)
"""Bytes of a signature by P-256, in DER."""


@dataclass(frozen=True)
class KeyRequest:
    """One party's public keys, as it wants them certified.

    Args:
        name, role: as in a `Certificate`.
        public_key: Ed25519, 32 bytes.
        tls_key: P-256, DER, 91 bytes.
        cipher_key: a holder's public cipher key as its file has it; else empty.
        tls_proof: DER, 8 to 72 bytes.
        old_proof: 64 bytes, or empty: no keys are replaced.
        signature: 64 bytes.

    Raises:
        Malformed: a field that is none of this. No signature is looked at: see `verify`.
    """

    name: str
    role: Role
    public_key: bytes
    tls_key: bytes
    cipher_key: bytes
    tls_proof: bytes
    old_proof: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_party(self.name, self.role)
        check_identity_key(self.public_key)
        if (
            len(self.tls_proof) not in (0, *_ECDSA)
            or len(self.old_proof) not in (0, SIGNATURE_BYTES)
            or len(self.signature) not in (0, SIGNATURE_BYTES)
        ):
            raise Malformed(f"{self.name}: a signature of the wrong length")
        check_public_key(self.tls_key)
        if len(self.cipher_key) > (MAX_CIPHER_KEY_BYTES if self.role == "holder" else 0):
            raise Malformed(f"{self.name}: a {self.role} with a cipher key of this length")

    @property
    def identity(self) -> PublicIdentity:
        return PublicIdentity(self.public_key)

    @cached_property
    def core(self) -> bytes:
        """The bytes that the proofs sign."""
        return canonical(dataclasses.replace(self, tls_proof=b"", old_proof=b"", signature=b""))

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits over name, role and keys, to be compared over another channel."""
        return digest(_REQUEST.decode(), self.core).hex()

    def verify(self, replaced: PublicIdentity | None = None) -> None:
        """Unsigned unless who asks has the secret keys, and those of the identity it replaces.

        Malformed if the TLS key is no point of the curve.

        Args:
            replaced: the roster's identity of this name; None: it has none.
        """
        self.identity.verify(_REQUEST, signed_part(self), self.signature)
        verify_tls(self.tls_key, framed(_TLS, self.core), self.tls_proof)
        if replaced is None:
            if self.old_proof:
                raise Unsigned("it replaces keys, and the roster has none of this name")
        else:
            replaced.verify(_ROTATION, self.core, self.old_proof)

    def to_bytes(self) -> bytes:
        return to_file(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyRequest:
        """The request that `to_bytes` wrote, not yet verified.

        Raises:
            Malformed: any other bytes, be it by a space.
            Oversized: more than MAX_REQUEST_BYTES.
        """
        return from_file(cls, data, "request", MAX_REQUEST_BYTES, "`secureps keys`")


def sign_request(
    name: str,
    role: Role,
    identity: Identity,
    tls: TlsKey,
    cipher_key: bytes = b"",
    old: Identity | None = None,
) -> KeyRequest:
    """A request for these keys, the same bytes each time; Malformed if a field does not fit.

    Args:
        old: the identity that it replaces.
    """
    bare = KeyRequest(name, role, identity.public.key, tls.public, cipher_key, b"", b"", b"")
    proven = dataclasses.replace(
        bare,
        tls_proof=tls.sign(framed(_TLS, bare.core)),
        old_proof=b"" if old is None else old.sign(_ROTATION, bare.core),
    )
    return dataclasses.replace(proven, signature=identity.sign(_REQUEST, signed_part(proven)))
