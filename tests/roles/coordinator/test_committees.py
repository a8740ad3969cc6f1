"""Which key holders updates are sealed for, from which version on, and with which keys."""

import dataclasses
from typing import NoReturn

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.roster import first_roster, next_roster
from secureps.errors import NotReady, UnknownParty, WrongVersion
from secureps.messages.coordinator_records import KeysReleased, RoundGivenUp, RoundOpened
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.orders import RosterChanged, SealFor
from secureps.messages.records import RunPinned
from secureps.messages.requests import Examined, Subscribe
from secureps.messages.run import GroupVersion
from secureps.messages.submission import UPDATE, Base, Cohort, Member, Receipt, SubmissionId
from secureps.roles.coordinator import envelopes, membership, opening
from secureps.roles.coordinator.envelopes import AT_ONCE, BETWEEN
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Order, RosterFollower, Say, Step
from secureps.roles.pinned_run import PinnedRun
from tests.kits.committee_plans import CA, IDENTITIES, KEYS, holders_roster
from tests.kits.roles_kit import ADDRESSES, NONCE, make_placement, make_plan, make_run

PLAN = make_plan("rlwe")
FIRST = ("h0", "h1", "h2", "h3")
OFFERED = tuple(key.key for key in KEYS.values())


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
        self.roster = holders_roster(self.roster, names)
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


RUN = make_run(PLAN)
ROSTER = holders_roster(first_roster(CA, 0), FIRST)
NEXT = EnvelopeKey.from_os().public.key


class Begun:
    """A run whose key holders have the kit's keys."""

    def __init__(self) -> None:
        pinned = RunPinned(RUN, make_placement(PLAN), ADDRESSES)
        group = GroupState("all", 0, phase=Phase.WAITING)
        self.state = CoordinatorState({"all": group}, pinned=pinned)
        self.state.members = {"c0": 0.0}
        self.settings = PinnedRun(PLAN, ROSTER, None, NONCE, OFFERED)
        opening.form_committee(self.at(0.0))

    def at(self, now: float) -> Transaction:
        none, here = frozenset[str](), frozenset({"c0"})
        return Transaction(now, self.settings, self.state, none, FIRST, none, here)

    def hear(self, holder: str, number: int, least: int = 0, now: float = 0.0) -> Transaction:
        bare = EnvelopeKeyAnnounced(RUN.id, holder, number, NEXT, least)
        signature = IDENTITIES[holder].sign(*announcement_bytes(bare))
        tx = self.at(now)
        envelopes.take_key(tx, dataclasses.replace(bare, signature=signature))
        return tx


def receipt(*keys: int) -> Receipt:
    return Receipt(
        *(RUN.id, SubmissionId("c0", "all", 1), UPDATE, 0, b"", (), b"", (), (), 0, None, None),
        unsafe=False,
        keys=keys,
        committee=ROSTER.committee,
    )


def test_a_holder_fills_no_journal_with_keys_that_served_nobody() -> None:
    """Each announcement is journalled here and at every client."""
    run = Begun()
    told = [run.hear("h0", number) for number in range(1, AT_ONCE + 1)]
    assert all(isinstance(tx.step.effects[0], Order) for tx in told)
    again = run.hear("h0", AT_ONCE)
    assert not again.step.records, "the same once more is no news, and no error"
    for what in ({"number": AT_ONCE + 1}, {"number": AT_ONCE, "least": 1}):
        with pytest.raises(NotReady, match="more keys than can have served") as error:
            run.hear("h0", **what)
        assert error.value.retry_after == BETWEEN
    assert run.hear("h1", 1).step.records, "others are told"
    run.hear("h0", 1 << 30, now=BETWEEN)
    run.hear("h0", 1 << 30, 1 << 30, now=BETWEEN)
    with pytest.raises(NotReady):
        run.hear("h0", (1 << 30) + 1, now=2 * BETWEEN - 1)
    run.state.groups["all"].number += 1
    assert run.hear("h0", (1 << 30) + 1, now=BETWEEN).step.records


