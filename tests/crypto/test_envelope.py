"""Secrecy: an envelope opens for one key holder, with one receipt, unaltered."""

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto import envelope
from secureps.crypto.envelope import OVERHEAD, EnvelopeKey, EnvelopePublicKey, seal
from secureps.errors import Malformed, Oversized
from secureps.messages.encoding import digest

SECRET = bytes(range(1, 97))
KEY = EnvelopeKey(SECRET)
OTHER = EnvelopeKey(bytes(range(2, 98)))
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


BASE = (9).to_bytes(32, "little")


def combined(mlkem: bytes, exchanged: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    """X-Wing's combiner (draft-connolly-cfrg-xwing-kem, section 5.3)."""
    return hashlib.sha3_256(mlkem + exchanged + ephemeral + recipient + rb"\.//^" + b"\\").digest()


def schedule(shared: bytes, associated: bytes) -> tuple[bytes, bytes]:
    """Key and nonce by RFC 9180's base mode and draft-ietf-hpke-pq's one-stage key schedule.

    KEM 0x647a (X-Wing), KDF 0x0011 (SHAKE256, Nh = 64), AEAD 0x0003 (ChaCha20-Poly1305).
    """

    def prefixed(data: bytes) -> bytes:
        return len(data).to_bytes(2, "big") + data

    info = digest("secureps-envelope-2", associated)
    suite = b"HPKE" + bytes.fromhex("647a00110003")
    size = 32 + 12 + 64
    data = prefixed(b"") + prefixed(shared)
    data += b"HPKE-v1" + suite + prefixed(b"secret") + size.to_bytes(2, "big")
    data += b"\0" + prefixed(b"") + prefixed(info)
    made = hashlib.shake_256(data).digest(size)
    return made[:32], made[32:44]


def opened_slowly(secret: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Opens an envelope with the primitives alone; X25519 is the ladder above."""
    to_mlkem, ephemeral, ciphertext = sealed[:1088], sealed[1088:1120], sealed[1120:]
    first = MLKEM768PrivateKey.from_seed_bytes(secret[:64]).decapsulate(to_mlkem)
    second = x25519(secret[64:], ephemeral)
    shared = combined(first, second, ephemeral, x25519(secret[64:], BASE))
    key, nonce = schedule(shared, associated)
    return ChaCha20Poly1305(key).decrypt(nonce, ciphertext, b"")


def sealed_slowly(
    ephemeral: bytes, recipient: bytes, plaintext: bytes, associated: bytes, point: bytes = b""
) -> bytes:
    """Seals an envelope with the primitives alone; `cryptography` draws ML-KEM's part.

    Args:
        point: replaces the ephemeral public key, whose exchange is then zero.
    """
    first, to_mlkem = MLKEM768PublicKey.from_public_bytes(recipient[:1184]).encapsulate()
    public = point or x25519(ephemeral, BASE)
    second = bytes(32) if point else x25519(ephemeral, recipient[1184:])
    key, nonce = schedule(combined(first, second, public, recipient[1184:]), associated)
    return to_mlkem + public + ChaCha20Poly1305(key).encrypt(nonce, plaintext, b"")


def test_the_ladder_is_rfc_7748s() -> None:
    """Section 6.1: Alice's and Bob's keys."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert x25519(alice, x25519(bob, BASE)) == x25519(bob, x25519(alice, BASE)) == shared
    assert EnvelopeKey(bytes(64) + alice).public.key[1184:] == x25519(alice, BASE)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_second_implementation_opens_what_is_sealed_and_seals_what_opens(
    plaintext: bytes, associated: bytes
) -> None:
    sealed = seal(KEY.public, plaintext, associated)
    assert len(sealed) == len(plaintext) + OVERHEAD == len(plaintext) + 1136
    assert opened_slowly(SECRET, sealed, associated) == plaintext
    assert envelope.open(KEY, sealed, associated, len(plaintext)) == plaintext
    theirs = sealed_slowly(bytes(range(32)), KEY.public.key, plaintext, associated)
    assert envelope.open(KEY, theirs, associated, len(plaintext)) == plaintext


def test_an_envelope_of_before_opens_for_ever() -> None:
    assert envelope.open(KEY, KNOWN, b"a receipt", 11) == b"three seeds"
    assert opened_slowly(SECRET, KNOWN, b"a receipt") == b"three seeds"


def test_no_two_envelopes_are_alike() -> None:
    made = {seal(KEY.public, b"same", b"same") for _ in range(20)}
    for first, last in ((0, 1088), (1088, 1120), (1120, 1140)):
        assert len({sealed[first:last] for sealed in made}) == 20


def test_an_envelope_opens_for_its_recipient_and_receipt_alone() -> None:
    sealed = seal(KEY.public, bytes(96), b"receipt 7")
    for key, associated in ((OTHER, b"receipt 7"), (KEY, b"receipt 8"), (KEY, b""), (OTHER, b"")):
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(key, sealed, associated, 96)
    theirs, again = seal(OTHER.public, bytes(96), b"receipt 7"), seal(KEY.public, bytes(96), b"7")
    for cut in (1088, 1120):
        for first, second in ((sealed, theirs), (theirs, sealed), (sealed, again)):
            with pytest.raises(Malformed, match="does not open"):
                envelope.open(KEY, first[:cut] + second[cut:], b"receipt 7", 96)


def test_half_a_key_opens_nothing() -> None:
    """An attacker who breaks X25519 or ML-KEM alone has one half."""
    sealed = seal(KEY.public, bytes(96), b"receipt 7")
    for half in (SECRET[:64] + bytes(range(7, 39)), bytes(range(7, 71)) + SECRET[64:]):
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(EnvelopeKey(half), sealed, b"receipt 7", 96)


def test_what_is_associated_counts_to_its_last_byte() -> None:
    """A receipt's associated data is some kilobytes, and begins like every other's."""
    associated = bytes(range(256)) * 400
    sealed = seal(KEY.public, bytes(96), associated)
    assert envelope.open(KEY, sealed, associated, 96) == bytes(96)
    for at in (0, 31, 32, 33, 1000, len(associated) - 1):
        other = associated[:at] + bytes([associated[at] ^ 1]) + associated[at + 1 :]
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, sealed, other, 96)
    for cut in (associated[:32], associated[:-1], associated + b"\0"):
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, sealed, cut, 96)


