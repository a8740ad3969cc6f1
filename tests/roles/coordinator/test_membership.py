"""What clients say beside their submissions, and what comes of it."""

from __future__ import annotations

import pytest

from secureps.messages import coordinator_records, orders, requests
from secureps.messages.outcome import Outcome
from secureps.messages.submission import SubmissionId, ciphertext_root
from secureps.roles.coordinator.group import Phase
from tests.kits.roles_kit import CLIENTS, SHARDS, World, holding, make_plan, orders_of

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
    while world.group().version < 1:
        due = world.due.pop(0)
        world.give(due.sender, due.reply)
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
    """Else a shard that loses more of the same cohort later would wait for it again."""
    world = reopened()
    assert world.coordinator._sessions.asked == {LOST}
    world.give("c1", requests.Submit(world.receipts[LOST]))
    assert world.group().phase is Phase.HOLDING
    assert world.coordinator._sessions.asked == set()
    step = world.give("c1", requests.Missing("c1", "all", -1, (LOST,)))
    assert (step.records, orders_of(step)) == ([], [])


def test_a_founding_model_that_nobody_has_whole_is_asked_for_anew() -> None:
    """What a shard made of the first one counts for nothing, also if it says so late."""
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
