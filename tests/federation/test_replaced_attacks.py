"""What an aggregator gets when one of four key holders is corrupt and another was replaced."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster, certify, first_roster, next_roster
from secureps.messages import orders, requests
from secureps.messages.encoding import file_digest
from secureps.roles.machine import WORKER, KitRead
from secureps.run.simulate.simulation import MemoryKit, memory_kit
from secureps.store.envelope_keys import in_memory
from secureps.store.holder_keys import ENVELOPE
from secureps.store.keyring import PublicKit
from tests.kits.committee_kit import CLIENTS, Holder, Site, committee_plan

THRESHOLD = 3
LOST, NEW = "holder-3", "holder-9"
STAY = ("holder-0", "holder-1", "holder-2")


@pytest.fixture(scope="module")
def sites() -> tuple[Site, Site]:
    """One run by the rosters of two committees of four: before a holder is replaced, and after."""
    plan, ca = committee_plan(4, THRESHOLD), Identity(b"c" * 32)
    made = memory_kit(plan, CLIENTS)
    parties = {c.name: c for c in made.public.roster.certificates}

    def site(line: Roster, keys: dict[str, bytes], kit: MemoryKit) -> Site:
        signed = (
            certify(ca, c.name, c.role, c.public_key, c.cipher_key_digest) for c in parties.values()
        )
        roster = next_roster(ca, line, sorted(signed, key=lambda each: each.name), 0, 0)
        public = PublicKit(ca.public, roster, keys)
        return Site(plan, dataclasses.replace(kit, public=public))

    before = site(first_roster(ca, 0), dict(made.public.holder_keys), made)
    secret, public = ENVELOPE.generate()
    own, key = Identity.generate(), ENVELOPE.public(public)
    parties[NEW] = certify(ca, NEW, "holder", own.public.key, file_digest(public))
    keys = {name: each for name, each in before.kit.public.holder_keys.items() if name != LOST}
    del parties[LOST]
    identities = {**made.identities, NEW: own}
    secrets = {**made.secrets, NEW: in_memory(ENVELOPE.secret(secret))}
    kit = MemoryKit(made.public, identities, secrets)
    after = site(before.kit.public.roster, keys | {NEW: key}, kit)
    after.run, after.pinned = before.run, before.pinned
    return before, after


def holder(sites: tuple[Site, Site], name: str) -> Holder:
    """A holder with an empty ledger that has heard of both rosters, where it is on both."""
    before, after = sites
    made = Holder(after if name == NEW else before, name)
    if name not in (NEW, LOST):
        made.give(WORKER, KitRead(0.0, after.kit.public.roster.to_bytes().decode(), ()))
    return made


def answered(holder: Holder, order: orders.Open) -> bool:
    return any(isinstance(said, requests.KeyShare) for said in holder.order(order))


def who_opens(
    sites: tuple[Site, Site], asked: Iterable[tuple[str, orders.Open]], corrupt: str = ""
) -> tuple[set[str], set[str]]:
    """Who answers the first and the second order of a run; who is corrupt keeps no ledger."""
    honest = {name: holder(sites, name) for name in (*STAY, LOST, NEW) if name != corrupt}
    found: tuple[set[str], set[str]] = (set(), set())
    for name, order in asked:
        if answered(honest.get(name) or holder(sites, name), order):
            found[order.cohort.number].add(name)
    return found


def larger_and_smaller(sites: tuple[Site, Site]) -> tuple[orders.Open, orders.Open]:
    """The same updates, sealed for both committees, but for one that is only in the first sum."""
    before, after = sites
    whole = before.opening([before.send(name) for name in CLIENTS[:6]])
    return whole, after.opening([after.send(name) for name in CLIENTS[1:6]], number=1)


def ways(whole: orders.Open, part: orders.Open) -> Iterator[list[tuple[str, orders.Open]]]:
    """All ways to ask: each holder that stays gets the one order or the other first."""
    for first in itertools.product((True, False), repeat=len(STAY)):
        asked = [(LOST, whole), (NEW, part)]
        for name, larger in zip(STAY, first, strict=True):
            asked += [(name, order) for order in ((whole, part) if larger else (part, whole))]
        yield asked


def test_what_is_sealed_for_one_committee_the_other_opens_no_part_of(
    sites: tuple[Site, Site],
) -> None:
    """A client seals a base version once: all that is left is to call the cohort another's."""
    before, after = sites
    sent = [before.send(name) for name in CLIENTS[:6]]
    whole, part = before.opening(sent), before.opening(sent[1:], number=1)
    digest = after.kit.public.roster.committee
    moved = dataclasses.replace(part.cohort, committee=digest)
    receipts = tuple(dataclasses.replace(each, committee=digest) for each in part.receipts)
    tried = (
        part,
        dataclasses.replace(part, cohort=moved),
        dataclasses.replace(part, cohort=moved, receipts=receipts),
    )
    for smaller in tried:
        for asked in ways(whole, smaller):
            for corrupt in STAY:
                answers = who_opens(sites, asked, corrupt)
                assert min(map(len, answers)) < THRESHOLD <= max(map(len, answers)), answers


def test_who_seals_for_both_is_protected_by_the_holders_that_stay(
    sites: tuple[Site, Site],
) -> None:
    """A client whose state was taken back may be led to it."""
    for asked in ways(*larger_and_smaller(sites)):
        answers = who_opens(sites, asked)
        assert min(map(len, answers)) < THRESHOLD <= max(map(len, answers)), answers


def test_but_not_if_one_of_them_is_corrupt(sites: tuple[Site, Site]) -> None:
    """Why a client has it on record for whom it sealed: two sums that differ in one are opened."""
    found = [who_opens(sites, asked, STAY[0]) for asked in ways(*larger_and_smaller(sites))]
    assert any(min(map(len, answers)) >= THRESHOLD for answers in found)


def test_the_new_committee_opens_newer_versions_without_one_that_stays(
    sites: tuple[Site, Site],
) -> None:
    before, after = sites
    earlier = before.opening([before.send(name) for name in CLIENTS[:6]])
    later = after.opening([after.send(n, 2, version=1) for n in CLIENTS[:6]], number=1)
    asked = [(name, order) for order in (earlier, later) for name in (*STAY[:2], LOST, NEW)]
    assert who_opens(sites, asked) == ({*STAY[:2], LOST}, {*STAY[:2], NEW})
