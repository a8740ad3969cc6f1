"""What attacks on single releases show in every mode of privacy, and which faults they see.

    python -m benchmarks.audits [--seconds 4] [--seeds 20]

A row is a mode of `tests.kits.canary_plans` with a noise multiplier of 1: the epsilon that one
release claims at delta 1e-5, and the largest bound of all seeds. A planted fault is seen if a bound
exceeds the claim at delta 0.1, where fewer trials are enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.report import Row, report
from secureps.client.canaries import MANY
from secureps.run.attacks import judge_trials, play_for
from tests.kits.canary_plans import MODES, break_sampling, halve_noise, leave_clip_out, mechanism_of

FAULTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "half noise": halve_noise,
    "no clip": leave_clip_out,
    "always in": partial(break_sampling, fixed=False),
    "fixed size": partial(break_sampling, fixed=True),
}


def attack(mode: str, delta: float, seed: int, seconds: float) -> tuple[float, float]:
    """Returns the claimed epsilon, and the largest that attacks of so many seconds each show."""
    (plan, made), rng = mechanism_of(mode, 1.0, delta), np.random.default_rng(seed)
    played = {
        name: play_for(play, rng, seconds, 2 / delta if name == MANY else np.inf)
        for name, play in made.attacks.items()
    }
    row = judge_trials(plan, made, played, delta, 0.05 / len(played))
    return row["claimed"], row["shown"]


def measure(mode: str, seeds: int, seconds: float) -> Row:
    claimed, shown = zip(*(attack(mode, 1e-5, seed, seconds) for seed in range(seeds)), strict=True)
    row: dict[str, str | int | float] = {"mode": mode, "claimed": claimed[0], "largest": max(shown)}
    row["ratio"] = max(shown) / claimed[0]
    for name, plant in FAULTS.items():
        row[name] = "-"
        if "sampled" in mode or plant in (halve_noise, leave_clip_out):
            with pytest.MonkeyPatch.context() as patch:
                plant(patch)
                fair, found = attack(mode, 0.1, 0, 3 * seconds)
            row[name] = f"{'seen' if found > fair else 'UNSEEN'}, {found:.2f} > {fair:.2f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(mode, asked.seeds, asked.seconds) for mode in MODES]
    report("audits", f"Audits of one release, {asked.seeds} seeds", rows)


if __name__ == "__main__":
    main()
