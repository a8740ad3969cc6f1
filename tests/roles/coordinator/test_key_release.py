"""Which announcements of envelope keys, and which receipts sealed for keys, are accepted."""

import dataclasses

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, first_roster, next_roster
from secureps.errors import NotReady, WrongVersion
from secureps.messages.coordinator_records import KeysReleased, RoundGivenUp, RoundOpened
from secureps.messages.encoding import file_digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.orders import SealFor
from secureps.messages.records import RunPinned
from secureps.messages.submission import UPDATE, Base, Receipt, SubmissionId
from secureps.roles.coordinator import envelopes, opening
from secureps.roles.coordinator.envelopes import AT_ONCE, BETWEEN
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Order
from secureps.roles.pinned_run import PinnedRun
from tests.kits.roles_kit import ADDRESSES, NONCE, make_placement, make_plan, make_run

CA = Identity(b"c" * 32)
PLAN = make_plan("rlwe")
RUN = make_run(PLAN)
KEYS = {f"h{k}": EnvelopeKey.from_os().public for k in range(4)}
IDENTITIES = {name: Identity(name.encode() * 16) for name in KEYS}
ROSTER = next_roster(
    CA,
    first_roster(CA, 0),
    [
        certify(CA, name, "holder", own.public.key, file_digest(KEYS[name].to_bytes()))
        for name, own in IDENTITIES.items()
    ],
    1,
    0,
)
NEXT = EnvelopeKey.from_os().public.key


class Begun:
    """A run whose key holders have the kit's keys."""

    def __init__(self) -> None:
        pinned = RunPinned(RUN, make_placement(PLAN), ADDRESSES)
        group = GroupState("all", 0, phase=Phase.WAITING)
        self.state = CoordinatorState({"all": group}, pinned=pinned)
        self.state.members = {"c0": 0.0}
        offered = tuple(key.key for key in KEYS.values())
        self.settings = PinnedRun(PLAN, ROSTER, None, NONCE, offered)
        opening.form_committee(self.at(0.0))

    def at(self, now: float) -> Transaction:
        none, here = frozenset[str](), frozenset({"c0"})
        return Transaction(now, self.settings, self.state, none, tuple(KEYS), none, here)

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
