"""When scaling decides, when a version is evaluated, and how long clients are waited for."""

import math
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import Malformed
from secureps.messages.evaluation import EVALUATION, EvaluationSkipped, Metric, VersionEvaluated
from secureps.messages.requests import Figure, Missing, Telemetry
from secureps.messages.run import GroupVersion
from secureps.messages.scaling import BlockAssigned
from secureps.policy.memory import why_little_memory
from secureps.policy.plan import Plan
from secureps.policy.spending import plan_epsilon
from secureps.roles.coordinator import resharding, scaling, status, trailing
from secureps.roles.coordinator.group import CheckpointState, GroupState, Phase
from secureps.roles.coordinator.scaling import Load
from secureps.roles.coordinator.scaling import _why_too_little as too_little
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.status import Window
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.shard import memory_report
from tests.federation.test_acts import VERSIONS, Loaded
from tests.kits.evaluations import evaluated_plan
from tests.kits.federations import small_plan
from tests.kits.loads import decided
from tests.kits.roles_kit import (
    World,
    collecting,
    holding,
    make_charter,
    make_plan,
    preparing,
    private_plan,
    refused,
    take,
)


@pytest.mark.parametrize("versions", [scaling.LEAST_VERSIONS - 1, scaling.LEAST_VERSIONS])
@pytest.mark.parametrize("moves", [False, True])
def test_after_some_versions_row_blocks_move_or_the_policy_decides(
    versions: int, moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    block = next(b for b, at in enumerate(desk.held["all"]) if at == ("shard-1",))
    found = (BlockAssigned("all", block, "shard-1", "shard-0"),), "uneven"
    monkeypatch.setattr(scaling, "balance", lambda *_: found if moves else None)
    load, tx = desk.at.play.coordinator._load, desk.tx
    load.begin(tx.now - 3.0)
    load.versions = versions
    scaling.advance(tx, load)
    known = versions == scaling.LEAST_VERSIONS
    moved = [bool(record.blocks) for _, record in tx.federation.scaled.decided]
    assert moved == ([moves] if known else [])
    assert (load.versions == 0) is known, "measured anew after a decision"


def test_what_a_decision_does_is_told_in_a_few_words() -> None:
    moved = [BlockAssigned("all", block, "shard-0", "shard-1") for block in range(2)]
    assert status.describe_decision(decided(blocks=tuple(moved[:1]))) == "balance 1 block"
    assert status.describe_decision(decided(blocks=tuple(moved))) == "balance 2 blocks"
    assert (
        status.describe_decision(decided(what="add-shard", shard="shard-2")) == "add-shard shard-2"
    )
    assert status.describe_decision(decided()) == "as planned"


def scaled_plan() -> Plan:
    rule = {"quorum": 4, "minimum": 3}
    group = {"clip": 3.0, "range": 1.0, "most_examples": 32, "rule": rule}
    section = {"policy": "rule", "every": 3.0, "most_shards": 2}
    return small_plan("plain", versions=VERSIONS, scaling=section, group=[group])


class Desk:
    """Two shards, each with half of a group."""

    def __init__(self, folder: Path) -> None:
        self.at = Loaded(scaled_plan(), folder, bandwidth=1e9)
        self.at.play.run(lambda: self.at.play.versions()["all"] >= 1)
        self.tx = self.at.play.coordinator._tx(self.at.play.loop.now())
        self.groups = self.tx.layout.all_groups
        assert self.tx.federation.pinned is not None
        self.held = self.tx.federation.pinned.placement.held

    def least(self, held: Any, shard: str) -> int:
        """The fewest bytes with which a shard works."""
        own = {name: [b for b, at in enumerate(bs) if shard in at] for name, bs in held.items()}

        def works(memory: int) -> bool:
            return not why_little_memory(self.tx.plan, self.groups, own, memory, 1)

        return bisect_left(range(1 << 20), True, key=works)


def test_what_a_shard_says_of_its_memory_is_known() -> None:
    load = Load()
    load.take(Telemetry("shard-0", "all", 1, (Figure(memory_report.MEMORY, 5.0),)), ("shard-0",))
    load.take(Telemetry("client-00", "all", 1, (Figure(memory_report.MEMORY, 5.0),)), ("shard-0",))
    load.begin(3.0)
    assert load.memory == {"shard-0": 5.0}


def test_a_drain_is_not_decided_on_where_the_others_have_too_little(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    alone = resharding.spread_blocks(desk.tx, ["shard-0"])
    least = desk.least(alone, "shard-0")
    assert too_little(desk.tx, {}, alone) == ""
    assert too_little(desk.tx, {"shard-0": least}, alone) == ""
    text = too_little(desk.tx, {"shard-0": least - 1, "shard-1": 0}, alone)
    assert text.startswith("shard-0: memory, ")
    desk.at.play.coordinator._load.memory = {"shard-0": float(least - 1)}
    desk.at.end()
    assert desk.at.shards == ("shard-0", "shard-1")
    assert any("; and yet: shard-0: memory, " in each.reason for each in desk.at.decided)


def test_blocks_do_not_move_to_a_shard_that_has_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    block = next(b for b, at in enumerate(desk.held["all"]) if at == ("shard-1",))
    moves = (BlockAssigned("all", block, "shard-1", "shard-0"),)
    made = moves, "uneven"
    monkeypatch.setattr(scaling, "balance", lambda *_: made)
    load = desk.at.play.coordinator._load
    seen = load.observe(desk.tx, ())
    action = scaling._balance(desk.tx, load, seen)
    assert action is not None
    assert action.blocks == moves
    load.memory = {"shard-0": float(desk.least(desk.held, "shard-0") - 1)}
    assert scaling._balance(desk.tx, load, seen) is None


BEST = {"best": {"metric": "accuracy", "goal": "max"}}
EVALUATOR = "client-05"


def at(
    version: int, subject: int = 0, phase: Phase = Phase.WAITING, best: bool = False
) -> Transaction:
    """A run whose model is at a version, and whose trailing group is in this phase."""
    groups = {
        "all": GroupState("all", version=version, phase=Phase.WAITING),
        EVALUATION: GroupState(EVALUATION, version=0, phase=phase, trails=True),
    }
    federation, everybody = CoordinatorState(groups), frozenset(f"client-0{n}" for n in range(6))
    federation.trail.subject = subject
    plan = evaluated_plan(evaluation=BEST if best else {})
    settings = make_charter(plan)
    return Transaction(0.0, settings, federation, everybody, (), everybody, frozenset())


def test_the_versions_of_the_plan_are_due_once_each() -> None:
    assert [at(version).evaluation_due() for version in range(6)] == [0, 0, 2, 0, 4, 5]
    done, never = at(4), at(4)
    done.federation.trail.results[4] = VersionEvaluated(4, ())
    never.federation.trail.skipped[4] = "nobody came"
    assert done.evaluation_due() == never.evaluation_due() == 0


def test_training_goes_on_beside_an_evaluation_that_has_begun() -> None:
    """No client trains from the version before its evaluation begins."""
    begun = at(4, subject=4, phase=Phase.COLLECTING)
    assert begun.evaluation_due() == 0
    assert trailing.hold_back(begun) is None
    older = at(4, subject=2, phase=Phase.COLLECTING)
    assert older.evaluation_due() == 4
    held = trailing.hold_back(older)
    assert held is not None
    assert held.reason == "waits for the evaluation of version 2"


@pytest.mark.parametrize(
    ("gone", "says"),
    [("", ""), ("retired", "takes part no more"), ("isolated", "takes part no more")],
)
def test_a_designated_evaluator_that_has_left_is_not_waited_for(gone: str, says: str) -> None:
    tx = at(4)
    del tx.federation.groups[EVALUATION]
    tx.settings = make_charter(evaluated_plan(evaluation={"evaluator": EVALUATOR}))
    if gone == "retired":
        tx.federation.retired.add(EVALUATOR)
    elif gone:
        tx.federation.isolated[EVALUATOR] = "its operator's word"
    held = trailing.hold_back(tx)
    assert (held is None) == bool(gone)
    reasons = [each.reason for each in tx.step.records if isinstance(each, EvaluationSkipped)]
    assert reasons == ([f"{EVALUATOR} {says}"] if gone else [])


@pytest.mark.parametrize(
    ("version", "rounds", "skipped"), [(4, 1, True), (5, 1, False), (5, 2, True)]
)
def test_one_that_came_to_nothing_is_skipped_and_the_last_is_tried_once_more(
    version: int, rounds: int, skipped: bool
) -> None:
    tx = at(version, subject=version)
    tx.federation.trail.rounds = rounds
    trailing.skip_lost(tx, tx.federation.groups[EVALUATION])
    records = [record for record in tx.step.records if isinstance(record, EvaluationSkipped)]
    assert [record.version for record in records] == [version] * skipped


def test_where_the_best_is_kept_an_evaluated_version_is_first_in_a_checkpoint() -> None:
    tx = at(4, best=True)
    tx.federation.trail.results[4] = VersionEvaluated(4, (Metric("accuracy", 0.5),))
    for before in ((), (2,), (2, 3)):
        made = [CheckpointState(n, (GroupVersion("all", v),)) for n, v in enumerate(before)]
        tx.federation.checkpoints = made
        assert trailing.unkept_version(tx) == 4
        held = trailing.hold_back(tx)
        assert held is not None
        assert "first comes into a checkpoint" in held.reason
    tx.federation.checkpoints.append(CheckpointState(3, (GroupVersion("all", 4),)))
    assert trailing.unkept_version(tx) == 0
    assert trailing.hold_back(tx) is None
    assert trailing.best_version(tx) == 4
    assert trailing.unkept_version(at(4)) == 0, "the plan does not say what is best"


def waits(world: World, version: int = 1) -> list[tuple[str, float, float]]:
    """(client, seconds, whether it arrived), in the order of the reports."""
    found = []
    for report in world.coordinator.telemetry:
        if report.version == version and report.party != "coordinator":
            figures = {figure.name: figure.value for figure in report.figures}
            if "arrived" in figures:
                found.append((report.party, figures["waited_seconds"], figures["arrived"]))
    return found


def test_every_update_was_waited_for_since_its_round_opened() -> None:
    world = collecting()
    opened = world.now
    assert waits(world, 0) == [], "nobody waits for a founding model"
    for client, seconds in (("c2", 1.5), ("c0", 2.0), ("c1", 7.25)):
        world.now = opened + seconds
        world.give(*take(world, client))
    assert waits(world) == [("c2", 1.5, 1.0), ("c0", 2.0, 1.0), ("c1", 7.25, 1.0)]
    sizes = [
        report for report in world.coordinator.telemetry if report.figures[0].name == "bytes_up"
    ]
    assert [report.party for report in sizes] == ["c2", "c0", "c1"]
    assert {report.figures[0].value for report in sizes} == {float(world.receipt("c0", 1, 0).size)}
    world.pump()
    assert {client for client, _, _ in waits(world, 2)} == {"c0", "c1", "c2"}


def test_a_version_is_published_when_its_last_shard_is_prepared() -> None:
    world = preparing()
    world.now += 2.5
    world.give(*take(world, "shard-a"))
    world.now += 1.0
    before = len(world.coordinator.telemetry)
    world.give(*take(world, "shard-b"))
    (report,) = world.coordinator.telemetry[before:]
    assert report == Telemetry("coordinator", "all", 1, (Figure("published_seconds", world.now),))


def test_whoever_has_not_come_when_the_cohort_closes_was_waited_for_in_vain() -> None:
    world = collecting(rule={"quorum": 2})
    opened = world.now
    world.now = opened + 1.0
    world.give(*take(world, "c0"))
    world.give(*take(world, "c1"))
    world.at(opened + 10.0)
    assert world.group().phase is Phase.HOLDING
    assert waits(world) == [("c0", 1.0, 1.0), ("c1", 1.0, 1.0), ("c2", 10.0, 0.0)]


def test_blocks_that_are_sent_again_are_waited_for_until_they_are_there() -> None:
    world = holding()
    id = next(id for id in world.group().receipts if id.client == "c1")
    world.now += 4.0
    world.give("shard-a", Missing("shard-a", "all", 0, (id,)))
    world.now += 2.0
    world.give(*next((d.sender, d.reply) for d in world.due if d.to == "c1"))
    assert waits(world)[-1] == ("c1", 6.0, 1.0)


def test_a_round_that_was_given_up_when_an_update_came_is_not_measured() -> None:
    world = collecting(rule={"extensions": 0})
    world.now += 10.0
    world.give(*take(world, "c0"))
    assert "given up: 1 of 3 have arrived" in world.group().reason
    assert waits(world) == []


def test_the_opening_of_a_round_survives_a_restart_and_the_reports_do_not() -> None:
    world = collecting()
    world.give(*take(world, "c0"))
    again = World(make_plan("bfv"), journal=tuple(world.journal))
    assert again.coordinator.telemetry == ()
    again.now = 5.0
    again.start()
    again.now = 6.0
    again.give(*take(again, "c1"))
    assert waits(again) == [("c1", 6.0, 1.0)]


def test_the_window_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    window, groups = Window(), {"all": GroupState("all", version=status.KEPT)}
    for version in range(-1, status.KEPT + 4):  # the first and the last are not made yet
        window.take(Telemetry("c0", "all", version, (Figure("bytes_down", 1.0),)), groups)
    assert len(window.newest) == status.KEPT
    assert [window.newest[0].version, window.newest[-1].version] == [3, status.KEPT + 2]


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ((Figure("bytes_down", math.inf),), "seconds and bytes: from 0 to 1e"),
        # two of them would sum to infinity
        ((Figure("bytes_down", 1e308),), "seconds and bytes: from 0 to 1e"),
        ((Figure("training_seconds", -0.5),), "seconds and bytes: from 0 to 1e"),
        (tuple(Figure(f"f{i}", 0.0) for i in range(17)), "at most 16 figures"),
        ((Figure("f" * 65, 0.0),), "names of 64 letters"),
        ((Figure("waited_seconds", 0.0),), "is the coordinator's figure, not"),
        ((Figure("bytes_up", 0.0),), "is the coordinator's figure, not"),
        ((Figure("bytes_up", 1.0), Figure("arrived", 1.0)), "is the coordinator's figure, not"),
    ],
)
def test_reports_that_are_not_taken(figures: tuple[Figure, ...], reason: str) -> None:
    world = collecting()
    before = world.coordinator.telemetry
    refused(world, "c0", Telemetry("c0", "all", 1, figures), Malformed, reason)
    refused(world, "c0", Telemetry("c0", "body", 1, ()), Malformed, "no group is called 'body'")
    assert world.coordinator.telemetry == before


def test_a_versions_epsilon_is_of_what_was_charged_until_it_was_there() -> None:
    plan = private_plan(versions=3)
    world = World(plan)
    world.start()
    world.pump()
    spent = {
        (report.version, figure.name): figure.value
        for report in world.coordinator.telemetry
        for figure in report.figures
        if report.party == "coordinator"
    }
    expected = [
        plan_epsilon(plan, {"all": 1}, versions) if versions else 0.0 for versions in range(4)
    ]
    assert [spent[version, "epsilon"] for version in range(4)] == expected
