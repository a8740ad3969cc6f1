"""A member joins, pulls, trains once for each version, sends, and keeps what it may send again."""

import dataclasses
import json
import re
from typing import Any

import pytest

from secureps.errors import (
    BudgetSpent,
    ConfigError,
    Conflict,
    DamagedStore,
    InternalError,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    TooFew,
    UnknownParty,
    Unreachable,
    WrongRun,
    WrongVersion,
)
from secureps.messages import coordinator_records, member_records, orders, records, requests
from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import OwnAct, OwnDeed, Sealed, SequencesBegun
from secureps.messages.orders import Invite, Published
from secureps.messages.requests import Noted, PutBlock, Retire
from secureps.messages.run import COORDINATOR, GroupVersion, Schema, ShardAddress, Task, TensorSpec
from secureps.messages.submission import Base, Outcome, SubmissionId
from secureps.policy.plan import Plan, describe_public_number
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    Failed,
    Fold,
    Halt,
    Leave,
    Locate,
    Prune,
    Say,
    Step,
    Sweep,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.member.member import LEFT, PAUSED, Departure, Member
from secureps.roles.member.outbox import MOST_SEALINGS, Outbox, why_not_evaluated
from secureps.roles.member.tasks import (
    Aim,
    Contribute,
    Contributed,
    Offer,
    Reseal,
    block_key,
    kept_key,
)
from secureps.roles.member.terms import MemberSettings, Terms
from secureps.roles.pinned_run import Pinned
from tests.kits.evaluations import evaluated_plan
from tests.kits.member_kit import PLAN, TWO, Client, asked, leaves, puts, said
from tests.kits.roles_kit import (
    ADDRESSES,
    KEYED_ROSTER,
    OTHER_ROSTER,
    PRIVACY,
    ROSTER,
    RULE,
    SCHEMA,
    SHARDS,
    STEPS,
    halts,
    make_header,
    make_placement,
    make_plan,
    make_receipt,
    model_blocks,
    private_plan,
    says,
    sign,
    update_name,
    works,
)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (PLAN, ["this client counts by how many examples it has, and that number is public: the"]),
        (private_plan(), ["this client counts as 10 examples, and that number is public: the"]),
        (make_plan(group=[{"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}]), []),
    ],
)
def test_a_client_says_at_joining_that_its_number_is_public(
    plan: Plan, expected: list[str]
) -> None:
    """It says so once, before anything is sent."""
    client, found = Client(plan), list[str]()
    for _ in range(2):
        found += says(client.welcome())
    assert [text.partition(" coordinator, the shards and the key")[0] for text in found] == expected


def test_it_joins_pins_watches_and_keeps_its_lease() -> None:
    client = Client()
    join = requests.Join("c0", SCHEMA)
    assert client.machine.resume(0.0) == Step(
        effects=[Work(Sweep(frozenset())), Call(COORDINATOR, join)]
    )
    assert client.machine.wake() is None
    client.now = 5.0
    step = client.welcome()
    pinned = records.RunPinned(client.run, make_placement(PLAN), ADDRESSES)
    assert step.records == [pinned]
    published = list(map(Say, describe_public_number(PLAN.section, None)))
    assert step.effects == [*published, *(Locate(s.name, s.advertise) for s in ADDRESSES), Watch()]
    assert client.machine.pinned == Pinned.of(pinned)
    assert client.machine.wake() == 15.0
    client.now = 15.0
    step = client.give("c0", Tick())
    assert step.effects == [Call(COORDINATOR, requests.Heartbeat("c0"))]
    assert client.machine.wake() == 25.0
    again = requests.Join("c0", SCHEMA, (), client.run.id)
    assert client.give("c0", WatchLost()).effects == [Call(COORDINATOR, again)]
    assert client.welcome().records == []


OF_LATER = PLAN.text.replace('"envelope_versions":10', '"envelope_versions":1')
"""A text with a value that was once a key's, and that no party follows any more."""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"holders": bytes(32)}, "key holders are not those of this kit: do not send anything"),
        ({"roster": bytes(32)}, "roster differs from this kit's"),
        ({"layout": bytes(32)}, "layout is not that of its plan and model"),
        ({"nonce": b""}, "nonce is not 32 bytes"),
        ({"plan": "{}"}, "plan is not a plan"),
        ({"plan": PLAN.text.replace('"quorum":3', '"quorum":1')}, "below the minimum cohort"),
        ({"plan": OF_LATER}, "plan is of another version of secureps: finish the run with that"),
    ],
)
def test_it_takes_no_part_in_a_run_of_another_kit(changes: dict[str, Any], text: str) -> None:
    client = Client()
    step = client.welcome(**changes)
    (halt,) = halts(step)
    assert halt.error is not None
    assert text in halt.reason
    assert (step.records, len(step.effects)) == ([], 1)
    with pytest.raises(NotReady):
        _ = client.machine.pinned
    wider = Schema((*SCHEMA.tensors, TensorSpec("x", (1,), "float32")))
    other = Client(kit=MemberSettings("c0", ROSTER, wider))
    said = "another model than this client's: x is not in the run's model"
    assert said in halts(other.welcome())[0].reason
    other = Client(kit=MemberSettings("c0", OTHER_ROSTER, SCHEMA))
    assert "roster differs" in halts(other.welcome())[0].reason


