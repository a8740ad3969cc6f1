"""What parts of `[scaling]` gain, by leaving each out, in virtual time: of the scenarios of
`benchmarks.elastic`.

    state     under rounds whose clients evaluate, beside the same without the gradient noise scale,
              and without the loss of accuracy, in what the policy goes by and in its reward
    buffer    under `buffered`, beside the same without leave to change buffers
    work      under rounds with `[work]`, beside the same without it

The policy is `fitted`. Clients learn: client i has a target c_i = t + SPREAD n_i, and each of STEPS
local steps takes a part RATE of its way there, with noise. "seconds" is when the published model
first has a mean squared distance to t of TARGET; LIMIT where it never has, which "reached" counts.
"gain" is the time of who is left without something over the time of who has all, under the same
seeds: above 1 it is of use; with the 95 % interval of the mean over seeds (Student's t of the
logarithms). It is measured by the model alone, and not by the reward that a policy goes by.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.elastic import BLOCK, Scene, played, simulated
from benchmarks.intervals import ratio_interval
from benchmarks.report import Row, report
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.policy.plan import Plan
from secureps.roles.coordinator import load

Tensors = dict[str, Any]

VALUES = 960
STEPS = 8
"""Local steps of a client that does all of its work."""
RATE = 0.0131
"""Of its way that a local step takes: a tenth in all of them."""
SPREAD = 0.3
"""Standard deviation of a client's own target."""
NOISE = 0.05
"""Of a local step: 0.14 in all, for a gradient noise scale of 2 updates at first, and of 50 at the
end."""
TARGET = 0.04
LIMIT = 900.0
"""Virtual seconds after which a play ends."""
EVERY = 1.0
"""Virtual seconds between two looks at the model."""


class Learner:
    """A client that goes from wherever the model is towards a target of its own."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._own = 1.0 + SPREAD * np.random.default_rng(number).standard_normal(VALUES)

    def parameters(self, seed: int) -> Tensors:
        return {"weight": np.zeros(VALUES, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        steps = max(1, round(STEPS * config.work))
        way = self._own - parameters["weight"]
        noise = np.random.default_rng(config.seed + self._number).standard_normal(VALUES)
        moved = parameters["weight"] + (1 - (1 - RATE) ** steps) * way
        moved += NOISE * math.sqrt(steps) * noise
        return FitResult({"weight": moved.astype(np.float32)}, 10, {}, steps)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(float(np.mean((parameters["weight"] - self._own) ** 2)), 10, {})


SYNC = {"name": "sync", "quorum": 6, "minimum": 5, "most": 64, "deadline": 40.0}
BUFFERED = {"name": "buffered", "buffer": 16, "minimum": 5, "deadline": 40.0}
EVALUATION = {"every": 5, "metrics": {"loss": 4.0}, "best": {"metric": "loss", "goal": "min"}}


@dataclass(frozen=True)
class Variant:
    """What is left out, or not.

    Args:
        without: of `noise` and `accuracy`, what the policy is not told.
        buffers: may change; work: follows the deadline; evaluates: every fifth version.
    """

    name: str
    rule: dict[str, Any]
    without: tuple[str, ...] = ()
    buffers: bool = False
    work: bool = False
    evaluates: bool = False


STATE = partial(Variant, rule=SYNC, evaluates=True)
PARTS = {
    "state": (
        STATE("all of it"),
        STATE("without the noise scale", without=("noise",)),
        STATE("without the loss of accuracy", without=("accuracy",)),
    ),
    "buffer": (
        Variant("buffers change", BUFFERED, buffers=True),
        Variant("buffers stay", BUFFERED),
    ),
    "work": (Variant("with [work]", SYNC, work=True), Variant("without", SYNC)),
}
"""The first of each has it all."""


def plan(variant: Variant) -> Plan:
    streams = variant.rule is BUFFERED
    data: dict[str, Any] = {
        "name": "elastic-parts",
        "versions": 100_000,
        "shards": 2,
        "block_size": BLOCK,
        "checkpoint_every": 1000,
        "lease": 60.0,
        "cipher": {"name": "plain", "capacity": 64},
        "scaling": {
            "policy": "fitted",
            "every": 45.0,
            "most_shards": 4,
            "least_deadline": 1.0 if streams else 0.125,
            "most_deadline": 1.0 if streams else 2.0,
            "least_buffer": 0.3125 if variant.buffers else 1.0,
        },
        "group": [{"range": 2.0, "weighting": "uniform", "rule": variant.rule}],
    }
    data |= {"work": {}} if variant.work else {}
    data |= {"evaluation": {**EVALUATION, "most_examples": 16}} if variant.evaluates else {}
    return Plan(parse(PlanSection, data, "elastic-parts"))


@contextmanager
def left_out(without: tuple[str, ...]) -> Iterator[None]:
    """The coordinator measures these no more: neither states nor rewards have them."""
    with ExitStack() as stack:
        if "noise" in without:
            stack.enter_context(patch.object(load, "noise_scale", lambda means: None))
        if "accuracy" in without:
            stack.enter_context(patch.object(load, "_fell", lambda tx: None))
        yield


def play(variant: Variant, scene: Scene, seed: int) -> float:
    """Seconds until the model is good enough, or LIMIT."""
    found = list[float]()
    with (
        left_out(variant.without),
        simulated(plan(variant), scene, seed, Learner) as made,
    ):
        loop = made.loop

        def look() -> None:
            if made.versions()["all"] >= 0:
                apart = made.model()["weight"].astype(np.float64) - 1.0
                if float(np.mean(apart**2)) <= TARGET or loop.now() >= LIMIT:
                    found.append(min(loop.now(), LIMIT))
                    return
            loop.call_later(EVERY, look)

        loop.call_later(EVERY, look)
        made.run(lambda: bool(found))
    return found[0]


def rows(part: str, scenes: dict[str, Scene], seeds: range) -> list[Row]:
    found = {
        scene: {each.name: [play(each, own, seed) for seed in seeds] for each in PARTS[part]}
        for scene, own in scenes.items()
    }
    names = [each.name for each in PARTS[part]]
    everything = {name: [s for own in found.values() for s in own[name]] for name in names}
    return [row for scene in found for row in _rows(scene, found[scene])] + list(
        _rows("all", everything) if len(found) > 1 else ()
    )


def _rows(scene: str, found: dict[str, list[float]]) -> Iterator[Row]:
    whole = next(iter(found.values()))
    for name, own in found.items():
        gain, low, high = ratio_interval(own, whole)
        yield {
            "scenario": scene,
            "variant": name,
            "seconds": statistics.fmean(own),
            "reached": sum(each < LIMIT for each in own),
            "gain": gain,
            "from": low,
            "to": high,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning", action="store_true", help="the scenarios that were chosen by")
    own = parser.parse_args()
    scenes, seeds = played(own.tuning, own.seeds)
    tuned = "-tuning" if own.tuning else ""
    for part in own.parts or PARTS:
        title = f"what parts of scaling gain: {part}; {own.seeds} seeds"
        report(f"elastic-{part}{tuned}", title, rows(part, scenes, seeds))


if __name__ == "__main__":
    main()
