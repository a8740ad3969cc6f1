"""Privacy: a run ends in order before a step that would exceed the budget."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import UnknownParty
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.requests import Retire
from secureps.messages.submission import SubmissionId
from secureps.policy.plan import Plan
from secureps.policy.spending import epsilon_after, make_fact, total_epsilon
from secureps.privacy.ledger import Ledger
from secureps.roles.coordinator import termination
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.status import status
from secureps.roles.coordinator.transaction import Transaction
from secureps.run.simulate.simulation import Simulation
from tests.kits.evaluations import evaluated_plan, examined, metrics_of
from tests.kits.federations import small_plan
from tests.kits.privacy_kit import facts_of
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    MANY,
    PRIVACY,
    SCHEMA,
    SPARE,
    STEPS,
    World,
    make_charter,
    make_plan,
    orders_of,
    state_of,
    take,
    two_groups,
)
from tests.kits.shoppers import ENDS, SYNC, shopping, sparse_plan
from tests.kits.stream_parties import StreamWorld, stream_plan

RULE = {"quorum": 2, "minimum": 2, "start": 2, "most": 4, "deadline": 10.0, "extensions": 1}


def budgeted(plan: Plan, versions: int, groups: tuple[str, ...] = ("all",)) -> Plan:
    """The same with a budget for slightly more than so many versions."""
    layout = plan.layout(SCHEMA)
    facts = [
        make_fact(plan, "c0", group, layout.group(group).size, version)
        for group in groups
        for version in range(versions)
    ]
    assert plan.section.privacy is not None
    budget = 1.0001 * total_epsilon(plan, [each for each in facts if each is not None])
    privacy = plan.section.privacy.model_copy(update={"budget": budget})
    return Plan(plan.section.model_copy(update={"privacy": privacy}))


def private(rule: dict[str, int | float] | None = None, **changes: Any) -> Plan:
    return make_plan(
        "bfv", rule, privacy=PRIVACY, training={"local_steps": STEPS}, versions=5, **changes
    )


def ended(plan: Plan, clients: tuple[str, ...] = CLIENTS) -> World:
    world = World(plan, clients)
    world.start()
    world.pump()
    return world


def test_what_a_client_may_spend_is_worked_out_once_for_what_it_has_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while no client trains, when every event asks whether one ever will."""
    counted: Counter[str] = Counter()

    def counting(plan: Plan, ledger: Ledger, party: str, ahead: Any) -> float:
        counted[party] += 1
        return epsilon_after(plan, ledger, party, ahead)

    monkeypatch.setattr(termination, "epsilon_after", counting)
    rule = {"name": "buffered", "buffer": 3, "minimum": 3, "max_staleness": 4}
    plan = stream_plan(rule, privacy=PRIVACY, training={"local_steps": STEPS})
    world = StreamWorld(plan)
    world.found()
    here, gone = MANY[:2], MANY[2:5]
    for name in here:
        world.train(name)
        world.deliver(world.due[-1])
    for name in gone:
        world.crash(name)
    world.wait(world.plan.section.lease + 1.0)
    assert world.live == set(here)
    assert world.group().members.training.keys() == set(gone)
    first = counted.copy()
    assert set(MANY) == first.keys()
    for _ in range(5):
        for name in here:
            world.give(name, requests.Heartbeat(name))
        world.give("c0", requests.AskStatus())
    assert counted == first
    world.join(MANY[5])
    world.train(MANY[5])
    while world.due:
        world.deliver(world.due[0])
    assert world.group().version == 1
    assert all(counted[name] > first[name] for name in here)


def test_a_run_ends_before_the_step_that_would_exceed_the_budget() -> None:
    world = ended(budgeted(private(checkpoint_every=4), 3))
    assert world.group().version == 3
    assert world.federation.finished.startswith(
        "the privacy budget is spent: after version 3, another would bring 3 clients above epsilon "
    )
    assert world.plan.section.privacy is not None
    budget = world.plan.section.privacy.budget
    for client in CLIENTS:
        facts = facts_of(world.federation.ledger, client)
        assert len(facts) == 3
        assert total_epsilon(world.plan, facts) <= budget
        one_more = make_fact(world.plan, client, "all", 60, 3)
        assert one_more is not None
        assert total_epsilon(world.plan, (*facts, one_more)) > budget
    invited = [o.version for to, o in world.told if to == "c0" and isinstance(o, orders.Invite)]
    assert max(invited) == 2
    last = world.federation.checkpoints[-1]
    assert last.complete
    assert last.version_of("all") == 3  # the fourth would have been its turn
    finish = orders.Finish(1, world.federation.finished)
    assert {to for to, o in world.told if o == finish} >= set(CLIENTS)