@pytest.mark.parametrize("step", [-1, 1])
def test_it_does_not_answer_for_a_step_that_the_rule_does_not_have(step: int) -> None:
    """Rounds have no steps: the client would contribute twice from one version."""
    client = Client().joined()
    client.publish(0)
    invite = orders.Invite(1, "all", 1, 0, 10.0, 0, step)
    assert asked(client.order(invite)) == []
    assert works(client.pull(0)) == []


def test_it_stays_with_its_run() -> None:
    client = Client().joined()
    step = client.welcome(nonce=bytes(32))
    (halt,) = halts(step)
    assert (halt.error, step.records) == (WrongRun, [])
    assert "with a new one (--state)" in halt.reason


def test_it_dials_no_shards_of_another_run() -> None:
    """Another run's coordinator may have taken over the address."""
    client = Client().joined()
    moved = (ShardAddress("shard-a", "elsewhere:7", 1.0),)
    order = orders.Configure(2, client.run, make_placement(PLAN), moved)
    step = client.order(order)
    assert [e for e in step.effects if isinstance(e, Locate)] == [Locate("shard-a", "elsewhere:7")]
    other = dataclasses.replace(order, run=dataclasses.replace(client.run, nonce=bytes(32)))
    assert not any(isinstance(effect, Locate) for effect in client.order(other).effects)


def test_it_does_not_take_the_state_of_another_client() -> None:
    client = Client().joined()
    sealed = member_records.Sealed(client.sealed(-1, 0).receipt, ())
    other = Client(kit=MemberSettings("c1", ROSTER, SCHEMA))
    with pytest.raises(ConfigError, match="this state folder is c0's: c1 needs"):
        other.machine.apply(0.0, sealed)


def test_a_refused_join_halts() -> None:
    step = Client().give(COORDINATOR, Failed(requests.Join("c0", SCHEMA), UnknownParty("who?")))
    assert halts(step) == [Halt("who?", UnknownParty)]
    step = Client().give(COORDINATOR, Failed(requests.Join("c0", SCHEMA), InternalError("x")))
    assert halts(step) == [Halt("x", InternalError)]


def test_nobody_else_gives_orders() -> None:
    client = Client().joined()
    for sender in ("shard-a", "c1"):
        with pytest.raises(Malformed, match="no answer to a Finish"):
            client.give(sender, orders.Finish(1, "x"))
        with pytest.raises(Malformed, match="no answer to a Contributed"):
            client.give(sender, Contributed((), ()))
    with pytest.raises(Malformed, match="takes no Discard"):
        client.order(orders.Discard(1, ()))
    with pytest.raises(Malformed, match="nobody dials a client"):
        client.machine.inspect("c1", requests.AskStatus())


def test_values_are_told_to_the_plan_that_the_client_agreed_to_alone() -> None:
    """A proposal names the tensors whose values are compared, and could name any."""
    theirs = make_plan(frozen=["weight"])
    values = {spec.name: "ab" * 32 for spec in SCHEMA.tensors}
    for agreed, tells in ((theirs, True), (PLAN, False)):
        terms = Terms(plan=agreed.text)
        kit = MemberSettings("c0", ROSTER, SCHEMA, terms=terms, values=values)
        step = Client(theirs, kit=kit).propose()
        calls = [each.message for each in step.effects if isinstance(each, Call)]
        told = [each.schema.valued for each in calls if isinstance(each, requests.Join)]
        assert told == ([{"weight"}] if tells else [])
        assert [halt.error for halt in halts(step)] == ([] if tells else [WrongRun])


def test_a_proposal_is_heard_once_of_a_plan_that_freezes_something_and_before_any_run() -> None:
    values = {spec.name: "ab" * 32 for spec in SCHEMA.tensors}
    kit = MemberSettings("c0", ROSTER, SCHEMA, values=values)
    freezes = make_plan(frozen=["weight"])
    assert not halts(Client(freezes, kit=kit).propose())
    for step, error in (
        (Client(freezes, kit=kit).propose(told=True), Malformed),
        (Client(kit=kit).propose(), Malformed),
        (Client().joined().propose(), WrongRun),
    ):
        assert [halt.error for halt in halts(step)] == [error]
        assert not [each for each in step.effects if isinstance(each, Call)]


