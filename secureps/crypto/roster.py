"""Who takes part: certificates by the CA, and the roster, epoch after epoch.

The CA is the federation's, not the aggregator's. It signs each certificate, and the roster
as a whole, so that nobody can leave a member out unnoticed. Whenever somebody comes or goes it
signs another one, which names all that came before: parties follow it from one to the next by
that signature, on nobody else's word.

A party's request that the issuer certify its keys: public keys, and proof that it has theirs.

    core        the request without its three signatures, canonical
    tls_proof   by the TLS key over core (ECDSA with SHA-256, RFC 6979: the same bytes each time)
    old_proof   by the identity that the roster has of this name, over core: only in a rotation
    signature   by the new identity, over all of it

Each is in a domain of its own, so that none is taken for another, or for a certificate. Nobody
else's keys can be requested: a proof is for this name, this role and these keys.
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
    check_identity_key,
    check_party,
    frame,
)
from secureps.crypto.tls import TlsKey, check_public_key, verify_tls
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
"""Some 30,000 parties."""
_LAST_SECOND = 1 << 40
"""Of all times here: Unix seconds."""

_CERTIFICATE = b"secureps-certificate"
_ROSTER = b"secureps-roster"
_EPOCH = b"secureps-roster-epoch"


@dataclass(frozen=True)
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
        check_party(self.name, self.role)
        check_identity_key(self.public_key)
        if len(self.signature) not in (0, SIGNATURE_BYTES):
            raise Malformed(f"{self.name}: a signature of the wrong length")
        if len(self.cipher_key_digest) not in (
            (0, DIGEST_BYTES) if self.role == "holder" else (0,)
        ):
            raise Malformed(f"{self.name}: a {self.role} with a cipher key of this length")

    @cached_property
    def identity(self) -> PublicIdentity:
        """Made once: to read a key costs as much as to verify with it."""
        return PublicIdentity(self.public_key)

    def verify(self, ca_public: PublicIdentity) -> None:
        ca_public.verify(_CERTIFICATE, signed_part(self), self.signature)


def certify(
    ca: Identity, name: str, role: Role, public_key: bytes, cipher_key_digest: bytes = b""
) -> Certificate:
    """Signs a certificate; Malformed if a field does not fit."""
    bare = Certificate(name, role, public_key, cipher_key_digest, b"")
    return dataclasses.replace(bare, signature=ca.sign(_CERTIFICATE, signed_part(bare)))


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Since when a name has been on the roster: the epoch that it came with, and Unix seconds."""

    epoch: int
    at: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """Where a roster stands in the list of all that a CA has signed for its kit.

    Args:
        issuer: the CA's public key, 32 bytes.
        earlier: digests of all that came before it, in order.
        enrolled: since when each party has been on the roster, in the roster's order.
        expires: Unix seconds after which nobody seals or opens anything by it; 0: never.
        host: of the runs that it is for (`store.keyring`); None: our own service.

    Raises:
        Malformed: a field that is none of this.
    """

    issuer: bytes
    earlier: tuple[bytes, ...]
    enrolled: tuple[Enrolment, ...]
    expires: int
    host: str | None = None

    def __post_init__(self) -> None:
        check_identity_key(self.issuer)
        if any(len(d) != DIGEST_BYTES for d in self.earlier):
            raise Malformed("an epoch of the roster with a digest of the wrong length")
        if not 0 <= self.expires < _LAST_SECOND:
            raise Malformed(f"an epoch of the roster ends at no second {self.expires}")
        for each in self.enrolled:
            if not (0 <= each.epoch <= self.number and 0 <= each.at < _LAST_SECOND):
                raise Malformed("a party is on the roster since an epoch that is still to come")

    @property
    def number(self) -> int:
        return len(self.earlier)


