"""Following rosters: what is journalled and logged, and what the calendar changes."""

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, first_roster, next_roster
from secureps.errors import ConfigError, Malformed, NotReady, Refused
from secureps.messages.records import RosterFollowed
from secureps.roles.machine import NEWCOMER_RETRY, ROSTER_NOTICE, KitRead, RosterFollower, Say, Step

CA = Identity(b"c" * 32)
BOB = certify(CA, "bob", "client", CA.public.key)
FIRST = first_roster(CA, 100)
SECOND = next_roster(CA, FIRST, [BOB], 50, 200)
TEXT = SECOND.to_bytes().decode()


def test_a_newer_roster_is_journalled_once() -> None:
    follower, step = RosterFollower(FIRST), Step()
    assert follower.follow(step, TEXT)
    assert not follower.follow(step, TEXT)
    assert not follower.follow(step, FIRST.to_bytes().decode())
    assert step.records == [RosterFollowed(TEXT)]
    assert follower.roster == SECOND


def test_a_restart_comes_to_the_newest_of_kit_and_journal() -> None:
    for kit in (FIRST, SECOND):
        follower = RosterFollower(kit)
        follower.apply(RosterFollowed(TEXT))
        assert follower.roster == SECOND
    other = RosterFollower(first_roster(Identity(b"d" * 32), 0))
    with pytest.raises(ConfigError, match="another kit"):
        other.apply(RosterFollowed(TEXT))


def test_an_older_journal_takes_no_kit_back_and_what_the_kit_brought_is_journalled() -> None:
    follower, step = RosterFollower(SECOND), Step()
    follower.apply(RosterFollowed(FIRST.to_bytes().decode()))
    assert follower.roster == SECOND
    follower.resume(step)
    follower.resume(step)
    assert step.records == [RosterFollowed(TEXT)]


@pytest.mark.parametrize("backwards", [False, True])
def test_key_holders_are_there_until_the_last_roster_with_them_expires(backwards: bool) -> None:
    """In either order: the kit's roster first, or the journal's after a restart."""
    keys = certify(CA, "keys", "holder", CA.public.key, b"k" * 32)
    first = next_roster(CA, FIRST, [keys], 50, 100)
    second = next_roster(CA, first, [keys, BOB], 50, 200)
    heard = [second, first] if backwards else [first, second]
    follower = RosterFollower(heard[0])
    follower.apply(RosterFollowed(heard[1].to_bytes().decode()))
    assert follower.number_of(first.committee) == 1
    for unix in (None, 150.0, 200.0):
        follower.unix = unix
        follower.demand_unexpired(first.committee)
    follower.unix = 200.5
    with pytest.raises(Refused, match="the last roster with these key holders expired on 1970"):
        follower.demand_unexpired(first.committee)
    with pytest.raises(Refused, match="on no roster that this party has followed"):
        follower.demand_unexpired(b"others")


def test_what_is_no_roster_changes_nothing() -> None:
    follower, step = RosterFollower(FIRST), Step()
    for wrong in ("{}", "x", TEXT[:-3], TEXT.replace("bob", "eve")):
        with (
            pytest.raises(Malformed)
            if wrong != TEXT.replace("bob", "eve")
            else pytest.raises(Exception, match="wrong")
        ):
            follower.follow(step, wrong)
    assert (follower.roster, step.records) == (FIRST, [])


def test_a_roster_holds_until_its_last_second() -> None:
    follower, step = RosterFollower(FIRST), Step()
    assert not follower.expired  # nobody has looked at a calendar
    assert not follower.read(step, KitRead(100.0))
    assert not follower.holds_back(step, "bob")
    follower.read(step, KitRead(100.5))
    assert follower.holds_back(step, "bob")
    assert follower.holds_back(step, "carol")
    (said,) = step.effects
    assert isinstance(said, Say)
    assert "bob waits: the roster expired on 1970-01-01 00:01 UTC" in said.text
    assert follower.read(step, KitRead(101.0, TEXT))
    assert not follower.holds_back(step, "bob")
    follower.read(step, KitRead(201.0))
    assert follower.holds_back(step, "bob")
    assert len(step.effects) == 2


def test_an_operator_hears_of_it_before_a_roster_expires() -> None:
    end = 1_000_000
    follower = RosterFollower(first_roster(CA, end))
    assert not follower.notice
    for unix, said in (
        (end - ROSTER_NOTICE, ""),
        (end - ROSTER_NOTICE + 1, "goes by a roster that expires on 1970-01-12 13:46 UTC"),
        (end, "goes by a roster that expires"),
        (end + 1, "goes by an old roster: the roster expired on 1970-01-12 13:46 UTC"),
    ):
        follower.read(Step(), KitRead(unix))
        assert follower.notice.startswith(said) if said else not follower.notice
    for_ever = RosterFollower(first_roster(CA, 0))
    for_ever.read(Step(), KitRead(end))
    assert not for_ever.notice


def test_a_newcomer_waits_from_its_enrolment_on() -> None:
    follower = RosterFollower(SECOND)
    follower.demand_known("bob", SECOND.digest, 30.0)  # there when the run was founded
    follower.demand_known("bob", FIRST.digest, 0.0)
    with pytest.raises(NotReady) as unknown:  # without a calendar nobody is known long enough
        follower.demand_known("bob", FIRST.digest, 30.0)
    assert unknown.value.retry_after == NEWCOMER_RETRY
    follower.read(Step(), KitRead(79.0))
    with pytest.raises(NotReady, match="after the run was founded") as error:
        follower.demand_known("bob", FIRST.digest, 30.0)
    assert error.value.retry_after == 1.0
    follower.read(Step(), KitRead(80.0))
    follower.demand_known("bob", FIRST.digest, 30.0)
