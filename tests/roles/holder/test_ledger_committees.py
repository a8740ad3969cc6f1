"""For whom a cohort is sealed, and who is in it: what a key holder asks, whoever says otherwise."""

from __future__ import annotations

import dataclasses

import pytest

from secureps.crypto.roster import certify, first_roster, next_roster
from secureps.errors import NotReady, Refused
from secureps.messages import records
from secureps.messages.encoding import digest
from secureps.messages.submission import Receipt, SubmissionId, signing_bytes
from secureps.roles.holder import ledger as ledgers
from secureps.roles.holder.ledger import CLOCKS, HolderLedger, HolderRules
from secureps.roles.machine import KitRead, Step
from tests.kits.roles_kit import ADDRESSES, CA, _identity, make_placement
from tests.roles.holder.test_ledger import (
    CLIENTS,
    IDENTITIES,
    PLAN,
    ROSTER,
    RUN,
    Coordinator,
    Ledger,
    opening,
)

FIRST = next_roster(CA, first_roster(CA, 0), ROSTER.certificates, 1, 100)
OTHER = certify(CA, "other", "holder", _identity("other").public.key)
SECOND = next_roster(CA, FIRST, [*ROSTER.certificates, OTHER], 1, 200)


def sealed_for(receipt: Receipt, committee: bytes) -> Receipt:
    """The same, signed anew by its client."""
    bare = dataclasses.replace(receipt, committee=committee)
    signature = IDENTITIES[bare.id.client].sign(*signing_bytes(bare))
    return dataclasses.replace(bare, signature=signature)


def test_with_key_holders_whose_last_roster_expired_nothing_is_opened() -> None:
    for unix, said in ((100.0, ""), (100.5, "the last roster with these key holders expired")):
        ledger = Ledger(roster=FIRST)
        ledger.real.follower.read(Step(), KitRead(unix))
        assert said in ledger.gives(opening(Coordinator().cohort(CLIENTS)))
        assert said or ledger.journal[1:]


def test_who_is_none_of_the_key_holders_opens_nothing() -> None:
    order = opening(Coordinator().cohort(CLIENTS))
    assert "other is none of these key holders: holder" in Ledger(name="other").gives(order)
    strange = dataclasses.replace(order.cohort, committee=digest("nobody"))
    assert "sealed for different key holders" in Ledger().gives(
        dataclasses.replace(order, cohort=strange)
    )


def test_members_are_sealed_for_one_committee() -> None:
    order = opening(Coordinator().cohort(CLIENTS))
    receipts = list(order.receipts)
    receipts[3] = sealed_for(receipts[3], SECOND.committee)
    ledger = Ledger(roster=SECOND)
    ledger.real.follower.apply(records.RosterFollowed(FIRST.to_bytes().decode()))
    said = ledger.gives(dataclasses.replace(order, receipts=tuple(receipts)))
    assert said == "its members are sealed for different key holders"


def test_after_a_committee_comes_none_for_its_versions_restarted_or_not() -> None:
    """Whoever replaced a holder has no record of them; those that stay do."""
    first = Ledger(roster=FIRST)
    assert first.gives(opening(Coordinator().cohort(CLIENTS))) == ""
    follow = records.RosterFollowed(SECOND.to_bytes().decode())
    for ledger in (first, first.restarted(FIRST)):
        ledger.real.apply(follow)
        bare = Coordinator(5).cohort(CLIENTS)
        order = opening(dataclasses.replace(bare, committee=SECOND.committee))
        signed = tuple(sealed_for(each, SECOND.committee) for each in order.receipts)
        said = ledger.gives(dataclasses.replace(order, receipts=signed))
        assert said.startswith("an earlier committee of key holders was asked")


def test_a_newcomer_is_in_no_cohort_before_its_time() -> None:
    """By this holder's own calendar, whatever the coordinator lets in."""
    late = _identity("late")
    roster = next_roster(
        CA, FIRST, [*ROSTER.certificates, certify(CA, "late", "client", late.public.key)], 1000, 0
    )
    wait, run = PLAN.section.newcomers_wait, dataclasses.replace(RUN, roster=FIRST.digest)
    bare = opening(Coordinator().cohort(CLIENTS)).receipts[0]
    bare = dataclasses.replace(bare, run=run.id, id=SubmissionId("late", "all", 1))
    receipt = dataclasses.replace(bare, signature=late.sign(*signing_bytes(bare)))
    ledger = HolderLedger("holder", roster, HolderRules(2), blind=True)
    ledger.apply(records.RunPinned(run, make_placement(PLAN), ADDRESSES))
    for unix in (1000.0, 1000 + wait - CLOCKS - 1):
        ledger.follower.read(Step(), KitRead(unix))
        with pytest.raises(NotReady, match="came onto the roster after the run was founded"):
            ledger.check_author(receipt)
    ledger.follower.read(Step(), KitRead(1000 + wait - CLOCKS))
    ledger.check_author(receipt)


def test_nobody_but_a_client_is_in_a_cohort() -> None:
    ledger = Ledger()
    receipt = opening(Coordinator().cohort(CLIENTS)).receipts[0]
    bare = dataclasses.replace(receipt, id=SubmissionId("holder", "all", 1))
    signature = _identity("holder").sign(*signing_bytes(bare))
    with pytest.raises(Refused, match="holder is not a client"):
        ledger.real.check_author(dataclasses.replace(bare, signature=signature))


def test_so_many_receipts_are_remembered_as_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "VERIFIED", 3)
    ledger = Ledger()
    for receipt in opening(Coordinator().cohort(CLIENTS)).receipts:
        ledger.real.check_author(receipt)
    assert len(ledger.real._verified) == 3
