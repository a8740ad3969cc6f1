"""Rules: fragments are sent in turn, and end in the bits of the same groups sent together."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.client.update import load_trained, load_training, save_training
from secureps.errors import PlanRefused
from secureps.messages import coordinator_records as records
from secureps.messages.requests import GetBlock
from secureps.policy.explain.explanation import explain
from secureps.policy.plan import Plan
from secureps.policy.spending import make_fact, total_epsilon
from secureps.roles.coordinator import scheduler
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.member.tasks import COMES_LATE, Contribute
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Simulation
from tests.kits.evaluations import METRICS
from tests.kits.federations import (
    Tensors,
    Walker,
    at_event,
    ends,
    events_of,
    finished,
    killed_at,
    same,
    small_federation,
    small_plan,
)

RULE: dict[str, Any] = {"name": "fragments", "quorum": 6, "deadline": 10.0}
OWN: dict[str, Any] = {
    "clip": 6.0,
    "range": 1.0,
    "most_examples": 32,
    "rule": RULE,
    "optimizer": {"name": "nesterov", "learning_rate": 0.75, "momentum": 0.5},
}
NAMES = ("first", "second", "third")
SIZES = {"first": 70, "second": 70, "third": 9}
IN_TURN = [(name, version) for version in range(4) for name in NAMES]


class Deep(Walker):
    """A walker whose model has a layer for each of three groups; it remembers its trainings."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.trained: list[tuple[int, ...]] = []

    def parameters(self, seed: int) -> Tensors:
        rng = np.random.default_rng(seed)
        layers = {f"{name}.weight": size for name, size in SIZES.items()}
        made = {name: rng.standard_normal(n).astype(np.float32) for name, n in layers.items()}
        return {**made, "body.count": np.zeros((), np.int64)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        """Trains on from its counter, too, which never leaves it."""
        self.trained.append(tuple(config.versions[name] for name in NAMES))
        count = int(parameters["body.count"])
        return super().fit(parameters, replace(config, seed=config.seed + 1000 * count))

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(1.0, 3, {"accuracy": 0.5})


def fragments(cipher: str = "plain", rule: Any = None, **changes: Any) -> Plan:
    own = OWN | changes.pop("group", {}) | {"rule": RULE | (rule or {})}
    own = {key: value for key, value in own.items() if value is not None}
    groups = [{"name": name, "pattern": f"{name}.*"} | own for name in NAMES]
    return small_plan(cipher, group=groups, **changes)


def played(plan: Plan, folder: Path, clients: int = 6) -> tuple[Simulation, list[Deep]]:
    trainers: list[Deep] = []

    def kind(number: int) -> Deep:
        trainers.append(Deep(number))
        return trainers[-1]

    folder.mkdir(exist_ok=True)
    return small_federation(plan, folder, kind=kind, clients=clients), trainers


def closed(simulation: Simulation) -> list[tuple[str, int]]:
    """The groups of the cohorts so far, with their base versions."""
    replayed = [each for _, each in simulation._stores["coordinator"].journal.replay()]
    cohorts = [each.cohort for each in replayed if isinstance(each, records.CohortClosed)]
    return [(cohort.group, cohort.members[0].version) for cohort in cohorts]


LOCAL: dict[str, Any] = {
    "unit": "client",
    "placement": "local",
    "noise_multiplier": 20.0,
    "delta": 1e-6,
    "budget": 100.0,
}
RECORDS: dict[str, Any] = {
    "noise_multiplier": 20.0,
    "max_grad_norm": 1.0,
    "records": 10,
    "sample_rate": 1.0,
    "delta": 1e-6,
    "budget": 100.0,
}
ONE_STEP: dict[str, Any] = {"training": {"local_steps": 1}}
PROTECTED: dict[str, Any] = {"range": None, "most_examples": None, "weighting": "uniform"}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rlwe": {"cipher": "rlwe"},
    "bfv": {"cipher": "bfv"},
    "clients' noise": {"privacy": LOCAL, "group": PROTECTED},
    "records": {"privacy": RECORDS, **ONE_STEP},
    "codec and feedback": {
        "group": {
            "range": None,
            "codec": [{"name": "support", "one_in": 2}, "rotate", "round"],
            "feedback": True,
            "pull_bits": 4,
        }
    },
    "evaluated": {"evaluation": {"every": 2, "metrics": {"accuracy": 1.0}}},
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_the_same_groups_sent_together(case: str, tmp_path: Path) -> None:
    """Bit for bit, after as many trainings, and with the same charges."""
    ended = {}
    for name in ("sync", "fragments"):
        changes = dict(CASES[case])
        plan = fragments(changes.pop("cipher", "plain"), {"name": name}, **changes)
        simulation, trainers = played(plan, tmp_path / name)
        ends(simulation)
        assert all(each.trained == [(v, v, v) for v in range(4)] for each in trainers)
        federation = simulation.coordinator.federation
        facts = sorted(map(str, federation.ledger.facts))
        results = federation.trail.results.keys()
        assert results == ({2, 4} if case == "evaluated" else set())
        ended[name] = (simulation.model(), facts)
        order = [each for each in closed(simulation) if each[0] in NAMES]
        assert sorted(order) == sorted(IN_TURN)
        assert order == IN_TURN or name == "sync"
    assert same(ended["sync"][0], ended["fragments"][0])
    assert ended["sync"][1] == ended["fragments"][1]


def test_one_group_is_on_its_way_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client pulls one group a turn, too."""
    pulled: list[tuple[str, int]] = []
    take = PulledModel.take_block

    def note(self: PulledModel, ask: GetBlock, digest: bytes, length: int) -> Any:
        if self.client == "client-00" and (ask.group, ask.version) not in pulled:
            pulled.append((ask.group, ask.version))
        return take(self, ask, digest, length)

    monkeypatch.setattr(PulledModel, "take_block", note)
    simulation, _ = played(fragments(), tmp_path)
    while not finished(simulation):
        on_the_way = {
            receipt.id.group
            for group in simulation.coordinator.federation.model_groups
            for receipt in group.receipts.values()
            if group.version >= 0
        }
        assert len(on_the_way) <= 1
        simulation.run(at_event(2))
    assert sorted(pulled[:3]) == sorted((name, 0) for name in NAMES)
    assert pulled[3:12] == IN_TURN[3:]


@pytest.mark.parametrize("party", ["coordinator", "shard-0", "client-02", "holder-1"])
def test_a_party_that_is_killed_in_any_turn_changes_no_bit(party: str, tmp_path: Path) -> None:
    whole, _ = played(fragments("rlwe", versions=2), tmp_path / "whole")
    moments = events_of(whole)
    for part in range(4, 16, 2):
        harmed, trainers = played(fragments("rlwe", versions=2), tmp_path / str(part))
        killed_at(harmed, party, moments * part // 16)
        assert same(harmed.model(), whole.model())
        assert set(trainers[2].trained) == {(0, 0, 0), (1, 1, 1)}


def test_a_training_is_kept_before_any_of_it_is_sent(tmp_path: Path) -> None:
    """Killed in the moment between, its client sends in every turn what it trained once."""
    whole, _ = played(fragments(versions=1), tmp_path / "whole")
    ends(whole)
    harmed, trainers = played(fragments(versions=1), tmp_path / "harmed")
    harmed.run(lambda: bool(closed(harmed)))
    harmed.kill("client-02")
    kept = tmp_path / "harmed" / "client-02" / "training.safetensors"
    assert kept.exists()
    harmed.start("client-02")
    ends(harmed)
    assert same(harmed.model(), whole.model())
    assert [len(each.trained) for each in trainers] == [1] * 6


def test_a_training_of_another_run_is_none_of_this_one(tmp_path: Path) -> None:
    """Even of the same model: two runs may begin with one file."""
    path, task = tmp_path / "training.safetensors", Contribute((), (b"1" * 32,), ())
    assert load_training("me", path, b"a run") is None
    save_training("me", path, b"a run", task, FitResult({"x": np.ones(2, np.float32)}, 3, {}, 4))
    assert load_training("me", path, b"a run") == task
    assert load_training("me", path, b"another") is None
    result = load_trained(path)
    assert (result.examples, result.steps, result.parameters["x"].tolist()) == (3, 4, [1, 1])


def test_local_tensors_are_those_of_the_training_that_is_kept(tmp_path: Path) -> None:
    """Also if its client was killed after it was kept, and before they were saved."""
    whole, _ = played(fragments(), tmp_path / "whole")
    ends(whole)
    harmed, _ = played(fragments(), tmp_path / "harmed")
    harmed.run(lambda: len(closed(harmed)) == 1)
    harmed.kill("client-02")
    for saved in (tmp_path / "harmed" / "client-02").glob("local-*"):
        saved.unlink()
    harmed.start("client-02")
    ends(harmed)
    assert same(harmed.model(), whole.model())


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_client_that_lost_its_training_holds_nobody_up(harm: str, tmp_path: Path) -> None:
    """It trains nothing that no cohort could have, says so, and goes on with the next version."""
    plan = fragments(rule={"quorum": 5, "start": 6})
    simulation, trainers = played(plan, tmp_path)
    simulation.run(lambda: len(closed(simulation)) == 4)
    simulation.kill("client-02")
    kept = tmp_path / "client-02" / "training.safetensors"
    kept.unlink()
    if harm == "damaged":
        kept.write_bytes(b"nothing that was ever written")
    simulation.start("client-02")
    ends(simulation)
    assert closed(simulation) == IN_TURN
    assert trainers[2].trained == trainers[1].trained == [(v, v, v) for v in range(4)]
    journal = [each for _, each in simulation._stores["coordinator"].journal.replay()]
    declined = [each for each in journal if isinstance(each, records.MemberDeclined)]
    assert {(each.client, each.reason) for each in declined} == {("client-02", COMES_LATE)}


def test_a_run_ends_when_too_few_clients_kept_their_training(tmp_path: Path) -> None:
    simulation, _ = played(fragments(rule={"minimum": 6}), tmp_path)
    simulation.run(lambda: len(closed(simulation)) == 4)
    simulation.kill("client-02")
    (tmp_path / "client-02" / "training.safetensors").unlink()
    simulation.start("client-02")
    simulation.run(lambda: finished(simulation))
    few = f"too few clients are left for version 2 of second: {COMES_LATE} (client-02)"
    assert simulation.coordinator.federation.finished == few


def test_a_client_that_comes_after_the_first_turn_begins_with_the_next_version(
    tmp_path: Path,
) -> None:
    """It is charged for nothing that no cohort takes."""
    plan = fragments(rule={"quorum": 5, "start": 5}, privacy=LOCAL, group=PROTECTED)
    simulation, trainers = played(plan, tmp_path)
    simulation.kill("client-05")
    simulation.run(lambda: len(closed(simulation)) == 1)
    simulation.start("client-05")
    ends(simulation)
    assert trainers[5].trained == [(v, v, v) for v in (1, 2, 3)]
    charged = Counter(each.party for each in simulation.coordinator.federation.ledger.facts)
    assert (charged["client-05"], charged["client-00"]) == (9, 12)


def test_no_client_trains_out_of_turn_though_a_coordinator_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scheduler, "_next_groups", lambda tx, group: list(tx.federation.model_groups)
    )
    simulation, trainers = played(fragments(), tmp_path)
    simulation.run(lambda: finished(simulation) or simulation.loop.now() > 100)
    assert all(len(set(versions)) == 1 for each in trainers for versions in each.trained)


def test_a_round_that_was_given_up_is_tried_again_in_the_same_turn(tmp_path: Path) -> None:
    """With the same update; the others wait meanwhile, and say for whom."""
    plan = fragments(rule={"quorum": 6, "minimum": 6, "extensions": 0})
    simulation, trainers = played(plan, tmp_path)
    simulation.run(lambda: len(closed(simulation)) == 4)
    simulation.kill("client-05")
    simulation.run(lambda: simulation.loop.now() > 60)
    groups = {group.name: group for group in simulation.coordinator.federation.model_groups}
    assert [groups[name].version for name in NAMES] == [2, 1, 1]
    assert groups["third"].reason == "waits for its turn, and second is sent first"
    simulation.start("client-05")
    ends(simulation)
    assert closed(simulation) == IN_TURN
    assert set(trainers[5].trained) == set(trainers[0].trained) == {(v, v, v) for v in range(4)}


@pytest.mark.parametrize("allowed", [3, 5])
@pytest.mark.parametrize("privacy", [LOCAL, RECORDS], ids=["client", "record"])
def test_a_version_begins_only_if_the_budget_allows_all_of_its_groups(
    privacy: dict[str, Any], allowed: int, tmp_path: Path
) -> None:
    """Of three or five updates three are made: else two would be charged for half a version."""
    more = {"group": PROTECTED} if privacy is LOCAL else ONE_STEP
    plan = fragments(privacy=privacy, **more)
    facts = [make_fact(plan, "client-00", name, SIZES[name], v) for name, v in IN_TURN[:allowed]]
    budget = total_epsilon(plan, [each for each in facts if each is not None]) + 1e-9
    simulation, _ = played(fragments(privacy=privacy | {"budget": budget}, **more), tmp_path)
    ends(simulation)
    assert "the privacy budget is spent" in simulation.coordinator.federation.finished
    own = [e for e in simulation.coordinator.federation.ledger.facts if e.party == "client-00"]
    assert sorted((each.version, each.group) for each in own) == [(0, name) for name in NAMES]


def test_what_cannot_take_turns_is_refused() -> None:
    apart = "all groups of a plan take turns"
    with pytest.raises(PlanRefused, match=apart):
        small_plan(group=[OWN])
    first, second = ({"name": name, "pattern": f"{name}.*"} | OWN for name in NAMES[:2])
    for other in (
        {"rule": RULE | {"deadline": 9.0}},
        {"rule": RULE | {"name": "sync"}},
        {"sparse": {"rows": 10, "block": 5}},
    ):
        with pytest.raises(PlanRefused, match=apart):
            small_plan(group=[first, second | other])
    with pytest.raises(PlanRefused, match="first, second take turns, so each makes as many"):
        small_plan(group=[first, second | {"versions": 2}])
    with pytest.raises(PlanRefused, match="a client trains in the first turn alone"):
        small_plan(group=[first, second], work={})
    with pytest.raises(PlanRefused, match="a client sends all parts of what it trained"):
        fragments(rule={"fraction": 0.5})
    with pytest.raises(PlanRefused, match="metrics take no turns with groups"):
        small_plan(group=[first, second], evaluation={"every": 1, "metrics": METRICS, "rule": RULE})


def test_check_says_that_they_take_turns_and_what_is_kept() -> None:
    explained = explain(plan := fragments(), SIZES, assume_service(plan))
    assert explained.rules[0].rule.endswith("; its 3 groups take turns, one in each round")
    assert any(each.endswith("in the clear: 596 bytes") for each in explained.remarks)
