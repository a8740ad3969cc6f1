"""Groups without rounds: what is refused on its way is said to be, and its client is asked anew."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.errors import Conflict, Malformed, SecurepsError, WrongVersion
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.requests import Withdraw
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import SubmissionId
from secureps.roles.machine import Failed
from secureps.service.log_lines import LogLines
from tests.kits.member_kit import Client, said
from tests.kits.roles_kit import MANY, make_plan
from tests.kits.stream_parties import StreamWorld, begun

LOCKSTEP = {"name": "ssp", "slack": 0, "minimum": 3}


# --- at the coordinator -----------------------------------------------------------


def withdraw(world: StreamWorld, id: SubmissionId, version: int = 0) -> list[Any]:
    """Its client was refused, and says so."""
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


# --- at the client ----------------------------------------------------------------


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
