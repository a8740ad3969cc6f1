"""Envelopes open for one key, with one receipt, unaltered; against RFC 7748 written out."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto import envelope
from secureps.crypto.envelope import OVERHEAD, EnvelopeKey, EnvelopePublicKey, seal
from secureps.errors import Malformed, Oversized

KEY = EnvelopeKey(bytes(range(1, 33)))
OTHER = EnvelopeKey(bytes(range(2, 34)))
FIELD = 2**255 - 19


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder in Python's integers."""
    k = int.from_bytes(scalar, "little") & ~7 & (2**254 - 1) | 2**254
    x1 = int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in reversed(range(255)):
        if k >> bit & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a % FIELD, c * b % FIELD
        new = (da + cb) ** 2 % FIELD, x1 * (da - cb) ** 2 % FIELD
        aa, bb = a * a % FIELD, b * b % FIELD
        e = aa - bb
        x2, z2, x3, z3 = aa * bb % FIELD, e * (aa + 121665 * e) % FIELD, *new
        if k >> bit & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, FIELD - 2, FIELD) % FIELD).to_bytes(32, "little")


def hkdf(shared: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt, 32 bytes."""
    extracted = hmac.digest(bytes(32), shared, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


BASE = (9).to_bytes(32, "little")


def sealed_slowly(ephemeral: bytes, recipient: bytes, plaintext: bytes, associated: bytes) -> bytes:
    public = x25519(ephemeral, BASE)
    key = hkdf(x25519(ephemeral, recipient), b"secureps-envelope-1" + public + recipient)
    return public + ChaCha20Poly1305(key).encrypt(bytes(12), plaintext, associated)


def test_the_ladder_is_rfc_7748s() -> None:
    """Section 6.1: Alice's and Bob's keys."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert x25519(alice, x25519(bob, BASE)) == x25519(bob, x25519(alice, BASE)) == shared
    assert EnvelopeKey(alice).public.key == x25519(alice, BASE)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_what_is_sealed_opens(plaintext: bytes, associated: bytes) -> None:
    sealed = seal(KEY.public, plaintext, associated)
    assert len(sealed) == len(plaintext) + OVERHEAD
    assert envelope.open(KEY, sealed, associated, len(plaintext)) == plaintext


def test_envelopes_made_by_the_book_open() -> None:
    """The format by RFC 7748, 5869 and 8439 written out above, and as bytes for ever."""
    assert KEY.public.key == x25519(bytes(range(1, 33)), BASE)
    sealed = sealed_slowly(bytes(range(32)), KEY.public.key, b"three seeds", b"a receipt")
    assert sealed.hex() == KNOWN
    assert envelope.open(KEY, sealed, b"a receipt", 11) == b"three seeds"


KNOWN = (
    "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
    "e6386ef7cb61162faaaf535d1400158927359db61afac49422850b"
)


def test_no_two_envelopes_are_alike() -> None:
    made = {seal(KEY.public, b"same", b"same") for _ in range(20)}
    assert len({sealed[:32] for sealed in made}) == len({sealed[32:] for sealed in made}) == 20


def test_an_envelope_opens_for_its_recipient_and_receipt_alone() -> None:
    sealed = seal(KEY.public, bytes(96), b"receipt 7")
    for key, associated in ((OTHER, b"receipt 7"), (KEY, b"receipt 8"), (KEY, b""), (OTHER, b"")):
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(key, sealed, associated, 96)
    theirs = seal(OTHER.public, bytes(96), b"receipt 7")
    for mixed in (theirs, sealed[:32] + theirs[32:], theirs[:32] + sealed[32:]):
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, mixed, b"receipt 7", 96)


def test_what_is_associated_counts_to_its_last_byte() -> None:
    """A receipt's is some kilobytes, and begins like every other's."""
    associated = bytes(range(256)) * 20
    sealed = seal(KEY.public, bytes(96), associated)
    assert envelope.open(KEY, sealed, associated, 96) == bytes(96)
    for at in (0, 31, 32, 33, 1000, len(associated) - 1):
        other = associated[:at] + bytes([associated[at] ^ 1]) + associated[at + 1 :]
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, sealed, other, 96)
    for cut in (associated[:32], associated[:-1], associated + b"\0"):
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, sealed, cut, 96)


