"""Rules: fragments take turns, and each of them is summed, charged and kept as any group is."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.errors import PlanRefused
from secureps.messages import coordinator_records as records
from secureps.messages.requests import GetBlock
from secureps.policy.explain.explanation import rule_words
from secureps.policy.plan import Plan
from secureps.policy.spending import make_fact, total_epsilon
from secureps.roles.coordinator import scheduler
from secureps.roles.member.pulled_model import PulledModel
from secureps.run.simulate.simulation import Simulation
from tests.kits.evaluations import METRICS
from tests.kits.federations import (
    Tensors,
    Walker,
    ends,
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
TURNS = [(v, v, v) for v in range(5)] + [(v + 1, v, v) for v in range(4)]
TURNS = sorted(TURNS + [(v + 1, v + 1, v) for v in range(4)])
"""The versions of the three groups at each training of a run of four versions, and after it."""


class Deep(Walker):
    """A walker whose model has a layer for each of three groups; it remembers what it was given."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.given: list[tuple[FitConfig, Tensors]] = []
        self.made: list[FitResult] = []

    def parameters(self, seed: int) -> Tensors:
        rng = np.random.default_rng(seed)
        layers = {f"{name}.weight": size for name, size in SIZES.items()}
        made = {name: rng.standard_normal(n).astype(np.float32) for name, n in layers.items()}
        return {**made, "body.count": np.zeros((), np.int64)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        self.given.append((config, {name: each.copy() for name, each in parameters.items()}))
        self.made.append(super().fit(parameters, config))
        return self.made[-1]

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(1.0, 3, {"accuracy": 0.5})


def fragments(cipher: str = "plain", rule: Any = None, **changes: Any) -> Plan:
    own = OWN | changes.pop("group", {}) | {"rule": RULE | (rule or {})}
    if "privacy" in changes and changes["privacy"].get("unit") == "client":
        own = {k: v for k, v in own.items() if k not in ("range", "most_examples")}
    groups = [{"name": name, "pattern": f"{name}.*"} | own for name in NAMES]
    return small_plan(cipher, group=groups, **changes)


def played(plan: Plan, folder: Path) -> tuple[Simulation, list[Deep]]:
    trainers: list[Deep] = []

    def kind(number: int) -> Deep:
        trainers.append(Deep(number))
        return trainers[-1]

    simulation = small_federation(plan, folder, kind=kind)
    return simulation, trainers


def versions_of(trainer: Deep) -> list[tuple[int, ...]]:
    return [tuple(config.versions[name] for name in NAMES) for config, _ in trainer.given]


def closed(simulation: Simulation) -> list[records.CohortClosed]:
    replayed = simulation._stores["coordinator"].journal.replay()
    return [each for _, each in replayed if isinstance(each, records.CohortClosed)]


def test_groups_take_turns_and_each_steps_by_what_was_trained_in_its_turn(tmp_path: Path) -> None:
    """By an independent computation: one group moves by its own mean and Nesterov's step."""
    simulation, trainers = played(fragments(), tmp_path)
    ends(simulation)
    assert versions_of(trainers[0]) == TURNS[:-1]
    order = [(each.cohort.group, each.cohort.number) for each in closed(simulation)]
    assert order == [(name, v) for v in range(4) for name in NAMES]
    momentum = {name: np.zeros(size) for name, size in SIZES.items()}
    for turn, name in enumerate(NAMES * 4):
        base, after = trainers[0].given[turn][1], simulation.model()
        if turn < 11:
            after = trainers[0].given[turn + 1][1]
        assert all(
            same(trainer.given[turn][1], base | counts(trainer, turn)) for trainer in trainers
        )
        changed = {tensor for tensor, each in after.items() if not same_bits(each, base[tensor])}
        assert changed - {"body.count"} == {f"{name}.weight"}
        made = [trainer.made[turn] for trainer in trainers]
        trained = np.array([result.parameters[f"{name}.weight"] for result in made], np.float64)
        start = np.asarray(base[f"{name}.weight"], np.float64)
        weights = [result.examples for result in made]
        mean = np.average(trained - start, axis=0, weights=weights)
        momentum[name] = momentum[name] / 2 + mean
        moved = start + 0.75 * (momentum[name] / 2 + mean)
        found = np.asarray(after[f"{name}.weight"], np.float64)
        np.testing.assert_allclose(found, moved, atol=2e-4)


def counts(trainer: Deep, turn: int) -> Tensors:
    """What never leaves a client, which differs from the others'."""
    return {"body.count": trainer.given[turn][1]["body.count"]}


def same_bits(left: Any, right: Any) -> bool:
    return bool(left.tobytes() == right.tobytes())


def test_a_version_sends_and_pulls_one_group_and_the_first_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: Counter[tuple[str, int]] = Counter()
    take = PulledModel.take_block

    def counted(self: PulledModel, ask: GetBlock, digest: bytes, length: int) -> Any:
        if self.client == "client-00":
            pulled[ask.group, ask.version] += length
        return take(self, ask, digest, length)

    monkeypatch.setattr(PulledModel, "take_block", counted)
    simulation, _ = played(fragments(), tmp_path)
    ends(simulation)
    assert {at: n for at, n in pulled.items() if at[1] < 4} == {
        (name, version): 4 * size for name, size in SIZES.items() for version in range(4)
    }


@pytest.mark.parametrize("cipher", ["rlwe", "bfv"])
def test_the_model_is_the_same_encrypted(cipher: str, tmp_path: Path) -> None:
    models = []
    for name in ("plain", cipher):
        (tmp_path / name).mkdir()
        simulation, _ = played(fragments(name), tmp_path / name)
        models.append(ends(simulation).model())
    assert same(*models)


@pytest.mark.parametrize("party", ["coordinator", "shard-0", "client-02", "holder-1"])
def test_a_party_that_is_killed_in_any_turn_changes_no_bit(party: str, tmp_path: Path) -> None:
    """Neither of the model, nor of the local tensors, which every training moves."""
    (tmp_path / "whole").mkdir()
    whole, trainers = played(fragments("rlwe", versions=2), tmp_path / "whole")
    moments, models = 0, []

    def counts() -> bool:
        nonlocal moments
        moments += 1
        return finished(whole)

    whole.run(counts)
    models.append(whole.model())
    assert trainers[2].made[-1].parameters["body.count"] == 6 * 2
    for part in (3, 5, 6, 7):
        (tmp_path / str(part)).mkdir()
        harmed, trainers = played(fragments("rlwe", versions=2), tmp_path / str(part))
        killed_at(harmed, party, moments * part // 8)
        assert same(harmed.model(), models[0])
        assert trainers[2].made[-1].parameters["body.count"] == 6 * 2


def test_no_client_trains_out_of_turn_though_a_coordinator_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a coordinator could have one group summed while the others are as they began."""
    monkeypatch.setattr(
        scheduler, "_next_groups", lambda tx, group: list(tx.federation.model_groups)
    )
    simulation, trainers = played(fragments(), tmp_path)
    simulation.run(lambda: finished(simulation) or simulation.loop.now() > 100)
    assert all(versions in TURNS for trainer in trainers for versions in versions_of(trainer))


def test_a_round_that_was_given_up_is_tried_again_in_the_same_turn(tmp_path: Path) -> None:
    """With the same update, which is charged once; the others wait meanwhile, and say for whom."""
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
    known = Counter(versions_of(trainers[0]))
    assert set(known) == set(TURNS[:-1])


LOCAL = {
    "unit": "client",
    "placement": "local",
    "noise_multiplier": 20.0,
    "delta": 1e-6,
    "budget": 100.0,
}
RECORDS = {
    "noise_multiplier": 20.0,
    "max_grad_norm": 1.0,
    "records": 10,
    "sample_rate": 1.0,
    "delta": 1e-6,
    "budget": 100.0,
}


@pytest.mark.parametrize("privacy", [LOCAL, RECORDS], ids=["client", "record"])
def test_every_update_is_charged_and_the_budget_ends_a_run_in_the_middle_of_a_turn(
    privacy: dict[str, Any], tmp_path: Path
) -> None:
    """Of five updates that the budget allows all five are sent: two of the first two groups."""
    group = {"weighting": "uniform"} if privacy is LOCAL else {}
    more: dict[str, Any] = {"training": {"local_steps": 1}, "group": group}
    plan = fragments(privacy=privacy, **more)
    asked = [(NAMES[turn % 3], turn // 3) for turn in range(5)]
    facts = [make_fact(plan, "client-00", name, SIZES[name], version) for name, version in asked]
    five = total_epsilon(plan, [each for each in facts if each is not None])
    plan = fragments(privacy=privacy | {"budget": five + 1e-9}, **more)
    simulation, _ = played(plan, tmp_path)
    ends(simulation)
    federation = simulation.coordinator.federation
    assert "the privacy budget is spent" in federation.finished
    own = [each for each in federation.ledger.facts if each.party == "client-00"]
    assert sorted((each.version, each.group) for each in own) == [(v, n) for n, v in asked]


def test_a_version_is_evaluated_once_all_fragments_have_it(tmp_path: Path) -> None:
    evaluation = {"every": 2, "metrics": {"accuracy": 1.0}}
    simulation, _ = played(fragments(evaluation=evaluation), tmp_path)
    ends(simulation)
    assert sorted(simulation.coordinator.federation.trail.results) == [2, 4]


def test_what_cannot_take_turns_is_refused() -> None:
    with pytest.raises(PlanRefused, match="no other group has this rule: give two groups or more"):
        small_plan(group=[OWN])
    two = [{"name": name, "pattern": f"{name}.*"} | OWN for name in NAMES[:2]]
    with pytest.raises(PlanRefused, match="first, second take turns, so each makes as many"):
        small_plan(group=[two[0], two[1] | {"versions": 2}])
    with pytest.raises(PlanRefused, match="no other group has this rule"):
        small_plan(group=[two[0], two[1] | {"rule": RULE | {"deadline": 9.0}}])
    rows = {"sparse": {"rows": 10, "block": 5}}
    with pytest.raises(PlanRefused, match="neither row-blocks nor sums do"):
        small_plan(group=[two[0] | rows, two[1]])
    summed = {"name": "count", "pattern": "count", "outcome": "sum", "rule": RULE}
    with pytest.raises(PlanRefused, match="neither row-blocks nor sums do"):
        small_plan(group=[summed, *two])
    with pytest.raises(PlanRefused, match="metrics take no turns with groups"):
        small_plan(group=two, evaluation={"every": 1, "metrics": METRICS, "rule": RULE})


def test_check_says_that_they_take_turns() -> None:
    assert rule_words(fragments())[0].rule.endswith("; its 3 groups take turns, one in each round")
