"""The records of a wave's message in Flower: a marker, a batch, and payloads.

secureps           ConfigRecord: public settings of the wave
secureps.batch     ArrayRecord of one array, which Flower sends in pieces like a model
secureps.payloads  ArrayRecord, by digest: all nodes share these arrays, so Flower sends them once
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.client.mod import utils
from flwr.clientapp import ClientApp

from secureps.client.flower.trainer import FlowerModel
from secureps.client.trainer import Array as NumpyArray
from secureps.errors import Malformed, Oversized
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.run import TRAIN_METRICS

log = logging.getLogger("flwr.secureps")
"""A child of Flower's own logger."""

MARKER = "secureps"
BATCH = "secureps.batch"
PAYLOADS = "secureps.payloads"
OURS = (MARKER, BATCH, PAYLOADS)

STYPE = "secureps"
"""The serialization type of our arrays, which Flower refuses to read as numbers."""

FORM = "model"
"""The marker's key for `ModelForm`."""

TOLD_KIT, TOLD_SEED = "kit", "unsafe-seed"
"""The marker's keys for what a simulation's ServerApp gives its nodes."""

Said = Mapping[str, str | int]


def wrap_bytes(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)


def pack(
    said: Said,
    batch: bytes = b"",
    payloads: Mapping[bytes, bytes] | None = None,
    known: dict[bytes, Array] | None = None,
) -> RecordDict:
    """Makes the records of a wave's message.

    Args:
        said: the settings in the record named MARKER.
        batch: the signed batch of protocol messages.
        payloads: by digest.
        known: arrays of payloads are taken from it, or added to it.
    """
    records = RecordDict({MARKER: ConfigRecord(dict(said))})
    if batch:
        records[BATCH] = ArrayRecord({"batch": wrap_bytes(batch)})
    if payloads:
        made = {} if known is None else known
        records[PAYLOADS] = own = ArrayRecord()
        for digest, data in payloads.items():
            if digest not in made:
                made[digest] = wrap_bytes(data)
            own[digest.hex()] = made[digest]  # the constructor would copy them
    return records


def is_ours(content: RecordDict) -> bool:
    return MARKER in content.config_records


def read_wave(content: RecordDict, most: int) -> tuple[Said, bytes, dict[bytes, bytes]]:
    """Reads settings, batch and payloads; Malformed, or Oversized beyond `most` bytes."""
    said: dict[str, str | int] = {}
    for key, value in content.config_records[MARKER].items():
        if not isinstance(value, str | int):
            raise Malformed(f"a wave's message says {key!r:.80} as a {type(value).__name__}")
        said[key] = value
    batch, payloads = b"", dict[bytes, bytes]()
    if BATCH in content.array_records:
        batch = _bytes(content.array_records[BATCH].get("batch"), most)
    for name, each in content.array_records.get(PAYLOADS, {}).items():
        if len(name) != 2 * DIGEST_BYTES or not set(name) <= set("0123456789abcdef"):
            raise Malformed("a payload of a wave's message is named by no digest")
        payloads[bytes.fromhex(name)] = _bytes(each, most)
    return said, batch, payloads


def _bytes(found: Array | None, most: int) -> bytes:
    if found is None or found.stype != STYPE:
        raise Malformed("a wave's message without its batch, or with another kind of array in it")
    if len(found.data) > most:
        raise Oversized(f"a wave's message of {len(found.data)} bytes; at most {most} are allowed")
    return found.data


# --- the form of the app's model -----------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelForm:
    """Description of a model that a ServerApp sends to nodes; all its values are zeros here."""

    model: FlowerModel
    arrays: str = "arrays"
    config: str = "config"
    weighted_by: str = "num-examples"
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, NumpyArray]:
        """All tensors that are sent: the model, and one for the metrics."""
        own = {TRAIN_METRICS: np.zeros(len(self.metrics), np.float32)} if self.metrics else {}
        return {**self.model.tensors, **own}

    def to_json(self) -> str:
        tensors = [(n, str(a.dtype), list(a.shape)) for n, a in self.model.tensors.items()]
        return json.dumps(
            [
                *(tensors, self.model.nameless, dict(self.metrics)),
                *(self.arrays, self.config, self.weighted_by),
            ]
        )

    @classmethod
    def from_json(cls, text: str) -> ModelForm:
        """Reads the result of `to_json`; Malformed for any other text."""
        try:
            tensors, nameless, metrics, arrays, config, weighted_by = json.loads(text)
            zeros = {name: _zeros(kind, shape) for name, kind, shape in tensors}
            most = {name: float(value) for name, value in metrics.items()}
            made = cls(FlowerModel(zeros, nameless), arrays, config, weighted_by, most)
            sound = made.to_json() == text
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError):
            sound = False
        if not sound:
            raise Malformed("a wave's message says nothing usable of the app's model")
        return made


def _zeros(kind: str, shape: Sequence[int]) -> NumpyArray:
    if not re.fullmatch(r"(float|int|uint)\d\d?|bool", kind):
        raise ValueError(kind)
    return np.zeros(shape, kind)


# --- what differs between flwr 1.41 and 1.42, or has no public name there ------------


REFUSED = 2
"""Flower's error code for an app that raises."""

_APP = ClientApp.__module__
_CHAIN = utils.__name__


def refusal(message: Message, reason: str) -> Message:
    """Makes the reply that says why a message is refused."""
    return Message(Error(code=REFUSED, reason=reason), reply_to=message)


def is_outermost(frame: FrameType | None) -> bool:
    """Tells whether the mod that this frame belongs to is the first of its app's.

    Between an app and its first mod there is only one function of Flower's; any other mod is called
    by a mod.
    """
    while frame is not None and frame.f_globals.get("__name__") != _CHAIN:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_globals.get("__name__") == _APP
