"""Messages of clients beside their submissions."""

import pytest

from secureps.messages import coordinator_records, orders, requests
from secureps.messages.submission import Outcome, SubmissionId, ciphertext_root
from secureps.roles.coordinator.group import Phase
from tests.kits.roles_kit import CLIENTS, SHARDS, World, holding, make_plan, orders_of, two_groups

LOST = SubmissionId("c1", "all", 1)
"""What a shard and its client lose."""


def reopened() -> World:
    """A shard lacks blocks of c1, which is asked for them."""
    world = holding()
    step = world.give("shard-b", requests.Missing("shard-b", "all", 0, (LOST,)))
    assert orders_of(step, "c1") == [orders.SendAgain(1, LOST)]
    world.due.clear()
    return world


def test_what_nobody_has_any_more_its_client_makes_anew_in_the_same_round() -> None:
    world = reopened()
    step = world.give("c1", requests.Missing("c1", "all", -1, (LOST,)))
    assert orders_of(step) == [orders.Invite(1, "all", 1, 0, 10.0)]
    world.due.clear()
    anew = world.receipt("c1", 2, 0)
    world.give("c1", requests.Submit(anew))
    world.until(1)
    fate = world.federation.fates[LOST]
    assert (fate.outcome, fate.reason) == (Outcome.DROPPED, "version 1 closed without it")
    assert world.federation.fates[anew.id].outcome == Outcome.INCLUDED
    assert world.federation.included == dict.fromkeys(CLIENTS, 1)


@pytest.mark.parametrize("said", [(), (SubmissionId("c1", "all", 7),)])
def test_who_says_it_of_something_else_is_asked_for_nothing(said: tuple[SubmissionId, ...]) -> None:
    world = reopened()
    step = world.give("c1", requests.Missing("c1", "all", -1, said))
    assert (step.records, orders_of(step)) == ([], [])


def test_what_came_again_is_asked_for_no_more() -> None:
    """Otherwise a shard that later loses other blocks of the cohort would wait for these again."""
    world = reopened()
    assert world.coordinator._sessions.asked == {LOST}
    world.give("c1", requests.Submit(world.receipts[LOST]))
    assert world.group().phase is Phase.HOLDING
    assert world.coordinator._sessions.asked == set()
    step = world.give("c1", requests.Missing("c1", "all", -1, (LOST,)))
    assert (step.records, orders_of(step)) == ([], [])


def test_a_founding_model_that_nobody_has_whole_is_asked_for_anew() -> None:
    """A shard's version 0 of the first model does not count, even if it is reported late."""
    world = World(make_plan())
    world.start()
    world.pump(1)
    (first,) = world.group().receipts.values()
    early, late = [due.reply for due in world.due if isinstance(due.order, orders.Found)]
    world.give(early.shard, early)
    world.due.clear()
    world.give(late.shard, requests.Missing(late.shard, "all", -1, (first.id,)))
    step = world.give("c0", requests.Missing("c0", "all", -1, (first.id,)))
    reason = "a shard lost its blocks, and so did its client"
    dropped = coordinator_records.SubmissionsDropped("all", (first.id,), reason)
    assert step.records == [dropped]
    assert orders_of(step, "c0")[-1] == orders.Invite(1, "all", 0, -1, 10.0)
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, (first.id,))]
    world.due.clear()
    assert world.give(early.shard, early).records == [], "there is no founding model"
    blocks = tuple(bytes([k]) * 32 for k in range(4))
    second = world.receipt("c0", 1, -1, blocks=blocks, root=ciphertext_root(blocks))
    world.give("c0", requests.Submit(second))
    world.due.clear()
    step = world.give(early.shard, early)
    assert step.records == []
    assert orders_of(step) == [orders.Found(1, "all", second)] * 2
    for shard, own in world.federation.owners("all").items():
        made = tuple(blocks[block] for block in own)
        world.give(shard, requests.Prepared(shard, "all", 0, made, early.state))
    assert world.group().blocks == blocks
    assert world.federation.fates[first.id].outcome == Outcome.DROPPED


def lacking() -> tuple[World, SubmissionId]:
    """A shard lacks blocks of the founder's model, and the founder has been asked for them."""
    world = World(make_plan())
    world.start()
    world.pump(1)
    (first,) = world.group().receipts
    world.due.clear()
    step = world.give(SHARDS[1], requests.Missing(SHARDS[1], "all", -1, (first,)))
    assert orders_of(step) == [orders.SendAgain(1, first)]
    world.due.clear()
    return world, first


def test_who_is_away_and_cannot_send_its_founding_model_again_is_not_waited_for() -> None:
    world, first = lacking()
    world.now = 29.0
    step = world.give("c1", requests.Heartbeat("c1"))
    assert (step.records, orders_of(step)) == ([], []), "its lease is not over"
    step = world.at(30.0)
    reason = "a shard lost its blocks, and its client is away"
    assert step.records == [
        coordinator_records.SubmissionsDropped("all", (first,), reason),
        coordinator_records.FounderChosen("c1"),
    ]
    assert orders_of(step, "c1") == [orders.Invite(1, "all", 0, -1, 10.0)]
    assert orders_of(step, SHARDS[0]) == [orders.Discard(1, (first,))]
    world.pump()
    assert world.group().version == 0
    assert world.federation.fates[first].outcome == Outcome.DROPPED
    step = world.enter("c0")
    told = [order for order in orders_of(step, "c0") if isinstance(order, orders.Settled)]
    assert [order.outcome for order in told] == ["dropped"]
    world.enter("c2")
    world.pump()
    assert world.federation.finished


def test_nobody_else_founds_while_nobody_else_is_here() -> None:
    """The absent client may come back with its model."""
    world, first = lacking()
    assert world.at(30.0).records == []
    assert orders_of(world.enter("c0")) == [orders.Found(1, "all", world.receipts[first])] * 2
    world.due.clear()
    step = world.give(SHARDS[1], requests.Missing(SHARDS[1], "all", -1, (first,)))
    assert orders_of(step) == [orders.SendAgain(1, first)]
    world.pump()
    assert world.group().blocks == world.receipts[first].blocks


def test_a_founder_that_is_away_is_not_missed_where_no_block_is() -> None:
    world = World(make_plan())
    world.start()
    world.pump(1)
    world.now = 29.0
    world.give("c1", requests.Heartbeat("c1"))
    assert world.at(30.0).records == []
    world.pump(2)
    assert world.group().version == 0


def test_each_group_that_lacks_a_model_of_somebody_who_is_away_gets_the_founders() -> None:
    """c0 gave one model and left; c1 gives the other when a shard lacks blocks of the first."""
    world = World(make_plan(group=two_groups()))
    world.start()
    world.pump(1)
    (first,) = world.group("b").receipts
    world.due.clear()
    world.now = 100.0
    step = world.give("c1", requests.Heartbeat("c1"))
    assert step.records == [coordinator_records.FounderChosen("c1")]
    assert [o.group for o in orders_of(step, "c1")] == ["w"], "b has a model"
    shard = next(iter(world.federation.owners("b")))
    step = world.give(shard, requests.Missing(shard, "b", -1, (first,)))
    assert [type(record) for record in step.records] == [coordinator_records.SubmissionsDropped]
    assert [o.group for o in orders_of(step, "c1")] == ["b"]
