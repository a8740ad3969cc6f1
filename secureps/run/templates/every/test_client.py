"""PROJECT_NAME can be played, and its holders learn together. Run it by `pytest`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from client import make, make_evaluator

import secureps as ps

PLAN = Path(__file__).parent / "plan.toml"


def test_the_plan_can_be_played() -> None:
    """`ps.check` raises an error if the plan or its script is wrong."""
    ps.check(PLAN, run_script=True)


def test_holders_learn_together() -> None:
    """The mean of their models classifies records that no holder has."""
    plan = ps.load_plan(PLAN).section
    assert plan.federation is not None
    holders = plan.federation.clients
    settings = {**plan.federation.settings, "partitions": holders}
    clients = [make({**settings, "partition": number}) for number in range(holders)]
    model = clients[0].parameters(0)
    for version in range(plan.versions):
        config = ps.FitConfig({"all": version}, version, plan.training)
        trained = [client.fit(model, config).parameters for client in clients]
        model = {name: np.mean([each[name] for each in trained], axis=0) for name in model}
    assert make_evaluator(settings).evaluate(model).metrics["accuracy"] > 0.8
