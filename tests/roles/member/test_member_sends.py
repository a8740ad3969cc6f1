"""What a member keeps and sends: the outbox's bytes, within its own budget and its kit's limits."""

import dataclasses
import json
import re

import pytest

from secureps.errors import (
    Conflict,
    DamagedStore,
    Malformed,
    Refused,
    SecurepsError,
    WrongRun,
    WrongVersion,
)
from secureps.messages import member_records, orders, requests
from secureps.messages.member_records import Sealed, SequencesBegun
from secureps.messages.requests import PutBlock
from secureps.messages.run import COORDINATOR, GroupVersion
from secureps.messages.submission import Base, Outcome, SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    Done,
    Failed,
    Fold,
    Prune,
    Step,
    Sweep,
    Tick,
    Work,
)
from secureps.roles.member.member import Member
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.tasks import Aim, Contributed, Offer, Reseal, SealOn, kept_key
from secureps.roles.member.terms import MemberSettings, Terms
from tests.kits.member_kit import Client, puts, said
from tests.kits.roles_kit import (
    ADDRESSES,
    KEYED_ROSTER,
    PRIVACY,
    ROSTER,
    SCHEMA,
    SHARDS,
    configure,
    halts,
    make_header,
    make_placement,
    make_plan,
    make_receipt,
    private_plan,
    says,
    works,
)


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


def sealing(sequence: int = 0) -> tuple[Client, Sealed, list[Step]]:
    """A client that has sealed two blocks of four, with the effects of each."""
    client = Client().joined()
    client.machine._out.goes_well.add("all")
    client.ready(0)
    update = client.sealed(0, sequence)
    return client, update, [client.give(WORKER, Done(SealOn(), h)) for h in update.headers[:2]]


def test_a_block_leaves_when_it_is_sealed_and_the_receipt_after_all() -> None:
    client, update, steps = sealing()
    begun = member_records.SequencesBegun((GroupVersion("all", 1),))
    assert [step.records for step in steps] == [[begun], []], "durable before anything leaves"
    for step, header in zip(steps, update.headers[:2], strict=True):
        assert [h for _, h in puts(step)] == [header]
        assert works(step) == [SealOn()]
    early = requests.PutBlock(update.headers[0]), requests.Stored(update.headers[0].digest)
    assert client.give("shard-a", Answered(*early)) == Step()
    assert client.machine.subscription().unsettled == (), "it is no submission yet"
    client.now = 5.0
    step = client.contributed(update)
    assert [h.block for _, h in puts(step)] == [2, 3]
    client.now = 7.0
    steps = client.stored(update)
    assert [said(step, requests.Submit) for step in steps][3] == [requests.Submit(update.receipt)]
    assert not any(said(step, requests.Submit) for step in steps[:3])
    (told,) = said(steps[-1], requests.Telemetry)
    assert told.figures == (requests.Figure("network_seconds", 2.0),), "beside nothing else"
    again = client.order(orders.SendAgain(2, update.receipt.id))
    assert [h for _, h in puts(again)] == list(update.headers)


def test_a_sequence_of_which_a_block_left_is_used_up() -> None:
    """The key went with the process: a block that is sealed now is another ciphertext."""
    client, _, _ = sealing()
    back = client.restarted().joined()
    assert back.machine.resume(0.0).effects[0] == Work(Sweep(frozenset()))
    (task,) = works(back.ready(0))
    assert task.aims == (Aim("all", 0, 1),)


@pytest.mark.parametrize("error", [Conflict("known with other bytes"), Refused("left out")])
def test_what_is_refused_before_all_is_sealed_is_dropped_when_it_is(error: SecurepsError) -> None:
    client, update, _ = sealing()
    for header in update.headers[:2]:
        assert client.give("shard-a", Failed(requests.PutBlock(header), error)) == Step()
    step = client.give(WORKER, Done(SealOn(), update.headers[2]))
    assert puts(step) == []
    step = client.contributed(update)
    sealed = member_records.Sealed(update.receipt, update.headers)
    dropped = member_records.SubmissionSettled(update.receipt.id, "dropped")
    assert (step.records, puts(step)) == ([sealed, dropped], [])
    known = isinstance(error, Conflict)
    assert works(step) == ([Reseal(update.receipt, update.headers, 1)] if known else [])


def test_what_the_disk_cut_off_is_sealed_anew_as_the_next() -> None:
    client, update, _ = sealing()
    step = client.give(WORKER, Contributed((), (), again=(Aim("all", 0, 0),)))
    (again,) = works(step)  # whoever sealed it has deleted what there was of it
    assert again.aims == (Aim("all", 0, 1),)
    gone = Failed(requests.PutBlock(update.headers[0]), DamagedStore("it is gone"))
    assert client.give("shard-a", gone) == Step()
    assert [h.sequence for _, h in puts(client.contributed(client.sealed(0, 1)))] == [1] * 4


def test_blocks_that_left_go_to_the_next_shard_where_theirs_left() -> None:
    client, update, _ = sealing()
    placement = make_placement(client.plan)
    other = tuple(reversed(SHARDS)) * 2
    moved = dataclasses.replace(
        placement, epoch=2, groups=(dataclasses.replace(placement.groups[0], owners=other),)
    )
    step = client.order(dataclasses.replace(configure(client.plan), placement=moved))
    assert puts(step) == [(other[h.block], h) for h in update.headers[:2]]


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


PLAN = make_plan()
RUN = bytes(32)


def sealed(group: str, sequence: int) -> Sealed:
    id = SubmissionId("c0", "all", sequence)
    receipt = make_receipt(PLAN, RUN, id, 3, bytes(32))
    headers = tuple(make_header(PLAN, RUN, id, block) for block in range(2))
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
