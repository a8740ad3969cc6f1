"""Certificates and the roster: what verifies, and what must not."""

import dataclasses
from typing import Any

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import (
    Certificate,
    Enrolment,
    Epoch,
    Roster,
    certify,
    first_roster,
    next_roster,
    sign_roster,
)
from secureps.errors import Malformed, Oversized, Refused, UnknownParty, Unsigned
from tests.crypto.test_identity import NEUTRAL, SMALL_ORDER

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
    assert made.names("client") == {"hospital-1", "hospital-2"}
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
    for point in SMALL_ORDER:
        with pytest.raises(Malformed, match="Ed25519 public key"):
            certify(CA, "a", "client", bytes.fromhex(point))
    made = roster()
    with pytest.raises(Malformed, match="not sorted"):
        Roster(made.certificates[::-1], made.signature)
    twice = certify(CA, "hospital-1", "shard", key)
    with pytest.raises(Malformed, match="twice"):
        sign_roster(CA, (*made.certificates, twice))
    with pytest.raises(Oversized):
        Roster.from_bytes(bytes((16 << 20) + 1))


NEVER = 0
BOB, CAROL = (certify(CA, name, "client", ALICE.public.key) for name in ("bob", "carol"))


def line() -> tuple[Roster, Roster, Roster]:
    first = first_roster(CA, 100)
    second = next_roster(CA, first, [BOB], 10, 110)
    return first, second, next_roster(CA, second, [CAROL, BOB], 20, 120)


def text(made: Roster) -> str:
    return made.to_bytes().decode()


def test_one_roster_follows_another() -> None:
    first, second, third = line()
    for made in (first, second, third):
        made.verify(CA.public)
        assert Roster.from_bytes(made.to_bytes()) == made
    assert (first.number, second.number, third.number) == (0, 1, 2)
    assert (third.number_of(first.digest), third.number_of(third.digest)) == (0, 2)
    assert second.number_of(third.digest) is None
    assert third.enrolment("bob") == Enrolment(1, 10)
    assert third.enrolment("carol") == Enrolment(2, 20)
    assert first.follow(text(second)) == second
    assert first.follow(text(third)) == third
    assert third.follow(text(first)) is None
    assert third.follow(text(third)) is None
    with pytest.raises(UnknownParty):
        second.enrolment("carol")


def test_who_goes_and_comes_again_is_new() -> None:
    _, second, _ = line()
    gone = next_roster(CA, second, [], 20, NEVER)
    back = next_roster(CA, gone, [BOB], 30, NEVER)
    assert "bob" not in gone
    assert back.enrolment("bob") == Enrolment(3, 30)


def test_the_same_signed_anew_is_the_same_roster() -> None:
    _, second, _ = line()
    longer = next_roster(CA, second, [BOB], 50, 500)
    assert (longer.digest, longer.number, longer.expires) == (second.digest, 1, 500)
    assert second.follow(text(longer)) == longer
    assert longer.follow(text(second)) is None
    for_ever = next_roster(CA, second, [BOB], 50, NEVER)
    assert longer.follow(text(for_ever)) == for_ever
    assert for_ever.follow(text(longer)) is None


def test_another_key_under_the_same_name_is_another_roster() -> None:
    _, second, _ = line()
    rotated = certify(CA, "bob", "client", CA.public.key)
    after = next_roster(CA, second, [rotated], 50, NEVER)
    assert after.number == 2
    assert after.enrolment("bob") == second.enrolment("bob")


def test_two_lines_of_one_ca_do_not_mix() -> None:
    first, second, third = line()
    other = next_roster(CA, first, [CAROL], 10, 110)
    further = next_roster(CA, other, [CAROL, BOB], 20, 120)
    for here, there in ((second, other), (second, further), (third, other), (third, further)):
        with pytest.raises(Refused, match="another line"):
            here.follow(text(there))


def test_nobody_follows_another_ca_or_an_edited_roster() -> None:
    first, second, third = line()
    stranger = first_roster(ALICE, 100)
    with pytest.raises(Unsigned):
        first.follow(text(next_roster(ALICE, stranger, [], 0, 0)))
    with pytest.raises(Unsigned):  # who signs in another's name
        first.follow(text(sign_roster(ALICE, [BOB], second.epoch)))
    epoch = second.epoch
    assert epoch is not None
    for changed in (
        dataclasses.replace(epoch, expires=epoch.expires + 1),
        dataclasses.replace(epoch, expires=0),
        dataclasses.replace(epoch, enrolled=(Enrolment(0, 10),)),
        dataclasses.replace(epoch, enrolled=(Enrolment(1, 9),)),
        dataclasses.replace(epoch, earlier=(third.digest,)),
    ):
        with pytest.raises(Unsigned):
            first.follow(text(dataclasses.replace(second, epoch=changed)))
    bare = dataclasses.replace(second, epoch=None)  # its digest is signed in another domain
    with pytest.raises(Unsigned):
        bare.verify(CA.public)


def test_an_epoch_is_of_the_ca_that_signs_it() -> None:
    """A party that follows a roster uses the key in its epoch from then on."""
    of_another = Epoch(ALICE.public.key, (), (), 0)
    with pytest.raises(Unsigned, match="another CA's"):
        sign_roster(CA, (), of_another).verify(CA.public)


def test_a_committee_is_its_holders_names_and_keys() -> None:
    """The same keys under other names, or distributed differently, are other key holders."""
    own = Identity.generate().public.key

    def committee(**keys: bytes) -> bytes:
        made = [certify(CA, name, "holder", own, key * 32) for name, key in keys.items()]
        return sign_roster(CA, made).committee

    ways = [{"h0": b"a", "h1": b"b"}, {"h0": b"b", "h1": b"a"}, {"h0": b"a", "h2": b"b"}]
    ways += [{"h0": b"a"}, {"h0": b"a", "h1": b"c"}]
    assert len({committee(**way) for way in ways}) == len(ways)


def test_a_roster_of_before_there_were_epochs() -> None:
    old = roster()
    assert (old.number, old.expires, old.epoch) == (0, 0, None)
    assert old.enrolment("keys") == Enrolment(0, 0)
    after = next_roster(CA, old, [*old.certificates, BOB], 20, 120)
    assert after.number_of(old.digest) == 0
    assert (after.enrolment("keys"), after.enrolment("bob")) == (Enrolment(0, 0), Enrolment(1, 20))
    assert old.follow(text(old)) is None
    with pytest.raises(Refused, match="before there were epochs"):
        old.follow(text(after))


def test_senseless_epochs() -> None:
    key, digests = CA.public.key, (bytes(32),)
    for arguments in (
        (key[:-1], digests, (), 0),
        (key, (bytes(31),), (), 0),
        (bytes.fromhex(NEUTRAL), digests, (), 0),
        (key, digests, (), -1),
        (key, digests, (), 1 << 40),
        (key, digests, (Enrolment(2, 0),), 0),
        (key, digests, (Enrolment(-1, 0),), 0),
        (key, digests, (Enrolment(1, -1),), 0),
    ):
        with pytest.raises(Malformed):
            Epoch(*arguments)
    with pytest.raises(Malformed, match="since when"):
        sign_roster(CA, [BOB], Epoch(key, digests, (), 0))
