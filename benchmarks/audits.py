"""What attacks on single releases show in every mode of privacy, and which faults they see.

    python -m benchmarks.audits [--seeds 20]

A row is a mode of `tests.kits.canary_plans` with a noise multiplier of 1: the epsilon that one
release claims at delta 1e-5, and the largest bound of all seeds. A planted fault is seen if a bound
exceeds the claim at delta 0.1, where few trials are enough.
"""

from __future__ import annotations

import argparse
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

FAULTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "half noise": halve_noise,
    "no clip": leave_clip_out,
    "always in": partial(break_sampling, fixed=False),
    "fixed size": partial(break_sampling, fixed=True),
}

SOUND = {"alone": 400, MANY: 2000, "opposed by others": 400}
FAULTY = {"alone": 4000, "opposed by others": 5000}


def attack(mode: str, delta: float, seed: int, trials: Mapping[str, int]) -> tuple[float, float]:
    """Returns the claimed epsilon, and the largest that attacks of so many trials each show."""
    made, rng = mechanism_of(mode, 1.0, delta)[1], np.random.default_rng(seed)
    played = {
        name: play_for(play, rng, inf, trials[name])
        for name, play in made.attacks.items()
        if name in trials
    }
    row = judge(made, played, delta, 0.05 / len(played))
    return row["claimed"], row["shown"]


def measure(mode: str, seeds: int) -> Row:
    found = [attack(mode, 1e-5, seed, SOUND) for seed in range(seeds)]
    claimed, largest = found[0][0], max(shown for _, shown in found)
    row: dict[str, str | int | float] = {
        "mode": mode,
        "claimed": claimed,
        "largest": largest,
        "ratio": largest / claimed,
    }
    for name, plant in FAULTS.items():
        row[name] = "-"
        if "sampled" in mode or plant in (halve_noise, leave_clip_out):
            with pytest.MonkeyPatch.context() as patch:
                plant(patch)
                fair, shown = attack(mode, 0.1, 0, FAULTY)
            row[name] = f"{shown:.2f} > {fair:.2f}" if shown > fair else "unseen"
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    report("audits", "Audits of one release", [measure(mode, asked.seeds) for mode in MODES])


if __name__ == "__main__":
    main()
