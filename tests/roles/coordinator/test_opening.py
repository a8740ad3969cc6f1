"""Cohorts are opened once their submissions are examined; members that spoil them are found."""

import dataclasses
import random
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto.sharing import KEY_BOUND
from secureps.errors import Refused
from secureps.messages import coordinator_records, member_records, records, requests
from secureps.messages.coordinator_records import (
    CohortBurnt,
    CohortOpened,
    OpeningFailed,
    RoundGivenUp,
)
from secureps.messages.orders import Examine, KeyCommittee
from secureps.messages.requests import Examined, OpenRefused, Spoilt
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Receipt, SubmissionId, signing_bytes
from secureps.policy.rules.rule import Decision, Drop, Wait
from secureps.roles.coordinator import commit, envelopes, opening, scheduler
from secureps.roles.coordinator.coordinator import LOOK_AGAIN
from secureps.roles.coordinator.group import GroupState, OpenReceipts, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Order
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from secureps.service.log_lines import LogLines
from tests.kits.cheats import (
    cheats,
    cohorts,
    holders_allow_all,
    journalled,
    spoil_one,
    spoils,
    until,
)
from tests.kits.committee_kit import SHARD, Bench
from tests.kits.committee_parties import KEYS, CommitteeWorld
from tests.kits.federations import small_federation, small_plan, status_of
from tests.kits.roles_kit import Due, make_charter, make_plan
from tests.kits.shoppers import ENDS, shopping, sparse_plan
from tests.kits.stream_parties import stream_plan

CLIENTS = tuple(f"c{number}" for number in range(6))
HOLDERS = tuple(f"holder-{number}" for number in range(4))
RULE = {"quorum": 4, "minimum": 2, "start": 6, "most": 6, "deadline": 10.0, "extensions": 1}
PLAN = make_plan("rlwe", RULE)
COMMITTEE = KeyCommittee(b"", HOLDERS, ())
EVENTS = ("receive", "look", "look", "look", "doubt", "go", "open", "flaw", "burn", "here", "time")


def receipt(id: SubmissionId) -> Receipt:
    made = Receipt(b"", id, "update", 0, b"", (), b"", (), (), 0, None, None, False)
    return dataclasses.replace(made, committee=b"")


def plain(tx: Transaction, group: GroupState) -> tuple[set[SubmissionId], str]:
    """By looking through all receipts: what the rule sees, and what is waited for."""
    open_receipts = group.open_receipts
    seen = {id: open_receipts.examined.get(id, frozenset()) for id in open_receipts.receipts}
    looked = {id: by | open_receipts.doubted.get(id, frozenset()) for id, by in seen.items()}
    strict = group.suspicion.flawed if opening.last_look(tx, group) is not None else frozenset()
    here = tx.watchers.intersection(tx.holders)
    ready, waiting = set(), []
    for id, by in seen.items():
        others = frozenset(tx.holders) - open_receipts.doubted.get(id, frozenset())
        enough = len(by) >= tx.plan.threshold <= len(others)
        if enough and (id.client not in strict or looked[id] >= here):
            ready.add(id)
        else:
            waiting.append(looked[id])
    if not waiting:
        return ready, ""
    away = [h for h in tx.holders if h not in frozenset.intersection(*waiting)]
    have = "has" if len(away) == 1 else "have"
    updates = f"{len(waiting)} update{'s' * (len(waiting) > 1)}"
    missing = f"{', '.join(away) or 'nobody'} {have} not answered; 3 of 4 suffice"
    return ready, f"{updates} came, to be examined by key holders: {missing}"


