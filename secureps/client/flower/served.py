"""The decisions of a ServerApp, which ran once, as metadata of the file of version 0.

The plan's digest of that file pins them, and nobody else need run the ServerApp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter

from secureps.client.initial_model import read_initial
from secureps.client.trainer import Array, Setting
from secureps.errors import ConfigError
from secureps.store.checkpoint import read_metadata, write_state

KEY = "flower"
"""Key of the file's metadata."""

MOST_BYTES = 1 << 20
"""The longest JSON that is read, so that no malicious file fills a client's memory."""

MOST_RECORDS = 64
"""The most records in a round's message."""


def _records(text: str) -> str:
    """Accepts the JSON of a round's records (else ValueError or TypeError)."""
    records = json.loads(text)
    if len(records) > MOST_RECORDS:
        raise ValueError("too many records")
    for name, kind, items in records:
        named = isinstance(name, str) and isinstance(items, dict)
        if not named or kind not in ("metrics", "config"):
            raise ValueError(f"{name!r:.80} is no record")
    return text


@dataclass(frozen=True)
class Told:
    """The records, without arrays, that clients get from a round on.

    Args:
        since: the first round, from 1.
        records: (name, kind, items) of each, as JSON.
    """

    since: Annotated[int, Field(ge=1)]
    records: Annotated[str, AfterValidator(_records)]


@dataclass(frozen=True)
class Served:
    """The form of a ServerApp's messages; the defaults are those of Flower's FedAvg.

    Args:
        names: of the model's arrays, in the app's order; empty: the file's names and order.
        arrays, config: names of the records.
        weighted_by: the metric that is a reply's weight.
        run: its changes to run_config.
        fits, evaluations: settings that clients are told, by the round at which they begin.
    """

    names: tuple[str, ...] = ()
    arrays: str = "arrays"
    config: str = "config"
    weighted_by: str = "num-examples"
    run: Mapping[str, Setting] = field(default_factory=dict)
    fits: tuple[Told, ...] = ()
    evaluations: tuple[Told, ...] = ()

    def told(self, evaluates: bool, number: int) -> str:
        """The records that clients get in round `number` (from 1), as JSON."""
        known = self.evaluations if evaluates else self.fits
        before = [told for told in known if told.since <= max(number, 1)]
        return before[-1].records if before else "[]"


def write_served(
    path: Path, model: Mapping[str, Array], served: Served, ties: Mapping[str, str] | None = None
) -> None:
    """Writes the file of version 0; `ties` are further names of tensors, with the names meant."""
    text = json.dumps(asdict(served))
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"the ServerApp tells its clients {len(text)} bytes in all rounds; {MOST_BYTES} fit: "
            "tell them less, or the same in more rounds"
        )
    write_state(path, dict(model), {**(ties or {}), KEY: text}, None)


def read_served(path: Path) -> tuple[dict[str, Array], Mapping[str, str], Served | None]:
    """Reads a file of version 0: tensors, ties, and a ServerApp's decisions; else ConfigError."""
    mapped, ties = read_initial(str(path), path)
    tensors = {name: each.copy() for name, each in mapped.items()}
    if not tensors:
        raise ConfigError(f"initial: {path} has no tensors")
    text = read_metadata(path).get(KEY)
    if text is None:
        return tensors, ties, None
    try:
        served = _parsed(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"initial: {path}: what it says of a ServerApp cannot be read: make it again with "
            "`secureps flower`"
        ) from None
    if sorted(served.names) != sorted(tensors):
        raise ConfigError(f"initial: {path}: its tensors are not those that its ServerApp named")
    return tensors, ties, served


def _parsed(text: str) -> Served:
    """Parses the JSON of `write_served`; ValueError, KeyError or TypeError if it is another."""
    if len(text) > MOST_BYTES:
        raise ValueError("too long")
    if missing := {each.name for each in fields(Served)} - set(json.loads(text)):
        raise KeyError(*missing)
    return TypeAdapter(Served).validate_json(text, strict=True)


@dataclass(frozen=True, eq=False)
class Founded:
    """A ServerApp's decisions that a plan can follow.

    Args:
        model: version 0, in its own order; empty if a client is to be asked.
        ties: further names of its tensors.
        served: what clients are told.
        strategy: its name.
        optimizer: in the plan's words, None for the mean itself.
    """

    model: Mapping[str, Array]
    ties: Mapping[str, str]
    served: Served
    strategy: str
    optimizer: Mapping[str, Any] | None
