"""One version of many workers and shards in virtual time, from what each step costs.

Machines have links of their own, both ways at once, and cores; what they do is queued, first come
first served, block by block:

    push    a worker's core makes a block and hands it on -> its link up -> the shard's link down ->
            the shard's core digests, keeps and adds it -> acknowledged; with the last block of a
            worker its receipt -> the coordinator's one core -> a key holder's one core
    open    when all of that is done each shard's core opens and steps its blocks, and then the
            coordinator's does what a version costs it, and what each shard does
    pull    the shard's core and link up -> the worker's link down -> the worker's core

A worker pushes at most PAYLOADS_IN_FLIGHT blocks at once, and pulls LANES, as `service.executor`
and `wire.grpc.pacing` allow. What is not here: latency, packets, switches that carry less than
their links, and machines of unlike speed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from secureps.roles.member.tasks import in_own_order
from secureps.run.party_names import client_names
from secureps.service.executor import PAYLOADS_IN_FLIGHT
from secureps.wire.grpc.pacing import LANES

NANO = 1e-9


@dataclass(frozen=True)
class Costs:
    """What each step costs.

    Args:
        make: nanoseconds of CPU of a worker, a value: difference, rounding, sealing, digest, file.
        send: and to send it; `take`: of a shard, to receive, digest, keep and add one.
        open: of a shard, a value of a cohort, whoever many are in it.
        serve: of a shard, a value that a worker pulls; `pull`: of that worker.
        up, down: bytes of a value.
        decide: seconds of CPU of the coordinator, a worker; share: of a key holder.
        direct, begin: of the coordinator, for each shard, and for a version.
    """

    make: float
    send: float
    take: float
    open: float
    serve: float
    pull: float
    up: float
    down: float
    decide: float
    share: float
    direct: float = 0.0
    begin: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """What plays.

    Args:
        link: bytes a second of each machine, each way.
        cores: of each machine, that work on this.
        values: of the model, in blocks of the same size, each on one shard.
    """

    workers: int
    shards: int
    values: int
    link: float
    cores: int = 1
    blocks: int = 0

    @property
    def pieces(self) -> int:
        """Blocks of the model: by default one for each shard, none above 2^22 values."""
        each = -(-self.values // self.shards)
        return self.blocks or self.shards * -(-each // (1 << 22))


@dataclass(frozen=True)
class Times:
    """Seconds from the end of all trainings to when each part of a version is over."""

    pushed: float
    opened: float
    pulled: float


class _Queues:
    """Resources with places in which tasks are done one after another, in the order they come."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, int], list[float]] = {}

    def take(self, what: str, whose: int, places: int, now: float, seconds: float) -> float:
        """When a task that comes now is done."""
        free = self._free.setdefault((what, whose), [0.0] * places)
        done = max(now, heapq.heappop(free)) + seconds
        heapq.heappush(free, done)
        return done