class Round:
    """An open round of six clients."""

    def __init__(self) -> None:
        self.group = GroupState("all", open_receipts=OpenReceipts(PLAN.threshold))
        self.tx = Transaction(
            now=0.0,
            settings=make_charter(PLAN),
            federation=CoordinatorState({"all": self.group}, committees=[COMMITTEE]),
            clients=frozenset(CLIENTS),
            holders=HOLDERS,
            live=frozenset(CLIENTS),
            watchers=frozenset(HOLDERS),
        )
        self.opens(frozenset(CLIENTS))

    def opens(self, invited: frozenset[str]) -> None:
        self.group.let_go(self.group.pending)
        self.group.round += 1
        self.group.version, self.group.phase = 0, Phase.COLLECTING
        self.group.invited, self.group.opened_at = invited, self.tx.now
        self.group.suspicion = self.group.suspicion.start_round(invited)

    def agrees(self) -> None:
        ready, waiting = plain(self.tx, self.group)
        shown, text = opening.visible_submissions(self.tx, self.group)
        assert len(shown) == len(ready)
        assert (set(shown), text) == (ready, waiting)

    def happens(self, chance: random.Random) -> None:
        """Any event of a round, in any order."""
        group, tx = self.group, self.tx
        ids = [*group.receipts] or [SubmissionId("c0", "all", 99)]
        match chance.choice(EVENTS):
            case "receive":
                left = sorted(group.invited - group.open_receipts.clients.keys())
                for client in left[: chance.randint(0, 2)]:
                    group.receive(tx.now, receipt(SubmissionId(client, "all", group.round)))
            case "look" if group.receipts:
                group.open_receipts.approve(chance.choice(ids), chance.choice(HOLDERS))
            case "doubt":
                group.open_receipts.doubt(chance.choice(ids), chance.choice(HOLDERS))
            case "go":
                group.let_go([chance.choice(ids)])
                group.invited -= {chance.choice(CLIENTS)} if chance.random() < 0.5 else frozenset()
            case "open" if chance.random() < 0.2:
                self.opens(frozenset(chance.sample(CLIENTS, chance.randint(2, 6))))
            case "flaw" if chance.random() < 0.3:
                group.suspicion = group.suspicion.note_flaw(chance.choice(CLIENTS))
            case "burn" if chance.random() < 0.1:
                cohort = chance.sample(CLIENTS, chance.randint(4, 6))
                group.suspicion = group.suspicion.note_burnt(dict.fromkeys(cohort, 1), spoilt=True)
                self.opens(frozenset(cohort[: chance.randint(2, 6)]))
            case "here":
                here = frozenset(chance.sample(HOLDERS, chance.randint(2, 4)))
                live = frozenset(chance.sample(CLIENTS, chance.randint(4, 6)))
                self.tx = dataclasses.replace(tx, watchers=here, live=live)
            case "time":
                self.tx = dataclasses.replace(tx, now=tx.now + chance.choice((0.5, 4.0)))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_kept_says_what_looking_through_everything_does(seed: int) -> None:
    chance, world = random.Random(seed), Round()
    for _ in range(60):
        world.happens(chance)
        world.agrees()


BUFFER = {"name": "buffered", "buffer": 200, "minimum": 3, "max_staleness": 4, "deadline": 10.0}


class Stream(Round):
    """A group without rounds."""

    def __init__(self) -> None:
        plan = make_plan("plain", capacity=1000, group=[{"rule": BUFFER}])
        self.group = GroupState("all", version=1, phase=Phase.COLLECTING, rounds=False)
        self.tx = dataclasses.replace(
            Round().tx,
            settings=make_charter(plan),
            federation=CoordinatorState({"all": self.group}),
        )
        self.group.opened_at = 0.0

    def comes(self, at: float, client: str, sequence: int = 2, version: int = 1) -> None:
        made = receipt(SubmissionId(client, "all", sequence))
        self.group.receive(at, dataclasses.replace(made, version=version))

    def decided(self) -> Decision:
        shown, _ = opening.visible_submissions(self.tx, self.group)
        return scheduler.choose_decision(self.tx, self.group, shown)

    def until(self) -> float | None:
        found = self.decided()
        assert isinstance(found, Wait)
        return found.until


def test_a_deadline_counts_from_what_waited_behind_an_update_that_was_lost() -> None:
    world = Stream()
    world.comes(1.0, "c0", 1)
    for at, client in enumerate(CLIENTS[:4]):
        world.comes(2.0 + at, client)
    lost = SubmissionId("c0", "all", 1)
    world.group.lose((lost,), 6.0)
    assert world.until() == 13.0, "c0 has sent another one, which is in no cohort before that"
    world.group.drop((lost,), 7.0)
    assert world.until() == 12.0


def test_a_deadline_counts_from_an_update_whose_client_sits_out_no_more() -> None:
    world = Stream()
    for at, client in enumerate(CLIENTS[:4]):
        world.comes(2.0 + at, client)
    world.group.sitting_out = frozenset({"c0", "c5"})
    assert world.until() == 13.0
    world.group.sitting_out = frozenset({"c5"})
    assert world.until() == 12.0


