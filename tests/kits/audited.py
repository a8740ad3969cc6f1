"""A run on disk whose parties have something to tell an auditor: holders, clients, noise."""

from pathlib import Path

from secureps.policy.plan import load_plan
from secureps.run.audit_log import export
from secureps.run.up.folder import client_names, holder_names
from tests.kits.processes import make_kit
from tests.kits.stage import CLIENTS, Stage

PLAN = """name = "audited"
versions = 3
shards = 1
block_size = 128
local = ["*.count"]

[cipher]
name = "rlwe"
holders = 3
threshold = 2
capacity = 40

[privacy]
unit = "client"
placement = "distributed"
noise_multiplier = 1.0
delta = 1e-5
budget = 500.0

[[group]]
clip = 1.0
bits = 16
weighting = "uniform"

[group.rule]
quorum = 3
minimum = 2
deadline = 10000.0
extensions = 0

[group.optimizer]
name = "adam"
learning_rate = 0.1
"""

PARTIES = ("coordinator", *holder_names(3), *client_names(CLIENTS))


def begin(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_text(PLAN)
    make_kit(folder / "kit", load_plan(folder / "plan.toml"), "shard-0", *PARTIES)
    return folder


def play(folder: Path, versions: int | None = None, now: float = 0.0) -> float:
    """Plays a run, to its end or until so many versions are there; the run's clock then."""
    stage = Stage(folder, now)
    stage.play(
        None
        if versions is None
        else lambda: stage.simulation.coordinator.federation.groups["all"].version >= versions
    )
    return stage.halt()


def exported(folder: Path, name: str) -> Path:
    out = folder / f"{name}.jsonl"
    export(folder / "state" / name, folder / "kit", name, out)
    return out
