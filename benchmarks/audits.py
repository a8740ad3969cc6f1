"""What attacks on single releases show in every mode of privacy, and which faults they see.

    python -m benchmarks.audits

A row is a mode of `tests.kits.canary_plans` with a noise multiplier of 1: the epsilon that one
release claims at delta 1e-5, and the largest bound of 20 seeds. A planted fault is seen if a bound
exceeds the claim at delta 0.1, where few trials are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf

import numpy as np
import pytest
import torch

from benchmarks.report import Row, report
from secureps.client.canaries import MANY
from secureps.run.attacks import judge, play_for
from tests.kits.canary_plans import MODES, break_sampling, halve_noise, leave_clip_out, mechanism_of

Plant = Callable[[pytest.MonkeyPatch], None]

FAULTS: Mapping[str, tuple[Plant, str, int]] = {
    "half noise": (halve_noise, "alone", 4000),
    "no clip": (leave_clip_out, "alone", 1500),
    "always in": (partial(break_sampling, fixed=False), "alone", 4000),
    "fixed size": (partial(break_sampling, fixed=True), "opposed by others", 5000),
}
"""Each with the attack that sees it, and in how many trials."""

AMONG = {"half noise": "", "no clip": "", "always in": "seldom", "fixed size": "sampled"}
"""The modes, by their ends, whose batches can have a fault."""

SOUND = {"alone": 200, MANY: 1000, "opposed by others": 200}


def attack(mode: str, delta: float, seed: int, trials: Mapping[str, int]) -> tuple[float, float]:
    """Returns the claimed epsilon, and the largest that attacks of so many trials each show."""
    made, rng = mechanism_of(mode, 1.0, delta)[1], np.random.default_rng(seed)
    played = {
        name: play_for(made.attacks[name], rng, inf, trials[name])
        for name in trials.keys() & made.attacks.keys()
    }
    row = judge(made, played, delta, 0.05 / len(played))
    return row["claimed"], row["shown"]


def measure(mode: str) -> Row:
    found = [attack(mode, 1e-5, seed, SOUND) for seed in range(20)]
    claimed, largest = found[0][0], max(shown for _, shown in found)
    row: dict[str, str | int | float] = {"mode": mode, "claimed": claimed, "largest": largest}
    row["ratio"] = largest / claimed
    for fault, (plant, name, trials) in FAULTS.items():
        row[fault] = "-"
        if mode.endswith(AMONG[fault]):
            with pytest.MonkeyPatch.context() as patch:
                plant(patch)
                fair, shown = attack(mode, 0.1, 0, {name: trials})
            row[fault] = f"{shown:.2f} > {fair:.2f}" if shown > fair else "unseen"
    print(row, flush=True)
    return row


if __name__ == "__main__":
    torch.set_num_threads(1)
    report("audits", "Audits of one release", [measure(mode) for mode in MODES])