def test_an_update_that_was_sealed_for_other_holders_is_dropped_as_soon_as_it_comes() -> None:
    """Too few clients have sent an update from before the change, and no more will come."""
    world = Stream()
    since = (GroupVersion("all", 1),)
    world.tx.federation.committees[:] = [COMMITTEE, KeyCommittee(b"next", HOLDERS, (), since)]
    for at, client in enumerate(CLIENTS[1:4]):
        world.comes(3.0 + at, client)
    assert world.until() == 13.0
    world.comes(6.0, "c0", version=0)
    text = "from version 1 on it is sent otherwise: pull and train again"
    assert world.decided() == Drop((SubmissionId("c0", "all", 2),), text)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def opened(bench: Bench, answers: int) -> tuple[Transaction, GroupState]:
    """A cohort for which so many of four holders gave their shares, and the others refused."""
    sent = [bench.send(client) for client in ("c0", "c1", "c2")]
    order = bench.opening(sent)
    group = GroupState("all", version=0, phase=Phase.OPENING, number=0)
    group.close(order.cohort)
    for each in sent:
        group.receive(0.0, each.receipt)
    for index, name in enumerate(bench.names):
        if index < answers:
            group.closed_cohort.shares[name] = bench.holder(index).share(order)
        else:
            group.closed_cohort.refusals[name] = "it does not"
    clients = frozenset(member.id.client for member in order.cohort.members)
    tx = Transaction(
        now=0.0,
        settings=make_charter(bench.plan),
        federation=CoordinatorState(
            {"all": group}, pinned=bench.pinned.record, committees=[bench.sealed_for("all", 0)]
        ),
        clients=clients,
        holders=bench.names,
        live=clients,
        watchers=frozenset(bench.names),
    )
    return tx, group


@pytest.mark.parametrize(("answers", "spoilt"), [(3, False), (4, True)])
def test_clients_are_to_blame_only_where_one_answer_more_than_needed_fits(
    answers: int, spoilt: bool, bench: Bench
) -> None:
    """Any three answers fit together, so one of three holders may have lied."""
    tx, group = opened(bench, answers)
    commit.try_answers(tx, group)
    (found,) = tx.step.records
    assert isinstance(found, CohortOpened)
    tx.write(OpeningFailed("all", 0, found.holders or (), "it does not open the sums"))
    commit.try_answers(tx, group)
    (burnt,) = (record for record in tx.step.records if isinstance(record, CohortBurnt))
    assert burnt.spoilt is spoilt


def test_a_shard_that_tried_an_earlier_sum_of_keys_is_told_the_newest_again(bench: Bench) -> None:
    tx, group = opened(bench, 4)
    tx.watchers = frozenset({SHARD})
    commit.try_answers(tx, group)
    (told,) = tx.step.effects
    assert isinstance(told, Order)
    commit.take_spoilt(tx, Spoilt(SHARD, "all", 0, "it does not open", b"an earlier one"))
    assert tx.step.effects == [told, told]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_keys_is_no_larger_than_its_members_weigh(sign: int, bench: Bench) -> None:
    _, group = opened(bench, 0)
    assert group.cohort is not None
    assert group.cohort.weight == 3
    least, most = np.zeros(8, np.int64), np.zeros(8, np.int64)
    least[5], most[5] = sign * 3 * KEY_BOUND, sign * (3 * KEY_BOUND + 1)
    assert opening._is_plausible(least, group)
    assert not opening._is_plausible(most, group)


def test_what_came_before_its_client_was_flagged_is_looked_into_where_nobody_looks_before() -> None:
    """The update is held back until all holders that are here have examined it."""
    round = Round()
    tx, group = round.tx, round.group
    group.open_receipts.enough = 0
    flawed, other = (SubmissionId("c0", "all", number) for number in (1, 2))
    for id in (flawed, other):
        group.receive(tx.now, receipt(id))
        tx.federation.settled.receipts[id] = b"about"
    tx.federation.accused = {client: frozenset({"holder-0"}) for client in ("c1", "c2", "c3")}
    envelopes.take_examination(tx, group, Examined("holder-0", flawed, "no", b"about"))
    assert opening.held_back(tx, group) == {flawed, other}
    asked = [
        (effect.to, effect.message.receipt.id)
        for effect in tx.step.effects
        if isinstance(effect, Order) and isinstance(effect.message, Examine)
    ]
    assert sorted(asked) == sorted(
        (holder, id)
        for id in (flawed, other)
        for holder in HOLDERS
        if (holder, id) != ("holder-0", flawed)
    )
    assert not tx.quiet
    for holder, id in asked:
        envelopes.take_examination(tx, group, Examined(holder, id, "", b"about"))
        assert not tx.quiet  # any of them may let an update in
    assert opening.held_back(tx, group) == frozenset()


