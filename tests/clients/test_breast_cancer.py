"""The hospitals: they keep the contract, share nobody's records, and learn together."""

from pathlib import Path
from typing import Any

import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig, RecordPrivacy
from secureps.errors import ConfigError, PlanRefused
from secureps.policy.plan import load_plan
from tests.kits.federations import small_federation
from tests.kits.nursery import ROOT
from tests.kits.trainer_kit import check_trainer

SCRIPT = Script(ROOT / "clients" / "breast_cancer.py")
PLAN = ROOT / "policies" / "breast_cancer.toml"
CONFIG = FitConfig({"all": 0}, 1 << 40, {"lr": 0.01, "local_epochs": 2})


def hospital(number: int) -> Any:
    return SCRIPT.make({"partition": str(number)})


def test_hospitals_keep_the_contract() -> None:
    check_trainer(lambda: hospital(1), CONFIG)


def test_no_record_is_in_two_hands() -> None:
    hospitals = [hospital(number) for number in range(4)]
    parts = [part for each in hospitals for part in (each._train, each._held_out)]
    world: Any = SCRIPT.make_evaluator({})
    records = [row.tobytes() for x, _ in (*parts, world._held_out) for row in x]
    assert len(records) == len(set(records)) == 569
    shares = sorted(float(each._train[1].mean()) for each in hospitals)
    assert shares[0] < 0.1, "a hospital that hardly sees a benign tumour"
    assert shares[-1] > 0.9, "and one that hardly sees any other"


@pytest.mark.slow
def test_the_preset_comes_close_to_central_training(tmp_path: Path) -> None:
    simulation = small_federation(load_plan(PLAN), tmp_path, seed=1, clients=4, kind=hospital)
    simulation.run()
    judge, central = SCRIPT.make_evaluator({}), SCRIPT.central({})
    assert judge is not None
    assert central is not None
    together = judge.evaluate(simulation.model())
    assert together.examples == central.examples == 113
    assert together.metrics["accuracy"] > 0.94
    assert abs(together.metrics["accuracy"] - central.metrics["accuracy"]) < 0.02


def test_what_it_cannot_do_is_refused() -> None:
    for partition in ("4", "-1", "first"):
        with pytest.raises(ConfigError, match="partition must be 0 to 3"):
            SCRIPT.make({"partition": partition})
    made = SCRIPT.make({})
    private = FitConfig(
        {"all": 0}, 1, CONFIG.settings, RecordPrivacy(1.0, 1.0, 0.5, 1e-5), secret=bytes(32)
    )
    with pytest.raises(PlanRefused, match="no DP-SGD"):
        made.fit(made.parameters(1), private)
