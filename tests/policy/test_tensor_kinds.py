"""Which tensors a plan may average, and warnings if few of them train."""

import re
from typing import Any

import pytest

from secureps.errors import PlanRefused
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.tensor_kinds import Kind, refuse_statistics, refuse_trained, remarks
from tests.kits.federations import small_plan
from tests.kits.privacy_kit import PRIVACY

SCHEMA = Schema(
    (
        TensorSpec("fc.weight", (40, 3), "float32"),
        TensorSpec("norm.count", (), "int64"),
        TensorSpec("norm.running_mean", (3,), "float32"),
        TensorSpec("norm.running_var", (3,), "float32"),
    )
)
KINDS: dict[str, Kind] = {
    "fc.weight": "trained",
    "norm.count": "constant",
    "norm.running_mean": "statistics",
    "norm.running_var": "statistics",
}
PRIVATE = PRIVACY | {"placement": "local"}
GROUP = {"clip": 3.0, "weighting": "uniform", "rule": {"quorum": 6, "deadline": 10.0}}


def test_statistics_get_no_noise() -> None:
    private: dict[str, Any] = {"privacy": PRIVATE, "group": [GROUP], "versions": 1}
    refuse_statistics(small_plan(), SCHEMA, KINDS)
    refuse_statistics(small_plan(**private), SCHEMA, {})
    with pytest.raises(PlanRefused) as refused:
        refuse_statistics(small_plan(**private), SCHEMA, KINDS)
    told = str(refused.value)
    assert "tensor 'norm.running_mean' and 1 more" in told
    advice = 'local = ["*running_mean", "*running_var"]'
    assert advice in told
    assert "GroupNorm" in told
    kept = small_plan(**private, local=["*running_mean", "*running_var"])
    refuse_statistics(kept, SCHEMA, KINDS)


@pytest.mark.parametrize("mixes", [{"codec": ["rotate"], "range": 1.0}, {"feedback": True}])
def test_statistics_go_through_no_codec(mixes: dict[str, Any]) -> None:
    thin = GROUP | mixes
    with pytest.raises(PlanRefused, match=r"'norm\.running_mean': .* the codec would mix them"):
        refuse_statistics(small_plan(group=[thin]), SCHEMA, KINDS)
    refuse_statistics(small_plan(group=[thin]), SCHEMA, {})
    own = GROUP | {"name": "own", "pattern": "norm.*"}
    refuse_statistics(small_plan(group=[own, thin]), SCHEMA, KINDS)


def test_statistics_on_a_grid_for_weights_are_remarked_on() -> None:
    (told,) = remarks(small_plan(local=[]), SCHEMA, KINDS)
    assert told == (
        "running statistics (norm.running_mean and 1 more) change by 1 in a version at most, the "
        "range: bring inputs to about -1 to 1, or give the statistics a [[group]] of their own "
        "(docs/tuning.md)"
    )
    apart = {"name": "statistics", "pattern": "*running_*", "bits": 24, "range": 1e5}
    rule = {"rule": {"quorum": 6, "deadline": 10.0}}
    assert remarks(small_plan(local=[], group=[apart | rule, rule]), SCHEMA, KINDS) == ()


def test_a_model_of_which_little_trains_together_is_told_so() -> None:
    (told,) = remarks(small_plan(local=["fc.*"]), SCHEMA, KINDS)
    assert told == (
        "only 6 of the model's 127 values train together; 120 stay with each client (local); "
        "1 travel although nothing trains them: list them as frozen if every client makes them "
        "alike, else as local, 'norm.count' for one (docs/personal.md)"
    )
    frozen: dict[str, Kind] = {**KINDS, "fc.weight": "constant"}
    (told,) = remarks(small_plan(local=[]), SCHEMA, frozen)
    assert "121 travel although nothing trains them" in told
    assert "'fc.weight' for one" in told


def test_float64_is_said_to_travel_as_float32() -> None:
    wide = Schema((*SCHEMA.tensors, TensorSpec("scale", (3,), "float64")))
    apart = GROUP | {"name": "norm", "pattern": "norm.*", "range": 200.0}
    groups = [apart, GROUP]
    (told,) = remarks(small_plan(local=[], group=groups), wide, KINDS)
    assert told.startswith("float64: scale: all that travels is float32, of 7 digits")
    for still in ("frozen", "local"):
        changes: dict[str, Any] = {"local": [], "group": groups, still: ["scale"]}
        plan = small_plan(**changes)
        assert not any("float64" in each for each in remarks(plan, wide, KINDS))


def test_what_is_frozen_is_counted_and_not_trained() -> None:
    plan = small_plan(local=[], frozen=["fc.*", "norm.count"])
    told = remarks(plan, SCHEMA, {**KINDS, **{n.name: "constant" for n in SCHEMA.tensors}})[-1]
    assert re.match(
        r"\d+ of the model's 127 values are frozen: they cost no bytes and get no", told
    )
    with pytest.raises(PlanRefused, match=r"tensor 'fc\.\w+' is frozen, and the script trains it"):
        refuse_trained(plan, SCHEMA, KINDS)
    refuse_trained(plan, SCHEMA, {})


def test_a_group_with_running_statistics_has_no_bound_on_its_sums() -> None:
    group = small_plan().section.group[0].model_dump()
    refuse_statistics(small_plan(group=[group | {"bound": "none"}]), SCHEMA, KINDS)
    with pytest.raises(PlanRefused, match="running statistics are not clipped"):
        refuse_statistics(small_plan(group=[group | {"bound": "clip"}]), SCHEMA, KINDS)