def test_a_budget_that_lasts_changes_nothing() -> None:
    plain, lasting = ended(private()), ended(budgeted(private(), 5))
    assert lasting.federation.finished == "all 5 versions are made"
    assert state_of(lasting.federation).ledger == state_of(plain.federation).ledger


@pytest.mark.parametrize(
    ("out", "failure", "text"),
    [
        ((), "", "the privacy budget is spent: after version 2, another would bring 3 clients"),
        (("c1",), "TooFew", "too few clients are left for version 3 of all: its budget is"),
    ],
)
def test_a_spent_budget_is_foreseen_and_a_client_that_sits_out_is_not(
    out: tuple[str, ...], failure: str, text: str
) -> None:
    federation = CoordinatorState({"all": GroupState("all", version=2, phase=Phase.WAITING)})
    everybody = frozenset(CLIENTS)
    settings = make_charter(private())
    tx = Transaction(0.0, settings, federation, everybody, (), everybody, frozenset())
    termination.end_for_few(tx, federation.groups["all"], frozenset(out), everybody - {*out})
    assert federation.ending.startswith(text)
    assert federation.failure == failure


def test_a_budget_that_even_the_first_version_exceeds_ends_the_run_at_version_0() -> None:
    section = private().section
    assert section.privacy is not None
    poor = section.privacy.model_copy(update={"budget": 1e-6})
    world = ended(Plan(section.model_copy(update={"privacy": poor})))
    assert world.group().version == 0
    assert "would bring 4 clients" in world.federation.finished
    assert not world.federation.ledger.facts


def test_those_who_have_spent_theirs_are_left_out_while_others_suffice() -> None:
    world = ended(budgeted(private(RULE), 1), ("c0", "c1"))
    assert world.group().version == 1
    assert not world.federation.finished
    assert world.group().reason == "their budget is spent: c0, c1; no member is live"
    world.enter("c2")
    assert world.group().reason == (
        "their budget is spent: c0, c1; waits for members: 1 of 2 are live"
    )
    step = world.enter(SPARE)
    invited = [to for to, o in world.told if isinstance(o, orders.Invite) and o.version == 1]
    assert set(invited) == {"c2", SPARE}
    assert orders_of(step, "c0") == []
    world.pump()
    assert world.group().version == 2
    assert "would bring 4 clients above epsilon" in world.federation.finished
    assert world.federation.finished.endswith("(one record added or removed)")


def test_a_round_does_not_wait_for_who_has_retired() -> None:
    world = World(make_plan("bfv", RULE, versions=2))
    world.found()
    for client in ("c0", "c1"):
        world.give(*take(world, client))
    step = world.give("c2", requests.Retire("c2"))
    assert Retire("c2") in step.records
    assert world.group().phase is Phase.HOLDING
    world.due = [due for due in world.due if due.to != "c2"]
    world.pump()
    assert world.federation.finished == "all 2 versions are made"
    assert {m.name: m.state for m in world.status().members}["c2"] == "stopped"


def test_a_round_does_not_wait_for_what_a_shard_lost_of_who_has_retired() -> None:
    world = World(make_plan("bfv", RULE, versions=1))
    world.found()
    for client in CLIENTS:
        world.give(*take(world, client))
    lost = SubmissionId("c2", "all", 1)
    assert lost in world.group().summed
    world.give("c2", requests.Retire("c2"))
    world.give("shard-a", requests.Missing("shard-a", "all", 0, (lost,)))
    assert world.group().absences == {"c2": "takes part no more"}
    world.due = [due for due in world.due if due.to != "c2"]
    world.pump()
    assert world.federation.finished == "1 version is made"


@pytest.mark.parametrize(
    "plan", [make_plan("bfv", versions=3), private()], ids=["in the clear", "private"]
)
def test_too_few_who_could_still_come_end_the_run(plan: Plan) -> None:
    """The text does not say that a budget is spent, as clients need not say why they left."""
    world = World(plan)  # a round waits for 3 of the 4 on the roster
    world.found()
    world.give("c2", requests.Retire("c2"))
    world.due = [due for due in world.due if due.to != "c2"]
    world.until(1)
    assert world.group().reason == "take part no more: c2; waits for members: 2 of 3 are live"
    world.give("c1", requests.Retire("c1"))
    world.pump()
    assert world.federation.finished == (
        "too few clients are left for version 2 of all: "
        "takes part no more: no reason given (c1, c2)"
    )
    assert world.federation.failure == "TooFew"
    finish = orders.Finish(1, world.federation.finished, "TooFew")
    assert HOLDER in {to for to, order in world.told if order == finish}
    assert world.federation.checkpoints[-1].version_of("all") == 1


