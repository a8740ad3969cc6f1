"""Every rule has a plan to begin with, which trains: the real script, in virtual time."""

from pathlib import Path

import pytest

from secureps.client.script import Script
from secureps.config.plan import RULES
from secureps.policy.explain.visibility import sights
from secureps.policy.plan import Plan, load_plan
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import cohorts
from tests.kits.nursery import ROOT
from tests.kits.streams import stream

POLICIES = ROOT / "policies"
PRESETS = ("ssp", "buffered", "priority", "async")
VERSIONS = {"async": 24, "buffered": 6}
"""Played here; the others are played for four."""


def play(plan: Plan, folder: Path) -> tuple[Simulation, float, float]:
    federation = plan.section.federation
    assert federation is not None
    script = Script(POLICIES / federation.script)
    number = federation.clients
    settings = {key: str(value) for key, value in federation.settings.items()}
    parts = [settings | {"partition": str(k), "partitions": str(number)} for k in range(number)]
    simulation = stream(plan, folder, number, kind=lambda k: script.make(parts[k]))
    simulation.run()
    judge = script.make_evaluator(settings)
    assert judge is not None
    start = script.make(parts[0]).parameters(0)
    scores = [judge.evaluate(model).metrics["accuracy"] for model in (start, simulation.model())]
    return simulation, scores[0], scores[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains(name: str, tmp_path: Path) -> None:
    written = load_plan(POLICIES / f"{name}.toml")
    versions = VERSIONS.get(name, 4)
    assert written.section.versions > versions
    plan = Plan(written.section.model_copy(update={"versions": versions}))
    simulation, before, after = play(plan, tmp_path)
    assert simulation.versions() == {"all": versions}
    assert before < 0.25
    assert after > 0.35
    closed = cohorts(simulation)
    assert {c.version - 1 - m.version for c in closed for m in c.members} > {0}, "some are behind"
    bounds = plan.bounds("all")
    assert all(bounds.minimum <= len(c.members) <= bounds.most for c in closed)


def test_every_rule_has_one() -> None:
    """But for fragments, of models in several groups: `test_fragments` plays these."""
    rules = {load_plan(POLICIES / f"{name}.toml").group("all").rule.name for name in PRESETS}
    assert rules | {load_plan(POLICIES / "digits.toml").group("all").rule.name} == {*RULES} - {
        "fragments"
    }


@pytest.mark.parametrize("name", PRESETS)
def test_what_can_be_encrypted_is(name: str) -> None:
    plan = load_plan(POLICIES / f"{name}.toml")
    shard = next(sight for sight in sights(plan) if sight.role == "shard")
    assert ("a single update" in shard.never) is (name != "async")
