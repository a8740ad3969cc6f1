"""Signatures, names and requests for certificates: what verifies, and what must not."""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.identity import Identity, PublicIdentity, TlsKey, check_name
from secureps.crypto.roster import MAX_REQUEST_BYTES, KeyRequest, sign_request
from secureps.errors import ClientError, Malformed, Oversized, Unsigned
from secureps.messages.encoding import signed_part

SOURCE = Path(__file__).parents[2] / "secureps"
CA = Identity(b"c" * 32)
ALICE = Identity(b"a" * 32)


def test_rfc_8032_keys() -> None:
    """RFC 8032, section 7.1, test 1."""
    secret = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert Identity(bytes.fromhex(secret)).public.key.hex() == public


def test_no_two_kinds_of_messages_share_a_domain() -> None:
    """Otherwise a signature of one kind could be shown as another."""
    texts = (path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    found = Counter(domain for text in texts for domain in re.findall(r'b"(secureps-[^"]+)"', text))
    assert {domain for domain, times in found.items() if times > 1} == set()
    assert found["secureps-request"] == found["secureps-key-request"] == 1


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_signatures_hold_for_one_domain_and_one_message(d: bytes, m: bytes, extra: bytes) -> None:
    signature = ALICE.sign(d, m)
    assert len(signature) == 64
    ALICE.public.verify(d, m, signature)
    for domain, message in ((d + b"x", m), (d, m + b"x"), (d + extra + b"x", m)):
        with pytest.raises(Unsigned):
            ALICE.public.verify(domain, message, signature)
    with pytest.raises(Unsigned):
        CA.public.verify(d, m, signature)


def test_the_border_of_domain_and_message_is_signed() -> None:
    with pytest.raises(Unsigned):
        ALICE.public.verify(b"block", b"receipt", ALICE.sign(b"bloc", b"kreceipt"))


@pytest.mark.parametrize("signature", [b"", b"x", bytes(64), bytes(65)])
def test_bytes_that_are_no_signature(signature: bytes) -> None:
    with pytest.raises(Unsigned):
        ALICE.public.verify(b"d", b"m", signature)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_of_another_length(length: int) -> None:
    for kind in (PublicIdentity, Identity):
        with pytest.raises(Malformed, match="32 bytes"):
            kind(bytes(length))


SMALL_ORDER = (
    "0100000000000000000000000000000000000000000000000000000000000000",  # neutral
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # order 2
    "0000000000000000000000000000000000000000000000000000000000000000",  # order 4
    "0000000000000000000000000000000000000000000000000000000000000080",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",  # order 8
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    # The same points, written in another way: y beyond the prime, or the sign of an x that is 0.
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
)
"""Chalkias, Garillot, Nikolaenko, "Taming the many EdDSAs" (2020), section 3 and appendix C."""
NEUTRAL = SMALL_ORDER[0]
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P

Point = tuple[int, int]


def point(encoded: bytes) -> Point:
    """Decodes a point by RFC 8032, section 5.1.3, without its refusals."""
    sign, y = divmod(int.from_bytes(encoded, "little"), 2**255)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square, "no point of the curve"
    return (x if x % 2 == sign else -x % P), y % P


def added(a: Point, b: Point) -> Point:
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + k, P - 2, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - k, P - 2, P) % P


def test_these_are_all_points_of_small_order() -> None:
    points = [point(bytes.fromhex(encoded)) for encoded in SMALL_ORDER]
    assert len(set(points[:8])) == 8
    assert set(points[8:]) <= set(points[:8])
    for eighth in points:
        for _ in range(3):
            eighth = added(eighth, eighth)
        assert eighth == (0, 1)


@pytest.mark.parametrize("encoded", SMALL_ORDER)
def test_points_of_small_order_are_nobody_s_key(encoded: str) -> None:
    with pytest.raises(Malformed, match="Ed25519 public key"):
        PublicIdentity(bytes.fromhex(encoded))


def test_keys_that_are_written_in_another_way_are_refused() -> None:
    for y in range(P, 2**255):
        for sign in (0, 2**255):
            with pytest.raises(Malformed, match="no honest party uses"):
                PublicIdentity((y + sign).to_bytes(32, "little"))
    PublicIdentity((P - 2).to_bytes(32, "little"))


def test_a_signature_is_not_another_one_of_the_same_point() -> None:
    """RFC 8032, section 5.1.7: S is below L, and R is compared in its encoded form."""
    signature = ALICE.sign(b"d", b"m")
    s = int.from_bytes(signature[32:], "little")
    assert s < L
    for more in range(s + L, 2**256, L):
        with pytest.raises(Unsigned):
            ALICE.public.verify(b"d", b"m", signature[:32] + more.to_bytes(32, "little"))


