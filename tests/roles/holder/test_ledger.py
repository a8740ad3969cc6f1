"""Which sums, committees and base versions honest holders allow, whatever they are asked."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.config.plan import SspSection
from secureps.crypto.roster import Roster, certify, first_roster, next_roster, sign_roster
from secureps.errors import NotReady, Refused, UnknownParty
from secureps.messages import orders, records
from secureps.messages.encoding import digest
from secureps.messages.submission import (
    UPDATE,
    Cohort,
    Member,
    Receipt,
    SubmissionId,
    signing_bytes,
)
from secureps.policy.cohorts.suspicion import halves, leaves, uneven
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import bounds
from secureps.policy.rules.rule import Bounds
from secureps.roles.holder import holder as ledgers
from secureps.roles.holder.holder import CLOCKS, REMEMBERED, HolderFold, HolderLedger, HolderRules
from secureps.roles.machine import Fold, KitRead, Step
from tests.kits.roles_kit import ADDRESSES, CA, _identity, make_placement, make_plan, make_run

CLIENTS = tuple(f"m{number:02}" for number in range(14))
IDENTITIES = {name: _identity(name) for name in CLIENTS}
ROSTER: Roster = sign_roster(
    CA,
    [
        certify(CA, "holder", "holder", _identity("holder").public.key),
        *(certify(CA, name, "client", IDENTITIES[name].public.key) for name in CLIENTS),
    ],
)
LEAST = 3
PLAN = make_plan("rlwe", {"minimum": LEAST})
RUN = make_run(PLAN)


def signed(receipt: Receipt, **changes: Any) -> Receipt:
    """The same receipt with these changes, signed anew by its client."""
    made = dataclasses.replace(receipt, **changes)
    signature = IDENTITIES[made.id.client].sign(*signing_bytes(made))
    return dataclasses.replace(made, signature=signature)


@cache
def receipt(
    id: SubmissionId, version: int, base: bytes, step: int = 0, update: bytes = b""
) -> Receipt:
    made = Receipt(
        RUN.id, id, UPDATE, version, base, (), b"t", (), (), 0, None, None, False, None, step
    )
    return signed(made, update=update, committee=ROSTER.committee)


def opening(cohort: Cohort, base: bytes = b"") -> orders.Open:
    receipts = tuple(
        receipt(m.id, m.version, base or digest("model", bytes([m.version])), m.step, m.update)
        for m in cohort.members
    )
    return orders.Open(1, cohort, receipts, ())


def restated(cohort: Cohort, **changes: Any) -> Cohort:
    """The same clients' updates in a cohort that says something else of them."""
    members = tuple(dataclasses.replace(member, **changes) for member in cohort.members)
    return dataclasses.replace(cohort, members=members)


def changed(order: orders.Open, **changes: Any) -> orders.Open:
    """The same receipts in a cohort that says something else of them."""
    return dataclasses.replace(order, cohort=restated(order.cohort, **changes))


class Ledger:
    """An honest holder of a committee, without its envelopes."""

    def __init__(
        self, journal: tuple[Any, ...] = (), roster: Roster = ROSTER, name: str = "holder"
    ) -> None:
        self.real = HolderLedger(name, roster, HolderRules(2), blind=True)
        self.journal: list[Any] = []
        pinned = records.RunPinned(RUN, make_placement(PLAN), ADDRESSES)
        for record in journal or (pinned,):
            self.real.apply(0.0, record)
            self.journal.append(record)

    def gives(self, order: orders.Open) -> str:
        """Why it gives no share; empty if it does."""
        step = Step()
        try:
            self.real.check(order)
            self.real.release(step, order)
        except Refused as error:
            return str(error)
        finally:
            self.journal += step.records
        return ""

    def restarted(self, roster: Roster = ROSTER) -> Ledger:
        """A holder that has only the fold of this one's journal, as after a compaction."""
        again = Ledger(tuple(self.journal), roster)
        fold = again.real.make_fold()
        assert fold == self.real.make_fold()
        again.real = HolderLedger("holder", roster, HolderRules(2), blind=True)
        again.real.unfold(Fold(fold.records, json.loads(json.dumps(fold.state))))
        return again


