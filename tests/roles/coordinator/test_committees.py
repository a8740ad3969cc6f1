"""Which key holders updates are sealed for, from which versions on."""

import dataclasses
from typing import NoReturn

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster, certify, first_roster, next_roster
from secureps.errors import UnknownParty, WrongVersion
from secureps.messages.encoding import file_digest
from secureps.messages.orders import RosterChanged, SealFor
from secureps.messages.records import RunPinned
from secureps.messages.requests import Examined, Subscribe
from secureps.messages.run import GroupVersion
from secureps.messages.submission import UPDATE, Cohort, Member, Receipt, SubmissionId
from secureps.roles.coordinator import envelopes, membership, opening
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Order, RosterFollower, Say, Step
from secureps.roles.pinned_run import PinnedRun
from tests.kits.roles_kit import ADDRESSES, NONCE, make_placement, make_plan, make_run

CA = Identity(b"c" * 32)
PLAN = make_plan("rlwe")
KEYS = {f"h{k}": EnvelopeKey.from_os().public for k in range(6)}
FIRST = ("h0", "h1", "h2", "h3")
OFFERED = tuple(key.key for key in KEYS.values())


def roster(last: Roster, names: tuple[str, ...]) -> Roster:
    made = [
        certify(
            *(CA, name, "holder", Identity(name.encode() * 16).public.key),
            file_digest(KEYS[name].to_bytes()),
        )
        for name in names
    ]
    return next_roster(CA, last, made, 1, 0)


class Change:
    """A run at version 2 whose roster changes."""

    def __init__(self) -> None:
        self.roster = first_roster(CA, 0)
        pinned = RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES)
        self.state = CoordinatorState({"all": GroupState("all")}, pinned=pinned)
        self.state.members = {"c0": 0.0}
        self.to(*FIRST)
        self.state.groups["all"].version = 2

    def to(self, *names: str, keys: tuple[bytes, ...] = OFFERED) -> Transaction:
        """Changes the roster's holders to these."""
        self.roster = roster(self.roster, names)
        return self.formed(keys)

    def formed(self, keys: tuple[bytes, ...] = OFFERED) -> Transaction:
        watchers, none = frozenset({"c0"}), frozenset[str]()
        settings = PinnedRun(PLAN, self.roster, None, NONCE, keys)
        tx = Transaction(0.0, settings, self.state, none, (), none, watchers)
        opening.form_committee(tx)
        return tx

    @property
    def names(self) -> list[tuple[str, ...]]:
        return [each.holders for each in self.state.committees]


def update(version: int, committee: bytes | None) -> Receipt:
    id = SubmissionId("c0", "all", 1)
    made = Receipt(b"", id, UPDATE, version, b"", (), b"", (), (), 0, None, None, False)
    return dataclasses.replace(made, committee=committee)


def said(tx: Transaction) -> str:
    return " ".join(effect.text for effect in tx.step.effects if isinstance(effect, Say))


def test_the_next_version_is_sealed_for_the_new_ones() -> None:
    change = Change()
    tx = change.to("h0", "h1", "h2", "h4")
    assert change.names == [FIRST, ("h0", "h1", "h2", "h4")]
    assert change.state.committees[1].since == (GroupVersion("all", 3),)
    assert [opening.committee_at(tx, "all", v).holders[3] for v in (0, 2, 3, 9)] == [
        "h3",
        "h3",
        "h4",
        "h4",
    ]
    assert [e.message for e in tx.step.effects if isinstance(e, Order)] == [
        SealFor(0, change.state.committees[1])
    ]
    assert "other key holders: h4 in place of h3" in said(tx)
    assert change.formed().step.effects == []


def test_others_go_on_while_the_new_ones_are_not_all_here() -> None:
    change = Change()
    assert "3 key holders, and the plan 4" in said(change.to("h0", "h1", "h2"))
    few = tuple(KEYS[name].key for name in FIRST)
    assert "lacks the cipher key of h4" in said(change.to("h0", "h1", "h2", "h4", keys=few))
    assert change.names == [FIRST]
    change.formed()
    assert len(change.names) == 2


def test_those_that_were_replaced_do_not_come_back() -> None:
    change = Change()
    change.to("h0", "h1", "h2", "h4")
    assert "does not come back" in said(change.to(*FIRST))
    assert len(change.names) == 2


def test_two_changes_before_a_version_are_one() -> None:
    change = Change()
    change.to("h0", "h1", "h2", "h4")
    tx = change.to("h0", "h1", "h4", "h5")
    assert opening.committee_at(tx, "all", 2).holders == FIRST
    assert opening.committee_at(tx, "all", 3).holders == ("h0", "h1", "h4", "h5")


