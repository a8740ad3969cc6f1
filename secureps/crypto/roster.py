"""Certificates, the roster of all parties, and requests for certificates.

The CA is the federation's, not the aggregator's. It signs each certificate, and the roster as a
whole, so that no party can be left out unnoticed. Whenever a party comes or goes the CA signs the
next roster, which names all earlier ones: parties follow it by that signature alone.

A party's request to certify its public keys proves that it has the secret ones:

    core        the request without its three signatures, canonical
    tls_proof   by the TLS key over core (ECDSA with SHA-256, RFC 6979: the same bytes each time)
    old_proof   by the roster's identity of this name, over core; only when keys are replaced
    signature   by the new identity, over all of it

Each signature has its own domain, so none can pass for another one, or for a certificate. A proof
is for this name, role and keys, so nobody can request a certificate for another party's keys.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from weakref import WeakValueDictionary

from secureps.crypto.identity import (
    ROLES,
    SIGNATURE_BYTES,
    Identity,
    PublicIdentity,
    Role,
    TlsKey,
    check_identity_key,
    check_party,
    check_public_key,
    frame,
    verify_tls,
)
from secureps.errors import Malformed, Refused, UnknownParty, Unsigned
from secureps.messages.encoding import (
    DIGEST_BYTES,
    canonical,
    digest,
    from_file,
    signed_part,
    to_file,
)

MAX_ROSTER_BYTES = 15 << 20
"""Enough for some 30,000 parties."""
_LAST_SECOND = 1 << 40
"""Bound on Unix seconds."""

_CERTIFICATE = b"secureps-certificate"
_ROSTER = b"secureps-roster"
_EPOCH = b"secureps-roster-epoch"


@dataclass(frozen=True)
class Certificate:
    """The CA's statement that a name in a role has this key; Malformed for an invalid field.

    Args:
        name: 1 to 63 of a-z 0-9 . _ -, unique in the roster.
        public_key: Ed25519, 32 bytes.
        cipher_key_digest: `file_digest` of a holder's public cipher key, else empty.
        signature: the CA's, 64 bytes, over everything else.
    """

    name: str
    role: Role
    public_key: bytes
    cipher_key_digest: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_party(self.name, self.role)
        check_identity_key(self.public_key)
        if len(self.signature) not in (0, SIGNATURE_BYTES):
            raise Malformed(f"{self.name}: a signature has the wrong length")
        if len(self.cipher_key_digest) not in (
            (0, DIGEST_BYTES) if self.role == "holder" else (0,)
        ):
            raise Malformed(
                f"{self.name}: a {self.role}'s cipher key digest cannot have "
                f"{len(self.cipher_key_digest)} bytes"
            )

    @cached_property
    def identity(self) -> PublicIdentity:
        """Cached, because parsing a key costs as much as verifying with it."""
        return PublicIdentity(self.public_key)

    def verify(self, ca_public: PublicIdentity) -> None:
        ca_public.verify(_CERTIFICATE, signed_part(self), self.signature)


def certify(
    ca: Identity, name: str, role: Role, public_key: bytes, cipher_key_digest: bytes = b""
) -> Certificate:
    """Signs a certificate; Malformed if a field is invalid."""
    bare = Certificate(name, role, public_key, cipher_key_digest, b"")
    return dataclasses.replace(bare, signature=ca.sign(_CERTIFICATE, signed_part(bare)))


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Since when a name has been on the roster: its first epoch, and Unix seconds."""

    epoch: int
    at: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """A roster's place among all that a CA has signed for its kit; Malformed for an invalid field.

    Args:
        issuer: the CA's public key, 32 bytes.
        earlier: digests of all earlier rosters, in order.
        enrolled: since when each party has been on the roster, in the roster's order.
        expires: Unix seconds after which no party seals or opens by it; 0: never.
        host: of the runs that it is for (`store.keyring`); None: our own service.
    """

    issuer: bytes
    earlier: tuple[bytes, ...]
    enrolled: tuple[Enrolment, ...]
    expires: int
    host: str | None = None

    def __post_init__(self) -> None:
        check_identity_key(self.issuer)
        if any(len(d) != DIGEST_BYTES for d in self.earlier):
            raise Malformed("the roster's epoch has a digest of the wrong length")
        if not 0 <= self.expires < _LAST_SECOND:
            raise Malformed(f"the roster's epoch cannot expire at Unix second {self.expires}")
        for each in self.enrolled:
            if not (0 <= each.epoch <= self.number and 0 <= each.at < _LAST_SECOND):
                raise Malformed("the roster enrols a party at a later epoch or an impossible time")

    @property
    def number(self) -> int:
        return len(self.earlier)


