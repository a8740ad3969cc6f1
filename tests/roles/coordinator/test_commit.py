"""One version in six steps, and what happens when a step cannot be done."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secureps.errors import UnknownParty, WrongVersion
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.encoding import digest
from secureps.messages.records import Incarnated
from secureps.messages.requests import Prepared, Submit
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Held, Member, SubmissionId, shorten
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.machine import WORKER, Done, Order, Step, Tick, WatchLost
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    JOIN,
    SHARDS,
    SPARE,
    World,
    about,
    answers,
    block_digest,
    collecting,
    holding,
    make_plan,
    model_blocks,
    orders_of,
    preparing,
    private_plan,
    refused,
    says,
    take,
    works,
)


def test_a_version_in_six_steps() -> None:
    world = collecting()
    names = {c: world.receipt(c, 1, 0) for c in CLIENTS}
    for client in CLIENTS[:2]:
        step = world.give(*take(world, client))
        assert step.records == [Submit(names[client])]
        assert answers(step) == [requests.Noted()]
        assert orders_of(step) == []
    assert world.group().reason == "2 of 3 have arrived; waits for c2"
    # 1 close, 2 hold
    step = world.give(*take(world, "c2"))
    closed = step.records[1]
    assert isinstance(closed, coordinator_records.CohortClosed)
    cohort = closed.cohort
    assert closed.reason == "all 3 invited have arrived"
    updates = {client: names[client].update for client in CLIENTS}
    assert cohort.members == tuple(Member(names[c].id, 1, 0, 0, updates[c]) for c in CLIENTS)
    assert (cohort.group, cohort.number, cohort.version, cohort.epoch) == ("all", 0, 1, 1)
    for shard in SHARDS:
        (hold,) = orders_of(step, shard)
        owned = world.federation.owners("all")[shard]
        assert hold.cohort == cohort
        assert [m.id for m in hold.members] == [m.id for m in cohort.members]
        for member in hold.members:
            id = member.id
            wanted = tuple(block_digest(id.client, "all", id.sequence, b) for b in owned)
            assert member.blocks == wanted
    # 3 open, only when all hold
    step = world.give(*take(world, "shard-a"))
    assert ([type(r) for r in step.records], orders_of(step)) == ([Held], [])
    step = world.give(*take(world, "shard-b"))
    (opening,) = orders_of(step)
    assert opening == orders.Open(
        1,
        cohort,
        tuple(shorten(names[c]) for c in CLIENTS),
        tuple(Held(s, "all", 0, world.sums(s, "all", 0)) for s in SHARDS),
    )
    # 4 prepare
    step = world.give(*take(world, HOLDER))
    sums = world.opened("all", 0).sums
    assert step.records == [coordinator_records.CohortOpened("all", 0, sums, holders=(HOLDER,))]
    for shard in SHARDS:
        owned = world.federation.owners("all")[shard]
        wanted = tuple(sums[b] for b in owned)
        assert orders_of(step, shard) == [orders.Prepare(1, cohort, wanted)]
    # 5 commit, 6 publish, and the next round
    assert len(world.give(*take(world, "shard-a")).records) == 1
    step = world.give(*take(world, "shard-b"))
    assert [type(r) for r in step.records] == [
        Prepared,
        coordinator_records.VersionCommitted,
        coordinator_records.RoundOpened,
        coordinator_records.CheckpointOrdered,
    ]
    assert orders_of(step, "shard-a")[0] == orders.Commit(1, "all", 1, 0)
    told = orders_of(step, "c0")
    assert told[0] == orders.Published(1, "all", 1, world.group().blocks)
    assert told[1] == orders.Settled(1, names["c0"].id, "included", 1, "part of version 1")
    assert told[2] == orders.Invite(1, "all", 2, 1, 10.0)


def test_charges_are_on_the_ledger_once_even_if_blocks_are_sent_again() -> None:
    world = World(private_plan())
    world.found()
    world.pump(3)
    ids = (SubmissionId("c1", "all", 1),)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, ids))
    world.pump()
    assert world.federation.finished
    assert [c.version for c in world.federation.ledger.facts if c.party == "c1"] == [0, 1]
    assert all(m.epsilon > 0 and m.charges == 2 for m in world.status().members)


def test_a_client_that_has_the_name_of_a_shard_that_left_reopens_no_cohort() -> None:
    world = holding()
    world.pump(1)
    world.federation.shards["c3"] = world.federation.shards["shard-b"]
    world.federation.moving.left["c3"] = "its disk was lost"
    lost = SubmissionId("c1", "all", 1)
    assert world.give("c3", requests.Missing("c3", "all", 0, (lost,))).records == []
    assert world.group().phase is Phase.HOLDING


def test_missing_blocks_reopen_the_cohort_and_it_closes_anew() -> None:
    world = holding()
    world.pump(1)  # shard-a holds cohort 0
    lost = SubmissionId("c1", "all", 1)
    foreign = SubmissionId("c3", "all", 1)
    step = world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost, foreign)))
    assert step.records == [coordinator_records.CohortReopened("all", 0, (lost,))]
    assert orders_of(step) == [orders.SendAgain(1, lost)]
    assert world.group().phase is Phase.COLLECTING
    assert lost not in world.group().receipts
    again = world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    late = world.give("shard-a", Held("shard-a", "all", 0, world.sums("shard-a", "all", 0)))
    assert (again.records, late.records) == ([], [])
    step = world.give("c1", requests.Submit(world.receipts[lost]))
    assert [type(r) for r in step.records] == [Submit, coordinator_records.CohortClosed]
    closed = step.records[1]
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert closed.cohort.number == 1
    assert len(closed.cohort.members) == 3
    world.pump()
    assert world.federation.finished


def test_lost_opened_sums_are_opened_again_as_before() -> None:
    world = preparing()
    step = world.give("shard-a", requests.Missing("shard-a", "all", 0, ()))
    assert step.records == []
    (opening,) = orders_of(step, HOLDER)
    assert opening.cohort == world.group().cohort
    step = world.give(HOLDER, world.opened("all", 0))
    assert step.records == []
    assert [type(o) for o in orders_of(step)] == [orders.Prepare] * 2
    other = dataclasses.replace(world.opened("all", 0), sums=(bytes(32),) * 4)
    step = world.give(HOLDER, other)
    assert (step.records, orders_of(step)) == ([], [])


def test_lost_opened_sums_whose_sums_are_lost_wait_for_the_members() -> None:
    world = preparing()
    ids = (SubmissionId("c1", "all", 1), SubmissionId("c2", "all", 1))
    lost = requests.Missing("shard-a", "all", 0, (*ids, SubmissionId("c3", "all", 1)))
    step = world.give("shard-a", lost)
    assert step.records == []
    assert orders_of(step) == [orders.SendAgain(1, id) for id in ids]
    assert world.group().reason.endswith("waits for c1, c2 again")
    steps = [world.give(id.client, requests.Submit(world.receipts[id])) for id in ids]
    assert [step.records for step in steps] == [[], []]
    assert orders_of(steps[0]) == [], "not all are here"
    assert [type(o) for o in orders_of(steps[1])] == [orders.Hold] * 2
    step = world.give("shard-a", Held("shard-a", "all", 0, world.sums("shard-a", "all", 0)))
    assert step.records == []
    assert [type(o) for o in orders_of(step)] == [orders.Prepare]


def test_once_the_members_have_sent_again_a_cohort_waits_for_its_key_holder() -> None:
    world = holding()
    for shard in SHARDS:
        world.give(*take(world, shard))
    ids = (SubmissionId("c1", "all", 1), SubmissionId("c2", "all", 1))
    world.give("shard-a", requests.Missing("shard-a", "all", 0, ids))
    assert world.group().reason.endswith("waits for c1, c2 again")
    for id in ids:
        world.give(id.client, requests.Submit(world.receipts[id]))
    world.give("shard-a", Held("shard-a", "all", 0, world.sums("shard-a", "all", 0)))
    assert world.group().reason == "every shard holds; the key holders open"


@pytest.mark.parametrize("party", [HOLDER, "c1"])
def test_who_was_away_when_a_shard_asked_is_asked_when_it_comes(party: str) -> None:
    world = preparing()
    world.give(party, WatchLost())
    ids: tuple[SubmissionId, ...] = () if party == HOLDER else (SubmissionId("c1", "all", 1),)
    lost = requests.Missing("shard-a", "all", 0, ids)
    assert orders_of(world.give("shard-a", lost)) == []
    step = world.give(party, requests.Subscribe(party, ids))
    if party == HOLDER:
        assert [type(o) for o in orders_of(step, "shard-a")] == [orders.Prepare]
        (asked,) = orders_of(world.give("shard-a", lost), party)
        assert isinstance(asked, orders.Open)
    else:
        assert orders.SendAgain(1, ids[0]) in orders_of(step, party)
    step = world.give("c3", requests.Subscribe("c3", ()))
    assert orders_of(step, "shard-a") == []


def test_a_cohort_that_a_holder_refuses_is_burnt() -> None:
    world = holding()
    world.pump(2)
    ids = tuple(SubmissionId(c, "all", 1) for c in CLIENTS)
    reason = "keys refused: too small"
    refusal = requests.OpenRefused(HOLDER, "all", 0, "too small", about(world.federation, "all"))
    step = world.give(HOLDER, refusal)
    assert step.records[0] == coordinator_records.CohortBurnt("all", 0, reason)
    assert isinstance(step.records[1], coordinator_records.RoundOpened)
    for client, id in zip(CLIENTS, ids):
        told = orders_of(step, client)
        assert told[0] == orders.Settled(1, id, "dropped", 0, reason, burnt=True)
        assert told[1] == orders.Invite(1, "all", 2, 0, 10.0)
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, ids)]
    step = world.give(HOLDER, refusal)
    assert step.records == []
    step = world.give(HOLDER, world.opened("all", 0))
    assert step.records == []
    world.pump()
    assert world.federation.finished
    assert world.group().number == 2


def test_a_sum_that_a_shard_cannot_use_is_burnt() -> None:
    world = preparing()
    reason = "shard-a cannot use the sum: bad weights"
    step = world.give("shard-a", requests.Spoilt("shard-a", "all", 0, "bad weights"))
    assert step.records[0] == coordinator_records.CohortBurnt("all", 0, reason)
    again = world.give("shard-a", requests.Spoilt("shard-a", "all", 0, "bad weights"))
    assert again.records == []
    world.pump()
    assert world.federation.finished == (
        "too few clients are left for version 1 of all: cannot take part before the next version: "
        f"{reason} (c0, c1, c2)"
    ), "the holder has opened a sum of theirs, and opens no other"
    told = {to for to, order in world.told if isinstance(order, orders.Finish) and order.failure}
    assert told == {*CLIENTS, *SHARDS, "keys"}
    ended = coordinator_records.Finished(world.federation.finished, "TooFew")
    again = world.coordinator.resume(world.now)
    assert isinstance(again.records[0], Incarnated)
    assert again.records[-1] == ended, "nothing is mended by a restart, and it says the same"


def test_what_a_client_has_no_more_is_given_up_with_its_cohort() -> None:
    """The client must say so when it is asked: to subscribe without the update does not count."""
    world = preparing()
    world.give("c1", requests.Subscribe("c1", ()))
    id = SubmissionId("c1", "all", 1)
    lost = requests.Missing("shard-a", "all", 0, (id,))
    gone = requests.Missing("c1", "all", -1, (id, SubmissionId("c1", "all", 7)))
    assert orders_of(world.give("c1", gone)) == []
    assert world.coordinator._sessions.gone == set()
    assert orders_of(world.give("shard-a", lost)) == [orders.SendAgain(1, id)]
    step = world.give("c1", gone)
    assert step.records == []
    assert [type(o) for o in orders_of(step)] == [orders.Hold] * 2
    with pytest.raises(UnknownParty, match="c2 speaks as c1"):
        world.give("c2", gone)
    (burnt, *_) = world.give("shard-a", lost).records
    assert burnt == coordinator_records.CohortBurnt(
        "all", 0, "a shard lost the sums and blocks of members, and c1 has its own no more"
    )
    world.give("c1", gone)
    assert world.coordinator._sessions.gone == set(), "its fate is known, and it is forgotten"


def test_a_round_is_extended_and_then_given_up() -> None:
    world = collecting()
    world.pump(1)
    world.due.clear()
    assert world.coordinator.wake() == 10.0
    assert world.at(9.9).records == []
    step = world.at(10.0)
    reason = "deadline: 1 of 3 have arrived, quorum 3; extension 1 of 1"
    assert step.records == [coordinator_records.RoundExtended("all", 1, 1, reason)]
    assert world.coordinator.wake() == 20.0
    step = world.at(20.0)
    (given_up,) = step.records
    id = SubmissionId("c0", "all", 1)
    assert isinstance(given_up, coordinator_records.RoundGivenUp)
    assert given_up.reason.startswith("given up: 1 of 3 have arrived after the last extension")
    assert orders_of(step, "c0") == [orders.Settled(1, id, "dropped", 0, given_up.reason)]
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, (id,))]
    assert world.group().version == 0
    assert world.coordinator.wake() == 20.0
    step = world.give("coordinator", Tick())
    (opened,) = step.records
    assert isinstance(opened, coordinator_records.RoundOpened)
    assert (opened.round, opened.invited) == (2, CLIENTS)
    world.pump()
    assert world.federation.finished


def test_no_version_is_committed_while_a_shard_that_made_it_is_away() -> None:
    """Its disk may be lost, and its blocks of a committed version could not be made again."""
    world = doubled()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    world.give(FIRST, first)
    world.give(FIRST, WatchLost())
    world.give(SECOND, second)
    assert world.group().version == 0


def test_it_looks_again_when_the_next_lease_may_run_out() -> None:
    """Nobody else says that a client is gone."""
    world = World(make_plan())
    world.servers()
    assert world.coordinator.wake() is None
    world.give("c0", JOIN)
    assert world.coordinator.wake() == 30.0


def test_a_lease_that_ran_out_takes_a_member_from_the_next_round() -> None:
    world = collecting()
    world.pump(3)
    world.now = 29.0
    for client in ("c0", "c1"):
        world.give(client, requests.Heartbeat(client))
    world.at(30.0)
    world.pump()
    assert world.group().version == 1
    assert world.group().reason == "waits for members: 2 of 3 are live"
    assert {m.name: m.state for m in world.status().members}["c2"] == "gone"
    step = world.give("c2", requests.Heartbeat("c2"))
    assert [type(r) for r in step.records] == [coordinator_records.RoundOpened]


def test_a_late_joiner_waits_for_the_next_version() -> None:
    world = collecting()
    step = world.enter(SPARE)
    assert [type(o) for o in orders_of(step, SPARE)] == [orders.Published]
    early = requests.Submit(world.receipt(SPARE, 0, 0))
    refused(world, SPARE, early, WrongVersion, "c3 was not invited to version 1")
    world.pump(11)
    assert world.group().version == 1
    assert world.group().invited == {*CLIENTS, SPARE}


def test_nobody_is_told_who_does_not_watch() -> None:
    world = collecting()
    world.give("c1", WatchLost())
    world.due = [d for d in world.due if d.to != "c1"]
    for client in CLIENTS:
        world.give(client, requests.Submit(world.receipt(client, 1, 0)))
    world.pump(7)
    assert world.group().version == 1
    assert [o for to, o in world.told if to == "c1" and isinstance(o, orders.Published)] == [
        orders.Published(1, "all", 0, model_blocks("all", 0, 4))
    ]
    step = world.enter("c1")
    told = orders_of(step, "c1")
    assert told[0] == orders.Settled(
        1, SubmissionId("c1", "all", 1), told[0].outcome, 1, told[0].reason
    )
    assert told[1:] == [
        orders.Published(1, "all", 1, model_blocks("all", 1, 4)),
        orders.Invite(1, "all", 2, 1, 10.0),
    ]


def test_a_checkpoint_makes_durable() -> None:
    world = collecting()
    world.pump(8)
    assert world.group().version == 1
    number, versions = 1, (GroupVersion("all", 1),)
    part = requests.Checkpointed("shard-a", number, "f", 7, bytes(32))
    step = world.give("shard-a", part)
    assert step.records == [part]
    assert works(step) == []
    assert world.give("shard-a", part).records == []
    stale = dataclasses.replace(part, number=0)
    assert world.give("shard-a", stale).records == []
    step = world.give("shard-b", dataclasses.replace(part, shard="shard-b"))
    (task,) = works(step)
    assert isinstance(task, WriteManifest)
    assert (task.number, task.versions) == (number, versions)
    assert [each.shard for each in task.parts] == list(SHARDS)
    step = world.give(WORKER, Done(task, ()))
    assert step.records == [coordinator_records.CheckpointComplete(number)]
    ids = tuple(SubmissionId(c, "all", 1) for c in CLIENTS)
    for client, id in zip(CLIENTS, ids):
        assert orders_of(step, client) == [orders.Settled(1, id, "durable", 1, "in checkpoint 1")]
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, ids)]
    assert world.give(WORKER, Done(task, ())).records == []


def test_a_shard_hears_which_of_its_submissions_are_past_and_of_no_others() -> None:
    world = World(make_plan("bfv"))
    world.start()
    world.pump()
    held = tuple(SubmissionId(c, "all", s) for c in CLIENTS for s in (1, 2, 9))
    step = world.give("shard-a", requests.Subscribe("shard-a", held))
    (discard,) = (o for o in orders_of(step, "shard-a") if isinstance(o, orders.Discard))
    assert discard.ids == tuple(id for id in held if id.sequence < 9)
    step = world.give("shard-a", requests.Subscribe("shard-a", ()))
    assert not any(isinstance(o, orders.Discard) for o in orders_of(step))


def test_checkpoints_come_as_often_as_the_plan_says_and_at_the_end() -> None:
    world = World(make_plan(versions=5, checkpoint_every=2))
    world.start()
    world.pump()
    made = [
        r.versions[0].version
        for r in world.records()
        if isinstance(r, coordinator_records.CheckpointOrdered)
    ]
    assert sorted(made) == [0, 2, 4, 5]


def test_the_run_finishes_when_the_last_version_is_durable() -> None:
    world = collecting()
    world.pump()
    assert world.federation.finished == "all 2 versions are made"
    finish = orders.Finish(1, "all 2 versions are made")
    told = [to for to, o in world.told if o == finish]
    assert told == sorted([*CLIENTS, *SHARDS, HOLDER])
    step = world.enter(SPARE)
    assert orders_of(step, SPARE)[-1] == finish
    late = requests.Submit(world.receipt("c0", 3, 2))
    refused(world, "c0", late, WrongVersion, "takes no updates now")


FIRST, SECOND = SHARDS
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0}


def doubled() -> World:
    """All updates are in, and the first shard holds; the other one has not reported."""
    world = collecting("plain", replicas=2)
    world.until(Phase.HOLDING)
    return world


def other(digests: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (*digests[:-1], digest("another"))


def told(step: Step, kind: type) -> list[str]:
    orders = (e for e in step.effects if isinstance(e, Order))
    return [order.to for order in orders if isinstance(order.message, kind)]


def test_different_sums_are_not_opened_and_the_faulty_one_may_say_others() -> None:
    """The faulty shard comes back with an empty disk, as the text advises."""
    world = doubled()
    number = world.group().number
    sums = world.sums(FIRST, "all", number)
    world.give(FIRST, Held(FIRST, "all", number, other(sums)))
    (said,) = says(world.give(SECOND, Held(SECOND, "all", number, sums)))
    text = f"shard-b and shard-a have different sums of cohort {number}, block 3: one of the two"
    assert text in said
    assert (world.group().phase, world.group().reason) == (Phase.HOLDING, said)
    assert says(world.give(SECOND, Held(SECOND, "all", number, sums))) == []
    step = world.give(FIRST, Held(FIRST, "all", number, sums))
    assert told(step, orders.Hold) == [FIRST, SECOND]
    assert world.group().phase is Phase.HOLDING
    again = world.give(FIRST, Held(FIRST, "all", number, sums))
    assert told(again, orders.Hold) == []
    world.give(SECOND, Held(SECOND, "all", number, sums))
    assert world.group().phase is Phase.PREPARING


def test_who_lost_its_disk_before_anything_was_opened_may_hold_other_sums() -> None:
    world = collecting("plain")
    world.until(Phase.HOLDING)
    number = world.group().number
    sums = world.sums(FIRST, "all", number)
    for made in (sums, other(sums)):
        world.give(FIRST, Held(FIRST, "all", number, made))
        assert world.group().closed_cohort.held[FIRST].sums == made


class Scaled(World):
    """A range that follows the mean norm, and stays as it begins unless a test changes it."""

    def reply(self, to: str, order: Any) -> Any:
        said = super().reply(to, order)
        return replace(said, scale=1.0) if isinstance(said, requests.Prepared) else said


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda made: replace(made, blocks=other(made.blocks), state=b"f" * 32),
            "have different blocks of version 1, block 3",
        ),
        (
            lambda made: replace(made, scale=0.5),
            "have different scales of version 1, 1.0 and 0.5: one of the two",
        ),
    ],
)
def test_different_versions_are_not_committed_and_the_faulty_one_may_say_another(
    change: Callable[[Prepared], Prepared], text: str
) -> None:
    """The shards report other blocks, or the same bytes and different scales."""
    codec = ("rotate", {"name": "round", "length": "mean_norm"})
    group = {"codec": codec, "clip": 64.0, "weighting": "uniform", "bits": 8, "rule": RULE}
    world = Scaled(make_plan("plain", replicas=2, group=[group]))
    world.found()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    world.give(FIRST, change(first))
    (said,) = says(world.give(SECOND, second))
    assert f"shard-b and shard-a {text}" in said
    assert world.group().version == 0
    step = world.give(FIRST, first)
    assert told(step, orders.Prepare) == [SECOND]
    assert world.group().coming == {FIRST: first}
    world.give(SECOND, second)
    assert (world.group().version, world.group().scale) == (1, 1.0)
