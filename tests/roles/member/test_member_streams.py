"""A member of groups without rounds: several updates of one group are open at once."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import BudgetSpent, Malformed, WrongVersion
from secureps.messages import orders, requests
from secureps.messages.member_records import Sealed
from secureps.messages.run import COORDINATOR, Task
from secureps.messages.submission import SubmissionId
from secureps.roles.machine import (
    WORKER,
    Answered,
    Failed,
    Halt,
    Leave,
    Prune,
    Step,
    Tick,
    WatchLost,
    WorkFailed,
)
from secureps.roles.member.outbox import MOST_SEALINGS
from secureps.roles.member.tasks import Aim, Contribute, Reseal
from tests.kits.member_kit import Client, leaves, puts, said
from tests.kits.roles_kit import (
    ADDRESSES,
    PRIVACY,
    RULE,
    SCHEMA,
    STEPS,
    halts,
    make_placement,
    make_plan,
    sign,
    update_name,
    works,
)

SSP: dict[str, Any] = {"name": "ssp", "slack": 2, "minimum": 2}
PLAN = make_plan("bfv", group=[{"rule": SSP}])


def invite(client: Client, version: int, step: int) -> Step:
    return client.order(orders.Invite(1, "all", 0, version, 10.0, 0, step))


def update(client: Client, version: int, step: int, sequence: int) -> Sealed:
    made = client.sealed(version, sequence)
    receipt = dataclasses.replace(made.receipt, step=step, signature=b"")
    return dataclasses.replace(made, receipt=sign(receipt, "c0"))


def sends(client: Client, version: int, step: int, sequence: int) -> Sealed:
    """The client was asked, trained and sealed; the blocks are in transit."""
    invite(client, version, step)
    made = update(client, version, step, sequence)
    client.contributed(made)
    return made


def arrives(client: Client, made: Sealed) -> Step:
    client.stored(made)
    return client.give(COORDINATOR, Answered(requests.Submit(made.receipt), requests.Noted()))


def begun(plan: Any = PLAN) -> Client:
    client = Client(plan).joined()
    client.publish(0)
    invite(client, 0, 0)
    client.pull(0)
    client.contributed(update(client, 0, 0, 0))
    arrives(client, update(client, 0, 0, 0))
    return client


def test_the_next_step_is_trained_for_while_the_last_waits() -> None:
    client = begun()
    (task,) = works(invite(client, 0, 1))
    assert isinstance(task, Contribute)
    assert task.aims == (Aim("all", 0, 1, 1),)
    client.contributed(update(client, 0, 1, 1))
    assert works(invite(client, 0, 2)) == [], "not before the last one has arrived"


def test_a_restart_keeps_them_all_and_each_is_sent_again_as_it_was() -> None:
    client = begun()
    second = sends(client, 0, 1, 1)
    again = client.restarted().joined()
    first = update(client, 0, 0, 0)
    ids = (first.receipt.id, second.receipt.id)
    assert again.machine.subscription().unsettled == ids
    for made in (second, first):
        step = again.order(orders.SendAgain(2, made.receipt.id))
        assert [header for _, header in puts(step)] == list(made.headers)
        assert said(again.stored(made)[-1], requests.Submit) == [requests.Submit(made.receipt)]
    again.publish(0)
    assert works(invite(again, 0, 1)) == [], "it is sealed"
    again.order(orders.Settled(2, ids[0], "dropped", 0, "too old"))
    assert again.machine.subscription().unsettled == ids[1:]


def test_an_invitation_that_comes_again_is_answered_once() -> None:
    """Otherwise it would train for the next version unasked, and spend on a refused update."""
    client = begun()
    made = sends(client, 0, 1, 1)
    invite(client, 0, 1)
    arrives(client, made)
    client.publish(1)
    assert works(client.pull(1)) == []
    (task,) = works(invite(client, 1, 0))
    assert task.aims == (Aim("all", 1, 2),)


def test_what_was_asked_as_a_further_step_is_the_first_of_a_newer_version() -> None:
    client = begun()
    client.publish(1)
    client.pull(1)
    (task,) = works(invite(client, 0, 1))
    assert task.aims == (Aim("all", 1, 1),)


def test_who_is_told_to_leave_does_so_after_what_is_on_its_way() -> None:
    client = Client(PLAN).joined()
    assert leaves(client, client.give(WORKER, Leave("had enough"))) == Halt("had enough")
    client = Client(PLAN).joined()
    client.publish(0)
    invite(client, 0, 0)
    client.pull(0)
    made = update(client, 0, 0, 0)
    client.contributed(made)
    step = client.give(WORKER, Leave("had enough"))
    assert (said(step, requests.Retire), halts(step)) == ([], [])
    assert client.give(WORKER, Leave("twice")).effects == []
    assert leaves(client, arrives(client, made)) == Halt("had enough")
    with pytest.raises(Malformed):
        client.order(Leave("somebody else's wish"))


def paired(first: dict[str, Any]) -> tuple[Client, Sealed]:
    """Its update of b is in transit, and it trains for w."""
    groups = [
        {"name": "b", "pattern": "bias", "rule": first},
        {"name": "w", "pattern": "*", "rule": SSP},
    ]
    steps = {"local_steps": STEPS}
    client = Client(make_plan(group=groups, privacy=PRIVACY, training=steps)).joined()
    for group in ("b", "w"):
        client.publish(0, group)
    client.invite(0, "b")
    client.give("c0", Tick())
    client.now += 1.0
    client.give("c0", Tick())
    for group in ("b", "w"):
        client.pull(0, group)
    made = client.sealed(0, 0, "b")
    client.contributed(made)
    client.order(orders.Invite(1, "w", 0, 0, 10.0))
    client.now += 1.0
    client.give("c0", Tick())
    return client, made


def refused(client: Client) -> Step:
    """The ledger of its records allows it nothing more."""
    return client.give(WORKER, WorkFailed(Task(), BudgetSpent("nothing more is sealed")))


@pytest.mark.parametrize("rule", [SSP, RULE])
def test_what_is_paid_for_arrives_before_the_client_stops_at_its_ledger(
    rule: dict[str, Any],
) -> None:
    client, made = paired(rule)
    step = refused(client)
    assert (said(step, requests.Retire), halts(step), works(step)) == ([], [], [])
    halt = leaves(client, arrives(client, made))
    assert halt == Halt("nothing more is sealed", BudgetSpent)


def test_who_stops_at_its_ledger_says_so_also_if_the_run_fails_for_it() -> None:
    """Another status of its process would have it started again, in vain."""
    client, _ = paired(SSP)
    refused(client)
    step = client.order(orders.Finish(2, "too few clients are left", "TooFew"))
    assert halts(step) == [Halt("nothing more is sealed", BudgetSpent)]


def test_what_a_round_wants_no_more_holds_up_nobody() -> None:
    client, _ = paired(RULE)
    assert said(refused(client), requests.Retire) == []
    assert leaves(client, client.publish(1, "b")).error is BudgetSpent


def test_what_is_refused_on_its_way_is_not_waited_for() -> None:
    client, made = paired(SSP)
    refused(client)
    late = Failed(requests.Submit(made.receipt), WrongVersion("too late"))
    assert leaves(client, client.give(COORDINATOR, late)).error is BudgetSpent


def test_a_client_that_leaves_still_sends_again_and_trains_no_more() -> None:
    client, made = paired(SSP)
    refused(client)
    step = client.order(orders.SendAgain(2, made.receipt.id))
    assert [header for _, header in puts(step)] == list(made.headers)
    client.publish(1, "w")
    step = client.invite(1, "w")
    assert works(step) == said(step, requests.Retire) == []
    leaves(client, arrives(client, made))


def test_nobody_retires_while_a_greeting_is_under_way() -> None:
    """The join could arrive after the retirement and take it back."""
    client, made = paired(SSP)
    refused(client)
    assert said(client.give(COORDINATOR, WatchLost()), requests.Join)
    assert said(arrives(client, made), requests.Retire) == []
    join = requests.Join("c0", SCHEMA, (), client.run.id)
    welcome = requests.Welcome(client.run, make_placement(client.plan), ADDRESSES)
    step = client.give(COORDINATOR, Answered(join, welcome))
    assert leaves(client, step).error is BudgetSpent


SEALED = make_plan("rlwe", group=[{"rule": SSP}])


def again(version: int, step: int, sequence: int, round: int = 1) -> orders.SealAgain:
    invite = orders.Invite(1, "all", round, version, 0.0, 0, step)
    id = SubmissionId("c0", "all", sequence)
    return orders.SealAgain(1, id, update_name(id, version), invite)


def burnt() -> tuple[Client, Sealed]:
    """Its first update was in a cohort that was burnt."""
    client = begun(SEALED)
    made = update(client, 0, 0, 0)
    step = client.order(orders.Settled(1, made.receipt.id, "dropped", 0, "burnt", True))
    assert works(step) == [], "its blocks stay"
    assert client.machine.subscription().unsettled == ()
    return client, made


def test_a_burnt_update_is_sealed_anew_and_nothing_else_is_sent_before() -> None:
    client, made = burnt()
    invite(client, 0, 1)
    step = client.order(again(0, 0, 0))
    assert works(step) == [], "first comes what it trains for"
    other = update(client, 0, 1, 1)
    (task,) = works(client.contributed(other))
    assert task == Reseal(made.receipt, made.headers, 2)
    new = update(client, 0, 0, 2)
    client.contributed(new)
    assert works(client.order(again(0, 0, 0))) == [], "it is on its way"
    assert said(client.stored(new)[-1], requests.Submit) == [requests.Submit(new.receipt)]
    client.order(orders.Settled(1, new.receipt.id, "dropped", 0, "burnt again", True))
    (task,) = works(client.order(again(0, 0, 2, 2)))
    assert task == Reseal(made.receipt, made.headers, 3), "one of them is kept"


def test_of_an_invitation_and_an_order_to_seal_anew_the_later_one_counts() -> None:
    client, _ = burnt()
    client.machine._working = True
    invite(client, 0, 1)
    client.order(again(0, 0, 0))
    assert client.machine._invites.open == {}
    invite(client, 0, 1)
    assert client.machine._out.again == {}
    assert client.machine._invites.open["all"].step == 1


def test_a_newer_version_is_the_end_of_it() -> None:
    client, made = burnt()
    assert works(client.publish(0)) == []
    (task,) = works(client.publish(1))
    assert task == Prune(tuple(header.key for header in made.headers))
    step = client.order(again(0, 0, 0))
    assert works(step) == []
    text = "what it sent is not here any more"
    assert said(step, requests.Decline) == [requests.Decline("c0", "all", 1, text, 0)]


def test_who_was_restarted_declines_what_is_to_be_sealed_anew() -> None:
    """The key is gone, and training again would make another update."""
    client, made = burnt()
    back = client.restarted().joined()
    back.publish(0)
    step = back.order(again(0, 0, 0))
    assert [each.reason for each in said(step, requests.Decline)] == [GONE]
    assert works(back.pull(0)) == []
    unsettled = begun(SEALED).restarted().joined()
    unsettled.publish(0)
    step = unsettled.order(orders.Settled(1, made.receipt.id, "dropped", 0, "burnt", True))
    assert works(step) == [Prune(tuple(header.key for header in made.headers))], "its key is gone"


GONE = "what it sent is not here any more"


@pytest.mark.parametrize("ordered", [True, False])
def test_one_update_is_sealed_so_often_and_no_more(ordered: bool) -> None:
    """By orders after burnt cohorts, or by rounds that are given up and opened again."""
    client = Client(make_plan("rlwe")).joined()
    made = client.trained()

    def asked_again(round: int) -> Step:
        last = SubmissionId("c0", "all", round - 1)
        client.order(orders.Settled(1, last, "dropped", 0, "it came to nothing", ordered))
        if ordered:
            return client.order(again(0, 0, round - 1, round=round + 1))
        return client.order(orders.Invite(1, "all", round + 1, 0, 10.0))

    for round in range(1, MOST_SEALINGS):
        assert works(asked_again(round)) == [Reseal(made.receipt, made.headers, round)]
        client.contributed(client.sealed(0, round))
    step = asked_again(MOST_SEALINGS)
    assert not any(isinstance(task, Reseal | Contribute) for task in works(step))
    reason = f"it has sealed this update {MOST_SEALINGS} times, and seals it no more"
    assert said(step, requests.Decline) == [
        requests.Decline("c0", "all", MOST_SEALINGS + 1, reason, 0)
    ]
    client.publish(1)
    client.order(orders.Invite(1, "all", MOST_SEALINGS + 2, 1, 10.0))
    (task,) = works(client.pull(1))
    assert isinstance(task, Contribute), "the next version is another update"


def test_what_was_burnt_is_kept_until_after_the_version_that_was_the_newest() -> None:
    """Also if the client hears of that version after the fate."""
    client = begun(SEALED)
    made = update(client, 0, 0, 0)
    assert (
        works(client.order(orders.Settled(1, made.receipt.id, "dropped", 1, "burnt", True))) == []
    )
    assert works(client.publish(1)) == []
    (task,) = works(client.publish(2))
    assert task == Prune(tuple(header.key for header in made.headers))


@pytest.mark.parametrize(
    ("client", "group", "invited"),
    [("c1", "all", "all"), ("c0", "all", "nothing"), ("c0", "nothing", "all")],
)
def test_nothing_else_is_sealed_anew(client: str, group: str, invited: str) -> None:
    here, _ = burnt()
    order = orders.SealAgain(
        1, SubmissionId(client, group, 0), bytes(16), orders.Invite(1, invited, 1, 0, 0.0, 0)
    )
    with pytest.raises(Malformed, match="is no submission of c0 to"):
        here.order(order)


def test_of_an_update_that_it_did_not_send_it_declines() -> None:
    here, _ = burnt()
    step = here.order(dataclasses.replace(again(0, 0, 0), update=bytes(16)))
    assert works(step) == []
    assert [each.reason for each in said(step, requests.Decline)] == [GONE]


def test_of_a_group_that_is_not_there_it_declines() -> None:
    here, _ = burnt()
    order = orders.SealAgain(
        1, SubmissionId("c0", "nothing", 0), bytes(16), orders.Invite(1, "nothing", 1, 0, 0.0, 0)
    )
    assert said(here.order(order), requests.Decline)
