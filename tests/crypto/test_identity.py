"""Signatures and names: what verifies, and what must not."""

from __future__ import annotations

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
    """Else what one key has signed as the one could be shown as the other."""
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