class _Clock:
    """Calls what is due, in the order of its time; what is due at once in the order it was said."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = itertools.count()

    def at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (time, next(self._number), action))

    def run(self) -> float:
        """Until nothing is due any more; the time of the last."""
        now = 0.0
        while self._due:
            now, _, action = heapq.heappop(self._due)
            action(now)
        return now


def play(costs: Costs, cluster: Cluster, pipelined: bool, own_order: bool) -> Times:
    """A synchronous version, whose workers have all trained at second 0.

    Args:
        pipelined: whether a block leaves when it is made, as is built; else when the whole update
            is.
        own_order: whether workers begin with different blocks, or all with the first.
    """
    pushed = _push(costs, cluster, pipelined, own_order)
    own = -(-cluster.pieces // cluster.shards)
    seconds = NANO * costs.open * own * cluster.values / cluster.pieces
    opened = pushed + seconds / min(cluster.cores, own)
    opened += costs.begin + costs.direct * cluster.shards
    return Times(pushed, opened, opened + _pull(costs, cluster, own_order))


def _orders(cluster: Cluster, own_order: bool) -> list[list[int]]:
    """The blocks of each worker in its order."""
    blocks = list(range(cluster.pieces))
    names = client_names(cluster.workers)
    return [in_own_order(name, blocks) if own_order else blocks for name in names]


def _push(costs: Costs, cluster: Cluster, pipelined: bool, own_order: bool) -> float:
    clock, queues = _Clock(), _Queues()
    values = cluster.values / cluster.pieces
    wire = costs.up * values / cluster.link
    cores = cluster.cores

    def worker(number: int, blocks: list[int]) -> None:
        left, ready = list(blocks), list[int]()
        lanes, kept = PAYLOADS_IN_FLIGHT, 0

        def make(now: float) -> None:
            """The next one, when the last is made: what is sent meanwhile comes in between."""
            if left:
                block = left.pop(0)
                done = queues.take("worker", number, cores, now, NANO * costs.make * values)
                clock.at(done, partial(made, block))

        def made(block: int, now: float) -> None:
            ready.append(block)
            if pipelined or len(ready) == len(blocks):
                begin(now)
            make(now)

        def begin(now: float) -> None:
            nonlocal lanes
            while ready and lanes:
                lanes -= 1
                block = ready.pop(0)
                cpu = NANO * costs.send * values
                done = queues.take("worker", number, cores, now, cpu)
                clock.at(done, partial(up, block % cluster.shards))

        def up(shard: int, now: float) -> None:
            done = queues.take("up", number, 1, now, wire)
            # both ends carry it at once: the shard's link is taken from when it begins to come
            clock.at(done - wire, partial(down, shard))

        def down(shard: int, now: float) -> None:
            done = queues.take("down", shard, 1, now, wire)
            clock.at(done, partial(take, shard))

        def take(shard: int, now: float) -> None:
            done = queues.take("shard", shard, cores, now, NANO * costs.take * values)
            clock.at(done, stored)

        def stored(now: float) -> None:
            nonlocal lanes, kept
            lanes, kept = lanes + 1, kept + 1
            begin(now)
            if kept == len(blocks):
                done = queues.take("coordinator", 0, 1, now, costs.decide)
                clock.at(done, share)

        def share(now: float) -> None:
            clock.at(queues.take("holder", 0, 1, now, costs.share), lambda at: None)

        for _ in range(cores):
            clock.at(0.0, make)

    for number, blocks in enumerate(_orders(cluster, own_order)):
        worker(number, blocks)
    return clock.run()


def _pull(costs: Costs, cluster: Cluster, own_order: bool) -> float:
    clock, queues = _Clock(), _Queues()
    values = cluster.values / cluster.pieces
    wire = costs.down * values / cluster.link
    cores = cluster.cores

    def worker(number: int, blocks: list[int]) -> None:
        wanted = list(blocks)

        def ask(now: float) -> None:
            if wanted:
                shard = wanted.pop(0) % cluster.shards
                done = queues.take("shard", shard, cores, now, NANO * costs.serve * values)
                clock.at(done, partial(up, shard))

        def up(shard: int, now: float) -> None:
            done = queues.take("up", shard, 1, now, wire)
            clock.at(done - wire, down)

        def down(now: float) -> None:
            clock.at(queues.take("down", number, 1, now, wire), keep)

        def keep(now: float) -> None:
            done = queues.take("worker", number, cores, now, NANO * costs.pull * values)
            clock.at(done, ask)

        for _ in range(LANES):
            clock.at(0.0, ask)

    for number, blocks in enumerate(_orders(cluster, own_order)):
        worker(number, blocks)
    return clock.run()


def efficiency(training: float, seconds: float, alone: float = 0.0) -> float:
    """Of a synchronous version to one worker: 1 is linear.

    Args:
        alone: seconds of that one's version beside its training; 0 where it trains by itself.
    """
    return (training + alone) / (training + seconds)


def needed(goal: float, seconds: float) -> float:
    """Seconds of training between two versions from which the efficiency is a goal."""
    return goal / (1 - goal) * seconds
