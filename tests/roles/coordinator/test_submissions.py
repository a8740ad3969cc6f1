"""Receipts: signed, of this run, of the right size, charged as planned; and other messages."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from secureps.errors import (
    Conflict,
    Malformed,
    Oversized,
    SecurepsError,
    Unsigned,
    WrongRun,
    WrongVersion,
)
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.charge import Charge, Release
from secureps.messages.evaluation import EVALUATION
from secureps.messages.submission import (
    FOUNDING,
    Outcome,
    Receipt,
    SubmissionId,
    ciphertext_root,
    signing_bytes,
)
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.membership import check_receipt
from tests.kits.committee_kit import Bench
from tests.kits.roles_kit import (
    CLIENTS,
    SHARDS,
    STEPS,
    World,
    answers,
    collecting,
    holding,
    make_plan,
    make_receipt,
    orders_of,
    private_plan,
    refused,
    sign,
    two_groups,
)

CHARGE = Charge("c0", "all", 0, 1.0, 0.1, STEPS)


def _rearranged(receipt: Receipt) -> Receipt:
    """Other digests under the same signature, which covers only their root."""
    changed = dataclasses.replace(receipt, blocks=receipt.blocks[::-1])
    assert signing_bytes(changed) == signing_bytes(receipt)
    return changed


def _other(**changes: Any) -> Callable[[Receipt], Receipt]:
    def change(receipt: Receipt) -> Receipt:
        made: Receipt = sign(dataclasses.replace(receipt, **changes), "c0")
        return made

    return change


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda receipt: dataclasses.replace(receipt, signature=b""), Unsigned, "signature"),
        (_other(run=bytes(32)), WrongRun, "made for another run"),
        (_other(id=SubmissionId("c0", "none", 1)), Malformed, "no group is called 'none'"),
        (_other(id=SubmissionId("c0", "all", -1)), Malformed, "a sequence is at least 0"),
        (_other(purpose="opened"), Malformed, "no receipt is for 'opened'"),
        (_other(blocks=(bytes(32),) * 3), Malformed, "the group has 4 blocks"),
        (_other(blocks=(bytes(32),) * 5), Malformed, "the group has 4 blocks"),
        (_other(blocks=(bytes(31),) * 4), Malformed, "each one digest"),
        (_other(root=bytes(32)), Malformed, "its root is not that of its blocks' digests"),
        (_other(correction=bytes(1 << 13)), Malformed, "its root is not that of"),
        (_rearranged, Malformed, "its root is not that of its blocks' digests"),
        (_other(step=1), Malformed, "update 1 of one version, by the plan's rule the last is 0"),
        (_other(step=-1), Malformed, "update -1 of one version"),
        (_other(size=1), Malformed, "1 bytes, the plan makes"),
        (_other(envelopes=(b"x",)), Malformed, "no envelopes"),
        (_other(commitments=(b"x",)), Malformed, "no envelopes"),
        (_other(charge=CHARGE), Malformed, "a charge where nothing is private"),
        (_other(version=1), WrongVersion, "trained on version 1, the open base is 0"),
        (_other(base=bytes(32)), WrongVersion, "the open base is 0"),
        (_other(purpose="founding", size=240, update=b""), WrongVersion, "is not asked from c0"),
        (_other(update=b""), Malformed, r"the groups beside it take \(16, 0\)"),
        (_other(update=bytes(17)), Malformed, r"the groups beside it take \(16, 0\)"),
        (_other(beside=bytes(32)), Malformed, r"the groups beside it take \(16, 0\)"),
        (_other(purpose="founding", size=240), Malformed, r"beside it take \(0, 0\)"),
        (_other(examples=0), Malformed, "counts as 0 examples, and a client of this group counts"),
        (_other(examples=-1), Malformed, "it counts as -1 examples"),
        (_other(examples=33), Malformed, "33 examples, and a client of this group counts as 1 to"),
        (_other(examples=1 << 62), Malformed, f"it counts as {1 << 62} examples"),
    ],
)
@pytest.mark.parametrize("cipher", ["plain", "bfv"])
def test_bad_receipts(
    cipher: str, change: Callable[[Receipt], Receipt], error: type[SecurepsError], text: str
) -> None:
    world = collecting(cipher)
    bad = change(world.receipt("c0", 1, 0))
    refused(world, "c0", requests.Submit(bad), error, text)
    world.pump()
    assert world.federation.finished


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"charge": None}, "missing or for another submission"),
        ({"party": "c1"}, "missing or for another submission"),
        ({"group": "x"}, "missing or for another submission"),
        ({"version": 1}, "missing or for another submission"),
        ({"noise_multiplier": 2.0}, "differs from the plan"),
        ({"sample_rate": 0.2}, "differs from the plan"),
        ({"steps": STEPS - 1}, "differs from the plan"),
        ({"steps": 0}, "differs from the plan"),
        # a charge is of one unit: with two, one would be on no ledger
        ({"release": Release("c0", "all", 0, 1.0, 1.0, 50.0, 1, 0.0)}, "differs from the plan"),
    ],
)
def test_a_charge_must_be_the_plans(changes: dict[str, Any], text: str) -> None:
    world = World(private_plan())
    world.found()
    of_receipt = changes.keys() & {"charge", "release"}
    made = changes if of_receipt else {"charge": dataclasses.replace(CHARGE, **changes)}
    bad = _other(**made)(world.receipt("c0", 1, 0))
    refused(world, "c0", requests.Submit(bad), Malformed, text)
    world.pump()
    assert world.federation.finished


def test_a_known_id_with_another_receipt() -> None:
    world = collecting()
    world.pump(1)
    receipt = world.receipt("c0", 1, 0)
    other = _other(blocks=(bytes(32),) * 4)(receipt)
    refused(world, "c0", requests.Submit(other), Conflict, "begin a new sequence")
    second = world.receipt("c0", 2, 0)
    refused(world, "c0", requests.Submit(second), Conflict, "has contributed to version 1 already")
    step = world.give("c0", requests.Submit(receipt))
    assert (step.records, answers(step)) == ([], [requests.Noted()])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"envelopes": ()}, Malformed, "4 key holders want as many envelopes and 10 commitments"),
        ({"commitments": (bytes(32),) * 5}, Malformed, "10 commitments, not 4 and 5"),
        ({"commitments": (bytes(31),) * 10}, Malformed, "a commitment has 32 bytes"),
        ({"envelopes": (bytes(1327),) * 4}, Malformed, "an envelope has 1328 bytes, not 1327"),
        ({"envelopes": (bytes(1329),) * 4}, Oversized, "an envelope has 1328 bytes, not 1329"),
        ({"correction": None}, Malformed, "the correction of its key is missing"),
        ({"correction": b""}, Malformed, "values has"),
        ({"correction": bytes(1 << 15)}, Oversized, "values has"),
        ({"correction": b"\xff" * (1 << 13)}, Malformed, "not below 2"),
        (
            {"purpose": FOUNDING, "size": 240, "update": b""},
            Malformed,
            "no key to share, and no envelopes",
        ),
    ],
)
def test_what_is_said_of_a_shared_key_has_its_counts_sizes_and_ranges(
    changes: dict[str, Any], error: type[SecurepsError], text: str
) -> None:
    bench = Bench()
    layout = bench.pinned.layout.group("all")
    receipt = bench.send("c0").receipt
    check_receipt(bench.plan, layout, receipt)
    changed = dataclasses.replace(receipt, **changes)
    root = ciphertext_root(changed.blocks, changed.correction)
    with pytest.raises(error, match=text) as caught:
        check_receipt(bench.plan, layout, dataclasses.replace(changed, root=root))
    assert type(caught.value) is error


def test_a_reopened_cohort_goes_on_without_the_missing_at_the_deadline() -> None:
    world = holding(rule={"quorum": 2, "minimum": 2, "start": 3, "most": 4})
    lost = SubmissionId("c1", "all", 1)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    step = world.at(10.0)
    closed = step.records[0]
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert [m.id.client for m in closed.cohort.members] == ["c0", "c2"]
    assert closed.reason == "deadline: 2 of 3 have arrived, quorum 2"
    late = requests.Submit(world.receipts[lost])
    refused(world, "c1", late, WrongVersion, "takes no updates now")
    world.due = [due for due in world.due if due.to != "c1"]
    while world.group().version < 1:
        due = world.due.pop(0)
        step = world.give(due.sender, due.reply)
    fate = world.federation.fates[lost]
    assert (fate.outcome, fate.reason) == (Outcome.DROPPED, "version 1 closed without it")
    assert orders.Settled(1, lost, Outcome.DROPPED, 1, fate.reason) in orders_of(step, "c1")
    assert [orders.Discard(1, (lost,)) in orders_of(step, shard) for shard in SHARDS] == [True] * 2


def test_what_was_lost_does_not_count_beside_what_its_client_sent_instead() -> None:
    """Holders would refuse a cohort in which a client counts twice: no round would end."""
    world = holding()
    lost = tuple(SubmissionId(client, "all", 1) for client in ("c1", "c2"))
    world.give("shard-b", requests.Missing("shard-b", "all", 0, lost))
    anew = world.receipt("c1", 2, 0)
    world.give("c1", requests.Submit(anew))
    again = requests.Submit(world.receipts[lost[0]])
    refused(world, "c1", again, Conflict, "c1 has contributed to version 1 already")
    step = world.give("c2", requests.Submit(world.receipts[lost[1]]))
    closed = step.records[-1]
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert {m.id for m in closed.cohort.members} == {SubmissionId("c0", "all", 1), anew.id, lost[1]}


def test_what_was_to_come_again_is_dropped_with_its_round() -> None:
    world = holding(rule={"quorum": 3, "minimum": 3, "start": 3, "most": 4, "extensions": 0})
    lost = SubmissionId("c1", "all", 1)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    step = world.at(10.0)
    assert isinstance(step.records[0], coordinator_records.RoundGivenUp)
    assert world.federation.fates[lost].outcome == Outcome.DROPPED
    (discard,) = (each for each in orders_of(step, "shard-a") if isinstance(each, orders.Discard))
    assert lost in discard.ids


def test_metrics_are_of_the_version_that_is_evaluated() -> None:
    """The update from a base has one name for ever, even if earlier metrics were lost."""
    plan = make_plan("plain", versions=4, evaluation={"every": 2, "metrics": {"accuracy": 1.0}})
    world = World(plan)
    world.start()
    group = world.group(EVALUATION)
    while group.phase is not Phase.COLLECTING:
        world.pump(1)
    id, base = SubmissionId("c0", EVALUATION, 0), world.federation.base(group)
    other, right = (
        requests.Submit(make_receipt(plan, world.run, id, 0, base, step=step)) for step in (1, 0)
    )
    refused(world, "c0", other, WrongVersion, "metrics of another version of the model")
    assert world.give("c0", right).records[0] == right


def test_an_update_before_there_is_a_version_is_its_sender_s_fault() -> None:
    """Even if the client is right, and the coordinator's journal is an older copy."""
    world = World(make_plan())
    world.start()
    early = requests.Submit(world.receipt("c1", 0, 0))
    refused(world, "c1", early, WrongVersion, "waits for the founding model")


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