def test_an_envelope_altered_in_any_bit_does_not_open() -> None:
    sealed = seal(KEY.public, bytes(8), b"")
    for bit in range(8 * len(sealed)):
        altered = bytearray(sealed)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, bytes(altered), b"", 8)


def test_sizes_are_checked_first() -> None:
    sealed = seal(KEY.public, bytes(96), b"")
    for short in (b"", sealed[:31], sealed[:-1], sealed[1:]):
        with pytest.raises(Malformed, match=f"{len(short)} bytes, not 144"):
            envelope.open(KEY, short, b"", 96)
    with pytest.raises(Oversized, match="145 bytes, not 144"):
        envelope.open(KEY, sealed + b"\0", b"", 96)
    for other in (95, 97):
        with pytest.raises((Malformed, Oversized), match="144 bytes, not"):
            envelope.open(KEY, sealed, b"", other)


LOW_ORDER = {
    "zero": 0,
    "one": 1,
    "order 8": 325606250916557431795983626356110631294008115727848805560023387167927233504,
    "order 8, the other": (
        39382357235489614581723060781553021112529911719440698176882885853963445705823
    ),
    "minus one": FIELD - 1,
    "the field's prime": FIELD,
    "one more": FIELD + 1,
}
"""Bernstein's list (https://cr.yp.to/ecdh.html#validate), those below 2^255."""


@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused(point: str) -> None:
    key = LOW_ORDER[point].to_bytes(32, "little")
    assert x25519(bytes(range(32)), key) == bytes(32)
    with pytest.raises(Malformed, match="low order"):
        EnvelopePublicKey(key)
    sealed = sealed_slowly(bytes(range(32)), KEY.public.key, bytes(8), b"")
    forged = ChaCha20Poly1305(hkdf(bytes(32), b"secureps-envelope-1" + key + KEY.public.key))
    with pytest.raises(Malformed, match="does not open"):
        envelope.open(KEY, key + forged.encrypt(bytes(12), bytes(8), b""), b"", 8)
    assert envelope.open(KEY, sealed, b"", 8) == bytes(8)


def test_keys_are_checked_before_anything_reads_them() -> None:
    public, secret = KEY.public.to_bytes(), KEY.to_bytes()
    assert len(public) == len(secret) == 63
    assert secret.endswith(bytes(range(1, 33)))
    assert EnvelopePublicKey.from_bytes(public) == KEY.public
    assert EnvelopeKey.from_bytes(secret).to_bytes() == secret
    assert EnvelopePublicKey.from_bytes(public) != OTHER.public
    assert len({KEY.public, OTHER.public, EnvelopePublicKey.from_bytes(public)}) == 2
    for data, kind in ((public, EnvelopePublicKey), (secret, EnvelopeKey)):
        for wrong in (b"", data[:-1], data[31:], b"x" + data[1:]):
            with pytest.raises(Malformed, match="this is not an envelope"):
                kind.from_bytes(wrong)
        with pytest.raises(Oversized, match="64 bytes"):
            kind.from_bytes(data + b"\0")
        for length in (0, 31, 33):
            with pytest.raises(Malformed, match="has 32 bytes"):
                kind(bytes(length))


def test_public_and_secret_keys_are_not_mistaken_for_each_other() -> None:
    with pytest.raises(Malformed, match="not an envelope public key"):
        EnvelopePublicKey.from_bytes(KEY.to_bytes())
    with pytest.raises(Malformed, match="not an envelope secret key"):
        EnvelopeKey.from_bytes(KEY.public.to_bytes())
    assert repr(KEY.public) == f"EnvelopePublicKey({KEY.public.key.hex()})"


def test_keys_are_the_operating_systems() -> None:
    assert len({EnvelopeKey.from_os().to_bytes() for _ in range(20)}) == 20
