"""By how many examples clients count: what they tell, which bound is agreed on, who is capped."""

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import Malformed, PlanRefused, Refused
from secureps.messages import member_records, orders, requests
from secureps.messages.evaluation import EVALUATION
from secureps.messages.submission import SubmissionId
from secureps.policy.counting import MOST_EXAMPLES, bits_left, remarks, shares_of, told
from secureps.policy.plan import Plan
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator import example_bounds
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Halt
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from tests.kits.federations import Tensors, Walker, finished, killed_at, same
from tests.kits.member_kit import Client
from tests.kits.roles_kit import PRIVACY, SCHEMA, World, make_receipt

COUNTS = (5, 300, 7, 64, 65, 9)


class Counted(Walker):
    """One that can tell how many examples it has."""

    def __init__(self, number: int, examples: int) -> None:
        super().__init__(number)
        self.count = examples

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        made = super().fit(parameters, config)
        return FitResult(made.parameters, self.count, made.metrics, made.steps)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(1.0, self.count, {})


class Telling(Counted):
    def examples(self) -> int:
        return self.count


def plan(**changes: Any) -> Plan:
    body: dict[str, Any] = {
        "name": "counted",
        "versions": 2,
        "block_size": 64,
        "local": ["*.count"],
        "cipher": {"name": "plain", "capacity": 8},
        "group": [{"clip": 3.0, "range": 1.0, "rule": {"quorum": 6, "deadline": 10.0}}],
    }
    return Plan(parse(PlanSection, body | changes, "test"))


def simulation(
    folder: Path, made: Plan | None = None, kind: type[Counted] = Telling, late: str = ""
) -> Simulation:
    trainers = {n: kind(i, COUNTS[i]) for i, n in enumerate(client_names(6))}
    conditions = Conditions(late=frozenset({late} - {""}))
    return Simulation(made or plan(), Cast(trainers, UnsafeSeed(3)), folder, conditions)


def bounds_of(played: Simulation) -> dict[str, int]:
    groups = played.coordinator.federation.groups.values()
    return {group.name: group.most_examples for group in groups}


# --- what is told -----------------------------------------------------------------


@given(st.integers(1, MOST_EXAMPLES))
def test_the_power_of_two_at_or_above_is_told(number: int) -> None:
    power = told(number)
    assert power.bit_count() == 1
    assert power // 2 < number <= power


@pytest.mark.parametrize("number", [0, -1, MOST_EXAMPLES + 1])
def test_no_client_has_so_many(number: int) -> None:
    with pytest.raises(Malformed, match="a client counts 1 to"):
        told(number)


@pytest.mark.parametrize("number", [-1, 3, MOST_EXAMPLES * 2, (1 << 62) + 1])
def test_the_coordinator_takes_no_other_number(number: int) -> None:
    world = World(plan(group=[{"rule": {"quorum": 3, "minimum": 2}}], block_size=16, local=[]))
    world.servers()
    world.give("c0", requests.Join("c0", SCHEMA))
    before = world.federation.told.copy()
    with pytest.raises(Malformed, match="a power of two is said"):
        world.give("c0", requests.Join("c0", SCHEMA, examples=number))
    assert world.federation.told == before


# --- which bound ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Telling, Counted])
def test_the_largest_of_those_who_are_there_is_the_bound(
    kind: type[Counted], tmp_path: Path
) -> None:
    """Whether trainers tell their number, or are trained once to find it."""
    played = simulation(tmp_path, kind=kind)
    played.run()
    assert bounds_of(played) == {"all": 512}
    assert played.coordinator.federation.told == dict(
        zip(client_names(6), (8, 512, 8, 64, 128, 16), strict=True)
    )


def test_counting_by_training_changes_no_bit(tmp_path: Path) -> None:
    models = []
    for kind in (Telling, Counted):
        played = simulation(tmp_path / kind.__name__, kind=kind)
        played.run()
        models.append(played.model())
    assert same(*models)


