"""Which key holders a client seals for: by the CA's word, and each base version once."""

import dataclasses
import random

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.roster import Roster, first_roster
from secureps.errors import Refused
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.orders import Invite, KeyCommittee, Published, SealFor
from secureps.messages.requests import Decline
from secureps.messages.run import GroupVersion
from secureps.messages.submission import UPDATE, Receipt, SubmissionId
from secureps.roles.machine import Call, KitRead, RosterFollower, Say, Step
from secureps.roles.member.committees import Committees
from tests.kits.committee_plans import CA, IDENTITIES, KEYS, holders_roster
from tests.kits.roles_kit import make_plan

PLAN = make_plan("rlwe")


FIRST = holders_roster(first_roster(CA, 0), ("h0", "h1", "h2"), expires=100)
SECOND = holders_roster(FIRST, ("h0", "h1", "h3"), expires=200)


def told(of: Roster, since: int = 0) -> KeyCommittee:
    names = tuple(holder.name for holder in of.holders())
    keys = tuple(KEYS[name].key for name in names)
    at = (GroupVersion("all", since),) if since else ()
    return KeyCommittee(of.committee, names, keys, at)


def receipt(version: int, committee: bytes) -> Receipt:
    id = SubmissionId("c0", "all", version)
    return Receipt(
        *(b"", id, UPDATE, version, b"", (), b"", (), (), 0, None, None, False), committee=committee
    )


@pytest.fixture
def follower() -> RosterFollower:
    return RosterFollower(FIRST)


@pytest.fixture
def client(follower: RosterFollower) -> Committees:
    found = Committees(follower, "c0")
    found.take(told(FIRST))
    follower.follow(Step(), SECOND.to_bytes().decode())
    return found


def test_versions_before_a_change_are_sealed_for_those_that_they_were_sealed_for(
    client: Committees,
) -> None:
    assert client.due("all", 9).committee == FIRST.committee
    client.take(told(SECOND, 4))
    assert [client.due("all", v).committee for v in (3, 4)] == [FIRST.committee, SECOND.committee]
    assert client.due("other", 3).committee == SECOND.committee


def test_the_earliest_word_counts(client: Committees) -> None:
    """A committee may begin earlier than was said at first, and never later."""
    client.take(told(SECOND, 4))
    client.take(told(SECOND, 2))
    assert client.due("all", 1).committee == FIRST.committee
    assert client.due("all", 2).committee == SECOND.committee
    client.take(told(SECOND, 9))
    assert client.due("all", 3).committee == SECOND.committee


def test_who_has_sealed_a_version_declines_it_for_others(client: Committees) -> None:
    client.note_sealed(receipt(4, FIRST.committee))
    invites = {"all": Invite(1, "all", 3, 4, 1.0)}
    step = Step()
    client.decline(step, PLAN, invites, {})
    assert invites
    client.take(told(SECOND, 4))
    client.decline(step, make_plan("plain"), invites, {})
    client.decline(step, PLAN, invites, {"all": Published(1, "all", 5, ())})
    assert invites  # it is asked for a newer one
    client.decline(step, PLAN, invites, {})
    (said,) = step.effects
    assert isinstance(said, Call)
    why = "it has sealed version 4 of all for other key holders"
    assert said.message == Decline("c0", "all", 3, why, 4)
    assert not invites


def test_what_is_made_already_is_sealed_for_those_that_its_version_was_sealed_for(
    client: Committees,
) -> None:
    client.note_sealed(receipt(4, FIRST.committee))
    client.take(told(SECOND, 3))
    assert client.due_for_made("all", 4).committee == FIRST.committee
    assert client.due_for_made("all", 5).committee == SECOND.committee
    with pytest.raises(Refused):
        client.due_for_made("all", 3)


def test_nobody_is_taken_whom_the_ca_did_not_sign_for(client: Committees) -> None:
    other = holders_roster(SECOND, ("h1", "h2", "h3"))
    with pytest.raises(Refused, match="on no roster that this party has followed"):
        client.take(told(other, 4))
    right = told(SECOND, 4)
    for wrong in (
        dataclasses.replace(right, keys=(right.keys[0], right.keys[0], right.keys[2])),
        dataclasses.replace(right, holders=("h0", "h1", "h2")),
        dataclasses.replace(right, keys=right.keys[:2]),
    ):
        with pytest.raises(Refused, match="not those of the roster"):
            client.take(wrong)
    assert client.due("all", 9).committee == FIRST.committee


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_told_no_version_is_sealed_for_two_committees(seed: int) -> None:
    """Also by a client that was restarted, and hears of another committee while it trains."""
    chance, found = random.Random(seed), dict[int, bytes | None]()
    follower = RosterFollower(FIRST)
    follower.follow(Step(), SECOND.to_bytes().decode())
    client, refused = Committees(follower, "c0"), 0
    for _ in range(300):
        if chance.random() < 0.1:
            newest, client = client.newest, Committees(follower, "c0")
            client.newest = newest
        version = chance.randrange(12)
        try:
            client.due("all", version)
            if chance.random() < 0.3:
                client.take(told(chance.choice((FIRST, SECOND)), chance.randrange(12)))
            made = client.due_for_made("all", version)
        except Refused:
            refused += 1
            client.take(told(chance.choice((FIRST, SECOND)), chance.randrange(12)))
            continue
        assert found.setdefault(version, made.committee) == made.committee
        client.note_sealed(receipt(version, made.committee))
    assert refused
    assert found


def test_an_older_base_that_is_sealed_again_makes_no_newer_one_free(client: Committees) -> None:
    client.take(told(SECOND, 4))
    for version, of in ((5, SECOND), (3, FIRST)):
        client.note_sealed(receipt(version, of.committee))
    with pytest.raises(Refused, match="sealed version 5 of all"):
        client.due("all", 3)


def test_a_newer_key_is_on_record_and_one_of_nobodys_is_said(client: Committees) -> None:
    """After a restart it does not go back to an older key, because the newer one is journalled."""
    run, key, step = bytes(32), EnvelopeKey.from_os().public.key, Step()
    bare = EnvelopeKeyAnnounced(run, "h0", 1, key, 0)
    right = dataclasses.replace(bare, signature=IDENTITIES["h0"].sign(*announcement_bytes(bare)))
    client.hear(step, SealFor(1, told(SECOND, 4), (bare, right, right)), run)
    assert step.records == [right]
    (said,) = step.effects
    assert isinstance(said, Say)
    assert client.keys.number("h0") == 1


def test_nobody_is_known_before_the_coordinator_speaks(follower: RosterFollower) -> None:
    assert not Committees(follower, "c0").can_seal(PLAN, "all", 0)
    assert Committees(follower, "c0").can_seal(make_plan("plain"), "all", 0)


def test_the_last_roster_of_a_committee_must_hold(
    client: Committees, follower: RosterFollower
) -> None:
    """Otherwise a coordinator could keep a lost holder by never beginning the next committee."""
    assert client.can_seal(PLAN, "all", 9)
    follower.read(Step(), KitRead(101.0))
    assert not client.can_seal(PLAN, "all", 9)
    client.take(told(SECOND, 4))
    assert client.can_seal(PLAN, "all", 9)
    assert not client.can_seal(PLAN, "all", 3)
