"""The plain Flower client: it keeps the contract, and its preset teaches it something."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig
from secureps.policy.plan import load_plan
from tests.kits.federations import small_federation
from tests.kits.nursery import ROOT
from tests.kits.trainer_kit import check_trainer

SCRIPT = ROOT / "clients" / "digits_numpy.py"
PLAN = ROOT / "policies" / "digits_numpy.toml"


def test_it_knows_of_secureps_in_its_last_two_lines_alone() -> None:
    tree = ast.parse(SCRIPT.read_text())
    *above, last = tree.body
    assert isinstance(last, ast.If)
    assert len(last.body) == 2
    assert "secureps" not in "".join(ast.unparse(node) for node in above[1:])


def test_it_keeps_the_contract() -> None:
    config = FitConfig({"all": 0}, 1, {"lr": 2.0, "local_steps": 5})
    check_trainer(lambda: Script(SCRIPT).make({"partition": "1", "partitions": "6"}), config)


def test_it_reads_its_records_once_however_many_messages_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower makes a client for each: a hundred holders took minutes to read the same file."""
    trainer = Script(SCRIPT).make({"partition": "1", "partitions": "7"})
    start, read = trainer.parameters(0), list[object]()
    module = sys.modules["digits_numpy"]
    load = module.load_digits

    def counted(**given: bool) -> object:
        read.append(given)
        return load(**given)

    monkeypatch.setattr(module, "load_digits", counted)
    module.dealt.cache_clear()
    for _ in range(3):
        trainer.evaluate(start)
    assert len(read) == 1


@pytest.mark.slow
def test_its_preset_learns_and_clips_nothing(tmp_path: Path) -> None:
    plan, script = load_plan(PLAN), Script(SCRIPT)
    trainers = [script.make({"partition": str(i), "partitions": "6"}) for i in range(6)]
    simulation = small_federation(plan, tmp_path, seed=1, kind=trainers.__getitem__)
    simulation.run()
    model = simulation.model()
    panel = script.make_evaluator({"partitions": "6"})
    assert panel is not None
    told = panel.evaluate(model)
    assert told.examples > 300
    assert told.metrics["accuracy"] > 0.92
    clip = plan.group("all").clip
    start = trainers[0].parameters(0)
    config = FitConfig({"all": 0}, 1, plan.section.training)
    for trainer in trainers:
        trained = trainer.fit(start, config).parameters
        delta = np.concatenate([(trained[n] - start[n]).ravel() for n in start])
        assert np.linalg.norm(delta) < clip
        assert np.abs(delta).max() < (plan.group("all").range or clip)