def test_a_new_key_is_told_to_clients_and_what_is_erased_to_nobody() -> None:
    run = Begun()
    (order,) = run.hear("h0", 1).step.effects
    assert isinstance(order, Order)
    (committee,) = run.state.committees
    assert order.message == SealFor(0, committee, (run.state.keys.newest["h0"],))
    step = run.hear("h0", 1, 1).step
    assert (len(step.records), step.effects) == (1, [])


def test_a_receipt_is_sealed_for_keys_that_enough_holders_announced() -> None:
    """One holder may not have announced its key: it reports the flaw."""
    run = Begun()
    run.hear("h2", 3)
    for numbers in ((0, 0, 0, 0), (0, 0, 3, 0), (0, 0, 4, 0), (1, 0, 2, 0)):
        envelopes.check_keys(run.at(0.0), receipt(*numbers))
    for numbers in ((0, 0, 4, 1), (-1, 0, 0, 1)):
        with pytest.raises(
            WrongVersion, match=r"keys \(.+ fewer than 3 key holders have announced"
        ):
            envelopes.check_keys(run.at(0.0), receipt(*numbers))


@pytest.mark.parametrize("released", [False, True])
def test_what_is_sealed_for_erased_keys_is_not_taken(released: bool) -> None:
    """If it were dropped and asked for again, the client would send the same for ever."""
    run = Begun()
    for holder, refused in (("h0", False), ("h3", True)):
        run.hear(holder, 1, 0 if released else 1)
        if released:
            run.at(0.0).write(KeysReleased(holder, 1))
        if refused:
            with pytest.raises(WrongVersion, match="fewer than 3 key holders have announced"):
                envelopes.check_keys(run.at(0.0), receipt(0, 0, 0, 0))
        else:
            envelopes.check_keys(run.at(0.0), receipt(0, 0, 0, 0))
        envelopes.check_keys(run.at(0.0), receipt(1, 0, 0, 1))


def test_a_key_is_released_when_nothing_that_may_come_again_is_sealed_for_it() -> None:
    run = Begun()
    run.state.groups["all"].members.returning = {SubmissionId("c0", "all", 1): Base(0, 0)}
    tx = run.hear("h0", 1)
    envelopes.release(tx)
    assert KeysReleased("h0", 1) not in tx.step.records
    run.state.groups["all"].members.returning.clear()
    envelopes.release(tx)
    assert tx.step.records[-1] == KeysReleased("h0", 1)


def test_a_key_is_kept_for_receipts_that_are_sealed_for_it() -> None:
    """If the holder erased it, the receipt's cohort could not be opened."""
    run = Begun()
    run.hear("h0", 1)
    sealed = receipt(1, 0, 0, 0)
    run.state.groups["all"].open_receipts.put(sealed)
    envelopes.release(tx := run.hear("h0", 2))
    assert KeysReleased("h0", 1) in tx.step.records, "older ones are not needed"
    assert KeysReleased("h0", 2) not in tx.step.records
    run.state.groups["all"].open_receipts.remove(sealed.id)
    envelopes.release(tx)
    assert tx.step.records[-1] == KeysReleased("h0", 2)


def test_a_key_is_kept_for_updates_that_were_asked_for_before_it_was_replaced() -> None:
    """Clients that are asked later know the newer key: later rounds do not keep the older one."""
    run = Begun()
    run.at(0.0).write(RoundOpened("all", 1, 0, ("c0",), "opens"))
    envelopes.release(tx := run.hear("h0", 1))
    assert KeysReleased("h0", 1) not in tx.step.records
    run.at(0.0).write(RoundGivenUp("all", 1, "too few came"))
    run.at(0.0).write(RoundOpened("all", 2, 0, ("c0",), "opens"))
    envelopes.release(tx := run.hear("h1", 1))
    assert KeysReleased("h0", 1) in tx.step.records
    assert KeysReleased("h1", 1) not in tx.step.records
    run.hear("h0", 2)
    run.hear("h0", 4)
    run.at(0.0).write(RoundGivenUp("all", 2, "too few came"))
    envelopes.release(tx := run.hear("h2", 1))
    assert set(tx.step.records[1:]) == {
        *(KeysReleased("h0", 4), KeysReleased("h1", 1), KeysReleased("h2", 1))
    }