def test_a_founder_offers_its_model_once() -> None:
    client = Client().joined()
    assert works(client.invite(-1)) == [Offer("all", 0)]
    assert works(client.invite(-1)) == [], "one work at a time"
    update = client.sealed(-1, 0)
    step = client.contributed(update)
    assert step.records == [member_records.Sealed(update.receipt, update.headers)]
    assert [header for _, header in puts(step)] == list(update.headers)
    assert works(step) == []
    assert works(client.invite(-1)) == []
    again = client.restarted().joined()
    assert works(again.invite(-1)) == []
    assert again.machine.subscription().unsettled == (update.receipt.id,)
    last = client.stored(update)[-1]
    assert said(last, requests.Submit) == [requests.Submit(update.receipt)]
    noted = Answered(requests.Submit(update.receipt), requests.Noted())
    assert client.give(COORDINATOR, noted) == Step(), "no telemetry of a founding"


def test_a_founder_whose_model_meets_a_bug_ends_and_says_so() -> None:
    """Otherwise all parties would wait for a model that never comes."""
    client = Client().joined()
    client.invite(-1)
    (_, header), *_ = puts(client.contributed(client.sealed(-1, 0)))
    step = client.give(SHARDS[0], Failed(requests.PutBlock(header), InternalError("a bug")))
    assert halts(step) == [Halt("its first model was not taken: a bug", InternalError)]


def test_no_founding_model_is_sent_once_its_group_is_founded() -> None:
    """It is sent in the clear, and a later one may be trained on the data."""
    client = Client().joined()
    client.publish(0)
    step = client.invite(-1)
    assert works(step) == []
    assert step.effects == [Say("no founding model of all is sent: it is founded")]
    trained = Client().joined()
    trained.trained()
    again = trained.restarted().joined()  # nobody tells it of a version
    step = again.invite(-1)
    assert works(step) == []
    assert step.effects == [Say("no founding model of all is sent: it is founded")]


def test_it_trains_when_invited_and_pulled() -> None:
    client = Client().joined()
    assert client.publish(0) == Step()
    step = client.invite(0)
    assert asked(step) == [(SHARDS[b % 2], 0, b) for b in range(4)]
    assert [works(client.got(0, b)) for b in range(3)] == [[], [], []]
    step = client.got(0, 3)
    blocks = model_blocks("all", 0, 4)
    assert works(step) == [Contribute((GroupVersion("all", 0),), blocks, (Aim("all", 0, 0),))]
    assert client.invite(0) == Step()
    assert block_key(blocks[0]) == f"block/{blocks[0].hex()}"


def test_it_waits_for_all_groups() -> None:
    client = Client(TWO).joined()
    client.publish(0, "b")
    assert client.invite(0, "b") == Step()
    assert client.publish(0, "w") == Step()
    assert len(asked(client.invite(0, "w"))) == 5
    client.pull(0, "b")
    (task,) = works(client.pull(0, "w"))
    assert task.aims == (Aim("b", 0, 0), Aim("w", 0, 0))
    assert task.blocks == model_blocks("b", 0, 1) + model_blocks("w", 0, 4)
    client.contributed(client.sealed(0, 0, "b"), client.sealed(0, 0, "w"))
    client.publish(1, "b")
    assert asked(client.invite(1, "b")) == []


def test_a_group_that_is_at_its_end_holds_nobody_back() -> None:
    client = Client(TWO).joined()
    client.publish(2, "b")
    client.publish(1, "w")
    client.invite(1, "w")
    client.pull(2, "b")
    (task,) = works(client.pull(1, "w"))
    assert task.aims == (Aim("w", 1, 0),)
    assert task.model == (GroupVersion("b", 2), GroupVersion("w", 1))


def test_a_version_that_is_gone_is_not_asked_for_again() -> None:
    client = Client().joined()
    client.publish(0)
    client.invite(0)
    for block in range(4):
        ask = requests.GetBlock(client.run.id, "all", 0, block)
        step = client.give("shard-a", Failed(ask, WrongVersion("gone")))
        assert step == Step(), "each failure would ask for all blocks, and so on"
    old, new = model_blocks("all", 0, 4), model_blocks("all", 1, 4)
    client.order(orders.Published(1, "all", 1, (old[0], *new[1:])))
    assert len(asked(client.invite(1))) == 4, "also the block that did not change"


