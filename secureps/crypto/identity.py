"""Identities of parties: names, roles, Ed25519 keys (RFC 8032), and TLS certificates (RFC 5280).

A public key is refused unless it is the canonical encoding of a point whose order is not small.
Under the neutral element one signature is valid for every message, and under the other points of
order up to 8 for every eighth message or more, so an attacker could have such a key certified
without a secret (RFC 8032, section 5.1.3; Chalkias, Garillot and Nikolaenko, "Taming the many
EdDSAs", 2020, section 3). The library refuses a signature with S >= L (RFC 8032, section 5.1.7).

A party's transport key is P-256, because gRPC takes no Ed25519 in a leaf. The kit's CA signs its
certificate with the Ed25519 key that signs the roster. Here it signs DER, which begins with byte
0x30; elsewhere it signs messages that begin with the length of a domain in 8 bytes. So neither can
pass for the other. A certificate has one name of the roster, by which alone a server is dialled.
"""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secureps.crypto.secret import Secret
from secureps.errors import Malformed, Unsigned
from secureps.messages.encoding import digest
from secureps.messages.run import COORDINATOR, STANDBY

KEY_BYTES = 32
SIGNATURE_BYTES = 64
Role = Literal["client", "holder", "shard", "coordinator", "observer"]
"""An observer reads the run's status and published models, and may send nothing."""
ROLES: tuple[Role, ...] = typing.get_args(Role)

_P: Final = 2**255 - 19
_ORDER_8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER: Final = frozenset({0, 1, _P - 1, _ORDER_8, _P - _ORDER_8})
"""The y of the eight points whose order divides 8, for either sign of x. No secret key has such a
public key: its scalar is 8 m with 0 < m < 2^252, so m is less than the base point's prime order."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def frame(domain: bytes, message: bytes) -> bytes:
    """Frames a message for signing, so that no message of one domain is a message of another."""
    return len(domain).to_bytes(8, "little") + domain + message


def check_identity_key(key: bytes) -> None:
    """Raises Malformed unless an honest party can have this Ed25519 public key."""
    if len(key) != KEY_BYTES:
        raise Malformed(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(key)}")
    y = int.from_bytes(key, "little") % 2**255  # the last bit is the sign of x
    if y >= _P:
        raise Malformed("this Ed25519 public key is written in a way that no honest party uses")
    if y in _SMALL_ORDER:
        raise Malformed(
            "this Ed25519 public key is a point of small order, under which signatures hold that "
            "nobody made: no honest party's key is one"
        )


@dataclass(frozen=True, repr=False)
class PublicIdentity:
    """An Ed25519 public key: 32 bytes that pass `check_identity_key`, otherwise Malformed."""

    key: bytes

    def __post_init__(self) -> None:
        check_identity_key(self.key)

    @cached_property
    def _public(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.key)

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits, for people to compare over another channel."""
        return digest("secureps-identity", self.key).hex()

    def verify(self, domain: bytes, message: bytes, signature: bytes) -> None:
        try:
            self._public.verify(signature, frame(domain, message))
        except InvalidSignature:
            raise Unsigned(
                f"a signature in {domain.decode(errors='replace')} is wrong: another key made it, "
                "or whoever passed the bytes on altered them"
            ) from None

    def __repr__(self) -> str:
        return f"PublicIdentity({self.key.hex()})"


