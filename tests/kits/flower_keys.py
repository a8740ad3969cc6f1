"""TLS and node keys as Flower's deployment wants them, for a SuperLink on loopback."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM, _OPEN = serialization.Encoding.PEM, serialization.NoEncryption()
_DAY = timedelta(days=1)


def certify(folder: Path) -> tuple[Path, Path, Path]:
    """Writes a CA's certificate, and a server's with its key, for 127.0.0.1 and localhost."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    about = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        _builder("Flower CA", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs(), critical=True)
        .add_extension(about, critical=False)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        _builder("SuperLink", own)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(about), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    paths = folder / "ca.crt", folder / "superlink.pem", folder / "superlink.key"
    secret = own.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _OPEN)
    written = root.public_bytes(_PEM), leaf.public_bytes(_PEM), secret
    for path, content in zip(paths, written, strict=True):
        path.write_bytes(content)
    return paths


def node_key(path: Path) -> bytes:
    """Writes a SuperNode's private key (P-384, as OpenSSH has it); returns the public one, DER."""
    made = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(made.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _OPEN))
    path.chmod(0o600)
    return made.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Flower CA")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _signs() -> x509.KeyUsage:
    return x509.KeyUsage(
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