@dataclass(frozen=True)
class Roster:
    """All parties' certificates, sorted by (role, name) and signed by the CA; otherwise Malformed.

    Args:
        signature: the CA's, 64 bytes, over the digest and the expiry.
        epoch: None in memory and in kits older than epochs: no roster follows it, and it never
            expires.
    """

    certificates: tuple[Certificate, ...]
    signature: bytes
    epoch: Epoch | None = None

    def __post_init__(self) -> None:
        keys = [_place(c) for c in self.certificates]
        if keys != sorted(keys):  # the same parties in another order would have another digest
            raise Malformed("the roster is not sorted by role and name")
        names = [c.name for c in self.certificates]
        if len(set(names)) != len(names):  # else a party has two keys, or two pass for one
            raise Malformed("a name is on the roster twice")
        if self.epoch is not None and len(self.epoch.enrolled) != len(names):
            raise Malformed("the roster does not say of each party since when it has been on it")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over all certificates and earlier rosters, which a run pins.

        It stays the same when the CA signs the same parties again for a later expiry.
        """
        own = [canonical(c) for c in self.certificates]
        if self.epoch is not None:
            own.append(canonical(dataclasses.replace(self.epoch, expires=0)))
        return digest(_ROSTER.decode(), *own)

    @cached_property
    def committee(self) -> bytes:
        """32 bytes over the key holders' names and cipher keys, for which updates are sealed."""
        own = ((holder.name.encode(), holder.cipher_key_digest) for holder in self.holders())
        return digest("secureps-committee", *itertools.chain.from_iterable(own))

    @property
    def number(self) -> int:
        return 0 if self.epoch is None else self.epoch.number

    @property
    def expires(self) -> int:
        """Unix seconds after which no party seals or opens by it; 0: never."""
        return 0 if self.epoch is None else self.epoch.expires

    @property
    def host(self) -> str:
        """The host of the runs that it is for; empty: our own service."""
        return "" if self.epoch is None else self.epoch.host or ""

    @property
    def lifetime(self) -> str:
        if not self.expires:
            return "which holds for ever"
        return f"which holds until {datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def place(self) -> tuple[int, int]:
        """A key that orders all rosters of a CA: of two, the later one counts."""
        return self.number, self.expires or _LAST_SECOND

    def number_of(self, digest: bytes) -> int | None:
        """Returns the epoch, this or an earlier one, whose roster has this digest, if any."""
        known = () if self.epoch is None else self.epoch.earlier
        line = (*known, self.digest)
        return line.index(digest) if digest in line else None

    def enrolment(self, name: str) -> Enrolment:
        """Returns when a party joined the roster; UnknownParty if the party is not on it."""
        self.find(name)
        return self._enrolled.get(name, Enrolment(0, 0))

    @cached_property
    def _enrolled(self) -> dict[str, Enrolment]:
        if self.epoch is None:
            return {}
        names = (certificate.name for certificate in self.certificates)
        return dict(zip(names, self.epoch.enrolled, strict=True))

    def follow(self, text: str) -> Roster | None:
        """Returns the verified roster in `text` if it is newer, else None; raises as `of_line`."""
        found = self.of_line(text)
        return found if found.place > self.place else None

    def of_line(self, text: str) -> Roster:
        """Returns the verified roster in `text`, earlier or later than this one.

        Raises:
            Malformed, Oversized: as `from_bytes`.
            Unsigned: not signed by this roster's CA.
            Refused: neither of the two rosters follows from the other: the CA has signed two lines,
                one of them perhaps for parties that shall not know of the other.
        """
        if text == self.text:
            return self
        if self.epoch is None:
            raise Refused("this roster is of before there were epochs, and no other follows it")
        found = Roster.from_text(text)
        found.verify(PublicIdentity(self.epoch.issuer))
        first, last = (self, found) if self.number <= found.number else (found, self)
        if last.number_of(first.digest) != first.number:
            raise Refused(
                f"roster {found.number} ({found.digest.hex()[:16]}) is of another line than roster "
                f"{self.number} ({self.digest.hex()[:16]}), which this party goes by: the CA has "
                "signed both; ask whoever issues keys which one is right"
            )
        return found

    def find(self, name: str) -> Certificate:
        certificate = self._by_name.get(name)
        if certificate is None:
            raise UnknownParty(f"nobody named {name[:80]!r} is on the roster")
        return certificate

    def identity(self, name: str) -> PublicIdentity:
        """Returns the key that verifies a party's signatures; UnknownParty if there is none."""
        return self.find(name).identity

    @cached_property
    def _by_name(self) -> dict[str, Certificate]:
        return {certificate.name: certificate for certificate in self.certificates}

    def names(self, role: Role) -> frozenset[str]:
        return self._names[role]

    @cached_property
    def _names(self) -> dict[Role, frozenset[str]]:
        found: dict[Role, list[str]] = {role: [] for role in ROLES}
        for certificate in self.certificates:
            found[certificate.role].append(certificate.name)
        return {role: frozenset(names) for role, names in found.items()}

    def holders(self) -> tuple[Certificate, ...]:
        """The key holders by name."""
        return tuple(self._by_name[name] for name in sorted(self._names["holder"]))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def verify(self, ca_public: PublicIdentity) -> None:
        """Raises Unsigned unless the CA signed the roster and every certificate."""
        if self.epoch is not None and self.epoch.issuer != ca_public.key:
            raise Unsigned("the roster is another CA's")
        ca_public.verify(*_signed_message(self), self.signature)
        for certificate in self.certificates:
            certificate.verify(ca_public)

    def to_bytes(self) -> bytes:
        return self.text.encode()

    @cached_property
    def text(self) -> str:
        """`to_bytes` as text, cached and shared in a process: parties compare rosters often."""
        text = to_file(self).decode()
        _WRITTEN[text] = self
        return text

    def __hash__(self) -> int:
        """Hashes the signature, because a roster may be large and is hashed often."""
        return hash((self.signature, self.expires))

    @classmethod
    def from_bytes(cls, data: bytes) -> Roster:
        """Parses a roster without verifying it.

        Raises:
            Malformed: bytes that `to_bytes` would not write, even by a space.
            Oversized: more than MAX_ROSTER_BYTES.
        """
        return _read(data)

    @classmethod
    def from_text(cls, text: str) -> Roster:
        """Parses a recorded text, or returns the roster if this process wrote it."""
        return _WRITTEN.get(text) or cls.from_bytes(text.encode())


