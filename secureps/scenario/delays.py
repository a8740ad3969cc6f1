"""Draws how long clients take, and how often they drop out, in a simulation.

A delay is a pure function of (seed, client, version, purpose): the order of calls, and who else is
asked, change nothing, so a run with a fault in it sees the same delays as the run without.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from secureps.errors import ConfigError
from secureps.wording import meant

MOST = 1e15
"""The largest number in a table of delays."""
MOST_SIGMA = 10.0
"""The largest sigma of a lognormal: products and quotients of two draws stay finite, above 0."""
LEAST_BANDWIDTH = 1.0
"""The least bytes a second of a link; of a lognormal, of its median."""


KINDS: dict[str, tuple[tuple[str, ...], Callable[..., float]]] = {
    "constant": (("value",), lambda rng, value: value),
    "uniform": (("low", "high"), lambda rng, low, high: float(rng.uniform(low, high))),
    # the long tail of real devices
    "lognormal": (
        ("median", "sigma"),
        lambda rng, median, sigma: float(median * math.exp(sigma * rng.standard_normal())),
    ),
    "exponential": (("mean",), lambda rng, mean: float(rng.exponential(mean))),
}
"""The names of each kind's numbers, and how it draws seconds with them."""


@dataclass(frozen=True)
class Distribution:
    """How a delay is distributed: a kind of KINDS with its numbers, in their order."""

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
    """Makes a distribution of a number of seconds or a table such as `{kind = "uniform", ...}`.

    A table has its kind's fields, all from 0 to `MOST`. ConfigError says `where` one is wrong.
    """
    if not isinstance(table, Mapping):
        return Distribution("constant", (_number(table, where),))
    kind = table.get("kind")
    if kind is None:
        raise ConfigError(f"{where}: names no kind; {meant('', KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}: unknown kind {kind!r}; {meant(kind, KINDS)}")
    known = KINDS[kind][0]
    given = [name for name in table if name != "kind"]
    if sorted(given) != sorted(known):
        raise ConfigError(f"{where}: {kind} takes {', '.join(known)}; got {given}")
    return Distribution(kind, tuple(_number(table[name], f"{where}.{name}") for name in known))


AT_ONCE = Distribution("constant", (0.0,))


def generator(seed: int, client: str, version: int, purpose: str) -> np.random.Generator:
    """The random numbers of one event: PCG64 seeded by BLAKE2b over what names the event."""
    digest = hashlib.blake2b(digest_size=16, person=b"secureps-delays")
    for word in (str(seed), client, str(version), purpose):
        encoded = word.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "big")))


@dataclass(frozen=True)
class Delays:
    """A population of clients: training time, time of one message, chance to drop a version.

    `version` is what the servers take to make a version of a cohort; what arrives waits meanwhile.
    `device` is drawn once for each client, and multiplies all its training times: who is slow today
    is slow tomorrow. `bandwidth`, in bytes a second each way, is drawn once too (None: bytes take
    no time).
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
        """Makes delays of a table with any of these keys; ConfigError if it is not right."""
        known = [each.name for each in fields(cls)]
        for name in table:
            if name not in known:
                raise ConfigError(f"delays: unknown key {name!r}; {meant(name, known)}")
        given = {
            name: distribution(table[name], f"delays.{name}") for name in table if name != "dropout"
        }
        return cls(**given, dropout=_number(table.get("dropout", 0.0), "delays.dropout"))

    def train_seconds(self, seed: int, client: str, version: int) -> float:
        speed = self.device.sample(generator(seed, client, 0, "device"))
        return speed * self.train.sample(generator(seed, client, version, "train"))

    def network_seconds(self, seed: int, client: str, version: int, purpose: str) -> float:
        """The seconds that the message `purpose` takes between `client` and the servers."""
        return self.network.sample(generator(seed, client, version, f"network:{purpose}"))

    def bytes_per_second(self, seed: int, client: str) -> float:
        """The bandwidth of a client's link, each way; constant. Infinite if bytes take no time."""
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