def test_a_block_that_could_not_be_read_is_asked_for_again() -> None:
    client = Client().joined()
    client.publish(0)
    client.invite(0)
    ask = requests.GetBlock(client.run.id, "all", 0, 2)
    step = client.give("shard-a", Failed(ask, InternalError("a disk")))
    assert asked(step) == [("shard-a", 0, 2)]
    step = client.give("shard-a", Failed(ask, Malformed("block 2 has a wrong length")))
    (halt,) = halts(step)
    assert halt.error is Malformed
    assert "block 2 of all cannot be pulled: block 2 has a wrong length" in halt.reason


def test_an_old_invitation_is_not_followed() -> None:
    client = Client().joined()
    client.publish(1)
    assert client.invite(0) == Step()
    assert len(asked(client.invite(1))) == 4


def test_a_foreign_journal() -> None:
    with pytest.raises(InternalError, match="a member's journal has no MemberJoined"):
        Client(journal=(coordinator_records.MemberJoined("c0"),))


def test_failures_that_do_not_matter() -> None:
    client = Client().joined()
    for request in (requests.Heartbeat("c0"), requests.Telemetry("c0", "all", 0, ())):
        assert client.give(COORDINATOR, Failed(request, Unreachable("x"))) == Step()


def test_the_end() -> None:
    client = Client().joined()
    assert client.order(orders.Finish(1, "all 2 versions are made")).effects == [
        Halt("all 2 versions are made")
    ]


def test_a_client_of_a_failed_run_says_when_to_start_it_again() -> None:
    """Its machine may have slept, and hear of the failure after the coordinator's restart."""
    (halt,) = Client().joined().order(orders.Finish(1, "too few are left", "TooFew")).effects
    text = "too few are left; once the coordinator has been started again, start this client again"
    assert halt == Halt(text, TooFew)


@pytest.mark.parametrize(
    ("own", "model", "base", "evaluates", "expected"),
    [
        (0, 2, 0, 2, ""),
        (1, 4, 1, 4, ""),
        (2, 5, 2, 5, ""),
        (0, 2, 1, 4, None),
        (0, 1, 0, 2, None),
        (0, 3, 0, 2, "gone on"),
        (1, 2, 0, 2, "over"),
        (0, 1, 0, 1, "no such"),
        (0, 3, 0, 3, "no such"),
        (3, 5, 3, 5, "no such"),  # three evaluations were made already
        (0, 4, Base(0, 1), 4, ""),  # that of version 2 was lost
        (0, 4, 0, 4, "no such"),  # under the base of version 2
        (1, 4, Base(1, 1), 4, "no such"),
    ],
)
def test_how_a_client_stands_to_an_invitation(
    own: int, model: int, base: int | Base, evaluates: int, expected: str | None
) -> None:
    plan = evaluated_plan()
    assert [each for each in range(7) if each in plan.schedule] == [2, 4, 5]
    published = {
        EVALUATION: Published(1, EVALUATION, own, ()),
        "all": Published(1, "all", model, ()),
    }
    at = base if isinstance(base, Base) else Base(base, 0)
    invite = Invite(1, EVALUATION, 1, at.version, 10.0, evaluates, at.step)
    found = why_not_evaluated(plan, published, invite)
    assert found == expected or (expected and found and expected in found)


def test_without_an_invitation_it_is_early() -> None:
    published = {EVALUATION: Published(1, EVALUATION, 0, ())}
    assert why_not_evaluated(evaluated_plan(), published, None) is None
    invite = Invite(1, EVALUATION, 1, 0, 10.0, 2)
    assert why_not_evaluated(evaluated_plan(), {}, invite) is None


def after(*whats: str) -> Departure:
    """The departure after these acts, one after another."""
    found = Departure("c0")
    for number, what in enumerate(whats, 1):
        found.apply(OwnAct(number, what))
    return found


@pytest.mark.parametrize(
    ("acts", "wants"),
    [
        (("pause",), OwnDeed.PAUSE),
        (("pause", "go-on"), None),
        (("pause", "lower-budget"), OwnDeed.PAUSE),
        (("pause", "leave"), OwnDeed.LEAVE),
        (("leave", "go-on"), OwnDeed.LEAVE),
        (("leave", "pause"), OwnDeed.LEAVE),
        (("leave", "left"), None),
        (("leave", "left", "pause"), OwnDeed.PAUSE),
    ],
)
def test_the_last_act_counts_but_who_leaves_leaves(
    acts: tuple[str, ...], wants: OwnDeed | None
) -> None:
    departure = after(*acts)
    assert (departure.wants, departure.acted) == (wants, len(acts))


