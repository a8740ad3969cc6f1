"""A script whose steps are whole numbers, on a grid of whole numbers: nothing is left to chance.

Parties that have seeds of their own, as all have that are not on loopback, round by them. What lies
on the grid is not rounded, so that a run of such parties ends in the bits of plain arithmetic.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SCRIPT = """
import time
import numpy as np
from secureps.client.trainer import EvaluateResult, FitResult

def step(weight, number):
    rows = np.arange(weight.size).reshape(weight.shape)
    return np.floor(31 * np.sin(weight.astype(np.float64) + rows * (number + 1))).astype(np.float32)

class Steps:
    def __init__(self, number, pace):
        self.number, self.pace = number, pace
    def parameters(self, seed):
        return {"weight": np.zeros((30, 7), np.float32)}
    def fit(self, parameters, config):
        time.sleep(self.pace)
        weight = parameters["weight"]
        return FitResult({"weight": weight + step(weight, self.number)}, 10, {}, 1)
    def evaluate(self, parameters):
        return EvaluateResult(0.0, 10, {})

def make(settings):
    return Steps(int(settings["partition"]), float(settings.get("pace", 0.5)))
"""


def plan_text(name: str, versions: int, shards: int = 1) -> str:
    """A plan of four clients, all of whom are waited for, and two key holders."""
    return f"""
name = "{name}"
versions = {versions}
shards = {shards}
[training]
local_steps = 1
[cipher]
name = "rlwe"
holders = 2
threshold = 2
capacity = 4
[[group]]
clip = 100000.0
range = 32767.0
weighting = "uniform"
rule = {{ quorum = 4, minimum = 3, deadline = 600.0 }}
"""


def scenario(folder: Path, versions: int = 1, script: str = SCRIPT) -> Path:
    """A scenario of such a plan, in the clear, and its files; its path."""
    plan = plan_text("whole", versions).replace('"rlwe"\nholders = 2\nthreshold = 2', '"plain"')
    (folder / "plan.toml").write_text(plan)
    (folder / "client.py").write_text(script)
    path = folder / "scenario.toml"
    path.write_text(
        'name = "whole"\nplan = "plan.toml"\nscript = "client.py"\nclients = 4\nseed = 1\n'
        "[settings]\npace = 0.0\n"
    )
    return path


def unharmed(versions: int, partitions: Sequence[int]) -> NDArray[np.float32]:
    """The model by plain arithmetic, of clients with these partitions."""
    scope: dict[str, Callable[..., NDArray[np.float32]]] = {}
    exec(compile(SCRIPT, "script", "exec"), scope)
    weight = np.zeros((30, 7), np.float32)
    for _ in range(versions):
        total = sum(scope["step"](weight, number) for number in partitions)
        weight = weight + np.float32(total / np.float32(len(partitions)))
    return weight