def test_answers_of_holders_that_let_nothing_in_move_groups_a_moment_later() -> None:
    """Which answer lets an update in moves the group at once; a status follows the others soon."""
    rule = {"name": "buffered", "buffer": 5, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
    world = CommitteeWorld(stream_plan(rule, "rlwe"), set())
    world.found()
    for client in world.ready():
        world.train(client)
    answers = list[Due]()
    while world.due:
        due = world.due[0]
        if isinstance(due.reply, Examined):
            world.due.remove(due)
            answers.append(due)
        else:
            world.deliver(due)
    by_holder = {name: [due for due in answers if due.sender == name] for name in KEYS}
    assert [len(of_one) for of_one in by_holder.values()] == [5] * 4
    for name in KEYS[:2]:
        for due in by_holder[name]:
            world.give(due.sender, due.reply)
    assert "keys-0, keys-1, keys-2, keys-3 have not answered" in world.group().reason
    wakes = world.coordinator.wake()
    assert wakes is not None
    assert wakes <= world.now + LOOK_AGAIN
    world.at(wakes)
    assert "keys-2, keys-3 have not answered" in world.group().reason
    assert "keys-1" not in world.group().reason
    assert world.group().phase is Phase.COLLECTING
    for due in by_holder[KEYS[2]]:
        world.give(due.sender, due.reply)
    assert world.group().phase is Phase.HOLDING


MINIMUM = 4


def federation(folder: Path, versions: int = 16) -> Simulation:
    """Ten clients are waited for; three of four holders open what they send.

    A version halves the suspects, and then a few more tell the last one from all pairs of others.
    A short run would end before whoever waits for what follows sees it.
    """
    rule = {"minimum": MINIMUM, "extensions": 1}
    plan = small_plan("rlwe", rule, versions=versions, clients=10, capacity=16)
    return small_federation(plan, folder, clients=10)


def spoilt(folder: Path) -> Simulation:
    """Version 1 is made, and from now on client-05 spoils every cohort that it is in."""
    simulation = federation(folder)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    spoils(simulation, "client-05", times=99)
    return simulation


@pytest.mark.slow
def test_it_is_named_and_told_why(tmp_path: Path) -> None:
    simulation = spoilt(tmp_path)
    simulation.run(lambda: bool(simulation.coordinator.federation.isolated))
    (record,) = journalled(simulation, coordinator_records.ClientIsolated)
    assert re.fullmatch(
        "client-05 spoils cohorts: it stood in [2-9] that came to nothing, and no 2 others account "
        "for all that did",
        record.reason,
    )
    narrator = LogLines()
    for each in journalled(simulation, records.RunPinned):
        narrator.hear(each)
    assert narrator.line(record) == f"client-05 is left out of the run: {record.reason}"
    say = partial(simulation.coordinator.handle, simulation.loop.now())
    states = {member.name: member.state for member in status_of(simulation).members}
    assert [name for name, state in states.items() if state == "left out"] == ["client-05"]
    sent = [r.receipt for r in journalled(simulation, member_records.Sealed, "client-05")][-1]
    again = dataclasses.replace(sent, id=dataclasses.replace(sent.id, sequence=99))
    key = simulation._kit.identities["client-05"]
    signed = dataclasses.replace(again, signature=key.sign(*signing_bytes(again)))
    with pytest.raises(Refused, match="left out of this run: client-05 spoils cohorts"):
        say("client-05", requests.Submit(signed))


@pytest.mark.slow
def test_a_flaw_that_is_found_before_holders_are_asked_is_found_in_time(tmp_path: Path) -> None:
    simulation = federation(tmp_path, versions=3)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    cheats(simulation, "client-05", spoil_one)
    simulation.kill("holder-2")
    until(simulation, Phase.HOLDING)
    simulation.kill("shard-1")
    simulation.start("holder-2")
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortReopened)))
    simulation.start("shard-1")
    simulation.run()
    assert simulation.versions() == {"all": 3}
    assert journalled(simulation, OpenRefused) == []
    assert [len(each.members) for each in cohorts(simulation)] == [10, 10, 9, 10]
    assert journalled(simulation, coordinator_records.CohortBurnt) == []


def test_a_flaw_that_is_found_after_the_version_is_remembered_once(tmp_path: Path) -> None:
    simulation = federation(tmp_path, versions=3)
    until(simulation, Phase.COLLECTING)
    fates = simulation.coordinator.federation.fates
    id = next(id for id, fate in fates.items() if fate.version == 1)
    say = partial(simulation.coordinator.handle, simulation.loop.now())
    late = "too late to leave it out"
    for holder in ("holder-0", "holder-1"):
        for wanted in (1, 0):
            step = say(holder, requests.Examined(holder, id, "a flaw", b""))
            assert (
                step.records
                == [coordinator_records.FlawNoted("all", id, holder, "a flaw", late)] * wanted
            )
    assert simulation.coordinator.federation.groups["all"].suspicion.flawed == {id.client}