def test_a_pause_is_a_rest_without_an_end_and_is_said_once() -> None:
    departure, step = after("pause"), Step()
    assert not departure.follow()
    departure.tell(step)
    assert step.effects == [Call("coordinator", Retire("c0", PAUSED, True))]
    assert (departure.until, departure.halt, departure.end_rest_if_due(1e9)) == (None, None, False)
    assert not departure.follow()
    assert departure.told, "it is not said again"
    departure.apply(OwnAct(2, "go-on"))
    assert departure.follow(), "the coordinator is to hear that it is back"
    assert not departure.away
    assert not departure.follow()


def test_a_pause_takes_the_place_of_a_rest_and_not_of_a_leave() -> None:
    resting = after("pause")
    resting.begin(None, "rests", 50.0)
    resting.follow()
    assert (resting.halt, resting.reason, resting.until) == (None, PAUSED, None)
    leaving = after("pause")
    leaving.begin(Halt("the budget is spent"))
    leaving.follow()
    assert leaving.halt == Halt("the budget is spent")


def test_who_leaves_after_a_pause_ends_when_the_coordinator_knows_that_it_left() -> None:
    client = Client()
    client.joined()
    paused, left = (
        client.give(WORKER, OwnAct(number, what)).effects[-1]
        for number, what in enumerate(("pause", "leave"), 1)
    )
    assert isinstance(paused, Call)
    assert isinstance(left, Call)
    assert [paused.message, left.message] == [Retire("c0", PAUSED, True), Retire("c0", LEFT, False)]
    assert client.give("coordinator", Answered(paused.message, Noted())) == Step()
    step = client.give("coordinator", Answered(left.message, Noted()))
    assert (step.records, step.effects) == ([OwnAct(2, "left")], [Halt(LEFT)])


def told(plan: Plan, standing: str = "", unsafe: bool = False) -> list[str]:
    """The line on the client's own terminal after a training."""
    kit = MemberSettings("c0", ROSTER, SCHEMA, Terms())
    client = Client(plan, kit=kit).joined()
    client.ready(0)
    update = client.sealed(0, 0)
    receipt = dataclasses.replace(update.receipt, unsafe=unsafe)
    update = dataclasses.replace(update, receipt=receipt)
    came = Contributed((update,), (), {}, "120 records, loss 0.4123", standing)
    step = client.give(WORKER, came)
    return says(step)


def test_a_data_holder_has_a_line_a_version() -> None:
    (line,) = told(make_plan())
    assert re.fullmatch(r"version 1: 120 records, loss 0.4123, \d+ B to send", line)
    (line,) = told(private_plan())
    spent = r"version 1: .*, \d+ B to send, epsilon \d+\.\d{3} of 1e\+06 in this run"
    assert re.fullmatch(rf"{spent} \(one record .*\)", line)
    (line,) = told(private_plan(), "26.680 of 40 over all runs")
    assert re.fullmatch(rf"{spent}, 26.680 of 40 over all runs \(one record .*\)", line)
    (line,) = told(private_plan(), unsafe=True)
    assert line.endswith(", unsafe seed: no privacy")


def test_blocks_go_to_their_shards_and_then_the_receipt() -> None:
    client = Client().joined()
    client.ready(0)
    update = client.sealed(0, 0)
    figure = requests.Figure("training_seconds", 2.0)
    step = client.give(WORKER, Contributed((update,), (figure,)))
    assert step.records == [member_records.Sealed(update.receipt, update.headers)]
    assert puts(step) == [(SHARDS[b % 2], h) for b, h in enumerate(update.headers)]
    assert said(step, requests.Telemetry) == []
    client.now = 3.0
    steps = client.stored(update)
    assert [said(s, requests.Submit) for s in steps] == [
        [],
        [],
        [],
        [requests.Submit(update.receipt)],
    ]
    (told,) = said(steps[-1], requests.Telemetry)
    assert told.figures == (
        figure,
        requests.Figure("bytes_down", 240.0),
        requests.Figure("pulling_seconds", 0.0),
        requests.Figure("network_seconds", 3.0),
    )
    assert dataclasses.replace(told, figures=()) == requests.Telemetry("c0", "all", 1, ())
    submit = requests.Submit(update.receipt)
    assert client.give(COORDINATOR, Answered(submit, requests.Noted())) == Step()
    assert client.give(COORDINATOR, Answered(submit, requests.Noted())) == Step()


def gone(id: SubmissionId) -> Step:
    """The client no longer has what it is asked for."""
    return Step(effects=[Call(COORDINATOR, requests.Missing("c0", "all", -1, (id,)))])