def test_an_envelope_altered_in_any_byte_does_not_open() -> None:
    sealed = seal(KEY.public, bytes(8), b"")
    for at in range(len(sealed)):
        altered = bytearray(sealed)
        altered[at] ^= 1 << at % 8
        if at != 1119:  # X25519 does not read the last bit of a point; the combiner does
            with pytest.raises(Malformed, match="does not open"):
                envelope.open(KEY, bytes(altered), b"", 8)
    for bit in range(8):
        altered = bytearray(sealed)
        altered[1119] ^= 1 << bit
        with pytest.raises(Malformed, match="does not open"):
            envelope.open(KEY, bytes(altered), b"", 8)


def test_sizes_are_checked_first() -> None:
    sealed, size = seal(KEY.public, bytes(96), b""), 96 + OVERHEAD
    for short in (b"", sealed[:31], sealed[:-1], sealed[1:]):
        with pytest.raises(Malformed, match=f"{len(short)} bytes; it must have exactly {size}"):
            envelope.open(KEY, short, b"", 96)
    with pytest.raises(Oversized, match=f"{size + 1} bytes; it must have exactly {size}"):
        envelope.open(KEY, sealed + b"\0", b"", 96)
    for other in (95, 97):
        with pytest.raises((Malformed, Oversized), match=f"{size} bytes; it must"):
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
    low = LOW_ORDER[point].to_bytes(32, "little")
    assert x25519(bytes(range(32)), low) == bytes(32)
    with pytest.raises(Malformed, match="low order"):
        EnvelopePublicKey(KEY.public.key[:1184] + low)
    forged = sealed_slowly(bytes(range(32)), KEY.public.key, bytes(8), b"", point=low)
    with pytest.raises(Malformed, match="does not open"):
        envelope.open(KEY, forged, b"", 8)
    sealed = sealed_slowly(bytes(range(32)), KEY.public.key, bytes(8), b"")
    assert envelope.open(KEY, sealed, b"", 8) == bytes(8)


def test_points_that_are_written_in_another_way_are_refused() -> None:
    own = int.from_bytes(KEY.public.key[1184:], "little")
    for point in (own + 2**255, FIELD + 2, FIELD + 9, 2**255 - 1):
        with pytest.raises(Malformed, match="no honest party uses"):
            EnvelopePublicKey(KEY.public.key[:1184] + point.to_bytes(32, "little"))
    for low in LOW_ORDER.values():
        with pytest.raises(Malformed, match="low order"):
            EnvelopePublicKey(KEY.public.key[:1184] + (low + 2**255).to_bytes(32, "little"))


@pytest.mark.parametrize("coefficient", [3329, 4095])
@pytest.mark.parametrize("place", [0, 767])
def test_public_keys_with_a_coefficient_beyond_ml_kems_modulus_are_refused(
    coefficient: int, place: int
) -> None:
    """FIPS 203, section 7.2: 768 coefficients of 12 bits below q = 3329, then 32 bytes."""
    packed = int.from_bytes(KEY.public.key[:1152], "little")
    packed = packed & ~(4095 << 12 * place) | coefficient << 12 * place
    with pytest.raises(Malformed, match="no public key of ML-KEM"):
        EnvelopePublicKey(packed.to_bytes(1152, "little") + KEY.public.key[1152:])
    right = packed & ~(4095 << 12 * place) | 3328 << 12 * place
    EnvelopePublicKey(right.to_bytes(1152, "little") + KEY.public.key[1152:])