@dataclasses.dataclass
class Coordinator:
    """Names cohorts as it likes; every client sends whenever it is asked to."""

    sent: int = 0

    def cohort(
        self,
        clients: Any,
        version: int = 1,
        bases: Any = None,
        weights: Any = None,
        updates: Any = None,
    ) -> Cohort:
        self.sent += 1
        members = tuple(
            Member(
                SubmissionId(client, "all", self.sent),
                (weights or {}).get(client, 1),
                (bases or {}).get(client, version - 1),
                update=(updates or {}).get(client, b""),
            )
            for client in sorted(clients)
        )
        return Cohort("all", self.sent, version, 1, members, committee=ROSTER.committee)


def lag(patch: pytest.MonkeyPatch) -> None:
    """A rule that takes older updates with smaller weights."""
    bounds = Plan.bounds

    def behind(plan: Plan, group: str) -> Bounds:
        return dataclasses.replace(bounds(plan, group), stale=2, most_weight=4)

    patch.setattr(Plan, "bounds", behind)


@pytest.fixture
def lagging(monkeypatch: pytest.MonkeyPatch) -> None:
    lag(monkeypatch)


def test_after_a_sum_its_halves_and_theirs_and_nothing_else() -> None:
    ledger, asks = Ledger(), Coordinator()
    assert ledger.gives(opening(asks.cohort(CLIENTS))) == ""
    parts = leaves(RUN.id, "all", 1, frozenset(CLIENTS), LEAST)
    assert len(parts) == 4
    for each in (ledger, ledger.restarted()):
        for part in parts:
            assert each.gives(opening(asks.cohort(part))) == ""
            less = each.gives(opening(asks.cohort(sorted(part)[1:])))
            told = "opened with its update from the same version 0"
            assert (told if len(part) > LEAST else "a cohort of 2 clients, and 3 or more") in less
        swapped = [*sorted(parts[0])[1:], *sorted(parts[1])[:1]]
        assert "opened with its update" in each.gives(opening(asks.cohort(swapped)))


def test_two_sums_of_which_one_half_is_the_same_are_not_both_opened() -> None:
    """Each may be opened beside that half, but not both."""
    wholes = [frozenset(each) for each in itertools.combinations(CLIENTS, 2 * LEAST)]
    cut = {whole: halves(RUN.id, "all", 1, whole, LEAST) for whole in wholes}
    one, other = next(
        (one, other)
        for one, other in itertools.combinations(wholes, 2)
        if one & other in cut[one] and one & other in cut[other]
    )
    for first in ((one & other, one), (one, one & other)):
        ledger, asks = Ledger(), Coordinator()
        for clients in first:
            assert ledger.gives(opening(asks.cohort(clients))) == ""
        for each in (ledger, ledger.restarted()):
            assert "opened with its update" in each.gives(opening(asks.cohort(other)))


def test_an_update_is_in_sums_with_the_same_integers_alone() -> None:
    """Whoever trained again from one version, under another model of another group or by more work,
    would give away the difference; even if all others did the same."""
    ledger, asks = Ledger(), Coordinator()
    six = CLIENTS[:6]
    assert ledger.gives(opening(asks.cohort(six))) == ""
    for each in (ledger, ledger.restarted()):
        for few in (six[:1], six[1:], six):
            again = asks.cohort(six, updates=dict.fromkeys(few, b"another"))
            assert "opened with its update from the same version 0" in each.gives(opening(again))
        assert each.gives(opening(asks.cohort(six))) == ""


def test_a_cohort_of_an_opened_ones_number_is_held_against_it_all_the_same() -> None:
    """The coordinator chooses numbers, and may give two cohorts the same one."""
    ledger, asks = Ledger(), Coordinator()
    assert ledger.gives(opening(asks.cohort(CLIENTS))) == ""
    first = asks.cohort(CLIENTS[:5])
    renamed = dataclasses.replace(first, number=1)
    for each in (ledger, ledger.restarted()):
        assert "stands in cohort 1, which was opened" in each.gives(opening(renamed))


