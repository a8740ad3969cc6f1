"""What `policies/thin.toml` loses in accuracy and saves in bytes, beside the same uncompressed.

    python -m benchmarks.thin [SEEDS]

Pairs of runs, by default 16, under seeds that draw split, initial model and batches alike, played
in the clear (the same bits as encrypted: `tests/federation/test_exactness.py`). Bytes are those of
the plan's own cipher: blocks, and what the committee of key holders takes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Row, mean_interval, report
from secureps.client.script import Script
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.block_deltas import FLOAT_BYTES
from secureps.policy.explain.explanation import explain
from secureps.policy.plan import Plan, load_plan
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names

ROOT = Path(__file__).parent.parent
THIN = load_plan(ROOT / "policies" / "thin.toml")
SEEDS = 16
FIRST = 22
"""Those before were played with other settings, until one was chosen."""
COMPRESSES = ("codec", "feedback", "clip", "pull_bits")
"""Keys of the group that the other run is without."""


def whole(plan: Plan) -> Plan:
    """The same plan without a codec: every value, of 16 bits."""
    body = plan.section.model_dump(exclude_none=True)
    (group,) = body["group"]
    kept = {key: value for key, value in group.items() if key not in COMPRESSES}
    return Plan(parse(PlanSection, body | {"group": [kept | {"bits": 16}]}, "thin.toml, whole"))


def clear(plan: Plan) -> Plan:
    """The same plan in the clear, which ends in the same model."""
    body = plan.section.model_dump(exclude_none=True)
    cipher = {"name": "plain", "capacity": plan.section.cipher.capacity}
    return Plan(parse(PlanSection, body | {"cipher": cipher}, "thin.toml, in the clear"))


def played(plan: Plan, seed: int) -> tuple[float, int]:
    """The last version's accuracy on records that nobody holds, in percent, and its values."""
    federation = plan.section.federation
    assert federation is not None
    script = Script(ROOT / "clients" / Path(federation.script).name)
    names = client_names(federation.clients)
    settings = dict(federation.settings) | {"partitions": len(names), "seed": 100 + seed}
    trainers = {name: script.make(settings | {"partition": k}) for k, name in enumerate(names)}
    judge = script.make_evaluator(settings)
    assert judge is not None
    with TemporaryDirectory(prefix="secureps-thin-") as folder:
        simulation = Simulation(plan, Cast(trainers, UnsafeSeed(seed)), Path(folder))
        simulation.run()
        model = simulation.model()
    values = sum(tensor.size for tensor in model.values())
    return 100 * judge.evaluate(model).metrics["accuracy"], values


def bytes_a_value(plan: Plan, values: int) -> tuple[float, float]:
    """Up, a client's submission: sealed blocks, envelopes, commitments and correction; and down.

    Of what is pulled the first version is the whole model, and the others are what changed.
    """
    explained = explain(plan, {"all": values}, assume_service(plan))
    assert explained.committee is not None
    (group,), versions = explained.groups, plan.section.versions
    assert group.bytes_down is not None
    assert group.bytes_up is not None
    pulled = FLOAT_BYTES * values + (versions - 1) * group.bytes_down
    return (group.bytes_up + explained.committee.submission) / values, pulled / versions / values


def main() -> None:
    seeds = range(FIRST, FIRST + int(sys.argv[1] if len(sys.argv) > 1 else SEEDS))
    rows: list[Row] = []
    lost: list[float] = []
    for seed in seeds:
        (before, values), (after, _) = (played(clear(p), seed) for p in (whole(THIN), THIN))
        lost.append(before - after)
        print(f"{seed}: {before:.2f} less {after:.2f} is {lost[-1]:.2f}", flush=True)
        rows.append({"seed": str(seed), "whole, %": before, "thin, %": after, "lost": lost[-1]})
    for way, *own in zip(("up", "down"), *(bytes_a_value(p, values) for p in (whole(THIN), THIN))):
        name = f"bytes a value {way}"
        rows.append({"seed": name, "whole, %": own[0], "thin, %": own[1], "lost": own[0] / own[1]})
    mean, spread = mean_interval(lost)
    title = f"lost {mean:.2f} +- {spread:.2f} points (95 %, {len(lost)} pairs)"
    report("thin", title, rows)


if __name__ == "__main__":
    main()
