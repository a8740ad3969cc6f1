"""What it takes to move blocks while a run trains: a shard comes, one goes, one loses its disk.

Two shards, five clients and the key holders of `rlwe` as processes on loopback, whose training
costs next to nothing. A third shard takes over its share, and then the first gives up all that it
holds. In a run of its own, where two shards hold every block, one is killed and starts without its
folder. "part" is of the copies of blocks that there are; "a version" is the median of those before
the move, "the slowest" the longest that had any part of it in it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.large import LOOK, Large
from benchmarks.report import Row, report
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.requests import Move, Status
from secureps.store.issuing import issue

SHARDS, CLIENTS, BLOCKS = 2, 5, 12
COMES, GOES, LOSES = "shard-2", "shard-0", "shard-1"
BEFORE = 4
"""Versions that are timed before a move."""


@dataclass(frozen=True)
class Moved:
    """The copies of blocks that moved, of all `copies`, and the bytes of their values."""

    blocks: int
    copies: int
    bytes: int


class Moving(Large):
    """The shard that comes is on the roster, and is started later."""

    def _make_kit(self) -> None:
        super()._make_kit()
        issue(self._kit, "shard", COMES)

    @property
    def here(self) -> Status:
        found = self.status()
        if found is None:
            raise RuntimeError(f"the coordinator does not answer: {self.log('coordinator')}")
        return found

    @property
    def version(self) -> int:
        return min(group.version for group in self.here.groups)

    def come(self) -> None:
        """The new shard starts, and is there."""
        self.start(COMES)
        self.wait(lambda: any(s.name == COMES and s.live for s in self.here.servers), COMES)

    def move(self, deed: ShardDeed, shard: str) -> Row:
        """Has a shard come or go; what that took."""

        def play() -> Moved:
            self.observer().act(Act(deed.value, shard))
            last: Move | None = None
            while (move := self.here.move) is not None:
                last = move
                time.sleep(LOOK)
            if last is None:
                raise RuntimeError("the move was over before anybody looked: take more values")
            return Moved(last.blocks, sum(each.blocks for each in self.here.holdings), last.bytes)

        return self._measure(f"{deed.value} {shard}", play)

    def lose(self, shard: str) -> Row:
        """Kills a shard, and starts it without its folder; what that took."""

        def play() -> Moved:
            held, began = self._copies(shard), self.version
            self.kill(shard)
            shutil.rmtree(self.folder / shard)
            self.start(shard)
            self.wait(lambda: self.version > began + 1 and self._copies(shard) == held, shard)
            return Moved(held, 2 * held, 4 * self.values)  # each of two shards holds all blocks

        return self._measure(f"lost disk of {shard}", play)

    def _measure(self, what: str, play: Callable[[], Moved]) -> Row:
        """Plays a move after some versions without one; what it took."""
        first = self.version
        self.committed(first + BEFORE + 1)
        began, at = self.version, time.monotonic()
        moved = play()
        seconds, ended = time.monotonic() - at, self.version
        usual = statistics.median(self._took(range(first, began + 1)))
        slowest = max(self._took(range(began, ended + 2)))
        return {
            "move": what,
            "blocks": f"{moved.blocks} of {moved.copies}",
            "part": moved.blocks / moved.copies,
            "MB": moved.bytes / 1e6,
            "seconds": seconds,
            "versions meanwhile": ended - began,
            "a version, s": usual,
            "the slowest, s": slowest,
            "longer by, s": slowest - usual,
        }

    def _copies(self, shard: str) -> int:
        return sum(each.blocks for each in self.here.holdings if each.shard == shard)

    def _took(self, versions: range) -> list[float]:
        """Seconds from each of these versions to the next of them."""
        return [b - a for a, b in pairwise([self.committed(version) for version in versions])]


def rows(values: int) -> list[Row]:
    """A shard comes, another goes, and one loses its disk."""
    with _moving(values) as parties:
        parties.come()
        found = [parties.move(ShardDeed.ADD, COMES), parties.move(ShardDeed.DRAIN, GOES)]
    with _moving(values, replicas=2) as parties:
        return [*found, parties.lose(LOSES)]


@contextmanager
def _moving(values: int, replicas: int = 1) -> Iterator[Moving]:
    """A federation that trains."""
    with (
        tempfile.TemporaryDirectory(prefix="secureps-resharding-") as folder,
        Moving(
            *(Path(folder), "rlwe", values, CLIENTS, 10_000, SHARDS),
            replicas=replicas,
            block_size=-(-values // BLOCKS) + 8,  # the weight is in the first of them
        ) as parties,
    ):
        parties.start_all()
        parties.committed(1)
        yield parties


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1_000_000)
    values = parser.parse_args().values
    title = f"{values / 1e6:g}M values, {CLIENTS} clients, {SHARDS} shards, rlwe: blocks move"
    report(f"resharding-{values / 1e6:g}M", title, rows(values))


if __name__ == "__main__":
    main()
