"""What sharding saves: bytes of a value at each party, by what they are, at 1, 2, 4 and 8 shards.

Counted by role (values, gradients or updates, optimizer state, ciphertexts) for whoever holds
most, beside data-parallel training with everything at each worker and beside the three stages of
ZeRO in float32 (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", section 5: optimizer states, gradients and parameters are partitioned in turn).
What is counted of a shard is what `secureps check` predicts; beside it stand peaks of real
processes, without what they take for a model that is next to nothing.

    python -m benchmarks.sharding [--values N]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.large import Large
from benchmarks.report import Row, report
from secureps.policy.block_deltas import FLOAT_BYTES
from secureps.policy.explain.memory import MemoryUse, footprint, sealing
from secureps.policy.plan import Plan
from secureps.run.check import service

SHARDS = (1, 2, 4, 8)
CLIENTS, PLAYED = 5, 3
VALUES = 20_000_000
MOMENTS = 2
"""Vectors of Adam's state."""
ADAM = """[group.optimizer]
name = "adam"
learning_rate = 0.01
"""
ZERO = {1: "4", 2: "8", 3: "as workers"}
"""How many times less each stage takes at most, as its paper has it: of 16 bytes a value in mixed
precision, 12 of which are the optimizer's, a float32 copy of the values among them."""
SMALL = 100_000
"""Values of the run whose parties take next to nothing beside their programs."""


@dataclass(frozen=True)
class Held:
    """Bytes of a value that a party holds in memory at once, by what they are.

    Args:
        ciphertexts: sums and parts of updates on their way, encrypted or about to be.
        disk: of ciphertexts, on a shard's disk.
    """

    values: float
    gradients: float
    optimizer: float
    ciphertexts: float
    disk: float = 0.0

    @property
    def memory(self) -> float:
        return self.values + self.gradients + self.optimizer + self.ciphertexts


def data_parallel(workers: int, stage: int = 0) -> Held:
    """A worker of data-parallel training in float32 with Adam, under a stage of ZeRO or none.

    Stage 1 shares out the optimizer's state among the workers, 2 gradients too, 3 parameters too.
    """
    values, gradients = float(FLOAT_BYTES), float(FLOAT_BYTES)
    state = float(MOMENTS * FLOAT_BYTES)
    return Held(
        values / (workers if stage >= 3 else 1),
        gradients / (workers if stage >= 2 else 1),
        state / (workers if stage >= 1 else 1),
        0.0,
    )


def of_shard(use: MemoryUse, values: int) -> Held:
    """The busiest shard, by `secureps check`: three versions of values and of optimizer state.

    It has no gradient of its own: the mean of an update is opened and stepped in pieces.
    """
    per = use.state / values
    own = per / (1 + MOMENTS)
    moving = (use.work + use.uploads + use.connections) / values
    return Held(own, 0.0, per - own, moving, use.disk / values)


def of_client(held: int, values: int) -> Held:
    """A client, by `secureps check`: the pulled values, and the trained ones, whose difference is
    its update; what its script takes to train is its own, and so is its optimizer.

    Args:
        held: bytes, as `policy.explain.memory.sealing` has them.
    """
    return Held(FLOAT_BYTES, held / values - FLOAT_BYTES, 0.0, 0.0)


@dataclass(frozen=True)
class Played:
    """What a run came to: counted, and measured, in bytes of a value of the busiest of each kind.

    Args:
        shard_peak, client_peak: resident at most, without what a small model takes.
    """

    shards: int
    shard: Held
    client: Held
    shard_peak: float
    client_peak: float


def play(shards: int, values: int, programs: Mapping[str, int]) -> Played:
    """A run of real processes.

    Args:
        programs: bytes that a "client" and a "shard" take whatever the model's size: kernels too.
    """
    peaks, plan = peaks_of(shards, values)
    groups = plan.sized({plan.groups[0]: values})
    use = footprint(plan, groups, service(plan, CLIENTS))
    own = {kind: max(0, peaks[kind] - programs[kind]) / values for kind in peaks}
    held = of_shard(use, values), of_client(sealing(plan, groups[0]), values)
    return Played(shards, *held, own["shard"], own["client"])


def peaks_of(shards: int, values: int) -> tuple[dict[str, int], Plan]:
    """The most bytes that were resident in a "client" and in a "shard", and the plan of the run."""
    with (
        tempfile.TemporaryDirectory(prefix="secureps-sharding-") as folder,
        Large(
            Path(folder), "rlwe", values, CLIENTS, PLAYED + 1, shards, insecure=False, more=ADAM
        ) as parties,
    ):
        parties.start_all()
        parties.committed(PLAYED)
        peaks = parties.peaks()
        kinds = {"client": parties.clients, "shard": parties.shards}
        return {kind: max(peaks[n] for n in names) for kind, names in kinds.items()}, parties.plan


def rows(found: list[Played]) -> Iterator[Row]:
    """The parties of each run, beside what others hold of the same model in float32 with Adam."""
    everything = data_parallel(1)
    first = found[0]

    def row(who: str, held: Held, measured: str | float, saves: float, published: str = "") -> Row:
        return {
            "who": who,
            "values": held.values,
            "updates": held.gradients,
            "optimizer": held.optimizer,
            "ciphertexts": held.ciphertexts,
            "memory": held.memory,
            "measured": measured,
            "times less": saves,
            "published": published,
            "disk": held.disk,
        }

    for played in found:
        saves = first.shard_peak / played.shard_peak
        yield row(f"one of {played.shards} shards", played.shard, played.shard_peak, saves)
    client = found[-1].client
    yield row("a client", client, found[-1].client_peak, everything.memory / client.memory)
    for workers in SHARDS:
        for stage in range(4):
            held = data_parallel(workers, stage)
            if (stage == 0) != (workers == 1):  # alone there is nothing to share out
                continue
            name = f"one of {workers} workers, ZeRO {stage}" if stage else "a worker, data-parallel"
            yield row(name, held, "", everything.memory / held.memory, ZERO.get(stage, ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--values", type=int, default=VALUES)
    values = parser.parse_args().values
    programs, _ = peaks_of(1, SMALL)
    found = [play(shards, values, programs) for shards in SHARDS]
    title = f"Bytes of a value, {values / 1e6:.0f}M values, Adam, {CLIENTS} clients, rlwe"
    report("sharding", title, list(rows(found)))


if __name__ == "__main__":
    main()