_WRITTEN: WeakValueDictionary[str, Roster] = WeakValueDictionary()
"""Rosters by text, so that parties of one process do not parse them again."""


@functools.lru_cache(4)
def _read(data: bytes) -> Roster:
    return from_file(Roster, data, "roster", MAX_ROSTER_BYTES, "the CA's tool")


def sign_roster(
    ca: Identity, certificates: Iterable[Certificate], epoch: Epoch | None = None
) -> Roster:
    """Signs the roster of these certificates; Malformed if a name occurs twice."""
    bare = Roster(tuple(sorted(certificates, key=_place)), b"", epoch)
    return dataclasses.replace(bare, signature=ca.sign(*_signed_message(bare)))


def first_roster(ca: Identity, expires: int, host: str = "") -> Roster:
    """Signs the empty first roster; it expires at a Unix second, or never (0)."""
    return sign_roster(ca, (), Epoch(ca.public.key, (), (), expires, host or None))


def next_roster(
    ca: Identity, last: Roster, certificates: Iterable[Certificate], now: int, expires: int
) -> Roster:
    """Signs the roster that follows another; new parties are enrolled at `now`.

    If parties and keys are the same, it is the same roster with a later expiry.

    Args:
        now, expires: Unix seconds; `expires` 0: never.

    Raises:
        Malformed: a name occurs twice.
    """
    own = tuple(sorted(certificates, key=_place))
    if own == last.certificates and last.epoch is not None:
        return sign_roster(ca, own, dataclasses.replace(last.epoch, expires=expires))
    new = Enrolment(last.number + 1, now)
    enrolled = tuple(last.enrolment(c.name) if c.name in last else new for c in own)
    before = () if last.epoch is None else last.epoch.earlier
    earlier = (*before, last.digest)
    epoch = Epoch(ca.public.key, earlier, enrolled, expires, last.host or None)
    return sign_roster(ca, own, epoch)


