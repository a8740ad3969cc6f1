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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from secureps.config.scenario import ShardsSection
from secureps.errors import ConfigError
from secureps.messages.requests import GetBlock, GetSum, Payload, PutBlock, Submit
from secureps.wording import suggest

MOST = 1e15
"""The largest number in a table of delays."""
MOST_SIGMA = 10.0
"""The largest sigma of a lognormal, so that products and quotients of two draws stay finite."""
LEAST_BANDWIDTH = 1.0
"""The lowest bandwidth of a link, or median of a lognormal one, in bytes a second."""


KINDS: dict[str, tuple[tuple[str, ...], Callable[..., float]]] = {
    "constant": (("value",), lambda rng, value: value),
    "uniform": (("low", "high"), lambda rng, low, high: float(rng.uniform(low, high))),
    "lognormal": (
        ("median", "sigma"),
        lambda rng, median, sigma: float(median * math.exp(sigma * rng.standard_normal())),
    ),
    "exponential": (("mean",), lambda rng, mean: float(rng.exponential(mean))),
}
"""For each kind of distribution the names of its numbers, and how it draws seconds."""


@dataclass(frozen=True)
class Distribution:
    """The distribution of a delay: a kind of KINDS with its numbers, in the order of KINDS."""

    kind: str
    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        match self.kind, self.numbers:
            case "uniform", (low, high) if high < low:
                raise ConfigError(f"uniform: high ({high}) is below low ({low})")
            case "lognormal", (_, sigma) if sigma > MOST_SIGMA:
                raise ConfigError(f"lognormal: sigma is at most {MOST_SIGMA:g}, got {sigma:g}")

    def sample(self, rng: np.random.Generator) -> float:
        return KINDS[self.kind][1](rng, *self.numbers)


def distribution(table: object, where: str = "delay") -> Distribution:
    """Makes a distribution from a number of seconds or a table like `{kind = "uniform", ...}`.

    A table has its kind's fields, each from 0 to `MOST`; a ConfigError says `where` one is wrong.
    """
    if not isinstance(table, Mapping):
        return Distribution("constant", (_number(table, where),))
    kind = table.get("kind")
    if kind is None:
        raise ConfigError(f"{where}: names no kind; {suggest('', KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}: unknown kind {kind!r}; {suggest(kind, KINDS)}")
    known = KINDS[kind][0]
    given = [name for name in table if name != "kind"]
    if sorted(given) != sorted(known):
        raise ConfigError(f"{where}: {kind} takes {', '.join(known)}; got {given}")
    return Distribution(kind, tuple(_number(table[name], f"{where}.{name}") for name in known))


AT_ONCE = Distribution("constant", (0.0,))


def generator(seed: int, client: str, version: int, purpose: str) -> np.random.Generator:
    """Makes the random numbers of one event: PCG64, seeded by BLAKE2b over the arguments."""
    digest = hashlib.blake2b(digest_size=16, person=b"secureps-delays")
    for word in (str(seed), client, str(version), purpose):
        encoded = word.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "big")))


@dataclass(frozen=True)
class Delays:
    """The delays of a population of clients, in seconds, and their chance to drop a version.

    `network` is the latency of a message, and `version` the time that servers take to make a
    version of a cohort. `device` is drawn once for each client and multiplies all its training
    times, because a slow device stays slow. `bandwidth`, in bytes a second each way, is drawn once
    for each client too (None: bytes take no time).
    """

    train: Distribution = AT_ONCE
    network: Distribution = AT_ONCE
    device: Distribution = Distribution("constant", (1.0,))
    bandwidth: Distribution | None = None
    version: Distribution = AT_ONCE
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.bandwidth is not None and self.bandwidth.kind == "exponential":
            raise ConfigError(
                "delays.bandwidth: an exponential one has links of almost 0 bytes a second; "
                "take lognormal"
            )
        if self.bandwidth is not None and (least := self.bandwidth.numbers[0]) < LEAST_BANDWIDTH:
            raise ConfigError(
                f"delays.bandwidth: a link has at least {LEAST_BANDWIDTH:g} byte a second, "
                f"not {least:g}; leave it out if bytes take no time"
            )
        if not 0 <= self.dropout <= 1:
            raise ConfigError(f"delays: dropout must be in [0, 1], got {self.dropout!r}")

    @classmethod
    def of(cls, table: Mapping[str, object]) -> Delays:
        """Makes delays from a table with any of these fields as keys, or raises ConfigError."""
        known = [each.name for each in fields(cls)]
        for name in table:
            if name not in known:
                raise ConfigError(f"delays: unknown key {name!r}; {suggest(name, known)}")
        given = {
            name: distribution(table[name], f"delays.{name}") for name in table if name != "dropout"
        }
        return cls(**given, dropout=_number(table.get("dropout", 0.0), "delays.dropout"))

    def train_seconds(self, seed: int, client: str, version: int) -> float:
        speed = self.device.sample(generator(seed, client, 0, "device"))
        return speed * self.train.sample(generator(seed, client, version, "train"))

    def network_seconds(self, seed: int, client: str, version: int, purpose: str) -> float:
        return self.network.sample(generator(seed, client, version, f"network:{purpose}"))

    def bytes_per_second(self, seed: int, client: str) -> float:
        """The bandwidth of a client's link, each way; infinite if bytes take no time."""
        if self.bandwidth is None:
            return math.inf
        return self.bandwidth.sample(generator(seed, client, 0, "bandwidth"))

    def version_seconds(self, seed: int, group: str, version: int) -> float:
        return self.version.sample(generator(seed, group, version, "version"))

    def drops(self, seed: int, client: str, version: int) -> bool:
        if not self.dropout:
            return False
        return bool(generator(seed, client, version, "dropout").random() < self.dropout)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where} must be a number, got {value!r}")
    if not 0 <= value <= MOST:
        raise ConfigError(f"{where} must be finite and from 0 to {MOST:g}, got {value!r:.80}")
    return float(value)


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
        self.delays, self.seed, self.shards = delays, seed, shards or ShardsSection()
        self._latency: dict[tuple[str, str], float] = {}
        self._bandwidth: dict[str, float] = {}
        self._free: dict[Queue, float] = {}

    def seconds(self, client: str, up: bool, message: Any, now: float) -> float:
        """The seconds until a message that is sent now arrives over a client's link."""
        latency, size = self._draw_latency(client, message), message_bytes(message)
        if not size:
            return latency
        if client not in self._bandwidth:
            self._bandwidth[client] = self.delays.bytes_per_second(self.seed, client)
        return self._enqueue((client, up), now, size / self._bandwidth[client]) + latency

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

    def _draw_latency(self, client: str, message: Any) -> float:
        kind = "data" if isinstance(message, _DATA) else "control"
        seconds = self._latency.get((client, kind))
        if seconds is None:  # drawn once for all messages of one kind
            seconds = self.delays.network_seconds(self.seed, client, 0, kind)
            self._latency[client, kind] = seconds
        return seconds