@dataclass(frozen=True)
class Roster:
    """Everybody, sorted by (role, name), signed by the CA; Malformed if it is not.

    Args:
        certificates: of all parties; names are unique.
        signature: the CA's, 64 bytes, over the digest and the epoch's end.
        epoch: None in memory, and in kits of before there were epochs: it stands alone, and for
            ever.
    """

    certificates: tuple[Certificate, ...]
    signature: bytes
    epoch: Epoch | None = None

    def __post_init__(self) -> None:
        keys = [_place(c) for c in self.certificates]
        if keys != sorted(keys):  # the same parties in another order would be another digest
            raise Malformed("the roster is not sorted by role and name")
        names = [c.name for c in self.certificates]
        if len(set(names)) != len(names):  # one party with two keys, or two that pass for one
            raise Malformed("a name is on the roster twice")
        if self.epoch is not None and len(self.epoch.enrolled) != len(names):
            raise Malformed("the roster does not say of each party since when it has been on it")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over all certificates and what came before: what a run pins.

        It stays while the CA signs the same anew, for a later end.
        """
        own = [canonical(c) for c in self.certificates]
        if self.epoch is not None:
            own.append(canonical(dataclasses.replace(self.epoch, expires=0)))
        return digest(_ROSTER.decode(), *own)

    @cached_property
    def committee(self) -> bytes:
        """32 bytes over its key holders' names and cipher keys: whom updates are sealed for."""
        own = ((holder.name.encode(), holder.cipher_key_digest) for holder in self.holders())
        return digest("secureps-committee", *itertools.chain.from_iterable(own))

    @property
    def number(self) -> int:
        return 0 if self.epoch is None else self.epoch.number

    @property
    def expires(self) -> int:
        """Unix seconds after which nobody seals or opens anything by it; 0: never."""
        return 0 if self.epoch is None else self.epoch.expires

    @property
    def host(self) -> str:
        """The host of the runs that it is for; empty: our own service."""
        return "" if self.epoch is None else self.epoch.host or ""

    @property
    def lifetime(self) -> str:
        """How long, in words."""
        if not self.expires:
            return "which holds for ever"
        return f"which holds until {datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def place(self) -> tuple[int, int]:
        """Orders all rosters that its CA has signed: of two, the later one counts."""
        return self.number, self.expires or _LAST_SECOND

    def number_of(self, digest: bytes) -> int | None:
        """The epoch whose roster has this digest: this one or an earlier; None if none has."""
        known = () if self.epoch is None else self.epoch.earlier
        line = (*known, self.digest)
        return line.index(digest) if digest in line else None

    def enrolment(self, name: str) -> Enrolment:
        """Since when a party has been on it; UnknownParty if it is not."""
        self.find(name)
        return self._enrolled.get(name, Enrolment(0, 0))

    @cached_property
    def _enrolled(self) -> dict[str, Enrolment]:
        if self.epoch is None:
            return {}
        names = (certificate.name for certificate in self.certificates)
        return dict(zip(names, self.epoch.enrolled, strict=True))

    def follow(self, text: str) -> Roster | None:
        """The roster in `text` if it comes after this one, verified; None if it is none newer.

        Raises as `of_line`.
        """
        found = self.of_line(text)
        return found if found.place > self.place else None

    def of_line(self, text: str) -> Roster:
        """The roster in `text`, earlier or later than this one, verified.

        Raises:
            Malformed, Oversized: as `from_bytes`.
            Unsigned: another CA's, or nobody's.
            Refused: it is of another line than this one: the CA has signed two, and one of them
                for parties that are not to know of the other.
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
        """The key that verifies a party's signatures; UnknownParty if there is none."""
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
        """Unsigned unless the CA signed the roster and every certificate."""
        if self.epoch is not None and self.epoch.issuer != ca_public.key:
            raise Unsigned("the roster is another CA's")
        ca_public.verify(*_signed_message(self), self.signature)
        for certificate in self.certificates:
            certificate.verify(ca_public)

    def to_bytes(self) -> bytes:
        return self.text.encode()

    @cached_property
    def text(self) -> str:
        """`to_bytes` as text, made once and shared by all parties of a process.

        Parties that follow rosters compare each with their own.
        """
        text = to_file(self).decode()
        _WRITTEN[text] = self
        return text

    def __hash__(self) -> int:
        """Of what the CA signed: parties of a process ask it of the same roster, however large."""
        return hash((self.signature, self.expires))

    @classmethod
    def from_bytes(cls, data: bytes) -> Roster:
        """The roster that `to_bytes` wrote, not yet verified.

        Raises:
            Malformed: any other bytes, be it by a space.
            Oversized: more than MAX_ROSTER_BYTES.
        """
        return _read(data)

    @classmethod
    def from_text(cls, text: str) -> Roster:
        """The same, of what a party has on record; raises as `from_bytes`."""
        return _WRITTEN.get(text) or cls.from_bytes(text.encode())


_WRITTEN: WeakValueDictionary[str, Roster] = WeakValueDictionary()
"""Rosters by their texts, which parties of one process have no need to read again."""


@functools.lru_cache(4)
def _read(data: bytes) -> Roster:
    return from_file(Roster, data, "roster", MAX_ROSTER_BYTES, "the CA's tool")


def sign_roster(
    ca: Identity, certificates: Iterable[Certificate], epoch: Epoch | None = None
) -> Roster:
    """The roster of these certificates in order, signed; Malformed if a name comes twice."""
    bare = Roster(tuple(sorted(certificates, key=_place)), b"", epoch)
    return dataclasses.replace(bare, signature=ca.sign(*_signed_message(bare)))


def first_roster(ca: Identity, expires: int, host: str = "") -> Roster:
    """The empty roster that others follow; it expires at a Unix second, or never (0)."""
    return sign_roster(ca, (), Epoch(ca.public.key, (), (), expires, host or None))


def next_roster(
    ca: Identity, last: Roster, certificates: Iterable[Certificate], now: int, expires: int
) -> Roster:
    """The roster that follows another: of these parties, since `now` those that are new.

    The same parties with the same keys are the same roster, signed anew for a later end.

    Args:
        now, expires: Unix seconds; `expires` 0: never.

    Raises:
        Malformed: a name comes twice.
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
    """Domain and message of what the CA signs."""
    if roster.epoch is None:
        return _ROSTER, roster.digest
    return _EPOCH, roster.digest + roster.expires.to_bytes(8, "little")


# --- key request -------------------------------------------------------------------

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
        tls_proof=tls.sign(frame(_TLS, bare.core)),
        old_proof=b"" if old is None else old.sign(_ROTATION, bare.core),
    )
    return dataclasses.replace(proven, signature=identity.sign(_REQUEST, signed_part(proven)))
