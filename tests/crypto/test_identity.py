"""Signatures and names: what verifies, and what must not."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.identity import Identity, PublicIdentity, check_name
from secureps.errors import Malformed, Unsigned

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