def test_who_joins_again_is_back() -> None:
    world = World(make_plan("bfv", versions=3))
    world.found()
    world.give("c2", requests.Retire("c2"))
    world.give("c2", requests.Retire("c2"))
    assert world.federation.retired == {"c2"}
    again = World(world.plan, journal=tuple(world.journal))
    assert again.federation.retired == {"c2"}
    world.enter("c2")
    assert world.federation.retired == set()
    with pytest.raises(UnknownParty, match="c1 speaks as c2"):
        world.give("c1", requests.Retire("c2"))
    with pytest.raises(UnknownParty, match="has not joined"):
        world.give(SPARE, requests.Retire(SPARE))


def test_a_run_that_failed_without_those_who_left_waits_for_them_when_it_is_started_again() -> None:
    world = World(make_plan("bfv"))
    world.found()
    for client in ("c1", "c2"):
        world.give(client, requests.Retire(client))
    world.due = [due for due in world.due if due.to not in CLIENTS]
    world.pump()
    assert world.federation.finished.startswith("too few clients are left for version 1")
    assert world.federation.failure == "TooFew"
    again = World(world.plan, journal=tuple(world.journal))
    assert again.federation.ending == "", "nobody can have joined again yet"
    again.start()
    again.pump()
    assert again.federation.finished == "all 2 versions are made"


def test_groups_end_together_and_an_open_round_comes_to_its_end() -> None:
    rule = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0, "extensions": 1}
    world = ended(budgeted(private(group=two_groups(rule)), 2, ("b", "w")))
    assert [g.version for g in world.federation.groups.values()] == [2, 2]
    assert "the privacy budget is spent" in world.federation.finished
    last = world.federation.checkpoints[-1]
    assert [last.version_of(name) for name in ("b", "w")] == [2, 2]
    endings = [r for r in world.records() if isinstance(r, coordinator_records.Ending)]
    assert len(endings) == 1


@pytest.mark.slow
def test_an_evaluation_under_way_is_paid_for_before_the_next_version(tmp_path: Path) -> None:
    whole = {"unit": "client", "placement": "local", "noise_multiplier": 1.0, "delta": 1e-5}
    group = small_plan().section.group[0].model_dump() | {"weighting": "uniform", "range": None}

    def played(budget: float) -> Simulation:
        privacy = whole | {"budget": budget}
        plan = evaluated_plan("plain", 2, versions=4, group=[group], privacy=privacy)
        run = examined(plan, tmp_path / f"{budget}")
        run.run()
        return run

    straight = played(1e6)
    facts = facts_of(straight.coordinator.federation.ledger, "client-00")
    for count in range(2, len(facts)):
        run = played(1.0001 * total_epsilon(straight.coordinator.plan, facts[:count]))
        federation, made = run.coordinator.federation, run.versions()["all"]
        assert federation.finished.startswith("the privacy budget is spent: ")
        assert run.loop.now() < 5.0, "a round waited for clients that had stopped"
        assert sorted(metrics_of(run)) == [v for v in range(1, made + 1) if v % 2 == 0]
        assert federation.trail.skipped == {}


def test_who_is_silent_does_not_hold_up_those_who_can_send_nothing_more() -> None:
    """Their updates are summed after a deadline's time from their arrival."""
    rule = {"name": "ssp", "slack": 1, "minimum": 3, "deadline": 50.0}
    plan = stream_plan(rule, privacy=PRIVACY, training={"local_steps": STEPS})
    world = StreamWorld(budgeted(plan, 1))
    world.found()
    world.wait(20.0)
    for client in ("c1", "c2", "c3", "c4"):
        world.train(client)
    while world.due:
        world.deliver(world.due[0])
    group = world.group()
    assert group.members.spent == {"c1", "c2", "c3", "c4"}
    assert group.reason == "4 members have sent; cohort 1 waits for c0, 1 clock behind, 50 s left"
    world.wait(49.0)
    assert world.due == []
    world.wait(1.0)
    assert group.members.passed == {"c0"}
    while world.due:
        world.deliver(world.due[0])
    assert [{m.id.client for m in cohort.members} for cohort in world.made] == [group.members.spent]


def test_a_group_that_has_made_its_last_version_is_done_while_others_go_on(tmp_path: Path) -> None:
    play, _ = shopping(sparse_plan("plain", SYNC | {"quorum": 3}), tmp_path)

    def steps() -> dict[str, str]:
        tx = play.coordinator._tx(play.loop.now())
        return {group.name: group.step for group in status(tx, ()).groups}

    play.run(lambda: play.versions()["tower"] == ENDS["tower"])
    assert steps()["tower"] == "done"
    assert "done" not in {steps()[f"table.{k}"] for k in range(4)}
    play.run(lambda: all(play.versions()[name] == ENDS[name] for name in ENDS))
    assert not play.coordinator.federation.finished, "the last checkpoint is to be written"
    assert set(steps().values()) == {"done"}, "also of a row-block that too few touch"
