"""What a ServerApp decided when it ran once, and how every holder is given it: beside version 0.

The file of the initial model has it among its metadata, as JSON, so the plan's digest of that file
pins it, and nobody else need run the ServerApp. What must not live here: Flower (this module must
be readable without it), and running anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from secureps.client.trainer import Array, Setting
from secureps.errors import ConfigError, DamagedStore
from secureps.store.checkpoint import read_state, write_state

KEY = "flower"
"""Of the metadata."""

MOST_BYTES = 1 << 20
"""Of what is told, as JSON: thousands of rounds of settings."""

MOST_RECORDS = 64
"""Of a round's message."""


@dataclass(frozen=True)
class Told:
    """What clients are told from a round on: records that are no arrays, as `flower_records` has.

    Args:
        since: the first round, from 1.
        records: (name, kind, items) of each, as JSON.
    """

    since: int
    records: str


@dataclass(frozen=True)
class Served:
    """What the messages of a ServerApp are like; the defaults are those of Flower's FedAvg.

    Args:
        names: of the model's arrays, in the app's order; empty: as the file has them.
        train, evaluate: types of messages; empty: what the ClientApp has.
        arrays, config: names of the records.
        weighted_by: the metric that is a reply's weight.
        run: what it changes in run_config.
        fits, evaluations: what is told, by the round from which on it is.
    """

    names: tuple[str, ...] = ()
    train: str = ""
    evaluate: str = ""
    arrays: str = "arrays"
    config: str = "config"
    weighted_by: str = "num-examples"
    run: Mapping[str, Setting] = field(default_factory=dict)
    fits: tuple[Told, ...] = ()
    evaluations: tuple[Told, ...] = ()

    def told(self, evaluates: bool, number: int) -> str:
        """The records of a round, from 1, as JSON."""
        known = self.evaluations if evaluates else self.fits
        before = [told for told in known if told.since <= max(number, 1)]
        return before[-1].records if before else "[]"


def write_served(path: Path, model: Mapping[str, Array], served: Served) -> None:
    """Writes the file of version 0.

    Raises:
        ConfigError: clients are told more than fits.
        OperatorError: the disk refuses.
    """
    text = json.dumps(asdict(served))
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"the ServerApp tells its clients {len(text)} bytes in all rounds; {MOST_BYTES} fit"
        )
    write_state(path, dict(model), {KEY: text})


def read_served(path: Path) -> tuple[dict[str, Array], Served | None]:
    """The tensors of a file of version 0, and what a ServerApp said, if it was asked.

    Raises:
        ConfigError: no such file, or it says what no ServerApp can have said.
    """
    try:
        tensors, metadata = read_state(path, None)
    except DamagedStore as error:
        raise ConfigError(f"initial: {error}") from None
    if not tensors:
        raise ConfigError(f"initial: {path} has no tensors")
    text = metadata.get(KEY)
    if text is None:
        return tensors, None
    try:
        served = _parsed(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"initial: {path}: what it says of a ServerApp cannot be read: make it again with "
            "`secureps flower`"
        ) from None
    if sorted(served.names) != sorted(tensors):
        raise ConfigError(f"initial: {path}: its tensors are not those that its ServerApp named")
    return tensors, served


def _parsed(text: str) -> Served:
    """Raises ValueError, KeyError or TypeError: not what `write_served` writes."""
    if len(text) > MOST_BYTES:
        raise ValueError("too long")
    said = json.loads(text)
    texts = {
        key: _text(said[key]) for key in ("train", "evaluate", "arrays", "config", "weighted_by")
    }
    run = {_text(key): value for key, value in dict(said["run"]).items()}
    if not all(isinstance(value, bool | int | float | str) for value in run.values()):
        raise TypeError("no plain value")
    return Served(
        names=tuple(map(_text, said["names"])),
        run=run,
        fits=tuple(map(_told, said["fits"])),
        evaluations=tuple(map(_told, said["evaluations"])),
        **texts,
    )


def _told(each: Any) -> Told:
    since, records = each["since"], json.loads(_text(each["records"]))
    if type(since) is not int or since < 1 or len(records) > MOST_RECORDS:
        raise ValueError("no round, or too many records")
    for name, kind, items in records:
        if kind not in ("metrics", "config") or not isinstance(items, dict):
            raise ValueError(f"{_text(name)} is no record")
    return Told(since, each["records"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


# --- what a plan takes over -------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    """What became of one setting of a strategy.

    Args:
        setting: "fraction_train"; app: "0.5"; here: "rule.fraction = 0.5".
        lost: whether it was given up, which the plan allows by name.
    """

    setting: str
    app: str
    here: str
    lost: bool = False


@dataclass(frozen=True)
class Wishes:
    """What a strategy asks for in the words of a plan; None: nothing.

    Args:
        optimizer: of all groups.
        fraction, least: of the clients that train in a round; start: how many must be there.
        evaluate_fraction, evaluate_least: of those that evaluate.
        rounds: how many; timeout: seconds of each.
    """

    optimizer: Mapping[str, Any] | None = None
    fraction: float | None = None
    least: int | None = None
    start: int | None = None
    evaluate_fraction: float | None = None
    evaluate_least: int | None = None
    rounds: int | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class FoundingOrder:
    """How a ServerApp is run: for so many versions, from a seed; what of it is given up by name."""

    versions: int
    seed: int
    drop: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Founded:
    """All that a ServerApp decided: version 0, what clients are told, what the plan takes over."""

    model: Mapping[str, Array]
    served: Served
    strategy: str
    wishes: Wishes
    fates: tuple[Fate, ...]