def test_the_highest_number_is_told_whichever_was_opened_last() -> None:
    """Otherwise a coordinator would not find that its journal is an older copy."""
    ledger, asks = Ledger(), Coordinator()
    first, second = asks.cohort(CLIENTS[:LEAST]), asks.cohort(CLIENTS[LEAST : 2 * LEAST])
    for cohort in (second, first):
        assert ledger.gives(opening(cohort)) == ""
    for each in (ledger, ledger.restarted()):
        assert [at.version for at in each.real.register().reached] == [second.number]


def test_the_same_sum_is_opened_as_often_as_it_is_asked_for_in_the_same_memory() -> None:
    ledger, asks = Ledger(), Coordinator()
    few = CLIENTS[:LEAST]
    for _ in range(3 * REMEMBERED):
        assert ledger.gives(opening(asks.cohort(few))) == ""
    assert {len(each.released) for each in ledger.real.known.standings.values()} == {1}


def test_a_member_has_the_update_of_its_receipt() -> None:
    order = opening(Coordinator().cohort(CLIENTS[:4]))
    reason = Ledger().gives(changed(order, update=b"another"))
    assert reason == "m00/all/1: its receipt is for another update"


def test_members_of_a_round_trained_beside_the_same_models() -> None:
    """Otherwise one member could be given a model of another group that singles out its update."""
    order = opening(Coordinator().cohort(CLIENTS[:4]))
    first, *others = order.receipts
    alone = signed(first, beside=digest("another"))
    reason = Ledger().gives(dataclasses.replace(order, receipts=(alone, *others)))
    assert reason == "its members trained beside different models of the other groups"


def counted(order: orders.Open, said: dict[str, int] | None = None) -> orders.Open:
    """The same of members that count 7 examples, by the cohort and their receipts.

    Args:
        said: by client, what the receipt alone has in place of that.
    """
    numbers = dict.fromkeys(CLIENTS, 7) | (said or {})
    receipts = tuple(signed(each, examples=numbers[each.id.client]) for each in order.receipts)
    return dataclasses.replace(changed(order, examples=7), receipts=receipts)


@pytest.mark.parametrize("examples", [6, 8, 0, -7, 1 << 62])
def test_a_member_counts_by_the_number_of_its_receipt(examples: int) -> None:
    """Otherwise the coordinator could choose, after sealing, whose update dominates the mean."""
    order = opening(Coordinator().cohort(CLIENTS[:4]))
    reason = Ledger().gives(counted(order, said={CLIENTS[1]: examples}))
    assert reason == f"m01/all/1: its receipt counts {examples} examples, the cohort 7"
    assert Ledger().gives(counted(order)) == ""


def test_one_model_of_every_base_version_over_all_cohorts(lagging: None) -> None:
    ledger, asks = Ledger(), Coordinator()
    mixed = dict(zip(CLIENTS, (1, 2, 3, 1, 2, 3)))
    assert ledger.gives(opening(asks.cohort(CLIENTS[:6], 4, mixed))) == ""
    other = asks.cohort(CLIENTS[6:10], 4, dict.fromkeys(CLIENTS, 2))
    for each in (ledger, ledger.restarted()):
        reason = each.gives(opening(other, base=digest("another")))
        assert reason == "another model than before is said to be version 2 of all"
    assert ledger.gives(opening(other)) == ""


def test_within_a_cohort_too(lagging: None) -> None:
    ledger, asks = Ledger(), Coordinator()
    order = opening(asks.cohort(CLIENTS[:4], 4, dict.fromkeys(CLIENTS[:2], 3)))
    last = order.receipts[-1]
    forged = receipt(last.id, last.version, digest("another"))
    reason = ledger.gives(dataclasses.replace(order, receipts=(*order.receipts[:-1], forged)))
    assert reason == f"{last.id}: trained on another model than the others"


def test_a_rule_says_how_far_behind_a_member_may_be(lagging: None) -> None:
    ledger, asks = Ledger(), Coordinator()
    for version, good in ((0, False), (1, True), (3, True), (4, False)):
        cohort = asks.cohort(CLIENTS[:4], 4, {CLIENTS[0]: version})
        reason = ledger.gives(opening(cohort))
        assert (reason == "") == good or "opened with its update" in reason
        if not good:
            assert f"trained from version {version}, the plan's rule takes none" in reason