def test_keys_are_checked_before_anything_reads_them() -> None:
    public, secret = KEY.public.to_bytes(), KEY.to_bytes()
    assert (len(public), len(secret)) == (1247, 127)
    assert secret.endswith(SECRET)
    assert EnvelopePublicKey.from_bytes(public) == KEY.public
    assert EnvelopeKey.from_bytes(secret).to_bytes() == secret
    assert EnvelopePublicKey.from_bytes(public) != OTHER.public
    assert len({KEY.public, OTHER.public, EnvelopePublicKey.from_bytes(public)}) == 2
    for data, kind in ((public, EnvelopePublicKey), (secret, EnvelopeKey)):
        for wrong in (b"", data[:-1], data[31:], b"x" + data[1:]):
            with pytest.raises(Malformed, match="this is not an envelope"):
                kind.from_bytes(wrong)
        with pytest.raises(Oversized, match=f"{len(data) + 1} bytes"):
            kind.from_bytes(data + b"\0")
        for length in (0, 32, len(data) - 32, len(data)):
            with pytest.raises(Malformed, match=f"has {len(data) - 31} bytes"):
                kind(bytes(length))


KNOWN = base64.b64decode(
    "FCyWAFBm+parXK/O+Ovvjr0jcXyhTpqToffVSqV+SM3fkWFr2wROZfS05Vsv7a7WO9htSu3vZO3vWQgpzLHiI3S/ig"
    "9+7Ud5X4rnd/tF+uZCzPyEbo/BJ9APZLpI51vZ6K4JDVYulMHDIiN37gxwna8aU5tpxeMWQuthqQzIekyRovtHl31B"
    "t1vMyj457mmcYKMCv/c4tWkkpLW6bI8BBWKcATkmzNXm9FIsb0qkMRCKb4UDelcFXEy1pPCvuYAC/lrtvB24kZj5Jz"
    "47qDboQlCaR97b9LzpN0tXi8by4lX9CSQzTx20nqD4yPxPwZ8c3EjgVY4XDt/SpmkiFr7x4UyNzGMjdrICzr9kTvML"
    "QRebJ/rhh8MUchCJmczbDX8sAow3NJPR8Bd+jVq6vm6g4IWnR7iivYQq7F9k08jf3c/XfruZQq6dc9CM5jEh7DirqX"
    "ZJgWNSCFzjg1Ji48oXG9poPSLCosHHYp+WtvyDVgJ13IMmztEnr0mZF2lIfXyNweyxNa0grVAERY0sATncxRYNnbGM"
    "CYKMvzyjX3YilEEBWNCjlev9CKPByUwo4QMPXHmegkHP38vjgFPieXnRiSKCPsisdy72s0ANGgDXA9BIdFE9KcsxEj"
    "obJYqKbDypWy75dyugZM9iXz8jNE2PNzNIPfuHbeM5QLPCWw03qcE9BmFI3v+/rMjkTffFsXsFL38Y0CjpQiSVw8P+"
    "LluSSQIU4WCWoxYv1wX88z3NcTvdTW2ReZ7d0BseddbhP2aSGycsWkA0bmxc5WLT7NiSSA4zpXW3Ai9MgMYXtO4Is/"
    "6vLsSsqOl1OidKdZ8Cvnq66s9PDcDsuZP3+pqFbWkyjqs7tOX+h06Kjea2Vb+dJ+or01egGjEn1oepurWdEq1vqBln"
    "lXKFqtefjD5bfmujy0pKYXMy6XHEH+eu9VEQAgxtfnSnmOCdDGXBUaPTkcVIESmWg/1qsufa0vUUtNVLejzCOtU74v"
    "62dfJj+MYY4flnuuIwJggbwaDk9ekDNbaUzrODNQLk02KaG2FABmx472Uk0sFdSd6UTt2m2FAeSZ6Ml9KvjCb4LfIg"
    "FwZzVexsYKJ8F0VE+URY037uXGnwlGPFOOrue6cDYiecJv2vx6NgalY/kTJ8jqlPtmF1SEnR7G9766+KLybl/bmSQo"
    "pYTIQK8mihlFXXM7a8c5Rjfas6XkLKN28bXzCRcqBToIBX0BNXaKBh0U4CqDFY17WU6APY+tKI3jAhkKZ98vv2RQzl"
    "YDWIhMsntzC/gKKK/t8twxh9naDMTO71wG0gm+ww4Dzjwwm6YDBKTXvEsV5mwXRaWXJjZ+At8+xQ3wWzkGZl8LCgRv"
    "uj7VbVC00i78oIWN5hlm/wlBCfZq0kl0CdYTt+CZjCnDhHkNNcUfPurVscq1hWX0m9z3I8RyMCtZL361Zc9u6hg6s5"
    "e7BnOVfyfbc/ju17IO2FQKdO31Ztc7Ts+gvuK1rvElAH0EYja7wDCr/dRch3wvt8Hf+016d1Vlk91LvySjImYlX5RA"
    "=="
)
"""Sealed once for KEY."""
