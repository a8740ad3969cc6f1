"""Fates are kept for as long as clients may ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from secureps.errors import Conflict
from secureps.messages.orders import Settled
from secureps.messages.requests import Submit
from secureps.messages.submission import Outcome, SubmissionId
from secureps.roles.coordinator.state import KEPT_FATES, OVER, Fate, Fates, join_ranges
from secureps.roles.machine import Order
from secureps.run.simulate.simulation import Simulation
from tests.kits.federations import small_federation, small_plan

DURABLE = Fate(Outcome.DURABLE, 0, "in checkpoint 1")


def name(sequence: int) -> SubmissionId:
    return SubmissionId("a", "all", sequence)


def settled(count: int) -> Fates:
    """Settles so many submissions, each at the version of its number."""
    fates = Fates()
    for sequence in range(count):
        fates.receipts[name(sequence)] = b"receipt"
        fates.settle(name(sequence), DURABLE, sequence)
    return fates


def test_what_a_client_knows_of_is_kept_no_more() -> None:
    fates = settled(40)
    fates.forget_known("a", "all", 30)
    assert min(id.sequence for id in fates.known) == 30 - KEPT_FATES
    assert set(fates.receipts) == set(fates.known)
    assert fates.of(name(0)) == OVER
    assert fates.of(name(30 - KEPT_FATES)) == DURABLE
    assert fates.of(name(40)) is None
    assert fates.over == {("a", "all"): ((0, 30 - KEPT_FATES - 1),)}


def test_what_was_settled_at_the_version_or_later_may_be_asked_for() -> None:
    """The client may hear of the version before it hears of that fate."""
    fates = Fates()
    for sequence in range(3 * KEPT_FATES):
        fates.settle(name(sequence), DURABLE, 7)
    fates.forget_known("a", "all", 7)
    assert len(fates.known) == 3 * KEPT_FATES
    fates.forget_known("a", "all", 8)
    assert len(fates.known) == KEPT_FATES


def test_what_is_not_final_is_kept() -> None:
    fates = settled(40)
    fates.known[name(3)] = Fate(Outcome.INCLUDED, 3, "part of version 3")
    del fates.final["a", "all"][3]
    fates.forget_known("a", "all", 100)
    assert fates.of(name(3)) == Fate(Outcome.INCLUDED, 3, "part of version 3")
    assert fates.of(name(2)) == fates.of(name(4)) == OVER


def test_another_clients_and_groups_are_their_own() -> None:
    fates = settled(40)
    fates.forget_known("b", "all", 100)
    fates.forget_known("a", "other", 100)
    assert len(fates.known) == 40
    assert not fates.over


def test_a_sequence_that_never_came_is_not_over() -> None:
    """The submission may still be in transit, behind later ones."""
    fates = settled(20)
    fates.known.pop(name(1))
    del fates.final["a", "all"][1]
    fates.forget_known("a", "all", 100)
    fates.forget_known("a", "all", 100)
    assert fates.of(name(0)) == fates.of(name(2)) == OVER
    assert fates.of(name(1)) is None
    assert fates.over["a", "all"] == ((0, 0), (2, 3))


@pytest.mark.parametrize(
    ("of", "found"),
    [
        ((3, 1, 2), ((1, 3),)),
        (((0, 4), 6), ((0, 4), (6, 6))),
        (((0, 4), 5), ((0, 5),)),
        (((0, 9), 3), ((0, 9),)),
        (((0, 1), (3, 4), 2), ((0, 4),)),
    ],
)
def test_ranges_are_joined(of: tuple[int | tuple[int, int], ...], found: object) -> None:
    assert join_ranges(of) == found


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    plan = small_plan("plain", versions=2 * KEPT_FATES, checkpoint_every=4)
    simulation = small_federation(plan, Path(tmp_path_factory.mktemp("long")))
    simulation.run(lambda: simulation.versions() == {"all": 2 * KEPT_FATES - 1})
    return simulation


@pytest.mark.slow
def test_in_a_run_they_do_not_grow_with_its_versions(long_run: Simulation) -> None:
    federation = long_run.coordinator.federation
    assert len(federation.members) == 6
    assert len(federation.fates) <= 6 * (KEPT_FATES + 5)
    assert len(federation.settled.receipts) <= 6 * (KEPT_FATES + 5)
    assert all(len(ranges) == 1 for ranges in federation.settled.over.values())


@pytest.mark.slow
def test_whoever_asks_late_hears_that_it_is_over(long_run: Simulation) -> None:
    coordinator = long_run.coordinator
    rows = long_run._stores["coordinator"].journal.replay()
    receipt = next(r.receipt for _, r in rows if isinstance(r, Submit) and r.receipt.version == 0)
    id = receipt.id
    assert coordinator.federation.settled.of(id) == OVER
    subscribe = long_run.parties[id.client].machine.subscription()
    step = coordinator.handle(9.0, id.client, replace(subscribe, unsettled=(id,)))
    told = [each.message for each in step.effects if isinstance(each, Order)]
    fates = [each for each in told if isinstance(each, Settled) and each.id == id]
    assert [each.outcome for each in fates] == [Outcome.DROPPED]
    with pytest.raises(Conflict, match="over since long"):
        coordinator.handle(9.0, id.client, Submit(receipt))
