"""What a group without rounds takes: each refusal names its reason, and changes nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from secureps.errors import Conflict, Malformed, NotReady, SecurepsError, WrongVersion
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.requests import Submit
from secureps.messages.submission import SubmissionId, model_digest
from secureps.roles.coordinator.group import Phase
from secureps.roles.validation import LAST_SEQUENCE
from secureps.wire.msgpack import encode
from tests.kits.roles_kit import (
    MANY,
    MANY_ROSTER,
    SCHEMA,
    SHARDS,
    World,
    answers,
    model_blocks,
    sign,
    state_of,
    two_groups,
)
from tests.kits.stream_parties import MINIMUM, StreamWorld, begun, stream_plan

SSP = {"name": "ssp", "slack": 1, "minimum": MINIMUM}
BUFFERED = {"name": "buffered", "buffer": 4, "minimum": MINIMUM, "max_staleness": 2}


def refused(world: World, receipt: Any, error: type[SecurepsError], text: str) -> None:
    before, due = state_of(world.federation), list(world.due)
    with pytest.raises(error, match=text) as caught:
        world.give(receipt.id.client, requests.Submit(receipt))
    assert type(caught.value) is error
    assert state_of(world.federation) == before
    assert world.due == due


def made(world: StreamWorld, client: str, version: int, sequence: int = 9, **changes: Any) -> Any:
    return world.receipt(client, sequence, version, **({"step": 0} | changes))


def test_nobody_sends_unasked_or_twice() -> None:
    world = begun(SSP)
    world.join("c5")
    world.crash("c5")
    world.wait(world.plan.section.lease + 1)
    refused(world, made(world, "c6", 0), WrongVersion, "c6 was not asked for an update of all now")
    id = world.train("c1")
    world.drain()
    asked = world.senders["c1"].invite
    assert asked is not None
    assert (asked.version, asked.step) == (0, 1)
    again = world.senders["c1"].outbox[id]
    step = world.give("c1", requests.Submit(again))
    assert step.records == [], "a replay of what is here changes nothing"
    other = made(world, "c1", 0, id.sequence, magnitude=3)
    refused(world, other, Conflict, "known with another receipt; begin a new sequence")


@pytest.mark.parametrize(
    ("version", "step", "text"),
    [
        (0, 1, "asked was update 0 of version 0, or the first of a newer version"),
        (1, 1, "this is update 1 of version 1"),
        (2, 0, "its base is no version 2 of all"),
        (7, 0, "its base is no version 7 of all"),
    ],
)
def test_another_base_than_was_asked_for(version: int, step: int, text: str) -> None:
    world = begun(SSP)
    for client in ("c1", "c2", "c3", "c4"):
        world.train(client)
    world.crash("c0")
    world.wait(world.plan.section.lease + 1)
    world.drain()
    assert world.group().version == 1
    asked = world.federation.groups["all"].members.training["c0"]
    assert (asked.version, asked.step) == (0, 0), "it may still come"
    base = model_digest("all", version, model_blocks("all", version, 4)) if version >= 0 else b""
    receipt = dataclasses.replace(made(world, "c0", 0), version=version, base=base, step=step)
    refused(world, sign(receipt, "c0"), WrongVersion, text)
    newer = made(world, "c0", 1)
    assert Submit(newer) in world.give("c0", requests.Submit(newer)).records


@pytest.mark.parametrize("sequence", [-1, LAST_SEQUENCE + 1, 2**63 - 1])
def test_a_sequence_that_nobody_counts_to(sequence: int) -> None:
    """The one after the last would have to be told in a welcome."""
    world = begun(SSP)
    text = f"c1/all/{sequence}: a sequence is at least 0, and at most {LAST_SEQUENCE}"
    refused(world, made(world, "c1", 0, sequence), Malformed, text)
    before = state_of(world.federation)
    with pytest.raises(Malformed, match=text):
        world.give("c1", requests.Withdraw("c1", SubmissionId("c1", "all", sequence), 0, 0, "no"))
    assert state_of(world.federation) == before
    last = SubmissionId("c1", "all", LAST_SEQUENCE)
    world.give("c1", requests.Withdraw("c1", last, 0, 0, "no"))
    (welcome,) = answers(world.give("c1", requests.Join("c1", SCHEMA)))
    assert welcome.next[0].version == LAST_SEQUENCE + 1
    assert encode(welcome)


def test_a_size_is_declared_where_it_is_asked_for_and_none_beyond_the_largest() -> None:
    largest = {"name": "priority", "buffer": 4, "minimum": MINIMUM, "score": "magnitude"}
    world = begun(largest)
    for given in (-1, 16, 10**12, None):
        text = f"c0/all/9: it declares a size of 0 to 15, not {given}"
        refused(world, made(world, "c0", 0, magnitude=given), Malformed, text)
    world.give("c0", requests.Submit(made(world, "c0", 0, magnitude=15)))
    other = begun(SSP)
    refused(other, made(other, "c0", 0, magnitude=3), Malformed, "and nobody asks for one")


def test_the_digest_of_another_model() -> None:
    world = begun(SSP)
    base = model_digest("all", 0, model_blocks("all", 1, 4))
    wrong = dataclasses.replace(made(world, "c0", 0), base=base)
    refused(world, sign(wrong, "c0"), WrongVersion, "c0/all/9: its base is no version 0 of all")


def test_what_returns_is_what_was_lost_and_answers_no_invitation() -> None:
    world = begun(SSP)
    world.crash("c4")
    for client in MANY[:4]:
        world.train(client)
    world.wait(world.plan.section.lease + 1)
    world.until(Phase.HOLDING)
    hold = next(due for due in world.due if isinstance(due.order, orders.Hold))
    lost = next(m.id for m in hold.order.cohort.members if m.id.client == "c1")
    world.deliver(next(due for due in world.due if due.to not in SHARDS), again=True)
    number = hold.order.cohort.number
    world.replace(hold, requests.Missing(hold.to, "all", number, (lost,)))
    world.deliver(next(due for due in world.due if due.to == hold.to))
    assert world.group().members.returning.keys() == {lost}
    training, clocks = (
        dict(world.group().members.training),
        dict(world.group().members.clocks),
    )
    assert "c1" in training, "it trains its next one meanwhile"
    for changes in ({"magnitude": 3}, {"step": 1}):
        other = made(world, "c1", 0, lost.sequence, **changes)
        refused(world, other, Conflict, "known with another receipt")
    assert world.group().version == 0
    world.give("c1", requests.Submit(world.senders["c1"].outbox[lost]))
    assert world.group().members.training == training
    assert world.group().members.clocks == clocks
    id = world.train("c1")
    world.drain()
    assert world.errors == []
    assert {lost, id} <= world.acked


@pytest.mark.parametrize("back", ["after", "before"])
def test_what_never_returns_is_given_up_and_its_client_asked_anew(back: str) -> None:
    """A shard lost it, and so did its client: with s = 0 the others would wait for ever.

    The client is back after the shard has said so, or before.
    """
    world = begun({"name": "ssp", "slack": 0, "minimum": 5})
    for client in MANY[:5]:
        world.train(client)
    world.until(Phase.HOLDING)
    (hold, *_) = [due for due in world.due if isinstance(due.order, orders.Hold)]
    lost = next(m.id for m in hold.order.cohort.members if m.id.client == "c1")
    missing = requests.Missing(hold.to, "all", hold.order.cohort.number, (lost,))
    world.crash("c1", disk=True)
    world.due.clear()
    for party in ("c1", hold.to) if back == "before" else (hold.to, "c1"):
        if party == "c1":
            world.join("c1")
        else:
            world.give(hold.to, missing)
    fate = world.federation.fates[lost]
    assert (fate.outcome, fate.reason) == (
        "dropped",
        "a shard lost its blocks, and so did its client",
    )
    world.send("c1")
    assert world.group().version == 1


def test_after_the_end_nothing_is_taken_and_all_has_a_fate() -> None:
    world = begun(BUFFERED, versions=1)
    late = SubmissionId("c4", "all", 0)
    for client in MANY[:5]:
        world.train(client)
    while world.group().version < 1:
        ready = [due for due in world.due if getattr(due.reply, "receipt", None) is None]
        first = [due for due in world.due if due.to != "c4"]
        world.deliver((ready or first)[0])
    assert not world.group().takes_updates
    receipt = world.senders["c4"].outbox[late]
    refused(world, receipt, WrongVersion, "all takes no updates now .version 1 is the last")


def test_a_client_changes_its_groups_three_times_a_lease_and_no_more() -> None:
    """So the journal does not grow with it; who counts before it knows its number needs three."""
    world = World(stream_plan(BUFFERED, group=two_groups(BUFFERED)), MANY, roster=MANY_ROSTER)
    world.servers()

    def joins(*groups: str) -> None:
        world.give("c1", requests.Join("c1", SCHEMA, groups))

    def written() -> list[Any]:
        found = [r for step in world.journal for r in step]
        return [r.groups for r in found if isinstance(r, coordinator_records.MemberJoined)]

    joins()
    joins("w")
    joins("w")
    joins("b")
    assert written() == [(), ("w",), ("b",)]
    before = state_of(world.federation)
    for _ in range(9):
        for groups in ((), ("w",), ("b", "w")):
            with pytest.raises(NotReady, match="c1 has said three times within 30 s that") as no:
                joins(*groups)
            assert no.value.retry_after == 30.0
    assert (state_of(world.federation), written()) == (before, [(), ("w",), ("b",)])
    world.give("c1", requests.Retire("c1"))
    with pytest.raises(NotReady, match="takes part"):
        joins("w")
    world.now = 30.0
    joins("w")
    joins()
    joins("b")
    assert written() == [(), ("w",), ("b",), ("w",), (), ("b",)]
    world.now = 59.0
    with pytest.raises(NotReady):
        joins("w")


def test_a_client_outside_its_groups() -> None:
    world = World(stream_plan(BUFFERED, group=two_groups(BUFFERED)), MANY, roster=MANY_ROSTER)
    world.servers()
    for client in MANY[:4]:
        own = () if client == "c0" else ("w",)
        world.give(client, requests.Join(client, SCHEMA, own))
        world.give(client, requests.Subscribe(client, ()))
    while not all(world.group(name).takes_updates for name in "bw"):
        founds = next(d for d in world.due if getattr(d.order, "version", -1) < 0)
        world.due.remove(founds)
        world.give(founds.sender, founds.reply)
    world.due.clear()
    receipt = world.receipt("c1", 1, 0, "b")
    said = "c1 takes no part in b: it joined for other groups"
    refused(world, receipt, WrongVersion, said)
    world.give("c1", requests.Submit(world.receipt("c1", 1, 0, "w")))
    before = state_of(world.federation)
    with pytest.raises(Malformed, match="c5: no group is called 'x'"):
        world.give("c5", requests.Join("c5", SCHEMA, ("w", "x")))
    assert state_of(world.federation) == before