@pytest.mark.slow
def test_a_flaw_in_an_exact_round_gives_it_up_at_once(tmp_path: Path) -> None:
    simulation = spoilt(tmp_path)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortBurnt)))
    group = simulation.coordinator.federation.groups["all"]
    asked = group.suspicion.chosen
    cheat = min(asked - {"client-05"})
    cheats(simulation, cheat, spoil_one)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.RoundGivenUp)))
    (given_up,) = journalled(simulation, coordinator_records.RoundGivenUp)
    assert f"not {cheat}; nothing was opened" in given_up.reason
    simulation.run()
    assert simulation.versions() == {"all": 16}
    assert set(simulation.coordinator.federation.isolated) == {"client-05"}
    holders_allow_all(simulation, MINIMUM)


def test_too_few_that_are_left_end_the_run(tmp_path: Path) -> None:
    simulation = federation(tmp_path)
    until(simulation, Phase.COLLECTING)
    tx = simulation.coordinator._tx(simulation.loop.now())
    names = client_names(10)
    for client in names[:6]:
        tx.write(coordinator_records.ClientIsolated("all", client, "it spoils cohorts"))
    scheduler.advance(tx)
    assert tx.federation.ending == ""
    tx.write(coordinator_records.ClientIsolated("all", names[6], "it spoils cohorts"))
    scheduler.advance(tx)  # the round is given up
    scheduler.advance(tx)
    left = "takes part no more: left out of this run (client-00, client-01, client-02 and 4 more)"
    assert tx.federation.ending == f"too few clients are left for version 2 of all: {left}"


@pytest.mark.slow
def test_a_row_block_that_nobody_else_touches_is_given_up_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    """Enough other clients are here, but they have nothing to send for it."""
    plan = sparse_plan("rlwe", {"quorum": 3, "minimum": 3, "deadline": 20.0})
    simulation, _ = shopping(plan, tmp_path)
    spoils(simulation, "client-03", times=99, group="table.1")
    simulation.run()
    (record,) = journalled(simulation, coordinator_records.GroupResigned)
    assert (record.group, record.reason) == (
        "table.1",
        "3 cohorts in succession came to nothing at version 0 of table.1, and every one was "
        "charged: no 3 of 4 answers open it: 4 answers fit together; no other set of clients may "
        "make this version; suspected: client-00, client-01, client-02, client-03, client-04",
    )
    assert LogLines().line(record) == f"table.1 is given up: {record.reason}"
    assert simulation.versions() == {**ENDS, "table.1": 0}
    left = f"{record.reason}: it stays at 0"
    assert simulation.coordinator.federation.finished == (
        "all versions are made (5 of table, 3 of tower), but of table.3: too few members touch it; "
        f"of table.1: {left}"
    )
    assert f"table.1: {left}" in simulation.reasons()


@pytest.mark.parametrize("late", ["client", "holders"])
def test_a_set_is_given_up_for_a_client_that_is_late_and_waits_for_holders(late: str) -> None:
    """Updates that came in time count, even if key holders examine them late."""
    rule = {"name": "buffered", "buffer": 5, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
    world = CommitteeWorld(stream_plan(rule, "rlwe"), offenders={"c0"})
    world.found()
    world.play()
    while not world.group().suspicion.chosen:
        world.deliver(world.due[0])
    world.offenders = frozenset()

    def stays(due: Due) -> bool:
        return isinstance(due.reply, requests.Examined) or (late == "client" and due.sender == "c4")

    while coming := [due for due in world.due if not stays(due)]:
        world.deliver(coming[0])
    world.wait(29.0)
    assert world.group().round == 1
    world.wait(2.0)
    given_up = [each for _, step in world.log for each in step if type(each) is RoundGivenUp]
    if late == "client":
        assert [each.reason for each in given_up] == [
            "given up: 0 of 5 have arrived, not c0, c1, c2 and 2 more; nothing was opened"
        ]
        return
    assert not given_up
    assert world.group().reason.startswith(
        "the deadline is over; 5 updates came, to be examined by key holders"
    )
    while world.due:
        world.deliver(world.due[0])
    assert world.group().version == 1
