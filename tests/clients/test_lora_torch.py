"""The adapters of a small transformer, as `policies/lora.toml` has them trained."""

from pathlib import Path

import numpy as np
import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig
from secureps.policy.plan import Plan, load_plan
from tests.kits.federations import Tensors, small_federation
from tests.kits.nursery import ROOT
from tests.kits.trainer_kit import check_trainer

POLICY = ROOT / "policies" / "lora.toml"
SCRIPT = Script(ROOT / "clients" / "lora_torch.py")


@pytest.mark.slow
def test_it_keeps_the_contract_and_trains_adapters_alone() -> None:
    config = FitConfig({"adapters": 0}, 1, {"lr": 0.3, "local_steps": 2})
    check_trainer(lambda: SCRIPT.make({"partition": 2}), config)
    holder, other = SCRIPT.make({"partition": 0}), SCRIPT.make({"partition": 1})
    start, theirs = holder.parameters(1), other.parameters(2)
    after = holder.fit({n: each.copy() for n, each in start.items()}, config).parameters
    adapters = {name for name in start if "lora_" in name}
    assert {n for n in start if not np.array_equal(start[n], after[n])} <= adapters
    assert all(np.array_equal(start[n], theirs[n]) for n in {*start} - adapters), "one base"
    assert sum(start[name].size for name in adapters) == 340


def play(folder: Path) -> Tensors:
    written = load_plan(POLICY).section
    group = written.group[0]
    rule = group.rule.model_copy(update={"quorum": 4, "minimum": 4, "start": 4, "most": 4})
    changes = {
        "versions": 6,
        "privacy": None,
        "cipher": written.cipher.model_copy(update={"name": "plain", "capacity": 4}),
        "group": (group.model_copy(update={"rule": rule, "range": 0.5}),),
    }
    plan = Plan(written.model_copy(update=changes))
    settings = [{"partition": number, "partitions": 4} for number in range(4)]
    played = small_federation(plan, folder, clients=4, kind=lambda i: SCRIPT.make(settings[i]))
    played.run()
    assert all("lora_" in name for name in played.model())
    return played.model()


@pytest.mark.slow
def test_the_adapters_learn_what_the_base_never_saw(tmp_path: Path) -> None:
    judge = SCRIPT.make_evaluator({})
    assert judge is not None
    base = SCRIPT.make({"partitions": 4}).parameters(1)
    before = judge.evaluate(base).metrics["accuracy"]
    adapted = judge.evaluate({**base, **play(tmp_path)}).metrics["accuracy"]
    assert before < 0.5
    assert adapted > before + 0.05