def test_blocks_that_are_gone_from_its_outbox_are_told() -> None:
    client = Client().joined()
    update = client.trained()
    client.stored(update)
    step = client.order(orders.SendAgain(2, update.receipt.id))
    lost = requests.PutBlock(puts(step)[2][1])
    step = client.give("shard-a", Failed(lost, DamagedStore("update/c0/all/0/2 is gone")))
    assert step.records == [member_records.SubmissionSettled(update.receipt.id, "dropped")]
    assert said(step, requests.Missing) == said(gone(update.receipt.id), requests.Missing)
    assert client.order(orders.SendAgain(2, update.receipt.id)) == gone(update.receipt.id)


def test_what_is_asked_for_before_its_receipt_is_answered_is_submitted_again() -> None:
    """The coordinator reopened the cohort meanwhile, and waits for the receipt."""
    client = Client().joined()
    update = client.trained()
    client.stored(update)
    client.order(orders.SendAgain(2, update.receipt.id))
    submit = requests.Submit(update.receipt)
    assert client.give(COORDINATOR, Answered(submit, requests.Noted())) == Step()
    assert said(client.stored(update)[-1], requests.Submit) == [submit]


@pytest.mark.parametrize("outcome", ["durable", "dropped", "lost"])
def test_what_is_settled_leaves_the_outbox(outcome: str) -> None:
    client = Client().joined()
    update = client.trained()
    id = update.receipt.id
    included = client.order(orders.Settled(1, id, "included", 1, "part of version 1"))
    assert included.records == [member_records.SubmissionSettled(id, "included")]
    assert works(included) == []
    assert client.machine.subscription().unsettled == (id,)
    step = client.order(orders.Settled(1, id, outcome, 1, "why"))
    assert step.records == [member_records.SubmissionSettled(id, outcome)]
    kept = outcome == "dropped"  # another round may ask for it
    assert works(step) == ([] if kept else [Prune(tuple(h.key for h in update.headers))])
    assert says(step) == ([] if outcome == "durable" else [f"c0/all/0 was {outcome}: why"])
    assert client.machine.subscription().unsettled == ()
    assert client.order(orders.Settled(1, id, outcome, 1, "why")) == Step()
    assert client.order(orders.SendAgain(1, id)) == gone(id)
    assert client.stored(update) == [Step()] * 4
    assert client.restarted().machine.subscription().unsettled == ()


@pytest.mark.parametrize("error", [WrongVersion("too late"), Malformed("not its digest")])
def test_what_is_refused_is_dropped_and_the_next_invitation_followed(error: SecurepsError) -> None:
    for make in (lambda u: requests.Submit(u.receipt), lambda u: requests.PutBlock(u.headers[1])):
        client = Client().joined()
        update = client.trained()
        step = client.give(COORDINATOR, Failed(make(update), error))
        assert step.records == [member_records.SubmissionSettled(update.receipt.id, "dropped")]
        assert works(step) == []
        assert client.give(COORDINATOR, Failed(make(update), error)) == Step()
        (task,) = works(client.invite(0))
        assert task == Reseal(update.receipt, update.headers, 1), "a new sequence"


def test_it_does_not_train_twice_for_a_version_whose_fate_is_open() -> None:
    client = Client().joined()
    client.trained()
    assert client.invite(0) == Step()
    again = client.restarted().joined()
    again.publish(0)
    assert again.invite(0) == Step()


def keyed(plan: Plan) -> tuple[Client, Step]:
    """A client whose kit has a holder's cipher key, in a run of this plan."""
    client = Client(plan, kit=MemberSettings("c0", KEYED_ROSTER, SCHEMA))
    return client, client.welcome(roster=KEYED_ROSTER.digest, holders=KEYED_ROSTER.committee)


def test_a_plan_in_the_clear_is_refused_where_the_kit_has_a_key() -> None:
    _, step = keyed(make_plan("plain"))
    (halt,) = halts(step)
    assert halt.error is WrongRun
    assert "sends updates in the clear (plain), but this kit was made for encryption" in halt.reason
    assert step.records == []
    client, step = keyed(make_plan("bfv"))
    assert halts(step) == []
    assert client.machine.pinned.run.roster == KEYED_ROSTER.digest