@pytest.mark.parametrize("said", [{"version": 2}, {"step": 1}])
def test_a_receipt_and_its_member_say_the_same_base(lagging: None, said: dict[str, Any]) -> None:
    """Otherwise the same updates, sealed again, would pass for updates from another base."""
    order = opening(Coordinator().cohort(CLIENTS[:4], 4))
    assert "for another group or version" in Ledger().gives(changed(order, **said))


def test_metrics_hide_among_as_many_clients_as_updates() -> None:
    metrics = {"every": 1, "metrics": {"accuracy": 1.0}}
    plan = make_plan("rlwe", {"minimum": LEAST}, evaluation=metrics)
    ledger = HolderLedger("holder", ROSTER, HolderRules(2), blind=True)
    ledger.apply(0.0, records.RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
    ids = (SubmissionId(client, "evaluation", 1) for client in CLIENTS[: LEAST - 1])
    few = Cohort("evaluation", 0, 3, 1, tuple(Member(id, 1, 1) for id in ids))
    with pytest.raises(Refused, match="a cohort of 2 clients, and 3 or more are opened"):
        ledger.check(orders.Open(1, few, (), ()))


@pytest.mark.parametrize("step", [-1, 1])
def test_a_rule_says_how_many_updates_come_from_one_version(step: int) -> None:
    """Otherwise the same clients without one could be summed again, as another step."""
    ledger, asks = Ledger(), Coordinator()
    assert ledger.gives(opening(asks.cohort(CLIENTS[:6]))) == ""
    order = opening(restated(asks.cohort(CLIENTS[:5]), step=step))
    reason = ledger.gives(order)
    assert reason == f"m00/all/2: update {step} of one version, by the plan's rule the last is 0"


def test_a_rule_that_lets_clients_run_ahead_has_as_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = bounds(SspSection(name="ssp", slack=2), 8).ahead
    own = dataclasses.replace(PLAN.bounds("all"), ahead=ahead)
    monkeypatch.setattr(Plan, "bounds", lambda plan, group: own)
    for step, opens in ((2, True), (3, False)):
        ledger, asks = Ledger(), Coordinator()
        assert ledger.gives(opening(asks.cohort(CLIENTS[:6]))) == ""
        assert (ledger.gives(opening(restated(asks.cohort(CLIENTS[:5]), step=step))) == "") is opens


def test_a_submission_below_one_that_is_bound_is_over() -> None:
    """The ledger does not remember each submission that was passed over."""
    ledger, asks = Ledger(), Coordinator()
    early = asks.cohort(CLIENTS[:4])
    assert ledger.gives(opening(asks.cohort(CLIENTS[:4]))) == ""
    for each in (ledger, ledger.restarted()):
        reason = each.gives(opening(early))
        assert reason == "m00/all/1 comes after m00/all/2, which is bound: it is over for ever"


def test_an_update_from_before_one_that_is_opened_is_over(lagging: None) -> None:
    ledger, asks = Ledger(), Coordinator()
    assert ledger.gives(opening(asks.cohort(CLIENTS[:4], 3))) == ""
    late = asks.cohort(CLIENTS[:4], 3, {CLIENTS[1]: 1})
    late = dataclasses.replace(late, members=late.members[1:])
    for each in (ledger, ledger.restarted()):
        reason = each.gives(opening(late))
        assert "m01/all/2 was trained from version 1, and another of m01 from version 2" in reason


def test_a_cohort_is_asked_for_again_while_it_is_remembered() -> None:
    """The answer is the same, and nothing is journalled twice; later it is refused."""
    ledger, asks = Ledger(), Coordinator()
    orders_ = [opening(asks.cohort(CLIENTS[:4], version)) for version in range(1, REMEMBERED + 1)]
    assert {ledger.gives(order) for order in orders_} == {""}
    written = len(ledger.journal)
    for each in (ledger, ledger.restarted()):
        assert {each.gives(order) for order in orders_} == {""}
        assert len(each.journal) == written
        assert each.gives(opening(asks.cohort(CLIENTS[:4], 9 + REMEMBERED))) == ""
        reason = each.gives(orders_[0])
        assert (
            reason
            == f"m00/all/1 comes after m00/all/{asks.sent}, which is bound: it is over for ever"
        )


def test_memory_does_not_grow_with_versions() -> None:
    ledger, asks = Ledger(), Coordinator()
    sizes = set()
    for version in range(1, 3 * REMEMBERED):
        assert ledger.gives(opening(asks.cohort(CLIENTS[:4], version))) == ""
        standings = ledger.real.known.standings.values()
        kept = sum(len(standing.released) for standing in standings)
        sizes.add((len(standings), kept, min(len(ledger.real.known.opened["all"]), REMEMBERED)))
    assert {(clients, kept) for clients, kept, _ in sizes} == {(4, 4)}
    assert len(ledger.real.known.opened["all"]) == REMEMBERED


def requests(chance: random.Random) -> Iterator[tuple[Cohort, list[int]]]:
    """Cohorts that a coordinator makes up, and the honest holders that it asks, in which order."""
    asks, made = Coordinator(), [frozenset(chance.sample(CLIENTS, chance.randint(LEAST, 14)))]
    bases = {c: chance.choice((1, 2)) for c in CLIENTS}
    weights = {c: chance.choice((1, 1, 1, 2)) for c in CLIENTS}
    even = chance.random() < 0.6
    for _ in range(chance.randint(2, 12)):
        version = chance.choice((3, 3, 3, 4))
        clients = chance.choice(made)
        kind = chance.choice(("fresh", "half", "half", "near", "again", "other"))
        if kind == "fresh":
            clients = frozenset(chance.sample(CLIENTS, chance.randint(LEAST, 14)))
        elif kind in ("half", "near"):
            halved = halves(RUN.id, "all", version, clients, LEAST)
            clients = chance.choice(halved or (clients,))
        if kind == "near":
            clients ^= {chance.choice(CLIENTS)}
        own = dict.fromkeys(CLIENTS, 1) if even else dict(weights)
        if kind == "other":
            own[chance.choice(CLIENTS)] = 4
            bases = bases | {chance.choice(CLIENTS): chance.choice((1, 2))}
        made.append(clients)
        asked = chance.sample(range(3), chance.randint(1, 3))
        yield asks.cohort(clients, version, bases, own), asked


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), restarts=st.booleans())
def test_whatever_is_opened_every_update_hides(seed: int, restarts: bool) -> None:
    """Three of four holders open; one is corrupt and gives whatever it is asked for.

    Updates that stand in the same of the opened sums cannot be told apart in anything that is
    made of these sums by adding and subtracting.
    """
    with pytest.MonkeyPatch.context() as patch:
        lag(patch)
        honest, opened = [Ledger() for _ in range(3)], []
        for cohort, asked in requests(random.Random(seed)):
            order = opening(cohort)
            given = sum(honest[index].gives(order) == "" for index in asked)
            if restarts:
                honest = [ledger.restarted() for ledger in honest]
            if given + 1 >= 3:
                opened.append(cohort)
    standing: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0] * len(opened))
    for index, cohort in enumerate(opened):
        for member in cohort.members:
            standing[member.id.client, member.version][index] = member.weight
    atoms: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    for weights in standing.values():
        (weight,) = set(weights) - {0}
        atoms[tuple(w > 0 for w in weights)].append(weight)
    for atom in atoms.values():
        assert not uneven(atom, LEAST)
        assert len(atom) >= LEAST


