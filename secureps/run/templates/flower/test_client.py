"""PROJECT_NAME can be played, and its holders learn together. Run it by `pytest`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from client import Holder, records

import secureps as ps

PLAN = Path(__file__).parent / "plan.toml"


def test_the_plan_can_be_played() -> None:
    """`ps.check` raises an error if the plan or its app is wrong."""
    ps.check(PLAN, run_script=True)


def test_holders_learn_together() -> None:
    """The mean of their models classifies their held-out records."""
    plan = ps.load_plan(PLAN).section
    assert plan.federation is not None
    clients = [Holder(*records(number, 300)) for number in range(plan.federation.clients)]
    model = clients[0].get_parameters({})
    for _ in range(plan.versions):
        trained = [client.fit(model, plan.training)[0] for client in clients]
        model = [np.mean(tensors, axis=0) for tensors in zip(*trained, strict=True)]
    accuracies = [client.evaluate(model, {})[2]["accuracy"] for client in clients]
    assert np.mean(accuracies) > 0.8