def test_public_identities_compare_by_key() -> None:
    same = Identity(ALICE.to_bytes()).public
    assert same == ALICE.public
    assert len({same, ALICE.public, CA.public}) == 2
    assert same.fingerprint == ALICE.public.fingerprint != CA.public.fingerprint
    assert len(same.fingerprint) == 64
    assert ALICE.public.key.hex() in repr(same)


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "A", "a b", "a/b", "..", "a\n", "ä", "a" * 64, "a\0"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(Malformed, match="is no name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "hospital-1.ward_2"])
def test_names(name: str) -> None:
    check_name(name)


# --- requests for certificates ----------------------------------------------------


OWN, TLS, OLD = Identity.generate(), TlsKey.generate(), Identity.generate()
KEY = b"a public cipher key"


def request(**changes: Any) -> KeyRequest:
    made = sign_request("keys-0", "holder", OWN, TLS, KEY, changes.pop("old", None))
    return dataclasses.replace(made, **changes)


def test_a_request_is_the_same_bytes_each_time_and_read_back_whole() -> None:
    made = request(old=OLD)
    assert made.to_bytes() == request(old=OLD).to_bytes()
    assert KeyRequest.from_bytes(made.to_bytes()) == made
    made.verify(OLD.public)
    request().verify()
    assert made.fingerprint == request().fingerprint, "it is of the keys, whoever vouches for them"
    assert len(bytes.fromhex(made.fingerprint)) == 32


def test_it_has_no_secret() -> None:
    text = request(old=OLD).to_bytes()
    for secret in (OWN.to_bytes(), OLD.to_bytes(), TLS.to_bytes()):
        assert secret not in text
        assert secret.hex().encode() not in text


OTHER, OTHER_TLS = Identity.generate(), TlsKey.generate()
EDITS: dict[str, dict[str, Any]] = {
    "name": {"name": "keys-1"},
    "role": {"role": "client", "cipher_key": b""},
    "identity": {"public_key": OTHER.public.key},
    "tls key": {"tls_key": OTHER_TLS.public},
    "cipher key": {"cipher_key": b"another's cipher key"},
    "no proof": {"tls_proof": b""},
    "no signature": {"signature": b""},
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_request_is_refused(edit: str) -> None:
    edited = request(**EDITS[edit])
    with pytest.raises(Unsigned):
        edited.verify()
    assert edit.startswith("no ") or edited.fingerprint != request().fingerprint


def test_the_keys_of_others_cannot_be_asked_for() -> None:
    """The editor signs again, but every key has to sign for itself."""
    theirs = sign_request("victim", "client", OTHER, OTHER_TLS)
    own = sign_request("eve", "client", OWN, TLS)
    for proof in (own.tls_proof, theirs.tls_proof):
        wrong = dataclasses.replace(own, tls_key=theirs.tls_key, tls_proof=proof, signature=b"")
        signed = OWN.sign(b"secureps-key-request", signed_part(wrong))
        with pytest.raises(Unsigned, match="by the TLS key is wrong"):
            dataclasses.replace(wrong, signature=signed).verify()


def test_a_rotation_is_signed_by_what_it_replaces() -> None:
    with pytest.raises(Unsigned):
        request().verify(OLD.public)
    with pytest.raises(Unsigned):
        request(old=OTHER).verify(OLD.public)
    with pytest.raises(Unsigned, match="the roster has none of this name"):
        request(old=OLD).verify()
    first = sign_request("keys-0", "holder", OLD, TLS, KEY)
    with pytest.raises(Unsigned):  # its own signature of then is none for what replaces it
        request(old_proof=first.signature).verify(OLD.public)


def point_of(bits: int) -> bytes:
    curve: ec.EllipticCurve = ec.SECP384R1() if bits == 384 else ec.SECP256K1()
    return (
        ec.generate_private_key(curve)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


MALFORMED: dict[str, dict[str, Any]] = {
    "a name with a slash": {"name": "../keys-0"},
    "an empty name": {"name": ""},
    "another role": {"role": "issuer"},
    "a short identity": {"public_key": bytes(31)},
    **{f"the point {key}": {"public_key": bytes.fromhex(key)} for key in SMALL_ORDER},
    "a short signature": {"signature": bytes(63)},
    "a long proof": {"tls_proof": bytes(73)},
    "a short old proof": {"old_proof": bytes(63)},
    "a TLS key of another curve": {"tls_key": point_of(384)},
    "a TLS key of another curve, as long": {"tls_key": point_of(256).ljust(91, b"x")[:91]},
    "a client's cipher key": {"role": "client"},
    "a long cipher key": {"cipher_key": bytes(200_001)},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_fields_are_refused_before_any_signature(what: str) -> None:
    with pytest.raises(Malformed):
        request(**MALFORMED[what])


def test_a_tls_key_that_is_no_point_is_refused() -> None:
    wrong = request(tls_key=TLS.public[:27] + b"\xff" * 64)
    with pytest.raises(ClientError):
        wrong.verify()


WHOLE = request(old=OLD).to_bytes()


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_byte_of_it_can_change(at: int, change: int) -> None:
    changed = WHOLE[:at] + bytes([WHOLE[at] ^ change]) + WHOLE[at + 1 :]
    with pytest.raises(ClientError):
        KeyRequest.from_bytes(changed).verify(OLD.public)


def test_other_bytes_are_refused() -> None:
    made = request().to_bytes()
    plain = json.loads(made)
    for data in (
        b"",
        b"[]",
        b"[" * 100_000,
        made[:-1],
        made + b" ",
        made.replace(b" ", b"  ", 1),
        json.dumps(plain | {"more": 1}, indent=1, sort_keys=True).encode() + b"\n",
        json.dumps({**plain, "name": 7}, indent=1, sort_keys=True).encode() + b"\n",
        json.dumps({**plain, "public_key": "xy"}, indent=1, sort_keys=True).encode() + b"\n",
    ):
        with pytest.raises(Malformed):
            KeyRequest.from_bytes(data)
    with pytest.raises(Oversized):
        KeyRequest.from_bytes(made + b" " * MAX_REQUEST_BYTES)