class Identity(Secret):
    """An Ed25519 secret key, 32 bytes (else Malformed)."""

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed(f"an Ed25519 secret key has {KEY_BYTES} bytes, not {len(secret)}")
        self._secret = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = PublicIdentity(self._secret.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    def to_bytes(self) -> bytes:
        return self._secret.private_bytes_raw()

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """Signs a message: 64 bytes. The domain, signed too, is the kind of message."""
        return self._secret.sign(frame(domain, message))


def check_party(name: str, role: Role) -> None:
    """Raises Malformed unless a party of this role can have this name."""
    check_name(name)
    if role not in ROLES:
        raise Malformed(f"{name}: role {str(role)[:80]!r} is not one of {', '.join(ROLES)}")
    # All parties follow orders that the coordinator signs, and its standby speaks in its name
    # (`wire.transport.party_at`): no other role may have either name.
    if name in (COORDINATOR, STANDBY) and role != "coordinator":
        raise Malformed(f"{name} is the coordinator's name: a {role} takes another one")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Malformed(
            f"{name[:80]!r} is no name: 1 to 63 of a-z 0-9 . _ -, the first a letter or digit"
        )


LIFETIME = timedelta(days=365)
AUTHORITY_LIFETIME = timedelta(days=20 * 365)
_EARLY = timedelta(days=1)
"""Certificates are valid from a day before they were made, because clocks differ."""
_SERVERS = ("coordinator", "shard", "holder")
"""Roles that listen; a holder does for its metrics."""
_PEM = serialization.Encoding.PEM
_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
"""The beginning of every DER public key of P-256 (RFC 5480) with an uncompressed point."""
_POINT = 64
"""Bytes of the point after it."""
_ED25519 = bytes.fromhex("300506032b6570034100")
"""The bytes between the signed part and an Ed25519 signature of 64 bytes (RFC 8410)."""


class Credentials(Secret):
    """Three PEM texts: the CA's certificate, the party's, and its private key."""

    __slots__ = ("authority", "certificate", "key")

    def __init__(self, authority: bytes, certificate: bytes, key: bytes) -> None:
        self.authority, self.certificate, self.key = authority, certificate, key


def tls_name(party: str) -> str:
    """Returns the DNS name in a party's certificate; it is no address and is never resolved."""
    return f"{party}.secureps"


_ECDSA = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


class TlsKey(Secret):
    """A P-256 private key, from unencrypted PEM (PKCS 8); Malformed otherwise."""

    __slots__ = ("_key",)

    def __init__(self, pem: bytes) -> None:
        try:
            key = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise Malformed("this is no private key in PEM") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise Malformed("this is no private key of P-256")
        self._key = key

    @classmethod
    def generate(cls) -> TlsKey:
        made = ec.generate_private_key(ec.SECP256R1())
        return cls(_private_pem(made))

    def to_bytes(self) -> bytes:
        return _private_pem(self._key)

    @property
    def public(self) -> bytes:
        return _spki(self._key.public_key())

    def sign(self, message: bytes) -> bytes:
        """Signs by ECDSA with SHA-256 (RFC 6979), in DER; the same message gives the same bytes."""
        return self._key.sign(message, _ECDSA)


def check_public_key(public: bytes) -> None:
    """Raises Malformed unless it looks like a DER public key of P-256; the point is not checked."""
    if len(public) != len(_P256) + _POINT or not public.startswith(_P256):
        raise Malformed("this is no public key of P-256 in DER")


def verify_tls(public: bytes, message: bytes, signature: bytes) -> None:
    """Raises Unsigned unless the owner of `public` (DER) signed; Malformed if that is no key."""
    try:
        _public_key(public).verify(signature, message, _ECDSA)
    except InvalidSignature:
        raise Unsigned("a signature by the TLS key is wrong") from None


def _public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    check_public_key(public)
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public[-_POINT - 1 :])
    except ValueError:
        raise Malformed("this public key of P-256 is no point of the curve") from None


AUTHORITY_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""The uses of a CA's key: it signs certificates, and revocation lists."""


