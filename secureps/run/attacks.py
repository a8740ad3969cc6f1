"""`secureps audit`: attacks single releases of a plan, and holds what they show against its claim.

An audit refutes a claim or does not; it proves none. So the page also says what half the noise
would show in as many trials, and what no noise at all would. A claim holds for every delta:
it is tried at the plan's, and at `TRIED`, where fewer trials show a fault. All bounds of a page
together hold with `CONFIDENCE`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import track
from rich.text import Text

from secureps.client.canaries import MANY, Mechanism, Play, Trials, mechanisms
from secureps.errors import ConfigError
from secureps.policy.spending import adjacency
from secureps.privacy.empirical import expected_bound, one_run_bound, threshold_bound
from secureps.run.check import Permit, check, read_plan
from secureps.run.initial_schema import Values
from secureps.run.report.status_tables import WordTable
from secureps.store.budget import epsilon_of

CONFIDENCE, TRIED = 0.95, 0.01

FEW, MOST = 64, 4096
"""Values of a model of unknown size, and the most that are audited: more only take longer."""


def audit(
    path: Path, script: Path | None, values: Values | None, seconds: float, seed: int
) -> dict[str, Any]:
    """Attacks all kinds of releases of a plan for about so many seconds; returns the page.

    The `script` runs in another process, for the model's size and the length of an update. The seed
    is of the coins. Raises ConfigError if the plan has no [privacy].
    """
    plan, _ = read_plan(path, Permit())
    if plan.section.privacy is None:
        raise ConfigError(
            f"{path}: the plan has no [privacy], so it claims no epsilon that an attack could "
            "refute: add the table, or audit another plan"
        )
    explained = check(path, values, permit=Permit(script is not None, script=script))
    sizes = {
        cost.name: min(MOST, cost.values or FEW + plan.group(cost.name).scaled)
        for cost in explained.groups
    }
    own, rng = plan.section.privacy.delta, np.random.default_rng(seed)
    kinds, deltas = mechanisms(plan, sizes), sorted({own, max(own, TRIED)})
    attacks = [(kind.name, name, play) for kind in kinds for name, play in kind.attacks.items()]
    alpha = (1 - CONFIDENCE) / len(attacks) / len(deltas)
    played: dict[str, dict[str, Trials]] = {kind.name: {} for kind in kinds}
    for kind, name, play in track(attacks, "attacks", console=Console(stderr=True), transient=True):
        most = 1 / own if name == MANY else math.inf
        played[kind][name] = play_for(play, rng, seconds / len(attacks), most)
    rows = [judge(kind, played[kind.name], each, alpha) for kind in kinds for each in deltas]
    worst = max(rows, key=lambda row: row["ratio"])
    unseen = {row["name"] for row in rows} - {row["name"] for row in rows if row["would_show"]}
    price, power = explained.price, "Half the noise would have shown in each kind of release."
    if unseen:
        power = (
            f"Half the noise would not have shown in {', '.join(sorted(unseen))}: raise --seconds."
        )
    return {
        "plan": plan.section.name,
        "digest": explained.digest,
        "protected": adjacency(plan),
        "confidence": CONFIDENCE,
        "seed": seed,
        "violated": worst["violated"],
        "verdict": [
            f"{'VIOLATED' if worst['violated'] else 'Not refuted'}: {worst['name']}: epsilon is at "
            f"least {worst['shown']:.3g}, and the plan claims {worst['claimed']:.3g} at delta "
            f"{worst['delta']:g}.",
            power,
        ],
        "releases": rows,
        "noise_to_signal": dict(price.noise) if price else {},
        "signal": dict(price.update) if price else {},
        "accuracy": None,
    }


def play_for(play: Play, rng: np.random.Generator, seconds: float, most: float) -> Trials:
    """Plays until the time is up, or until one run's bound would shrink with more canaries."""
    parts, until = [play(rng)], time.monotonic() + seconds
    while time.monotonic() < until and len(parts) * len(parts[0][0]) < most:
        parts.append(play(rng))
    coins, scores = zip(*parts, strict=True)
    return np.concatenate(coins), np.concatenate(scores)


def judge(
    kind: Mechanism, played: Mapping[str, Trials], delta: float, alpha: float
) -> dict[str, Any]:
    """Judges all trials of one kind of release at a delta; each bound fails with `alpha`."""
    claimed, half, most, bounds = epsilon_of([kind.fact], delta), 0.0, 0.0, dict[str, float]()
    for name, (coins, scores) in played.items():
        if name == MANY:
            bounds[name] = one_run_bound(coins, scores, delta, alpha)
            continue
        bounds[name] = threshold_bound(scores[coins], scores[~coins], delta, alpha)
        by = coins.size, delta, alpha
        half = max(half, expected_bound(kind.noise / 2, kind.rate, *by))
        most = max(most, expected_bound(0.001, 1.0, *by))
    shown = max(bounds.values())
    return {
        "name": kind.name,
        "delta": delta,
        "claimed": claimed,
        "shown": shown,
        "ratio": shown / claimed,
        "violated": shown > claimed,
        "half_noise": half,
        "would_show": half > claimed,
        "most": most,
        "bounds": bounds,
        "trials": {name: coins.size for name, (coins, _) in played.items()},
    }


def tables(page: Mapping[str, Any]) -> Iterator[RenderableType]:
    keys = ("delta", "claimed", "shown", "ratio", "half_noise", "most")
    heads = ("one release", *keys[:4], "half the noise", "most")
    rows = [(row["name"], *(f"{row[key]:.3g}" for key in keys)) for row in page["releases"]]
    yield WordTable(f"epsilon, of {page['protected']}", heads, rows)
    for name, times in page["noise_to_signal"].items():
        yield Text(f"a version's noise of {name}: {times:.3g} times {page['signal'][name]}")
    if not page["noise_to_signal"]:
        yield Text("noise beside an update: unknown; give --values N, or SCRIPT")
    yield Text("accuracy: not measured; `secureps up` measures it")
    yield from (Text(line, "bold") for line in page["verdict"])
