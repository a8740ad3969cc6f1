"""Any t of n key holders suffice, and one that lies is named."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.crypto.sharing import P
from secureps.crypto.suite import key_length
from secureps.errors import Conflict, Malformed, Oversized, UnknownParty
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.submission import opening_digest
from secureps.roles.coordinator.group import Phase
from secureps.roles.holder.committee import CommitteeHolder
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import holder_names
from secureps.wire.msgpack import encode
from tests.kits.cheats import cheats, journalled, lies, small_error, spoil_all, spoils, until
from tests.kits.faults_kit import FaultyNetwork
from tests.kits.federations import ends_as_unharmed, later, pinned_of, small_federation, small_plan
from tests.kits.roles_kit import about

HOLDERS = holder_names(4)


def reason(simulation: Simulation) -> str:
    return simulation.coordinator.federation.groups["all"].reason


@pytest.mark.slow
def test_what_a_holder_is_told_is_as_long_with_more_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, told = CommitteeHolder.handle, dict[int, list[tuple[str, int]]]()

    def heard(self: CommitteeHolder, now: float, sender: str, event: Any) -> Any:
        if isinstance(event, orders.Examine | orders.Open):
            told[block_size].append((type(event).__name__, len(encode(event))))
        return handle(self, now, sender, event)

    monkeypatch.setattr(CommitteeHolder, "handle", heard)
    for block_size in (64, 32):
        told[block_size] = []
        plan = small_plan("rlwe", block_size=block_size, versions=1)
        simulation = small_federation(plan, tmp_path / str(block_size))
        simulation.run()
        blocks = len(simulation.coordinator.federation.groups["all"].blocks)
        assert blocks == {64: 4, 32: 7}[block_size]
    assert len(told[64]) == 4 * (6 + 1)
    for (kind, size), (other, longer) in zip(sorted(told[64]), sorted(told[32]), strict=True):
        assert kind == other
        assert abs(longer - size) <= 2 * 6, "the `size` in each receipt has a byte or three"


@pytest.mark.slow
@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.PREPARING])
def test_without_enough_holders_a_run_waits_and_says_for_whom(phase: Phase, tmp_path: Path) -> None:
    """Nothing is given up, burnt or charged twice; once one is back it goes on."""
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    until(simulation, phase)
    for dead in ("holder-1", "holder-2"):
        simulation.kill(dead)
    later(simulation, 500.0)
    assert "holder-1, holder-2 have not answered; 3 of 4 suffice" in reason(simulation)
    assert simulation.versions() == {"all": 2 if phase is Phase.PREPARING else 1}
    simulation.start("holder-2")
    ends_as_unharmed(simulation)
    assert journalled(simulation, coordinator_records.RoundGivenUp) == []
    fates = simulation.coordinator.federation.fates.values()
    assert {fate.outcome for fate in fates} == {"durable"}


def at_random(share: Any) -> Any:
    return np.random.default_rng(1).integers(0, P, share.size).astype(np.uint32)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [at_random, small_error])
def test_a_holder_that_lies_is_named_and_survived(
    lie: Callable[[Any], Any], tmp_path: Path
) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    lies(simulation, "holder-1", lie)
    ends_as_unharmed(simulation)
    assert set(simulation.coordinator.federation.liars) == {"holder-1"}
    named = journalled(simulation, coordinator_records.LiarsNamed)
    assert {record.holders for record in named} == {("holder-1",)}
    assert "but not those of holder-1" in named[0].reason
    failed = journalled(simulation, coordinator_records.OpeningFailed)
    tried = [record.holders for record in failed]
    assert tried == 4 * [("holder-0", "holder-1", "holder-2")] * (lie is small_error)


@pytest.mark.slow
def test_a_silent_holder_has_a_deadline_to_help_against_a_lie(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    until(simulation, Phase.COLLECTING)
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run(lambda: "waits for holder-3" in reason(simulation))
    simulation.start("holder-3")
    ends_as_unharmed(simulation)
    assert journalled(simulation, coordinator_records.CohortBurnt) == []
    assert set(simulation.coordinator.federation.liars) == {"holder-1"}


@pytest.mark.slow
def test_a_coordinator_killed_between_two_tries_does_not_repeat_the_first(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    lies(simulation, "holder-1", small_error)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.making is not None and bool(group.making.failed))
    simulation.kill("coordinator")
    simulation.start("coordinator")
    ends_as_unharmed(simulation)
    failed = journalled(simulation, coordinator_records.OpeningFailed)
    assert [record.number for record in failed] == [0, 1, 2, 3]


@pytest.mark.slow
def test_too_few_members_in_order_give_the_round_up(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    for client in ("client-04", "client-05"):
        cheats(simulation, client, spoil_all)
    ends_as_unharmed(simulation)
    (given_up,) = journalled(simulation, coordinator_records.RoundGivenUp)
    assert "a cohort needs 5" in given_up.reason
    assert "found a flaw in what client-0" in given_up.reason
    everybody = frozenset(HOLDERS)
    assert set(simulation.coordinator.federation.accused.values()) == {everybody}


@pytest.mark.slow
def test_a_member_whose_correction_is_wrong_burns_its_cohort_and_holders_are_cleared(
    tmp_path: Path,
) -> None:
    """No holder can see that: what it shared is not the key that it sealed with."""
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    spoils(simulation, "client-05", times=1)
    ends_as_unharmed(simulation)
    (burnt,) = journalled(simulation, coordinator_records.CohortBurnt)
    assert burnt.reason == "no 3 of 4 answers open it: 4 answers fit together"
    assert simulation.coordinator.federation.liars == {}
    assert len(journalled(simulation, coordinator_records.OpeningFailed)) == 1, (
        "one sum, tried once"
    )


def test_nothing_of_a_key_is_in_any_journal_but_what_was_published(tmp_path: Path) -> None:
    conditions = Conditions(network=FaultyNetwork)
    simulation = small_federation(small_plan("rlwe", versions=1), tmp_path, conditions)
    simulation.run()
    for holder in HOLDERS:
        kinds = {type(r).__name__ for r in journalled(simulation, object, holder)}
        assert kinds == {"Incarnated", "RunPinned", "RosterFollowed", "CohortReleased"}
    assert isinstance(simulation.network, FaultyNetwork)
    called = {call[1] for call in simulation.network.sent if call[0] in HOLDERS}
    assert called == {"coordinator"}, "no shard hears of a holder"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """A cohort is being opened; whatever is refused meanwhile changes nothing."""
    made = small_federation(small_plan("rlwe"), tmp_path_factory.mktemp("opening"))
    until(made, Phase.OPENING)
    yield made
    ends_as_unharmed(made)


def test_shares_are_for_committees_and_opened_sums_are_not(simulation: Simulation) -> None:
    say = partial(simulation.coordinator.handle, simulation.loop.now())
    number = simulation.coordinator.federation.groups["all"].number
    bound = about(simulation.coordinator.federation, "all")
    for share, error in ((b"", Malformed), (bytes(4), Malformed), (bytes(1 << 16), Oversized)):
        with pytest.raises(error, match="values has"):
            say("holder-0", requests.KeyShare("holder-0", "all", number, share, bound))
    with pytest.raises(Malformed, match="gives shares of keys, and opens no sums"):
        say("holder-0", requests.Opened("holder-0", "all", number, (), bound))
    length = key_length(simulation.plan.cipher_parameters)
    for sender, claimed in (("client-00", "client-00"), ("holder-0", "holder-1")):
        with pytest.raises(UnknownParty):
            say(sender, requests.KeyShare(claimed, "all", number, bytes(4 * length), bound))
    late = requests.KeyShare("holder-0", "all", number - 1, bytes(4 * length), bound)
    assert say("holder-0", late).records == []


def test_the_first_answer_of_a_holder_stands(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.making is not None and bool(group.making.shares))
    shares = dict(group.closed_cohort.shares)
    holder, share = next(iter(shares.items()))
    say = partial(simulation.coordinator.handle, simulation.loop.now(), holder)
    bound = about(simulation.coordinator.federation, "all")
    other = requests.KeyShare(holder, "all", group.number, bytes(len(share)), bound)
    assert say(other).records == []
    assert say(requests.OpenRefused(holder, "all", group.number, "no", bound)).records == []
    assert group.closed_cohort.shares == shares


def test_an_answer_is_about_the_cohort_and_the_receipt_that_were_shown(
    simulation: Simulation,
) -> None:
    """Of this number but other members, or of another run: it changes nothing."""
    federation = simulation.coordinator.federation
    group = federation.groups["all"]
    assert group.cohort is not None
    say = partial(simulation.coordinator.handle, simulation.loop.now(), "holder-0")
    cohort, run = group.cohort, pinned_of(simulation).run.id
    receipts = [group.receipts[member.id] for member in cohort.members]
    fewer = dataclasses.replace(cohort, members=cohort.members[1:])
    digests = [receipt.digest for receipt in receipts]
    larger = dataclasses.replace(receipts[0], size=receipts[0].size + 1)
    share = bytes(4 * key_length(simulation.plan.cipher_parameters))
    for bound in (
        b"",
        opening_digest(bytes(32), cohort, digests),
        opening_digest(run, fewer, digests[1:]),
        opening_digest(run, cohort, [larger.digest, *digests[1:]]),
    ):
        for answer in (
            requests.KeyShare("holder-0", "all", group.number, share, bound),
            requests.OpenRefused("holder-0", "all", group.number, "no", bound),
        ):
            with pytest.raises(Conflict, match=r"holder-0 answers for another cohort \d+ of all"):
                say(answer)
    id, receipt = next(iter(group.receipts.items()))
    group.open_receipts.examined.pop(id, None)
    other = dataclasses.replace(receipt, size=receipt.size + 1)
    for bound in (b"", other.digest):
        for flaw in ("", "a flaw"):
            with pytest.raises(Conflict, match="holder-0 answers for another receipt of"):
                say(requests.Examined("holder-0", id, flaw, bound))


@pytest.mark.parametrize("flaw", ["", "a flaw"])
def test_nobody_examines_a_founding_model(flaw: str, tmp_path: Path) -> None:
    """A holder that says so all the same changes nothing: nothing of it is sealed for holders."""
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: bool(group.receipts))
    ((id, receipt),) = group.receipts.items()
    told = requests.Examined("holder-0", id, flaw, receipt.digest)
    step = simulation.coordinator.handle(simulation.loop.now(), "holder-0", told)
    assert (group.phase, step.records) == (Phase.FOUNDING, [])


def test_without_a_committee_nobody_examines_or_shares(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("bfv"), tmp_path)
    until(simulation, Phase.OPENING)
    say = partial(simulation.coordinator.handle, simulation.loop.now(), "holder-0")
    id = next(iter(simulation.coordinator.federation.groups["all"].receipts))
    for message in (
        requests.Examined("holder-0", id, "", b""),
        requests.KeyShare("holder-0", "all", 0, b"", b""),
    ):
        with pytest.raises(Malformed, match="this run has none"):
            say(message)
