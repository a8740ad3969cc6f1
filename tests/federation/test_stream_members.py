"""Rules: without rounds, whoever lapses, stalls or is refused, the others go on, and hear why."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import Conflict, Malformed, NotReady, SecurepsError, WrongVersion
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.orders import KeyCommittee
from secureps.messages.requests import Submit, Withdraw
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Outcome, SubmissionId, model_digest
from secureps.roles.coordinator import termination
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Failed, Tick
from secureps.roles.validation import LAST_SEQUENCE
from secureps.service.log_lines import LogLines
from secureps.wire.msgpack import encode
from tests.kits.member_kit import Client, said
from tests.kits.roles_kit import (
    HOLDER,
    MANY,
    MANY_ROSTER,
    SCHEMA,
    SHARDS,
    World,
    about,
    answers,
    make_plan,
    model_blocks,
    sign,
    state_of,
    two_groups,
)
from tests.kits.roles_kit import refused as refused_by
from tests.kits.stream_parties import MINIMUM, StreamWorld, begun, stream_plan

SSP = {"name": "ssp", "slack": 1, "minimum": MINIMUM}
BUFFERED = {"name": "buffered", "buffer": 4, "minimum": MINIMUM, "max_staleness": 2}


def refused(world: World, receipt: Any, error: type[SecurepsError], text: str) -> None:
    refused_by(world, receipt.id.client, requests.Submit(receipt), error, text)


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
    training, clocks = (dict(world.group().members.training), dict(world.group().members.clocks))
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


LOCKSTEP = {"name": "ssp", "slack": 0, "minimum": 3}


def withdraw(world: StreamWorld, id: SubmissionId, version: int = 0) -> list[Any]:
    sender = world.senders[id.client]
    world.due = [d for d in world.due if getattr(d.reply, "receipt", None) != sender.outbox.get(id)]
    sender.outbox.pop(id, None)
    sender.moving.discard(id)
    message = requests.Withdraw(id.client, id, version, 0, "no\nroom")
    return world.give(id.client, message).records


def test_a_refusal_is_told_once_and_counts_up_to_three() -> None:
    world = begun(LOCKSTEP)
    first = world.train("c1")
    (record, asked) = withdraw(world, first)
    assert record == Withdraw("c1", first, 0, 0, "no room")
    assert LogLines().line(record) == "c1/all/0 never comes: no room"
    assert asked == coordinator_records.MemberAsked("all", "c1", 0, 0)
    assert withdraw(world, first) == [], "it was told before"
    second = world.train("c1")
    assert withdraw(world, first) == [], "and is not about the next one"
    assert withdraw(world, second)[1:] == [asked]
    third = world.train("c1")
    assert [type(r) for r in withdraw(world, third)] == [Withdraw]
    world.replayed()
    assert "c1" not in world.ready()
    world.wait(deadline := world.plan.group("all").rule.deadline)
    fourth = world.train("c1")
    assert [type(r) for r in withdraw(world, fourth)] == [Withdraw]
    world.wait(deadline - 1.0)
    assert "c1" not in world.ready(), "once in a deadline"
    world.send("c0", "c2", "c3", "c4")
    assert world.group().version == 1, "nobody waits for it"
    world.send("c1")
    assert world.group().members.clocks["c1"] == 2, "asked from the next version, it sends"


def test_what_was_accepted_stays_and_what_was_never_asked_is_no_news() -> None:
    world = begun(LOCKSTEP)
    id = world.train("c1")
    world.drain()
    assert withdraw(world, id) == []
    assert id in world.group().receipts
    assert withdraw(world, SubmissionId("c2", "all", 5), version=-1) == [], "of an older base"
    for wrong in (SubmissionId("c2", "all", 5), SubmissionId("c1", "none", 5)):
        with pytest.raises(Malformed, match="is no submission of c1 to a group without rounds"):
            world.give("c1", requests.Withdraw("c1", wrong, 0, 0, "no"))


def test_what_returns_and_is_refused_is_given_up() -> None:
    world = begun(LOCKSTEP)
    for client in MANY[:5]:
        world.train(client)
    while not (holds := [due for due in world.due if isinstance(due.order, orders.Hold)]):
        world.deliver(world.due[0])
    hold, lost = holds[0], holds[0].order.cohort.members[1].id
    world.replace(hold, requests.Missing(hold.to, "all", hold.order.cohort.number, (lost,)))
    world.deliver(next(due for due in world.due if due.to == hold.to))
    assert world.group().members.returning.keys() == {lost}
    (dropped, *_) = withdraw(world, lost)
    assert dropped.reason == "its blocks were refused when they came again: no room"
    world.send(lost.client)
    assert world.group().version == 1


@pytest.mark.parametrize("error", [Malformed("bad"), WrongVersion("old"), Conflict("known")])
def test_a_client_says_that_its_submission_never_comes(error: SecurepsError) -> None:
    client = Client(make_plan("bfv", group=[{"rule": {"name": "ssp", "slack": 1, "minimum": 2}}]))
    made = client.joined().trained()
    step = client.give(COORDINATOR, Failed(requests.Submit(made.receipt), error))
    (message,) = said(step, requests.Withdraw)
    assert message == requests.Withdraw("c0", made.receipt.id, 0, 0, str(error))
    assert client.machine.subscription().unsettled == ()
    again = client.give(COORDINATOR, Failed(requests.Submit(made.receipt), error))
    assert said(again, requests.Withdraw) == []
    assert client.give(COORDINATOR, Failed(message, error)).effects == []


def test_where_there_are_rounds_it_says_nothing() -> None:
    client = Client().joined()
    made = client.trained()
    step = client.give(COORDINATOR, Failed(requests.Submit(made.receipt), Malformed("bad")))
    assert said(step, requests.Withdraw) == []


def ssp(slack: int, **changes: float) -> StreamWorld:
    return begun({"name": "ssp", "slack": slack, "minimum": 3, **changes})


@pytest.mark.parametrize("slack", [0, 1, 2])
def test_what_a_member_sent_before_a_lapse_counts_when_it_is_back(slack: int) -> None:
    """It has sent all that it may from version 0: waited for at clock 0, it could send nothing."""
    world = ssp(slack)
    for _ in range(slack + 1):
        world.send("c1")
    assert world.senders["c1"].invite is None
    world.leave("c1")
    assert "c1" not in world.group().members.clocks
    world.join("c1")
    assert world.group().members.clocks["c1"] == slack + 1
    assert world.group().reason.startswith(
        "1 members have sent; cohort 1 waits for c0, c2, c3 and 1 more, "
        f"{slack + 1} clock{'s' * (slack > 0)} behind, "
    )
    world.send("c0", "c2", "c3", "c4")
    assert world.group().version == 1
    assert [m.id.client for m in world.made[0].members] == list(MANY[:5])


def test_a_jump_of_several_clocks_strands_nobody() -> None:
    """The slowest goes: the least clock jumps by four, four versions follow, and all may train."""
    world = ssp(3)
    for _ in range(4):
        world.send("c0", "c1", "c2", "c3")
    assert (world.least, world.group().version, world.ready()) == (0, 0, ["c4"])
    world.leave("c4")
    world.drain()
    assert (world.least, world.group().version) == (4, 4)
    assert world.ready() == ["c0", "c1", "c2", "c3"]
    assert not world.group().receipts


@pytest.mark.parametrize("clock", [1, 2], ids=["while it was made", "when it was burnt"])
def test_a_burnt_cohort_is_followed_by_those_who_joined(clock: int) -> None:
    """Cohorts are counted on: of who sent while one was made, another update is not due."""
    world, others = ssp(0), MANY[5:8]
    for client in MANY[:5]:
        world.train(client)
    world.until(Phase.OPENING)
    if clock == 1:
        for client in others:
            world.join(client)
            world.train(client)
    while rest := [due for due in world.due if not isinstance(due.order, orders.Open)]:
        world.deliver(rest[0])
    (opens,) = world.due
    number = world.group().number
    world.replace(
        opens, requests.OpenRefused(HOLDER, "all", number, "no", about(world.federation, "all"))
    )
    world.drain()
    if clock == 2:
        for client in others:
            world.join(client)
        for client in others:
            world.train(client)
    world.drain()
    assert world.group().version == 1
    assert [m.id.client for m in world.made[0].members] == list(others)
    assert world.group().members.clocks == dict.fromkeys(MANY, clock), "who sat out is not behind"
    assert world.ready() == list(MANY)


def test_who_has_retired_is_not_asked_by_a_coordinator_that_begins_again() -> None:
    world = ssp(1)
    world.crash("c4")
    world.give("c4", requests.Retire("c4"))
    world.restart(MANY)
    world.give("c4", requests.Heartbeat("c4"))
    assert "c4" not in world.live
    assert "c4" not in world.group().members.clocks
    assert world.group().members.training.keys() == set(MANY[:4])
    world.join("c4")
    assert "c4" in world.group().members.training


def test_who_keeps_its_lease_and_sends_nothing_is_waited_for_until_the_deadline() -> None:
    world = ssp(1, deadline=50.0)

    def others_send() -> None:
        world.send(*(client for client in world.ready() if client != "c4"))

    others_send()
    assert world.group().reason == (
        "4 members have sent; cohort 1 waits for c4, 1 clock behind, 50 s left"
    )
    world.wait(10.0)
    others_send()
    assert world.group().reason == (
        "4 members have sent; cohort 1 waits for c4, 2 clocks behind, 50 s left"
    )
    assert world.ready() == ["c4"], "the others have used up their slack"
    world.wait(49.0)
    assert world.group().reason.endswith("c4, 2 clocks behind, 1 s left")
    assert world.group().version == 0
    world.wait(1.0)
    world.drain()
    others_send()
    assert world.group().version > 1
    assert all("c4" not in {m.id.client for m in cohort.members} for cohort in world.made)
    (passed,) = world.journalled(coordinator_records.MemberPassed)
    assert passed.reason == "c4 passed over after 50 s: not waited for until another update comes"
    assert LogLines().line(passed) == f"all: c4 is not waited for: {passed.reason}"
    world.replayed()
    world.leave("c4")
    world.join("c4")
    assert "c4" not in world.group().members.clocks, "to come back is not to send"
    before = world.least
    late = world.train("c4", behind=world.group().version)
    world.drain()
    assert world.group().members.clocks["c4"] > before
    assert world.federation.fates.get(late) is None or not world.errors
    assert world.group().members.passed == set()
    others_send()
    others_send()
    made = len(world.made)
    others_send()
    assert len(world.made) == made, "it is waited for again"
    assert "waits for c4, 2 clocks behind, " in world.group().reason
    world.train("c4")
    others_send()
    assert len(world.made) > made


def test_nobody_is_late_who_was_not_asked() -> None:
    """While too few are live nobody trains, and no time is counted."""
    world = ssp(0, minimum=5, deadline=50.0)
    world.send("c0", "c1")
    world.give("c2", requests.Retire("c2"))
    world.crash("c2")
    world.join("c5")
    assert world.group().members.moved["c5"] == world.now
    world.wait(49.0)
    assert world.group().members.passed == {"c2"}, "it was asked, and went"
    world.wait(1.0)
    assert world.group().members.passed == {"c2", "c3", "c4", "c5"}
    world.send("c3", "c4", "c5")
    assert world.group().version == 1


SILENT = "c4"


def under(**rule: Any) -> StreamWorld:
    world = StreamWorld(stream_plan({"minimum": 3, "deadline": 50.0, **rule}))
    world.found()
    return world


def others_send(world: StreamWorld, times: int, silent: tuple[str, ...] = (SILENT,)) -> None:
    """All but these, and a deadline passes, so many times."""
    for _ in range(times):
        world.send(*(client for client in world.ready() if client not in silent))
        world.wait(50.0)


@pytest.mark.parametrize("slack", [0, 2])
def test_receipts_of_blocks_that_no_shard_has_and_nothing_comes(slack: int) -> None:
    world = under(name="ssp", slack=slack)
    sent = []
    while SILENT in world.ready():
        sent.append(world.train(SILENT))
        world.drain()
    for client in ("c0", "c1", "c2", "c3"):
        world.train(client)
    world.until(Phase.HOLDING)
    hold = next(due for due in world.due if isinstance(due.order, orders.Hold))
    missing = requests.Missing(hold.sender, "all", world.group().number, (sent[0],))
    world.replace(hold, missing)
    world.senders[SILENT].outbox.clear()
    world.drain()
    assert "waits for c4, 1 clock behind, 50 s left" in world.group().reason
    others_send(world, 3)
    assert world.group().version > 0


@pytest.mark.parametrize("name", ["ssp", "buffered"])
def test_receipts_of_blocks_that_nobody_has_one_after_another(name: str) -> None:
    """It says at once that it has them no more, and is asked for others: three times a version."""
    own = {"slack": 0} if name == "ssp" else {"buffer": 4, "max_staleness": 2}
    world = under(name=name, **own)
    fakes = {world.train(SILENT)}
    world.drain()
    for client in ("c0", "c1", "c2", "c3"):
        world.train(client)
    closed = 0
    while world.due and world.group().version == 0:
        due = world.due[0]
        if isinstance(due.order, orders.Hold):
            lacking = tuple(m.id for m in due.order.cohort.members if m.id in fakes)
            if lacking:
                closed += 1
                number = due.order.cohort.number
                world.replace(due, requests.Missing(due.sender, "all", number, lacking))
                due = world.due[0]
        if isinstance(due.order, orders.SendAgain):
            world.due.remove(due)
            world.senders[SILENT].outbox.pop(due.order.id, None)
            world.give(SILENT, requests.Missing(SILENT, "all", -1, (due.order.id,)))
            if SILENT in world.ready():
                fakes.add(world.train(SILENT))
            continue
        world.deliver(due)
    assert world.group().version == 1
    assert closed <= 6, "three of each of two shards"


def test_refused_often_and_then_anew() -> None:
    world = under(name="ssp", slack=1)
    for k in range(3):
        base = world.group().members.training[SILENT]
        id = SubmissionId(SILENT, "all", 100 + k)
        world.give(SILENT, requests.Withdraw(SILENT, id, base.version, base.step, "no"))
    world.senders[SILENT].invite = None
    world.give(SILENT, requests.Retire(SILENT))
    world.join(SILENT)
    others_send(world, 10)
    assert world.group().version > 5


def test_who_goes_and_comes_without_sending_is_waited_for_once() -> None:
    world = under(name="ssp", slack=0)
    for _ in range(6):
        others_send(world, 1)
        world.give(SILENT, requests.Retire(SILENT))
        world.join(SILENT)
    assert len(world.journalled(coordinator_records.MemberPassed)) <= 1
    assert world.group().version >= 5


def test_silent_members_take_nobodys_place_for_longer_than_a_deadline() -> None:
    world = under(name="buffered", buffer=3, max_staleness=2, concurrency=2)
    silent = tuple(world.group().members.training)
    assert len(silent) == 2
    others_send(world, 1, silent)
    assert world.group().reason.startswith("0 of 3 updates are here")
    others_send(world, 6, silent)
    assert world.group().version > 0


def test_whose_budget_is_spent_lets_nobody_train_beyond_the_plan_s_concurrency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = "c0", "c1"
    monkeypatch.setattr(termination, "is_unaffordable", lambda tx, client, group: client in spent)
    world = under(name="buffered", buffer=3, max_staleness=2, concurrency=2)
    world.join("c5")
    world.join("c6")
    assert world.group().members.spent == set(spent)
    assert len(world.group().members.training) == 2


@pytest.mark.parametrize(("factor", "seconds"), [("buffer", 0.0), ("deadline", 26.0)])
def test_what_follows_the_load_is_in_force_at_once(factor: str, seconds: float) -> None:
    world = under(name="buffered", buffer=4, max_staleness=2)
    world.send("c0", "c1", "c2")
    setattr(world.federation.scaled, factor, 0.5)
    world.now += seconds
    world.give("coordinator", Tick())
    assert world.group().phase is Phase.HOLDING, world.group().reason


def test_what_is_too_stale_is_dropped_as_it_comes() -> None:
    world = under(name="buffered", buffer=4, max_staleness=0)
    late, others = "c0", ("c1", "c2", "c3", "c4")
    world.send(*others)
    assert world.group().version == 1
    world.send("c1")
    id = world.train(late, behind=1)
    world.drain()
    fate = world.federation.settled.of(id)
    assert fate is not None
    assert fate.outcome == Outcome.DROPPED


def test_a_newer_update_takes_the_place_of_the_older_one_as_it_comes() -> None:
    world = under(name="priority", buffer=4, pool=5, max_staleness=3)
    world.send(*MANY[:5])
    assert world.group().version == 1
    left = next(iter(world.group().receipts))
    world.send(left.client)
    fate = world.federation.settled.of(left)
    assert fate is not None
    assert fate.outcome == Outcome.DROPPED


def test_a_deadline_counts_from_the_first_that_holders_have_looked_into() -> None:
    world = under(name="buffered", buffer=5, max_staleness=2)
    world.federation.committees.append(KeyCommittee(b"", (HOLDER,), (), ()))
    opened = world.group().open_receipts
    opened.enough = 1
    first = world.train("c0")
    world.drain()
    world.now += 10.0
    world.send("c1", "c2", "c3")
    for id in [id for id in opened.receipts if id != first]:
        opened.approve(id, HOLDER)
    world.give("coordinator", Tick())
    opened.approve(first, HOLDER)
    world.now += 41.0
    world.give("coordinator", Tick())
    assert world.group().phase is Phase.HOLDING, world.group().reason