@pytest.mark.parametrize("version", [-1, 0])
def test_a_sequence_that_a_shard_knows_is_not_tried_again(version: int) -> None:
    """Before it lost its state, the client sent other blocks under it, and no receipt."""
    client = Client().joined()
    if version < 0:
        (offer,) = works(client.invite(-1))
        assert offer == Offer("all", 0)
        update = client.sealed(-1, 0)
        client.contributed(update)
    else:
        update = client.trained()
    known = Conflict("known with other bytes; begin a new sequence")
    step = client.give("shard-a", Failed(requests.PutBlock(update.headers[1]), known))
    assert step.records == [member_records.SubmissionSettled(update.receipt.id, "dropped")]
    if version < 0:
        assert works(step) == [Prune(tuple(h.key for h in update.headers)), Offer("all", 1)]
    else:
        assert works(step) == [Reseal(update.receipt, update.headers, 1)]
    late = Failed(requests.PutBlock(update.headers[2]), known)
    assert client.give("shard-b", late) == Step()
    client.contributed(client.sealed(version, 1))
    assert client.give("shard-b", late) == Step(), "once is enough"


def test_a_client_that_lost_its_state_is_told_what_counts_it() -> None:
    for client, count, told in (
        (Client(private_plan()), 0, []),
        (Client(), 3, []),
        (
            Client(private_plan()),
            3,
            [
                "this client took part in this run before, and its state is gone: what it spent "
                "then is in its ledger (--ledger), which still holds it to the plan's budget"
            ],
        ),
    ):
        next = (GroupVersion("all", count),)
        welcome = requests.Welcome(client.run, make_placement(client.plan), ADDRESSES, next)
        step = client.give(COORDINATOR, Answered(requests.Join("c0", SCHEMA), welcome))
        assert [text for text in says(step) if "public" not in text] == told


def test_heartbeats_do_not_pile_up_while_the_coordinator_is_away() -> None:
    client = Client().joined()
    beat = [Call(COORDINATOR, requests.Heartbeat("c0"))]
    assert client.give("c0", Tick()).effects == beat
    assert client.give("c0", Tick()).effects == []
    answered = Answered(requests.Heartbeat("c0"), requests.Noted())
    assert client.give(COORDINATOR, answered).effects == []
    assert client.give("c0", Tick()).effects == beat
    client.give(COORDINATOR, Failed(requests.Heartbeat("c0"), Refused("no")))
    assert client.give("c0", Tick()).effects == beat


@pytest.mark.parametrize("budget", [None, 8.0])
def test_a_client_is_warned_of_next_to_no_privacy_whenever_it_starts(budget: float | None) -> None:
    """A client with a budget of its own is not warned, because the budget protects it."""
    weak = PRIVACY | {"delta": 1e-3, "noise_multiplier": 0.4, "budget": 1e6}
    kit = MemberSettings("c0", ROSTER, SCHEMA, Terms(budget=budget))
    wanted = ["delta is 0.001, above 1e-05", "noise_multiplier is 0.4, below 0.5"]
    for name, many in ((weak, 2), (PRIVACY, 0)):
        first = Client(private_plan(name), kit=kit)
        for client in (first, Client(first.plan, tuple(first.journal), kit)):
            warnings = [each for each in says(client.welcome()) if each.startswith("WARNING: ")]
            assert len(warnings) == (many if budget is None else 0)
            assert all(part in each for part, each in zip(wanted, warnings, strict=False))
            assert says(client.welcome()) == [], "said twice"


LEDGER_PLAN = make_plan()
RUN = bytes(32)


def sealed(group: str, sequence: int) -> Sealed:
    id = SubmissionId("c0", "all", sequence)
    receipt = make_receipt(LEDGER_PLAN, RUN, id, 3, bytes(32))
    headers = tuple(make_header(LEDGER_PLAN, RUN, id, block) for block in range(2))
    own = SubmissionId("c0", group, sequence)
    return Sealed(dataclasses.replace(receipt, id=own), headers)


def test_a_burnt_update_is_kept_until_a_later_version_of_its_group() -> None:
    """Versions of another group do not count; without its key an update cannot be sealed anew."""
    out, made = Outbox(), sealed("head", 5)
    out.add(made)
    out.keyed.add(made.receipt.id)
    assert out.release(made, 3) == ()
    assert out.release_older("body", 9) == ()
    assert out.release_older("head", 3) == ()
    assert set(out.kept) == {("head", Base(3, 0))}
    assert out.release_older("head", 4) == tuple(header.key for header in made.headers)
    assert (out.kept, out.keyed) == ({}, set())


