"""Who takes part: certificates by the CA, and the roster.

The CA is the federation's, not the aggregator's. It signs each certificate, and the roster
as a whole, so that nobody can leave a member out unnoticed.

What must not live here: files (`store.keyring`), and the keys of ciphers, of which a
certificate carries only the digest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from secureps.crypto.identity import (
    KEY_BYTES,
    ROLES,
    SIGNATURE_BYTES,
    Identity,
    PublicIdentity,
    Role,
    check_name,
)
from secureps.errors import Malformed, Oversized, UnknownParty
from secureps.messages.encoding import (
    DIGEST_BYTES,
    canonical,
    digest,
    from_plain,
    signed_part,
    to_plain,
)

MAX_ROSTER_BYTES = 16 << 20
"""Some 40,000 parties."""

_CERTIFICATE = b"secureps-certificate"
_ROSTER = b"secureps-roster"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The CA's word that a name in a role has this key.

    Args:
        name: 1 to 63 of a-z 0-9 . _ - and unique over the roster.
        role: client, holder, shard, coordinator or observer.
        public_key: Ed25519, 32 bytes.
        cipher_key_digest: `file_digest` of a holder's public cipher key, else empty.
        signature: the CA's, 64 bytes, over everything else.

    Raises:
        Malformed: a field that is none of this.
    """

    name: str
    role: Role
    public_key: bytes
    cipher_key_digest: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.role not in ROLES:
            raise Malformed(f"{self.name}: role {str(self.role)[:80]!r} is not one of {ROLES}")
        if len(self.public_key) != KEY_BYTES or len(self.signature) not in (0, SIGNATURE_BYTES):
            raise Malformed(f"{self.name}: a key or signature of the wrong length")
        if len(self.cipher_key_digest) not in (
            (0, DIGEST_BYTES) if self.role == "holder" else (0,)
        ):
            raise Malformed(f"{self.name}: a {self.role} with a cipher key of this length")

    @property
    def identity(self) -> PublicIdentity:
        """The key that the party's signatures verify under."""
        return PublicIdentity(self.public_key)

    def verify(self, ca_public: PublicIdentity) -> None:
        """Unsigned unless the CA signed it."""
        ca_public.verify(_CERTIFICATE, signed_part(self), self.signature)


def certify(
    ca: Identity, name: str, role: Role, public_key: bytes, cipher_key_digest: bytes = b""
) -> Certificate:
    """A certificate signed by the CA; Malformed if a field does not fit."""
    bare = Certificate(name, role, public_key, cipher_key_digest, b"")
    return dataclasses.replace(bare, signature=ca.sign(_CERTIFICATE, signed_part(bare)))


@dataclass(frozen=True)
class Roster:
    """Everybody, sorted by (role, name), signed by the CA; Malformed if it is not.

    Args:
        certificates: of all parties; names are unique.
        signature: the CA's, 64 bytes, over the digest.
    """

    certificates: tuple[Certificate, ...]
    signature: bytes

    def __post_init__(self) -> None:
        keys = [(c.role, c.name) for c in self.certificates]
        if keys != sorted(keys):  # the same parties in another order would be another digest
            raise Malformed("the roster is not sorted by role and name")
        names = [c.name for c in self.certificates]
        if len(set(names)) != len(names):  # one party with two keys, or two that pass for one
            raise Malformed("a name is on the roster twice")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over all certificates: what a run pins."""
        return digest(_ROSTER.decode(), *(canonical(c) for c in self.certificates))

    def find(self, name: str) -> Certificate:
        """The certificate of a party; UnknownParty if there is none."""
        certificate = self._by_name.get(name)
        if certificate is None:
            raise UnknownParty(f"nobody named {name[:80]!r} is on the roster")
        return certificate

    @cached_property
    def _by_name(self) -> dict[str, Certificate]:
        return {certificate.name: certificate for certificate in self.certificates}

    def clients(self) -> tuple[Certificate, ...]:
        """Clients by name."""
        return self._of("client")

    def holders(self) -> tuple[Certificate, ...]:
        """Key holders by name."""
        return self._of("holder")

    def _of(self, role: Role) -> tuple[Certificate, ...]:
        return tuple(c for c in self.certificates if c.role == role)

    def verify(self, ca_public: PublicIdentity) -> None:
        """Unsigned unless the CA signed the roster and every certificate."""
        ca_public.verify(_ROSTER, self.digest, self.signature)
        for certificate in self.certificates:
            certificate.verify(ca_public)

    def to_bytes(self) -> bytes:
        """JSON text, one line to a field."""
        return (json.dumps(to_plain(self), indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Roster:
        """The roster that `to_bytes` wrote, not yet verified.

        Raises:
            Malformed: any other bytes, be it by a space.
            Oversized: more than MAX_ROSTER_BYTES.
        """
        if len(data) > MAX_ROSTER_BYTES:
            raise Oversized(f"a roster of {len(data)} bytes; at most {MAX_ROSTER_BYTES}")
        try:
            plain = json.loads(data)
        except (ValueError, RecursionError):
            raise Malformed("this is not a roster in JSON") from None
        roster = from_plain(cls, plain)
        if roster.to_bytes() != data:  # what people compare is what the CA signed
            raise Malformed("this roster was edited: it is not as the CA's tool wrote it")
        return roster


def sign_roster(ca: Identity, certificates: Iterable[Certificate]) -> Roster:
    """The roster of these certificates in order, signed; Malformed if a name comes twice."""
    bare = Roster(tuple(sorted(certificates, key=lambda c: (c.role, c.name))), b"")
    return dataclasses.replace(bare, signature=ca.sign(_ROSTER, bare.digest))