FIRST = next_roster(CA, first_roster(CA, 0), ROSTER.certificates, 1, 100)
OTHER = certify(CA, "other", "holder", _identity("other").public.key)
SECOND = next_roster(CA, FIRST, [*ROSTER.certificates, OTHER], 1, 200)


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
    receipts[3] = signed(receipts[3], committee=SECOND.committee)
    ledger = Ledger(roster=SECOND)
    ledger.real.follower.apply(records.RosterFollowed(FIRST.to_bytes().decode()))
    said = ledger.gives(dataclasses.replace(order, receipts=tuple(receipts)))
    assert said == "its members are sealed for different key holders"


def test_after_a_committee_comes_none_for_its_versions_restarted_or_not() -> None:
    """A new holder has no record of what was opened; those that stay do."""
    first = Ledger(roster=FIRST)
    assert first.gives(opening(Coordinator().cohort(CLIENTS))) == ""
    follow = records.RosterFollowed(SECOND.to_bytes().decode())
    for ledger in (first, first.restarted(FIRST)):
        ledger.real.apply(0.0, follow)
        bare = Coordinator(5).cohort(CLIENTS)
        order = opening(dataclasses.replace(bare, committee=SECOND.committee))
        anew = tuple(signed(each, committee=SECOND.committee) for each in order.receipts)
        said = ledger.gives(dataclasses.replace(order, receipts=anew))
        assert said.startswith("an earlier committee of key holders was asked")