def make_authority(ca: Identity) -> bytes:
    key, name = Ed25519PrivateKey.from_private_bytes(ca.to_bytes()), _name("secureps CA")
    return (
        _builder(name, name, AUTHORITY_LIFETIME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(AUTHORITY_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, None)
        .public_bytes(_PEM)
    )


def certify_tls(ca: Identity, authority: bytes, name: str, role: Role, public: bytes) -> bytes:
    """Makes a party's certificate: PEM.

    Args:
        authority: the CA's own certificate, PEM.
        public: the party's public key of P-256, DER.
    Raises:
        Malformed: one of the two is invalid.
    """
    subject = _public_key(public)
    key = Ed25519PrivateKey.from_private_bytes(ca.to_bytes())
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role in _SERVERS:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    # Strict verifiers want it (RFC 5280, 4.2.1.1), among them Python's from 3.13 on.
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return (
        _builder(_name(name), _read_certificate(authority).subject, LIFETIME)
        .public_key(subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(tls_name(name))]), False)
        .add_extension(x509.ExtendedKeyUsage(purposes), False)
        .add_extension(issuer, False)
        .sign(key, None)
        .public_bytes(_PEM)
    )


def public_key_of(ca: PublicIdentity, name: str, certificate: bytes) -> bytes:
    """Returns the key, DER, that the CA has certified as a party's, even if it has expired."""
    return _spki(_read_certified(ca, name, certificate).public_key())


def expiry_of(certificate: bytes) -> datetime:
    """Returns when a certificate in PEM expires; Malformed if it is none."""
    try:
        return _read_certificate(certificate).not_valid_after_utc
    except ValueError:
        raise Malformed("this certificate ends at no time") from None


def check_time(certificate: bytes) -> None:
    _check_time(_read_certificate(certificate))


def check_authority(ca: PublicIdentity, authority: bytes) -> None:
    """Raises Malformed, or Unsigned unless it is the certificate of this CA's key and valid now."""
    read = _read_certificate(authority)
    if not _signed_by(ca, read):
        raise Unsigned("it is another CA's")
    key = read.public_key()
    if not isinstance(key, Ed25519PublicKey) or key.public_bytes_raw() != ca.key:
        raise Unsigned("it is a party's and not the CA's own")
    _check_time(read)


def check_certificate(ca: PublicIdentity, name: str, certificate: bytes) -> None:
    """Checks that the CA has certified this as a party's, and that it is valid now (Unsigned)."""
    _check_time(_read_certified(ca, name, certificate))


def _read_certified(ca: PublicIdentity, name: str, certificate: bytes) -> x509.Certificate:
    read = _read_certificate(certificate)
    if not _signed_by(ca, read):
        raise Unsigned("another CA has signed it")
    if read.subject != _name(name):
        raise Unsigned(f"it is another party's and not {name}'s")
    return read


def _signed_by(ca: PublicIdentity, read: x509.Certificate) -> bool:
    """Tells whether the CA signed these bytes; before that nothing in them is believed."""
    signed, signature = read.tbs_certificate_bytes, read.signature
    try:
        Ed25519PublicKey.from_public_bytes(ca.key).verify(signature, signed)
    except InvalidSignature:
        return False
    # The bytes around the signature are not signed: accept only the one way to write them.
    return read.public_bytes(serialization.Encoding.DER).endswith(signed + _ED25519 + signature)


def _check_time(read: x509.Certificate) -> None:
    now = datetime.now(UTC)
    told = f"and this machine's clock says {now:%Y-%m-%d}"
    if now > read.not_valid_after_utc:
        raise Unsigned(f"it ended on {read.not_valid_after_utc:%Y-%m-%d}, {told}")
    if now < read.not_valid_before_utc:
        raise Unsigned(f"it begins on {read.not_valid_before_utc:%Y-%m-%d}, {told}")


def _read_certificate(pem: bytes) -> x509.Certificate:
    try:
        read = x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion):
        raise Malformed("this is no certificate in PEM") from None
    if read.public_bytes(_PEM).split() != pem.split():  # gRPC would trust a second one like it
        raise Malformed("this is more than one certificate in PEM")
    return read


def _builder(subject: x509.Name, issuer: x509.Name, life: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + life)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _spki(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Malformed("this is no public key of P-256")
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