def _place(certificate: Certificate) -> tuple[str, str]:
    return certificate.role, certificate.name


def _signed_message(roster: Roster) -> tuple[bytes, bytes]:
    """Returns the domain and the message that the CA signs."""
    if roster.epoch is None:
        return _ROSTER, roster.digest
    return _EPOCH, roster.digest + roster.expires.to_bytes(8, "little")


# --- key request -------------------------------------------------------------------

MAX_REQUEST_BYTES = 512 << 10
"""Limit of a request's file: a bfv key has 131,098 bytes, twice as many as text."""
MAX_CIPHER_KEY_BYTES = 200_000

_REQUEST = b"secureps-key-request"
_TLS = b"secureps-key-request-tls"
_ROTATION = b"secureps-key-request-rotation"
_ECDSA = range(8, 73)
"""Lengths of a P-256 signature in DER."""


@dataclass(frozen=True)
class KeyRequest:
    """One party's public keys, which it wants certified; Malformed for an invalid field.

    Args:
        name, role, public_key: as in a `Certificate`.
        tls_key: P-256, DER, 91 bytes.
        cipher_key: a holder's public cipher key as in its file; else empty.
        tls_proof: DER, 8 to 72 bytes.
        old_proof: 64 bytes; empty if no keys are replaced.
        signature: 64 bytes; `verify` checks it and the proofs.
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
            raise Malformed(f"{self.name}: a signature has the wrong length")
        check_public_key(self.tls_key)
        if len(self.cipher_key) > (MAX_CIPHER_KEY_BYTES if self.role == "holder" else 0):
            raise Malformed(
                f"{self.name}: a {self.role}'s cipher key cannot have {len(self.cipher_key)} bytes"
            )

    @property
    def identity(self) -> PublicIdentity:
        return PublicIdentity(self.public_key)

    @cached_property
    def core(self) -> bytes:
        return canonical(dataclasses.replace(self, tls_proof=b"", old_proof=b"", signature=b""))

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits over name, role and keys, to compare over another channel."""
        return digest(_REQUEST.decode(), self.core).hex()

    def verify(self, replaced: PublicIdentity | None = None) -> None:
        """Raises Unsigned unless all proofs are right, also that of a replaced identity.

        Malformed if the TLS key is not a point of the curve.

        Args:
            replaced: the roster's identity of this name; None without one.
        """
        self.identity.verify(_REQUEST, signed_part(self), self.signature)
        verify_tls(self.tls_key, frame(_TLS, self.core), self.tls_proof)
        if replaced is None:
            if self.old_proof:
                raise Unsigned("it replaces keys, and the roster has none of this name")
        else:
            replaced.verify(_ROTATION, self.core, self.old_proof)

    def to_bytes(self) -> bytes:
        return to_file(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyRequest:
        """Parses a request without verifying it; Malformed unless `to_bytes` wrote it."""
        return from_file(cls, data, "request", MAX_REQUEST_BYTES, "`secureps keys`")


def sign_request(
    name: str,
    role: Role,
    identity: Identity,
    tls: TlsKey,
    cipher_key: bytes = b"",
    old: Identity | None = None,
) -> KeyRequest:
    """Signs a request for these keys, which replace those of `old`; always the same bytes."""
    bare = KeyRequest(name, role, identity.public.key, tls.public, cipher_key, b"", b"", b"")
    proven = dataclasses.replace(
        bare,
        tls_proof=tls.sign(frame(_TLS, bare.core)),
        old_proof=b"" if old is None else old.sign(_ROTATION, bare.core),
    )
    return dataclasses.replace(proven, signature=identity.sign(_REQUEST, signed_part(proven)))