def test_a_bound_that_is_stated_holds_and_nobody_tells_anything(tmp_path: Path) -> None:
    group = {"clip": 3.0, "range": 1.0, "most_examples": 100, "rule": {"quorum": 6}}
    played = simulation(tmp_path, plan(group=[group]), kind=Counted)
    played.run()
    assert bounds_of(played) == {"all": 0}
    assert set(played.coordinator.federation.told.values()) == {0}


def test_evaluations_count_up_to_a_bound_of_their_own(tmp_path: Path) -> None:
    played = simulation(tmp_path, plan(evaluation={"every": 1, "metrics": {"loss": 10.0}}))
    played.run()
    assert bounds_of(played) == {EVALUATION: 512, "all": 512}


def test_who_comes_later_with_more_is_capped_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "secureps.client.worker.tell", lambda party, _, text: said.append((party, text))
    )
    group = {"clip": 3.0, "range": 1.0, "rule": {"quorum": 5, "deadline": 10.0}}
    played = simulation(tmp_path, plan(group=[group], versions=5), late="client-01")
    played.run(lambda: played.versions() == {"all": 1})
    played.start("client-01")
    played.run()
    assert bounds_of(played) == {"all": 128}
    assert played.coordinator.federation.included["client-01"] > 1
    ((party, text),) = said
    assert party == "client-01"
    assert "counts as if it had 128 examples, not 300" in text


@cache
def undisturbed(telling: bool) -> Tensors:
    with TemporaryDirectory() as folder:
        whole = simulation(Path(folder), kind=Telling if telling else Counted)
        whole.run()
        return whole.model()


@pytest.mark.parametrize("party", ["coordinator", "client-01", "client-03"])
@pytest.mark.parametrize("kind", [Telling, Counted])
def test_a_kill_at_any_of_the_first_events_changes_no_bit(
    party: str, kind: type[Counted], tmp_path: Path
) -> None:
    for moment in (20, 40, 60, 80, 110, 150):
        played = simulation(tmp_path / str(moment), kind=kind)
        killed_at(played, party, moment)
        assert finished(played)
        assert bounds_of(played) == {"all": 512}
        assert same(played.model(), undisturbed(kind is Telling)), moment


def test_whoever_counts_is_waited_for_from_when_there_is_a_model() -> None:
    """Before version 0 nobody can train to find out how many examples it has."""
    made = plan(group=[{"rule": {"quorum": 2, "minimum": 2, "deadline": 10.0}}])
    known = CoordinatorState({"all": GroupState("all", version=0)})
    known.members |= {"c0": 1.0, "c1": 2.0}
    known.told["c0"] = 64
    known.evaluations.since = 50.0

    def held(now: float) -> Wait | None:
        here = frozenset(known.members)
        tx = Transaction(now, made, known, None, here, (), here, frozenset())
        return example_bounds.hold_back(tx, known.groups["all"])

    for now in (13.0, 50.0, 59.9):
        found = held(now)
        assert found is not None
        assert (found.until, found.reason) == (60.0, "waits for c1 to count their examples")
    assert held(60.0) is None
    assert known.groups["all"].most_examples == 64


# --- one bound for all ------------------------------------------------------------


def test_a_client_follows_no_other_bound() -> None:
    client = Client(plan(group=[{"rule": {"quorum": 3, "minimum": 2}}], block_size=16, local=[]))
    client.joined()
    for most, wrong in ((0, True), (64, False), (64, False), (128, True)):
        invite = orders.Invite(1, "all", 1, 0, 10.0, most_examples=most)
        step = client.give("coordinator", invite)
        halts = [effect for effect in step.effects if isinstance(effect, Halt)]
        assert bool(halts) is wrong
        assert all(halt.error is Refused for halt in halts)


