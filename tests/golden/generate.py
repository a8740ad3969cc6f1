"""Writes the golden files of today's format: `python -m tests.golden.generate FOLDER`.

Once for each format, before the first change of the next one, into a folder that is not there yet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from secureps.policy.plan import load_plan
from secureps.roles.coordinator.group import Phase
from secureps.run.party_names import client_names, holder_names, shard_names
from secureps.store.budget import BudgetLedger
from secureps.store.issuing import create_kit, issue
from tests.golden.schema import schema
from tests.golden.stage import CLIENTS, Stage, pack
from tests.golden.values import digests, examples
from tests.kits.ledgers import charge

PLAN = """name = "{name}"
versions = 4
shards = {shards}
block_size = {block_size}
local = ["*.count"]
{more}
[cipher]
{cipher}

[[group]]
{values}

[group.rule]
{rule}

[group.optimizer]
name = "adam"
learning_rate = 0.1
"""
COMMITTEE = 'name = "rlwe"\nholders = 3\nthreshold = 2\ncapacity = 40'
RECORDS = "clip = 3.0\nrange = 1.0\nmost_examples = 32"
ROUNDS = "quorum = 3\nminimum = 2\ndeadline = 10000.0"
PLANS: dict[str, dict[str, Any]] = {
    "rlwe-sync": {"cipher": COMMITTEE, "values": RECORDS, "rule": ROUNDS},
    "rlwe-buffered": {
        "cipher": COMMITTEE,
        "values": RECORDS,
        "rule": 'name = "buffered"\nbuffer = 3\nminimum = 2\nmax_staleness = 4\ndeadline = 1e6',
    },
    "rlwe-thin": {
        "cipher": f"{COMMITTEE}\nenvelope_versions = 1",
        "values": "clip = 2.0\nbits = 4\nfeedback = true\npull_bits = 5\nmost_examples = 32\n"
        'codec = [{ name = "support", one_in = 3 }, "rotate", '
        '{ name = "round", length = "mean_norm" }]',
        "rule": ROUNDS,
    },
    "bfv-sync": {"cipher": 'name = "bfv"\ncapacity = 8', "values": RECORDS, "rule": ROUNDS},
    "plain-private": {
        "shards": 2,
        "block_size": 16,
        "cipher": 'name = "plain"\ncapacity = 8',
        "values": 'clip = 1.0\nbits = 16\nweighting = "uniform"',
        "rule": "quorum = 3\nminimum = 2\ndeadline = 10000.0\nextensions = 0",
        "more": "[privacy]\n"
        'unit = "client"\nplacement = "aggregator"\nnoise_multiplier = 1.0\n'
        "delta = 1e-5\nbudget = 500.0\n",
    },
}


def _share_came(stage: Stage) -> bool:
    """A cohort is open, one holder of the committee has answered, and two are awaited."""
    return any(type(record).__name__ == "ShareReceived" for record in stage.records("coordinator"))


def _buffer_fills(stage: Stage) -> bool:
    group = stage.simulation.coordinator.federation.groups["all"]
    return group.phase is Phase.COLLECTING and group.version == 1 and len(group.receipts) == 2


def _one_came(stage: Stage) -> bool:
    group = stage.simulation.coordinator.federation.groups["all"]
    return group.phase is Phase.COLLECTING and group.version == 0 and len(group.receipts) == 1


def _keys_rotated(stage: Stage) -> bool:
    """Two versions of a codec are there, and one member's part of the next; holders erased keys."""
    group = stage.simulation.coordinator.federation.groups["all"]
    erased = all(
        any(type(record).__name__ == "KeysErased" for record in stage.records(holder))
        for holder in stage.holders
    )
    collecting = group.phase is Phase.COLLECTING and group.version == 2
    return collecting and len(group.receipts) == 1 and erased


def _prepares(stage: Stage) -> bool:
    """One shard has stepped, with its noise, and another not."""
    group = stage.simulation.coordinator.federation.groups["all"]
    return group.version == 2 and type(stage.records("coordinator")[-1]).__name__ == "ShardPrepared"


STOPS: dict[str, Callable[[Stage], bool]] = {
    "rlwe-sync": _share_came,
    "rlwe-buffered": _buffer_fills,
    "rlwe-thin": _keys_rotated,
    "bfv-sync": _one_came,
    "plain-private": _prepares,
}


def begin(name: str, folder: Path) -> None:
    """The plan and the kit of a run."""
    filled = {"more": "", "shards": 1, "block_size": 128} | PLANS[name]
    (folder / "plan.toml").write_text(PLAN.format(name=name, **filled))
    plan = load_plan(folder / "plan.toml")
    kit = folder / "kit"
    create_kit(kit, plan.cipher_parameters)
    issue(kit, "coordinator", "coordinator")
    for shard in shard_names(plan.section.shards):
        issue(kit, "shard", shard)
    for holder in holder_names(plan.holders):
        issue(kit, "holder", holder)
    for client in client_names(CLIENTS):
        issue(kit, "client", client)


def make(name: str, target: Path) -> None:
    """Stores a run that was stopped in the middle, and what it ends in."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        begin(name, folder)
        stage = Stage(folder)
        stage.play(lambda: STOPS[name](stage))
        phase = stage.simulation.coordinator.federation.groups["all"].phase
        if name == "plain-private":
            _charge(stage)
        now = stage.halt()
        pack(folder, target / f"{name}.tar.xz")
        again = Stage(folder, now)
        again.play()
        known = {"now": now, "phase": phase.value, "ending": again.ending()}
        again.halt()
    (target / f"{name}.json").write_text(json.dumps(known, indent=1) + "\n")


def _charge(stage: Stage) -> None:
    """What a client has sealed, in a ledger over all its runs."""
    ledger = BudgetLedger(stage.folder / "ledgers" / "client-00.db")
    for record in stage.records("client-00"):
        if type(record).__name__ == "Sealed" and record.receipt.fact is not None:
            charge(ledger, record.receipt.run, record.receipt.fact)


def main(folder: Path) -> None:
    """Makes all files of a format."""
    folder.mkdir()
    for name, values in (("values", examples()), ("digests", digests()), ("schema", schema())):
        text = json.dumps(values, indent=0, sort_keys=True) + "\n"
        (folder / f"{name}.json").write_text(text)
    (folder / "runs").mkdir()
    for name in PLANS:
        make(name, folder / "runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
