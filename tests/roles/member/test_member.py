"""A member joins and stays with its run, pulls, and trains once for each version."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import (
    ConfigError,
    InternalError,
    Malformed,
    NotReady,
    TooFew,
    UnknownParty,
    Unreachable,
    WrongRun,
    WrongVersion,
)
from secureps.messages import coordinator_records, member_records, orders, records, requests
from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.messages.orders import Invite, Published
from secureps.messages.requests import Noted, Retire
from secureps.messages.run import COORDINATOR, GroupVersion, Schema, ShardAddress, TensorSpec
from secureps.messages.submission import Base
from secureps.policy.plan import Plan, describe_public_number
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    Failed,
    Halt,
    Locate,
    Say,
    Step,
    Sweep,
    Tick,
    Watch,
    WatchLost,
    Work,
)
from secureps.roles.member.member import LEFT, PAUSED, Departure
from secureps.roles.member.outbox import Readiness, find_readiness
from secureps.roles.member.tasks import Aim, Contribute, Contributed, Offer, block_key
from secureps.roles.member.terms import MemberSettings, Terms
from secureps.roles.pinned_run import Pinned
from tests.kits.evaluations import evaluated_plan
from tests.kits.member_kit import PLAN, TWO, Client, asked, puts, said
from tests.kits.roles_kit import (
    ADDRESSES,
    OTHER_ROSTER,
    ROSTER,
    SCHEMA,
    SHARDS,
    halts,
    make_placement,
    make_plan,
    model_blocks,
    private_plan,
    says,
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
        (0, 2, 0, 2, Readiness.READY),
        (1, 4, 1, 4, Readiness.READY),
        (2, 5, 2, 5, Readiness.READY),
        (0, 2, 1, 4, Readiness.EARLY),
        (0, 1, 0, 2, Readiness.EARLY),
        (0, 3, 0, 2, Readiness.LATE),
        (1, 2, 0, 2, Readiness.PAST),
        (0, 1, 0, 1, Readiness.UNPLANNED),
        (0, 3, 0, 3, Readiness.UNPLANNED),
        (3, 5, 3, 5, Readiness.UNPLANNED),  # three evaluations were made already
        (0, 4, Base(0, 1), 4, Readiness.READY),  # that of version 2 was lost
        (0, 4, 0, 4, Readiness.UNPLANNED),  # under the base of version 2
        (1, 4, Base(1, 1), 4, Readiness.UNPLANNED),
    ],
)
def test_how_a_client_stands_to_an_invitation(
    own: int, model: int, base: int | Base, evaluates: int, expected: Readiness
) -> None:
    plan = evaluated_plan()
    assert [each for each in range(7) if each in plan.schedule] == [2, 4, 5]
    published = {
        EVALUATION: Published(1, EVALUATION, own, ()),
        "all": Published(1, "all", model, ()),
    }
    at = base if isinstance(base, Base) else Base(base, 0)
    invite = Invite(1, EVALUATION, 1, at.version, 10.0, evaluates, at.step)
    assert find_readiness(plan, published, invite) is expected


def test_without_an_invitation_it_is_early() -> None:
    published = {EVALUATION: Published(1, EVALUATION, 0, ())}
    assert find_readiness(evaluated_plan(), published, None) is Readiness.EARLY
    invite = Invite(1, EVALUATION, 1, 0, 10.0, 2)
    assert find_readiness(evaluated_plan(), {}, invite) is Readiness.EARLY


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