def test_a_client_that_is_started_again_follows_the_bound_that_it_sealed_under() -> None:
    made = plan(group=[{"rule": {"quorum": 3, "minimum": 2}}], block_size=16, local=[])
    client = Client(made).joined()
    receipt = make_receipt(made, client.run.id, SubmissionId("c0", "all", 0), 0, bytes(32))
    sealed = member_records.Sealed(dataclasses.replace(receipt, most_examples=64), ())
    for most, wrong in ((64, False), (32, True), (128, True), (0, True)):
        again = Client(made, (*client.journal, sealed))
        invite = orders.Invite(1, "all", 1, 0, 10.0, most_examples=most)
        step = again.give("coordinator", invite)
        assert any(isinstance(effect, Halt) for effect in step.effects) is wrong


# --- a public number --------------------------------------------------------------


def test_a_plan_of_records_wants_a_public_number() -> None:
    from secureps.client.trainer import record_privacy

    bare = {key: value for key, value in PRIVACY.items() if key != "records"}
    steps = {"local_steps": 4}
    made = plan(privacy=bare, training=steps)
    with pytest.raises(PlanRefused, match='adjacency = "zero-out"'):
        record_privacy(made)
    own = record_privacy(made, 77)
    assert own is not None
    assert own.expected_batch(1000) == pytest.approx(7.7)
    exact = record_privacy(plan(privacy=bare | {"adjacency": "zero-out"}, training=steps))
    assert exact is not None
    assert exact.expected_batch(1000) == pytest.approx(100.0)


class Steady(Telling):
    """Its steps are those that the plan charges for, and its model moves the same way."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        moved = {name: array + array.dtype.type(1) for name, array in parameters.items()}
        return FitResult(moved, self.count, {}, 4)


@pytest.mark.parametrize(("adjacency", "alike"), [("add-or-remove", True), ("zero-out", False)])
def test_nothing_that_is_told_or_opened_tells_of_one_record_more(
    adjacency: str, alike: bool, tmp_path: Path
) -> None:
    """Numbers at a power of two: the next record would show in what is told, and in the weight."""
    seen = []
    for more in (0, 1):
        privacy = {**PRIVACY, "adjacency": adjacency}
        if adjacency == "zero-out":
            del privacy["records"]
        made = plan(
            privacy=privacy,
            training={"local_steps": 4},
            evaluation={"every": 1, "metrics": {"loss": 10.0}},
        )
        trainers = {n: Steady(i, 64 + more * (i == 2)) for i, n in enumerate(client_names(6))}
        folder = tmp_path / str(more)
        played = Simulation(made, Cast(trainers, UnsafeSeed(3)), folder, Conditions())
        played.run()
        federation = played.coordinator.federation
        seen.append((federation.told, bounds_of(played), played.model()))
    (one, other) = seen
    assert (one[:2] == other[:2] and same(one[2], other[2])) is alike


# --- precision --------------------------------------------------------------------


def test_bits_are_judged_by_the_mean() -> None:
    assert bits_left(16, 4.0, 4) == pytest.approx(17.0)
    assert bits_left(16, 1.0, 4) == pytest.approx(15.0)
    (group,) = plan(group=[{"most_examples": 10**6, "rule": {"quorum": 5}}]).section.group
    (few,) = remarks(group, "", 300, 0)
    assert "about 5.5 of 16 bits are left in a mean of 5 clients like this one" in few
    (free,) = plan().section.group
    assert remarks(free, "", 20, 2048) == ()


def test_one_of_those_who_agreed_has_more_than_half_of_the_bound() -> None:
    """The others of a cohort count what this client does."""
    (coarse,) = plan(group=[{"bits": 6, "rule": {"quorum": 4, "minimum": 2}}]).section.group
    (few,) = remarks(coarse, "", 2, 8)
    assert "about 5.1 of 6 bits are left in a mean of 2 clients like this one" in few


def test_nobody_counts_more_than_a_bound_that_is_stated() -> None:
    (stated,) = plan(group=[{"most_examples": 32, "rule": {"quorum": 5}}]).section.group
    assert shares_of(stated, [64, 32, 16]) == [1.0, 1.0, 0.5]
    (agreed,) = plan().section.group
    assert shares_of(agreed, [33, 16]) == [33 / 64, 0.25]
