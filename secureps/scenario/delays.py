"""Draws how long clients take and how often they drop out in a simulation.

A delay is a pure function of (seed, client, version, purpose), so a run with a fault sees the same
delays as the run without it, in whatever order they are asked for.

Every message takes a latency. Messages that carry values or keys (a block, a receipt) also take the
time of their bytes: they queue on the client's link, separately for each direction, and small
messages overtake them. If shards have a bandwidth, all traffic of a shard also queues on the
shard's link, and a message arrives when both links have finished it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from secureps.config.scenario import DelaysSection, LawSection, ShardsSection
from secureps.messages.requests import GetBlock, GetSum, Payload, PutBlock, Submit

DRAWS: dict[str, Callable[..., float]] = {
    "constant": lambda rng, value: value,
    "uniform": lambda rng, low, high: float(rng.uniform(low, high)),
    "lognormal": lambda rng, median, sigma: float(median * math.exp(sigma * rng.standard_normal())),
    "exponential": lambda rng, mean: float(rng.exponential(mean)),
}
"""Functions that draw from each kind of distribution, given a generator and the kind's numbers."""


def draw(law: LawSection, rng: np.random.Generator) -> float:
    return DRAWS[law.kind](rng, **law.numbers)


def generator(seed: int, client: str, version: int, purpose: str) -> np.random.Generator:
    """Makes the random numbers of one event: PCG64, seeded by BLAKE2b over the arguments."""
    digest = hashlib.blake2b(digest_size=16, person=b"secureps-delays")
    for word in (str(seed), client, str(version), purpose):
        encoded = word.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "big")))


class Delays(DelaysSection):
    """Draws the delays of a population of clients."""

    def train_seconds(self, seed: int, client: str, version: int) -> float:
        speed = draw(self.device, generator(seed, client, 0, "device"))
        return speed * draw(self.train, generator(seed, client, version, "train"))

    def network_seconds(self, seed: int, client: str, version: int, purpose: str) -> float:
        return draw(self.network, generator(seed, client, version, f"network:{purpose}"))

    def bytes_per_second(self, seed: int, client: str) -> float:
        """The bandwidth of a client's link, each way; infinite if bytes take no time."""
        if self.bandwidth is None:
            return math.inf
        return draw(self.bandwidth, generator(seed, client, 0, "bandwidth"))

    def version_seconds(self, seed: int, group: str, version: int) -> float:
        return draw(self.version, generator(seed, group, version, "version"))

    def drops(self, seed: int, client: str, version: int) -> bool:
        if not self.dropout:
            return False
        return bool(generator(seed, client, version, "dropout").random() < self.dropout)


# --- times the messages on the links of a simulation's clients and shards ----------


Queue = tuple[str, bool | None]
"""A party, and whether the queue is its sending or receiving link; None: a shard's adding."""

_DATA = (PutBlock, GetBlock, GetSum)
"""Messages with the latency of data; a tuple, because isinstance is asked for every message."""


def message_bytes(message: Any) -> int:
    """The bytes of a message that take time on a link; 0 for small messages."""
    if isinstance(message, PutBlock | Payload):
        return len(message.payload)
    if isinstance(message, Submit):
        own = message.receipt
        parts = (*own.blocks, *own.envelopes, *own.commitments, own.correction or b"")
        return sum(len(part) for part in parts)
    return 0


class Links:
    """All links of a simulation."""

    def __init__(self, delays: Delays, seed: int, shards: ShardsSection | None = None) -> None:
        self.shards = shards or ShardsSection()
        self._latency = cache(lambda client, kind: delays.network_seconds(seed, client, 0, kind))
        self._bandwidth = cache(lambda client: delays.bytes_per_second(seed, client))
        self._free: dict[Queue, float] = {}

    def seconds(self, client: str, up: bool, message: Any, now: float) -> float:
        """The seconds until a message that is sent now arrives over a client's link."""
        latency = self._latency(client, "data" if isinstance(message, _DATA) else "control")
        if not (size := message_bytes(message)):
            return latency
        return self._enqueue((client, up), now, size / self._bandwidth(client)) + latency

    def between(self, sender: str, to: str, message: Any, now: float) -> float:
        """The seconds until a message that is sent now arrives over the slower of both links."""
        slowest = 0.0
        for name, sends in ((sender, True), (to, False)):
            if name.startswith("client-"):
                slowest = max(slowest, self.seconds(name, sends, message, now))
            elif name.startswith("shard-"):
                slowest = max(slowest, self.shard_seconds(name, sends, message, now))
        return slowest

    def shard_seconds(self, shard: str, sends: bool, message: Any, now: float) -> float:
        """The seconds until a shard's own link has finished a message that is sent now."""
        if self.shards.bandwidth is None or not (size := message_bytes(message)):
            return 0.0
        seconds = size / self.shards.bandwidth * self.shards.slow.get(shard, 1.0)
        return self._enqueue((shard, sends), now, seconds)

    def adding(self, shard: str, blocks: int, now: float) -> float:
        """The seconds until a shard has added up so many blocks, behind those that it adds now."""
        seconds = blocks * self.shards.block_seconds * self.shards.slow.get(shard, 1.0)
        return self._enqueue((shard, None), now, seconds)

    def _enqueue(self, queue: Queue, now: float, seconds: float) -> float:
        """Queues work of so many seconds; returns the seconds until it is finished."""
        done = max(now, self._free.get(queue, now)) + seconds
        self._free[queue] = done
        return done - now

    def cut(self, client: str) -> None:
        self._free.pop((client, True), None)
        self._free.pop((client, False), None)