def test_an_update_is_for_those_whom_its_version_is_for() -> None:
    change = Change()
    tx = change.to("h0", "h1", "h2", "h4")
    first, second = change.state.committees

    opening.check_committee(tx, update(2, first.committee))
    opening.check_committee(tx, update(3, second.committee))
    for wrong in ((2, second.committee), (3, first.committee), (3, bytes(32)), (3, None)):
        with pytest.raises(WrongVersion, match="is sealed for other key holders than h0"):
            opening.check_committee(tx, update(*wrong))


def test_whoever_a_submission_is_not_sealed_for_says_nothing_of_its_envelopes() -> None:
    """A new holder would accuse clients of what they sealed for those before it."""
    change = Change()
    tx, group = change.to("h0", "h1", "h2", "h4"), change.state.groups["all"]
    tx = dataclasses.replace(tx, holders=("h0", "h1", "h2", "h4"), step=Step())
    group.phase, sealed = Phase.COLLECTING, update(2, change.state.committees[0].committee)
    group.receive(0.0, sealed)
    tx.federation.settled.receipts[sealed.id] = b"about"
    for flaw in ("a flaw", ""):
        with pytest.raises(UnknownParty, match="all/1 is not sealed for h4"):
            envelopes.take_examination(tx, group, Examined("h4", sealed.id, flaw, b"about"))
    assert not tx.step.records


def test_versions_fall_into_periods_by_committee() -> None:
    change = Change()
    assert opening.periods(change.formed(), "all") is None
    period = opening.periods(change.to("h0", "h1", "h2", "h4"), "all")
    assert period is not None
    assert [period(version) for version in range(5)] == [0, 0, 0, 1, 1]


def test_who_comes_back_hears_of_all_that_its_updates_may_be_for() -> None:
    change = Change()
    change.to("h0", "h1", "h2", "h4")

    def told() -> list[tuple[str, ...]]:
        return [each.holders for each in opening.used_committees(change.formed())]

    assert told() == change.names
    change.state.groups["all"].version = 3
    assert told() == change.names[1:]


def test_who_goes_by_an_older_roster_hears_of_the_newest_and_of_a_later_end() -> None:
    """A roster that is signed anew has the same number and a later end."""
    change = Change()
    tx = change.formed()
    own = next_roster(CA, change.roster, change.roster.certificates, 1, 200)
    last = own.number
    ways = ((last - 1, 50, True), (last, 100, True), (last, 200, False), (last + 1, 9, False))
    for epoch, expires, told in ways:
        step = dataclasses.replace(tx, step=Step())
        membership.tell_roster(step, RosterFollower(own), Subscribe("c0", (), epoch, expires))
        heard = [RosterChanged(tx.federation.incarnation, own.to_bytes().decode())] * told
        assert [e.message for e in step.step.effects if isinstance(e, Order)] == heard


def test_nobody_looks_through_receipts_while_enough_of_each_committee_are_left() -> None:
    """Every event asks, and there are as many receipts as clients."""

    class Unread(dict[SubmissionId, Receipt]):
        def values(self) -> NoReturn:
            raise AssertionError

    change = Change()
    tx, group = change.to("h0", "h1", "h2", "h4"), change.state.groups["all"]
    group.phase, group.open_receipts.receipts = Phase.COLLECTING, Unread()
    envelopes.give_up_lost(dataclasses.replace(tx, holders=("h0", "h1", "h2", "h4")), group)
    tx = change.to("h1", "h2", "h4", "h5")
    with pytest.raises(AssertionError):
        envelopes.give_up_lost(dataclasses.replace(tx, holders=("h1", "h2", "h4", "h5")), group)


def test_a_version_of_which_lost_holders_were_asked_is_sealed_for_no_others() -> None:
    """They may have opened it, and with the sum of others an update could be singled out."""
    for asked in (False, True):
        change = Change()
        group = change.state.groups["all"]
        group.version, group.phase = 1, Phase.WAITING
        member = Member(SubmissionId("c0", "all", 1), 1, group.version)
        group.spoilt = (Cohort("all", 0, 2, 1, (member,)),) if asked else ()
        tx = dataclasses.replace(
            change.to("h2", "h3", "h4", "h5"), holders=("h2", "h3", "h4", "h5")
        )
        envelopes.give_up_lost(tx, group)
        newest, ending = change.state.committees[-1], change.state.ending
        assert newest.begins("all") == (2 if asked else 1)
        assert ("nobody opens other updates of this version" in ending) == asked
