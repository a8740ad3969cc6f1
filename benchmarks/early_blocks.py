"""Does a client send its blocks while it seals others, and what does that save?

Real servers on loopback, and a client in this process whose training costs next to nothing: when
each of its blocks was sealed, and when its shard had it, from the end of the training on. A second
client, which a cohort needs, trains when the first one's blocks are there. Versions take turns: in
every other one the client seals all blocks before the first leaves, as it did once, so that what
else the machine does is in both.

    python -m benchmarks.early_blocks [--values N] [--blocks N] [--versions N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import still_client
from benchmarks.crowd import Crowd, start_servers
from benchmarks.crowd_processes import Seats
from benchmarks.large import Large
from benchmarks.report import Row, report
from secureps.client.sealing import OutboxSealer, Sealing, whole
from secureps.client.trainer import FitConfig, FitResult
from secureps.messages.member_records import Sealed
from secureps.messages.requests import PutBlock, Reply, Request
from secureps.messages.submission import UPDATE
from secureps.roles.machine import Task, TaskResult
from secureps.roles.member.tasks import BlockSealed, Contributed
from secureps.service.environment import Meter
from tests.kits.federations import Tensors

VALUES, BLOCKS, SHARDS, VERSIONS = 10_000_000, 8, 2, 12
WAYS = ("each block sent when it is sealed", "sealed whole, then sent")


@dataclass
class Update:
    """Seconds of one update, from the end of its training."""

    trained: float
    sealed: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)

    @property
    def all_sealed(self) -> float:
        return max(self.sealed) - self.trained

    @property
    def all_arrived(self) -> float:
        return max(self.arrived) - self.trained

    @property
    def early(self) -> int:
        """Blocks that shards had before the last one was sealed."""
        return sum(at < max(self.sealed) for at in self.arrived)


class Trace(Meter):
    """When blocks were sealed and arrived, by the update's base version."""

    def __init__(self, blocks: int) -> None:
        self.updates: dict[int, Update] = {}
        self._newest, self._blocks = -1, blocks
        self._changed = threading.Condition()

    def begins(self, version: int) -> None:
        """A training from this version is over."""
        self._newest = version
        self.updates[version] = Update(time.perf_counter())

    def wait(self, version: int) -> None:
        """Until an update from this version is at its shards."""

        def there() -> bool:
            update = self.updates.get(version)
            return update is not None and len(update.arrived) >= self._blocks

        with self._changed:
            self._changed.wait_for(there)

    def worked(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        """Notes the end of a block's sealing."""
        if isinstance(result, BlockSealed | Contributed) and self._newest in self.updates:
            self.updates[self._newest].sealed.append(time.perf_counter())

    def called(self, message: Request, answer: Future[Reply]) -> None:
        """Notes when a block is at its shard."""
        if isinstance(message, PutBlock) and message.header.purpose == UPDATE:
            update = self.updates[self._newest]
            answer.add_done_callback(lambda _: self._arrived(update))

    def _arrived(self, update: Update) -> None:
        with self._changed:
            update.arrived.append(time.perf_counter())
            self._changed.notify_all()


class Traced(still_client.Still):
    """Says when its training is over."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(0)
        self._trace = trace

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        found = super().fit(parameters, config)
        self._trace.begins(config.versions["all"])
        return found


class Later(still_client.Still):
    """Trains when the first client's update has arrived."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(1)
        self._trace = trace

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        self._trace.wait(config.versions["all"])
        return super().fit(parameters, config)


def _in_turns() -> Any:
    """A sealer of which no block leaves before all are sealed, from odd versions."""
    seal = OutboxSealer.seal

    def in_turns(self: OutboxSealer, *given: Any) -> Sealing[Sealed]:
        sealing = seal(self, *given)
        if given[1].version % 2:
            return whole(sealing)
        return (yield from sealing)

    return mock.patch.object(OutboxSealer, "seal", in_turns)


class _Servers(Large):
    """Of a federation whose clients are in this process."""

    @property
    def parties(self) -> tuple[str, ...]:
        return ("coordinator", *self.shards, *self.holders)


def play(values: int, blocks: int, versions: int) -> dict[int, Update]:
    """All updates of a run, by base version."""
    size = -(-values // blocks)
    with (
        tempfile.TemporaryDirectory(prefix="secureps-early-") as folder,
        _Servers(Path(folder), "rlwe", values, 2, versions, SHARDS, False, 1, size) as parties,
    ):
        own = {still_client.VALUES: str(values), still_client.HOLD: str(parties.hold)}
        with mock.patch.dict(os.environ, own):
            trace = Trace(parties.plan.sized({"all": values})[0].blocks)
            trainers = Traced(trace), Later(trace)
        start_servers(parties)
        first, second = (Seats(parties.folder, (n,), parties.server) for n in parties.clients)
        with (
            _in_turns(),
            mock.patch("benchmarks.crowd.WORKERS", 1),  # as a client that is a process
            Crowd(first, meter=lambda _: trace, trainer=trainers[0]),
            Crowd(second, trainer=trainers[1]),
        ):
            parties.committed(versions)
    return trace.updates


def rows(updates: dict[int, Update]) -> Iterator[Row]:
    """A row for each way: medians of the versions after the first two."""
    by_way: defaultdict[int, list[Update]] = defaultdict(list)
    for version, update in sorted(updates.items()):
        if version >= 2:
            by_way[version % 2].append(update)
    for odd, name in enumerate(WAYS):
        found = by_way[odd]
        yield {
            "how": name,
            "all sealed, s": _median([each.all_sealed for each in found]),
            "all arrived, s": _median([each.all_arrived for each in found]),
            "least": min(each.all_arrived for each in found),
            "blocks there before": _median([each.early for each in found]),
            "of": len(found[0].arrived),
        }


def _median(found: Sequence[float]) -> float:
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--values", type=int, default=VALUES)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--versions", type=int, default=VERSIONS)
    given = parser.parse_args()
    found = play(given.values, given.blocks, given.versions)
    title = f"From the end of a training on: {given.values:,} values in {given.blocks} blocks, rlwe"
    report("early_blocks", title, list(rows(found)))
    last = max(version for version in found if version % 2 == 0)
    for name, times in (("sealed", found[last].sealed), ("arrived", found[last].arrived)):
        print(name, *(f"{at - found[last].trained:.3f}" for at in sorted(times)))


if __name__ == "__main__":
    main()
