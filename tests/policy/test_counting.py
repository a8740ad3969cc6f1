"""How much clients count: by which number, up to which bound, and what that tells."""

import json
from pathlib import Path
from typing import Any

import pytest

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.errors import PlanRefused
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.evaluation import EVALUATION
from secureps.policy.plan import Plan, bits_left, publishes_counts, shares_of, weight_remarks
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from tests.kits.cheats import journalled
from tests.kits.federations import Tensors, Walker, same, small_federation
from tests.kits.roles_kit import PRIVACY

COUNTS = (5, 300, 7, 64, 65, 9)
NUMBERS = dict(zip(client_names(6), COUNTS, strict=True))


class Counted(Walker):
    def __init__(self, number: int, examples: int) -> None:
        super().__init__(number)
        self.count = examples

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        made = super().fit(parameters, config)
        return FitResult(made.parameters, self.count, made.metrics, made.steps)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(1.0, self.count, {})


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


def simulation(folder: Path, made: Plan, late: str = "") -> Simulation:
    conditions = Conditions(late=frozenset({late} - {""}))
    return small_federation(made, folder, conditions, kind=lambda i: Counted(i, COUNTS[i]))


def of_cohorts(played: Simulation) -> dict[str, int]:
    played.run(lambda: played.versions() == {"all": played.plan.section.versions})
    closed = journalled(played, CohortClosed)
    return {m.id.client: m.examples for record in closed for m in record.cohort.members}


# --- which bound ------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 100])
@pytest.mark.parametrize("late", ["client-00", "client-01"])
def test_weights_do_not_depend_on_who_starts_first(
    late: str, most: int | None, tmp_path: Path
) -> None:
    """Whichever client begins last, the others count as if all had been there."""
    group: dict[str, Any] = {"clip": 3.0, "range": 1.0, "rule": {"quorum": 5, "deadline": 10.0}}
    group |= {} if most is None else {"most_examples": most}
    closed = of_cohorts(simulation(tmp_path, plan(group=[group], versions=1), late=late))
    assert closed == {name: min(n, most or 1) for name, n in NUMBERS.items() if name != late}


def test_all_count_alike_where_the_plan_names_no_bound(tmp_path: Path) -> None:
    made = plan()
    assert (made.group("all").weighting, publishes_counts(made.section)) == ("uniform", False)
    assert of_cohorts(simulation(tmp_path, made)) == dict.fromkeys(NUMBERS, 1)


def test_examples_without_a_bound_are_refused() -> None:
    group = {"weighting": "examples", "rule": {"quorum": 6}}
    with pytest.raises(PlanRefused, match="needs most_examples: about how many examples the larg"):
        plan(group=[group])


def test_the_public_number_of_a_private_plan_is_its_bound() -> None:
    private: dict[str, Any] = {"privacy": PRIVACY, "training": {"local_steps": 4}}
    assert plan(**private).group("all").most_examples == PRIVACY["records"]
    exact: dict[str, Any] = {key: value for key, value in PRIVACY.items() if key != "records"}
    exact["adjacency"] = "zero-out"
    assert plan(**private | {"privacy": exact}).group("all").weighting == "uniform"


def test_a_plan_by_which_clients_agreed_is_still_read() -> None:
    """Audit logs of version 0.2.0 have such a plan in their first line."""
    body = json.loads(plan().text)
    (group,) = body["plan"]["group"]
    group["weighting"], group["most_examples"] = "examples", None
    assert Plan.from_text(json.dumps(body)).group("all").weighting == "uniform"


def test_evaluations_count_up_to_the_bound_of_the_model_or_one_of_their_own() -> None:
    judged: dict[str, Any] = {"every": 1, "metrics": {"loss": 10.0}}
    rule = {"quorum": 6}
    bounds = {}
    for own in (None, 7):
        for model in (None, 64):
            group = {"rule": rule} | ({} if model is None else {"most_examples": model})
            more = {} if own is None else {"most_examples": own}
            made = plan(group=[group], evaluation=judged | more)
            bounds[own, model] = made.group(EVALUATION).most_examples
            assert (made.group(EVALUATION).weighting == "uniform") == (own is model is None)
    assert bounds == {(None, None): None, (None, 64): 64, (7, None): 7, (7, 64): 7}


def test_who_has_more_than_the_bound_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "secureps.client.worker.tell", lambda party, _, text: said.append((party, text))
    )
    group = {"clip": 3.0, "range": 1.0, "most_examples": 128, "rule": {"quorum": 6}}
    simulation(tmp_path, plan(group=[group])).run()
    ((party, text),) = said
    assert party == "client-01"
    assert "counts as if it had 128 examples, not 300: more counts no more" in text


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


class Steady(Counted):
    """A trainer with the plan's number of steps, whose model always moves the same way."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        moved = {name: array + array.dtype.type(1) for name, array in parameters.items()}
        return FitResult(moved, self.count, {}, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "alike"), [("add-or-remove", True), ("zero-out", False)])
def test_nothing_that_is_told_or_opened_tells_of_one_record_more(
    adjacency: str, alike: bool, tmp_path: Path
) -> None:
    """The numbers are powers of two, where one more record would show in a text or a weight."""
    seen = []
    for more in (0, 1):
        privacy = {**PRIVACY, "adjacency": adjacency}
        if adjacency == "zero-out":
            del privacy["records"]
        made = plan(
            privacy=privacy,
            training={"local_steps": 4},
            evaluation={"every": 1, "metrics": {"loss": 10.0}},
            group=[{"clip": 3.0, "range": 1.0, "most_examples": 128, "rule": {"quorum": 6}}],
        )
        trainers = [Steady(i, 64 + more * (i == 2)) for i in range(6)]
        played = small_federation(made, tmp_path / str(more), kind=trainers.__getitem__)
        seen.append((of_cohorts(played), played.model()))
    (one, other) = seen
    assert (one[0] == other[0] and same(one[1], other[1])) is alike


# --- precision --------------------------------------------------------------------


def test_bits_are_judged_by_the_mean() -> None:
    assert bits_left(16, 4.0, 4) == pytest.approx(17.0)
    assert bits_left(16, 1.0, 4) == pytest.approx(15.0)
    (group,) = plan(group=[{"most_examples": 10**6, "rule": {"quorum": 5}}]).section.group
    (few,) = weight_remarks(group, "", 300)
    assert "about 5.5 of 16 bits are left in a mean of 5 clients like this one" in few


def test_nobody_counts_more_than_the_bound() -> None:
    (stated,) = plan(group=[{"most_examples": 32, "rule": {"quorum": 5}}]).section.group
    assert shares_of(stated, [64, 32, 16]) == [1.0, 1.0, 0.5]