def test_what_an_update_left_over_stays_while_it_may_be_sealed_anew() -> None:
    """Two cohorts in succession were burnt with the update, and a third has it."""
    out = Outbox(keeping=frozenset({"all"}))
    first, again, last = sealed("all", 5), sealed("all", 6), sealed("all", 7)
    kept = kept_key("all", first.receipt.update)
    for made in (first, again):
        out.add(made)
        out.keyed.add(made.receipt.id)
        out.settle(made.receipt.id, Outcome.DROPPED)
        assert kept not in out.release(made, 3)
        assert kept in out.keys
    out.add(last)
    out.settle(last.receipt.id, Outcome.INCLUDED)
    assert out.carried_update("all") == first.receipt.update
    assert kept not in out.release_older("all", 4)


def test_an_older_update_that_becomes_durable_is_not_carried_once_more() -> None:
    out = Outbox(keeping=frozenset({"all"}))
    first, last = (
        dataclasses.replace(made, receipt=dataclasses.replace(made.receipt, update=name))
        for made, name in ((sealed("all", 5), bytes([1]) * 32), (sealed("all", 6), bytes([2]) * 32))
    )
    for made, outcome in (
        (first, Outcome.INCLUDED),
        (last, Outcome.INCLUDED),
        (first, Outcome.DURABLE),
    ):
        if made.receipt.id not in out.sealed:
            out.add(made)
        out.settle(made.receipt.id, outcome)
    assert out.carried_update("all") == last.receipt.update


def test_what_a_dropped_update_left_over_is_not_carried() -> None:
    """Its remainder is of a training that is in no version."""
    out, made = Outbox(keeping=frozenset({"all"})), sealed("all", 5)
    out.add(made)
    out.settle(made.receipt.id, Outcome.DROPPED)
    assert out.carried_update("all") == b""


def test_sequences_never_go_back() -> None:
    out = Outbox()
    out.add(sealed("all", 5))
    out.begin_at((GroupVersion("all", 3), GroupVersion("head", 2)))
    assert out.next == {"all": 6, "head": 2}
    out.begin_at((GroupVersion("all", 8),))
    out.add(sealed("all", 4))
    assert out.next["all"] == 8


def test_a_compacted_journal_forgets_no_sequence() -> None:
    """Another update would be sealed under a name that was used."""
    client = Client().joined()
    made = client.trained()
    client.order(orders.Settled(1, made.receipt.id, "dropped", 0, "x"))
    fold = client.machine.make_fold()
    again = Member(MemberSettings("c0", ROSTER, SCHEMA))
    again.unfold(Fold(fold.records, json.loads(json.dumps(fold.state))))
    assert again._out.next == client.restarted().machine._out.next == {"all": 1}


def test_one_update_more_than_is_on_record_is_too_many() -> None:
    out = Outbox()
    out.add(sealed("all", 5))
    assert out.why_behind((GroupVersion("all", 6), GroupVersion("head", 0))) == ""
    assert "ends before update 6 of all" in out.why_behind((GroupVersion("all", 7),))
    assert "another process takes part under this name" in out.why_behind((GroupVersion("all", 7),))
    assert "ends before update 0 of head" in out.why_behind((GroupVersion("head", 1),))


@pytest.mark.parametrize(
    ("free", "then"), [(7, 7), (0, 1), (1, 1), (1 << 20, 1 << 20), (1 + (1 << 20), 1)]
)
def test_it_goes_on_in_one_step_after_all_that_a_shard_knows(free: int, then: int) -> None:
    """The client lost its state after many cut-off updates; a shard's word is limited."""
    client = Client().joined()
    update = client.trained()
    known = Conflict("known with other bytes; begin a new sequence", free)
    step = client.give("shard-a", Failed(PutBlock(update.headers[1]), known))
    assert works(step) == [Reseal(update.receipt, update.headers, then)]
    begun = (SequencesBegun((GroupVersion("all", then),)),) if then > 1 else ()
    assert tuple(r for r in step.records if isinstance(r, SequencesBegun)) == begun
    more = Conflict("known with other bytes; begin a new sequence", free + 5)
    client.give("shard-b", Failed(PutBlock(update.headers[2]), more))
    client.contributed(client.sealed(0, then))
    back = client.restarted().joined()
    assert back.machine._out.next["all"] == max(then + 1, free + 5 if free < 1 << 19 else 0)


SSP: dict[str, Any] = {"name": "ssp", "slack": 2, "minimum": 2}
STREAM_PLAN = make_plan("bfv", group=[{"rule": SSP}])


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


def begun(plan: Any = STREAM_PLAN) -> Client:
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
    client = Client(STREAM_PLAN).joined()
    assert leaves(client, client.give(WORKER, Leave("had enough"))) == Halt("had enough")
    client = Client(STREAM_PLAN).joined()
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
    assert client.machine._desk.open == {}
    invite(client, 0, 1)
    assert client.machine._out.again == {}
    assert client.machine._desk.open["all"].step == 1


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