def test_a_newcomer_is_in_no_cohort_before_its_time() -> None:
    """By this holder's own calendar, even if the coordinator admits the client."""
    late = _identity("late")
    roster = next_roster(
        CA, FIRST, [*ROSTER.certificates, certify(CA, "late", "client", late.public.key)], 1000, 0
    )
    wait, run = PLAN.section.newcomers_wait, dataclasses.replace(RUN, roster=FIRST.digest)
    bare = opening(Coordinator().cohort(CLIENTS)).receipts[0]
    bare = dataclasses.replace(bare, run=run.id, id=SubmissionId("late", "all", 1))
    receipt = dataclasses.replace(bare, signature=late.sign(*signing_bytes(bare)))
    ledger = HolderLedger("holder", roster, HolderRules(2), blind=True)
    ledger.apply(0.0, records.RunPinned(run, make_placement(PLAN), ADDRESSES))
    for unix in (1000.0, 1000 + wait - CLOCKS - 1):
        ledger.follower.read(Step(), KitRead(unix))
        with pytest.raises(NotReady, match="came onto the roster after the run was founded"):
            ledger.check_author(receipt)
    ledger.follower.read(Step(), KitRead(1000 + wait - CLOCKS))
    ledger.check_author(receipt)


def test_a_receipt_that_was_verified_is_opened_no_more_once_its_client_is_revoked() -> None:
    """Revoked names must not fill a cohort around another client."""
    ledger, order = Ledger(roster=FIRST), opening(Coordinator().cohort(CLIENTS))
    ledger.real.check_author(order.receipts[0])
    left = [each for each in ROSTER.certificates if each.name != CLIENTS[0]]
    ledger.real.follower.follow(Step(), next_roster(CA, FIRST, left, 2, 0).text)
    with pytest.raises(UnknownParty, match="nobody named 'm00' is on the roster"):
        ledger.gives(order)


def test_so_many_receipts_are_remembered_as_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "VERIFIED", 3)
    ledger = Ledger()
    for receipt in opening(Coordinator().cohort(CLIENTS)).receipts:
        ledger.real.check_author(receipt)
    assert len(ledger.real._verified) == 3


def number_of(committee: bytes | None) -> int:
    return {b"first": 0, b"second": 4}.get(committee or b"", -1)


def cohort(committee: bytes, *versions: int, group: str = "all") -> Cohort:
    members = tuple(Member(SubmissionId(f"c{k}", group, v), 1, v) for k, v in enumerate(versions))
    return Cohort(group, 1, max(versions) + 1, 1, members, committee=committee)


def opened(*cohorts: Cohort) -> HolderFold:
    spans = HolderFold()
    for each in cohorts:
        spans.check_span(each, number_of)
        spans.add_span(each)
    return spans


def test_a_later_one_opens_newer_versions_alone() -> None:
    spans = opened(cohort(b"first", 3, 5), cohort(b"first", 4, 4))
    for versions in ((5, 5), (4, 6), (3, 3), (2, 7)):
        with pytest.raises(Refused, match=r"an earlier committee .* versions 3 to 5 of all"):
            spans.check_span(cohort(b"second", *versions), number_of)
    spans.check_span(cohort(b"second", 6, 7), number_of)
    spans.check_span(cohort(b"second", 3, 3, group="other"), number_of)


def test_an_earlier_one_opens_older_versions_alone() -> None:
    spans = opened(cohort(b"first", 3, 3), cohort(b"second", 6, 8))
    spans.check_span(cohort(b"first", 4, 5), number_of)
    for versions in ((6, 6), (5, 7), (9, 9)):
        with pytest.raises(Refused, match=r"a later committee .* versions 6 to 8 of all"):
            spans.check_span(cohort(b"first", *versions), number_of)
