"""Certificates and the roster: what verifies, and what must not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import Certificate, Roster, certify, sign_roster
from secureps.errors import Malformed, Oversized, UnknownParty, Unsigned

CA = Identity(b"c" * 32)
ALICE = Identity(b"a" * 32)


def roster() -> Roster:
    return sign_roster(
        CA,
        (
            certify(CA, "shard-0", "shard", Identity.generate().public.key),
            certify(CA, "hospital-2", "client", Identity.generate().public.key),
            certify(CA, "keys", "holder", Identity.generate().public.key, b"d" * 32),
            certify(CA, "hospital-1", "client", ALICE.public.key),
        ),
    )


def test_a_roster_verifies_and_finds() -> None:
    made = roster()
    made.verify(CA.public)
    assert [c.name for c in made.certificates] == ["hospital-1", "hospital-2", "keys", "shard-0"]
    assert [c.name for c in made.clients()] == ["hospital-1", "hospital-2"]
    assert [c.name for c in made.holders()] == ["keys"]
    assert made.find("hospital-1").identity == ALICE.public
    with pytest.raises(UnknownParty, match="hospital-3"):
        made.find("hospital-3")


def test_another_ca_does_not_verify() -> None:
    with pytest.raises(Unsigned):
        roster().verify(ALICE.public)


def test_nobody_can_be_left_out_or_put_in() -> None:
    made = roster()
    stranger = certify(ALICE, "zebra", "client", ALICE.public.key)
    fewer = dataclasses.replace(made, certificates=made.certificates[1:])
    more = sign_roster(CA, (*made.certificates, stranger))
    for wrong in (fewer, dataclasses.replace(more, signature=made.signature), more):
        with pytest.raises(Unsigned):
            wrong.verify(CA.public)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "hospital-9"},
        {"role": "coordinator"},
        {"public_key": b"k" * 32},
        {"signature": bytes(64)},
        {"signature": b""},
    ],
)
def test_every_field_of_a_certificate_is_signed(change: dict[str, Any]) -> None:
    certificate = certify(CA, "hospital-1", "client", ALICE.public.key)
    certificate.verify(CA.public)
    with pytest.raises(Unsigned):
        dataclasses.replace(certificate, **change).verify(CA.public)
    holder = certify(CA, "keys", "holder", ALICE.public.key, b"d" * 32)
    with pytest.raises(Unsigned):
        dataclasses.replace(holder, cipher_key_digest=b"e" * 32).verify(CA.public)


def test_the_digest_changes_with_any_party() -> None:
    made = roster()
    assert made.digest == Roster.from_bytes(made.to_bytes()).digest
    assert sign_roster(CA, made.certificates[1:]).digest != made.digest
    assert dataclasses.replace(made, signature=bytes(64)).digest == made.digest


def test_senseless_certificates_and_rosters() -> None:
    key = ALICE.public.key
    for arguments in (
        ("a", "auditor", key, b"", b""),
        ("a", "client", key[:-1], b"", b""),
        ("a", "client", key, b"", b"x"),
        ("a", "client", key, b"d" * 32, b""),
        ("a", "holder", key, b"d", b""),
    ):
        with pytest.raises(Malformed):
            Certificate(*arguments)  # type: ignore[arg-type]
    made = roster()
    with pytest.raises(Malformed, match="not sorted"):
        Roster(made.certificates[::-1], made.signature)
    twice = certify(CA, "hospital-1", "shard", key)
    with pytest.raises(Malformed, match="twice"):
        sign_roster(CA, (*made.certificates, twice))


def test_json_comes_back_the_same() -> None:
    made = roster()
    assert Roster.from_bytes(made.to_bytes()) == made
    empty = sign_roster(CA, ())
    assert Roster.from_bytes(empty.to_bytes()) == empty


def test_json_that_is_no_roster() -> None:
    data = roster().to_bytes()
    plain = json.loads(data)
    extra = json.dumps({**plain, "more": 1}, indent=1, sort_keys=True).encode() + b"\n"
    role = data.replace(b'"client"', b'["client"]', 1)
    upper = data.replace(b"holder", b"HOLDER", 1)
    for wrong in (b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, data[:-2], data + b" ",
                  extra, role, upper, data.replace(b"hospital-1", b"\\u0068ospital-1"),
                  data.replace(b'"signature": "', b'"signature": " ')):  # fmt: skip
        with pytest.raises(Malformed):
            Roster.from_bytes(wrong)
    with pytest.raises(Oversized):
        Roster.from_bytes(bytes((16 << 20) + 1))
