"""What an aggregator gets when a key holder was replaced and another one may be corrupt."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import pytest

from secureps.client.sealing import OutboxSealer
from secureps.errors import Refused
from secureps.messages import orders, requests
from secureps.messages.run import GroupVersion
from secureps.roles.machine import WORKER, KitRead, RosterFollower, Step
from secureps.roles.member.committees import Committees
from secureps.run.simulate.simulation import make_memory_kit
from secureps.store.spool import MemorySpool
from tests.kits.changing_roster import Issuer
from tests.kits.committee_kit import CLIENTS, Holder, Sent, Site, committee_plan

NEW = "holder-9"


class Sites(NamedTuple):
    """One run by the rosters of two committees: before the last holder is replaced, and after."""

    before: Site
    after: Site

    @property
    def threshold(self) -> int:
        return self.before.committee.threshold

    @property
    def lost(self) -> str:
        return self.before.names[-1]

    @property
    def stay(self) -> tuple[str, ...]:
        return self.before.names[:-1]


@cache
def sites_of(holders: int, threshold: int) -> Sites:
    plan = committee_plan(holders, threshold)
    issuer = Issuer(make_memory_kit(plan, CLIENTS))
    before = Site(plan, issuer.kit)
    issuer.replace(f"holder-{holders - 1}", NEW)
    after = Site(plan, issuer.kit)
    after.run, after.pinned = before.run, before.pinned
    return Sites(before, after)


@pytest.fixture
def sites() -> Sites:
    """The default committee, 3 of 4."""
    return sites_of(4, 3)


def holder(sites: Sites, name: str) -> Holder:
    """A holder with an empty ledger that has heard of both rosters, where it is on both."""
    before, after = sites
    made = Holder(after if name == NEW else before, name)
    if name not in (NEW, sites.lost):
        made.give(WORKER, KitRead(0.0, after.kit.public.roster.to_bytes().decode(), ()))
    return made


def answered(holder: Holder, order: orders.Open) -> bool:
    return any(isinstance(said, requests.KeyShare) for said in holder.order(order))


def who_opens(
    sites: Sites, asked: Iterable[tuple[str, orders.Open]], corrupt: str = ""
) -> tuple[set[str], set[str]]:
    """Who answers the first and the second order of a run; who is corrupt keeps no ledger."""
    honest = {
        name: holder(sites, name) for name in (*sites.stay, sites.lost, NEW) if name != corrupt
    }
    found: tuple[set[str], set[str]] = (set(), set())
    for name, order in asked:
        if answered(honest.get(name) or holder(sites, name), order):
            found[order.cohort.number].add(name)
    return found


def larger_and_smaller(sites: Sites) -> tuple[orders.Open, orders.Open]:
    """The same updates, sealed for both committees, but for one that is only in the first sum."""
    before, after = sites
    whole = before.opening([before.send(name) for name in CLIENTS[:6]])
    return whole, after.opening([after.send(name) for name in CLIENTS[1:6]], number=1)


def ways(
    sites: Sites, whole: orders.Open, part: orders.Open
) -> Iterator[list[tuple[str, orders.Open]]]:
    """All ways to ask: each holder that stays gets the one order or the other first."""
    for first in itertools.product((True, False), repeat=len(sites.stay)):
        asked = [(sites.lost, whole), (NEW, part)]
        for name, larger in zip(sites.stay, first, strict=True):
            asked += [(name, order) for order in ((whole, part) if larger else (part, whole))]
        yield asked


def test_what_is_sealed_for_one_committee_the_other_opens_no_part_of(sites: Sites) -> None:
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
        for asked in ways(sites, whole, smaller):
            for corrupt in sites.stay:
                answers = who_opens(sites, asked, corrupt)
                assert min(map(len, answers)) < sites.threshold <= max(map(len, answers)), answers


@pytest.mark.parametrize(("n", "t"), [(3, 2), (3, 3), (4, 3), (4, 4), (5, 3), (5, 4)])
@pytest.mark.parametrize("f", [0, 1])
def test_who_seals_for_both_is_protected_within_a_bound_one_lower(n: int, t: int, f: int) -> None:
    """A client whose state was taken back may be led to it: why it has on record for whom it
    sealed. Beyond f <= 2t - n - 2 two sums that differ in one client are both opened."""
    sites = sites_of(n, t)
    corrupt = sites.stay[0] if f else ""
    asked = ways(sites, *larger_and_smaller(sites))
    found = [who_opens(sites, each, corrupt) for each in asked]
    both = any(min(map(len, answers)) >= t for answers in found)
    assert both == (f > 2 * t - n - 2)


def sealed_twice(sites: Sites, name: str) -> tuple[Sent, Sent]:
    """Version 0 of an honest client, and what it sends when it is to seal that for the others.

    It has sealed version 1 for them when it hears that they begin at version 0.
    """
    before, after = sites
    follower, outbox = RosterFollower(before.kit.public.roster), MemorySpool()
    known, identity = Committees(follower, name), before.kit.identities[name]
    sealer = OutboxSealer(identity, {}, known.due_for_made, outbox)
    known.take(before.sealed_for("all", 0))
    first = before.send(name, by=(sealer, outbox))
    known.note_sealed(first.receipt)
    follower.follow(Step(), after.kit.public.roster.to_bytes().decode())
    begins = GroupVersion("all", 1)
    known.take(dataclasses.replace(after.sealed_for("all", 1), since=(begins,)))
    known.note_sealed(after.send(name, 2, version=1, by=(sealer, outbox)).receipt)
    known.take(after.sealed_for("all", 0))
    with pytest.raises(Refused, match="it has sealed version 1 of all"):
        known.due("all", 0)
    again = sealer.seal_again(before.pinned, first.receipt, first.headers, 3)
    payloads = tuple(outbox.get(header.key) for header in again.headers)
    return first, Sent(again.receipt, again.headers, payloads, first.values)


def test_a_version_of_one_committee_is_sealed_again_for_no_later_one(sites: Sites) -> None:
    """A coordinator may say of a committee, once it is sealed for, that it began earlier."""
    before, after = sites
    twice = [sealed_twice(sites, name) for name in CLIENTS[:6]]
    whole = before.opening([first for first, _ in twice])
    part = after.opening([again for _, again in twice[1:]], number=1)
    for asked in ways(sites, whole, part):
        for corrupt in sites.stay:
            answers = who_opens(sites, asked, corrupt)
            assert min(map(len, answers)) < sites.threshold, answers


def test_the_new_committee_opens_newer_versions_without_one_that_stays(sites: Sites) -> None:
    before, after = sites
    earlier = before.opening([before.send(name) for name in CLIENTS[:6]])
    later = after.opening([after.send(n, 2, version=1) for n in CLIENTS[:6]], number=1)
    asked = [
        (name, order) for order in (earlier, later) for name in (*sites.stay[:2], sites.lost, NEW)
    ]
    assert who_opens(sites, asked) == ({*sites.stay[:2], sites.lost}, {*sites.stay[:2], NEW})
