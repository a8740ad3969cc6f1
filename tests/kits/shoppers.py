"""Small federations with a sparse table: shoppers who touch few row-blocks of it, and a tower."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.messages.submission import Cohort
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.kits import cheats
from tests.kits.federations import CIPHERS, Tensors
from tests.kits.streams import stream

ROWS, BLOCK, WIDTH = 16, 4, 1060
"""A row-block of 4 rows has 4240 values, which are more bytes than its envelopes, and one block."""

TASTES = [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 2], [0, 3], [0]]
"""Row-blocks of each of eight shoppers: all eight, five, four and two of them."""

ENDS = {"table.0": 5, "table.1": 5, "table.2": 5, "table.3": 0, "tower": 3}
"""Two shoppers touch the last row-block, and a cohort needs three."""

SYNC = {"quorum": 8, "minimum": 3, "deadline": 20.0}
BUFFERED = {"name": "buffered", "buffer": 3, "minimum": 3, "max_staleness": 3, "deadline": 8.0}


class Shopper:
    """A trainer that moves the tower, and one row of each row-block that it touches."""

    def __init__(self, number: int, tastes: list[int]) -> None:
        self._number = number
        self._rows = np.array([BLOCK * k + (number + k) % BLOCK for k in tastes], np.int64)
        self.seen: list[Tensors] = []

    def touches(self) -> dict[str, NDArray[np.int64]]:
        return {"table": self._rows.copy()}

    def parameters(self, seed: int) -> Tensors:
        rng = np.random.default_rng(seed)
        table = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
        return {"table": table, "tower": rng.standard_normal(40).astype(np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        """What becomes of a row or of the tower depends on nothing else, nor on when."""
        self.seen.append(parameters)
        table, tower = parameters["table"].copy(), parameters["tower"]
        towards = np.sin(np.arange(WIDTH) + self._rows[:, None] + self._number)
        table[self._rows] += 0.1 * (towards - table[self._rows]).astype(np.float32)
        moved = tower + 0.1 * np.sin(np.arange(40) + self._number) - 0.1 * tower
        parts = {"table": table, "tower": moved.astype(np.float32)}
        return FitResult(parts, 10 + self._number, {}, 1)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def sparse_plan(
    cipher: str, table: dict[str, Any], tower: dict[str, Any] | None = None, **changes: Any
) -> Plan:
    """A table under one rule and a tower under another (None: sync); five and three versions."""
    common = {"clip": 30.0, "range": 4.0, "bits": 16, "weighting": "uniform"}
    data: dict[str, Any] = {
        "name": "sparse",
        "versions": 3,
        "shards": 2,
        "block_size": 8192,
        "lease": 60.0,
        "cipher": {**CIPHERS[cipher], "capacity": 32},
        "group": [
            {
                "name": "table",
                "pattern": "table",
                "sparse": {"rows": ROWS, "block": BLOCK},
                "versions": 5,
                "rule": table,
                **common,
            },
            {"name": "tower", "rule": tower or SYNC, **common},
        ],
    }
    return Plan(parse(PlanSection, data | changes, "test"))


def shopping(
    plan: Plan, folder: Path, conditions: Conditions | None = None, tastes: list[list[int]] = TASTES
) -> tuple[Simulation, list[Shopper]]:
    """Shoppers of these tastes, each at its own speed."""
    shoppers = [Shopper(i, own) for i, own in enumerate(tastes)]
    kind = shoppers.__getitem__
    return stream(plan, folder, len(tastes), conditions, kind=kind), shoppers


def cohorts(simulation: Simulation, group: str) -> list[Cohort]:
    """All that were closed of a group, but for what each client alone names its updates."""
    return [
        replace(cohort, members=tuple(replace(m, update=b"") for m in cohort.members))
        for cohort in cheats.cohorts(simulation, group)
    ]
