"""The records of a wave's message in Flower: a marker, a batch, and payloads.

secureps           ConfigRecord: what is no secret and no message of ours
secureps.batch     ArrayRecord of one array of our own kind, which Flower cuts as it cuts models
secureps.payloads  ArrayRecord, by digest: the same arrays for all nodes, so they travel once

Names that Flower does not publish stand at the end.
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
"""Goes where Flower's own log goes."""

MARKER = "secureps"
BATCH = "secureps.batch"
PAYLOADS = "secureps.payloads"
OURS = (MARKER, BATCH, PAYLOADS)

STYPE = "secureps"
"""How our arrays are serialized: Flower's `numpy()` refuses them, so nothing adds them up."""

FORM = "model"
"""The marker's key for the form of the app's model."""

TOLD_KIT, TOLD_SEED = "kit", "unsafe-seed"
"""The marker's keys for what a simulation's ServerApp gives its nodes."""

Said = Mapping[str, str | int]


@dataclass(frozen=True, eq=False)
class Parcel:
    """Our part of one message: words beside the batch, the batch, and payloads by digest."""

    said: Said
    batch: bytes = b""
    payloads: Mapping[bytes, bytes] = field(default_factory=dict)


def wrap_bytes(data: bytes) -> Array:
    """Bytes of ours as an array of Flower's."""
    return Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)


def pack(parcel: Parcel, known: dict[bytes, Array] | None = None) -> RecordDict:
    """The records of a parcel; arrays of payloads are taken from `known`, or added there."""
    records = RecordDict({MARKER: ConfigRecord(dict(parcel.said))})
    if parcel.batch:
        records[BATCH] = ArrayRecord({"batch": wrap_bytes(parcel.batch)})
    if parcel.payloads:
        made = {} if known is None else known
        records[PAYLOADS] = own = ArrayRecord()
        for digest, data in parcel.payloads.items():
            if digest not in made:
                made[digest] = wrap_bytes(data)
            own[digest.hex()] = made[digest]  # the constructor would copy them
    return records


def is_ours(content: RecordDict) -> bool:
    """Whether a message is one of ours."""
    return MARKER in content.config_records


def unpack(content: RecordDict, most: int) -> Parcel:
    """The parcel in a message; Malformed, or Oversized for a batch of over `most` bytes."""
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
    return Parcel(said, batch, payloads)


def _bytes(found: Array | None, most: int) -> bytes:
    if found is None or found.stype != STYPE:
        raise Malformed("a wave's message without its batch, or with another kind of array in it")
    if len(found.data) > most:
        raise Oversized(f"a wave's message of {len(found.data)} bytes; at most {most} are allowed")
    return found.data


# --- the form of the app's model -----------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelForm:
    """The form of the app's model, of zeros, and the names of records, as its ServerApp says."""

    model: FlowerModel
    arrays: str = "arrays"
    config: str = "config"
    weighted_by: str = "num-examples"
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, NumpyArray]:
        """All that travels: the model, and the metrics in a tensor of their own."""
        own = {TRAIN_METRICS: np.zeros(len(self.metrics), np.float32)} if self.metrics else {}
        return {**self.model.tensors, **own}

    def text(self) -> str:
        """JSON, which `of_text` reads."""
        tensors = [(n, str(a.dtype), list(a.shape)) for n, a in self.model.tensors.items()]
        return json.dumps(
            [
                *(tensors, self.model.nameless, dict(self.metrics)),
                *(self.arrays, self.config, self.weighted_by),
            ]
        )

    @classmethod
    def of_text(cls, text: str) -> ModelForm:
        """Reads what `text` wrote; Malformed if it did not."""
        try:
            tensors, nameless, metrics, arrays, config, weighted_by = json.loads(text)
            zeros = {name: _zeros(kind, shape) for name, kind, shape in tensors}
            most = {name: float(value) for name, value in metrics.items()}
            made = cls(FlowerModel(zeros, nameless), arrays, config, weighted_by, most)
            sound = made.text() == text
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
"""Flower's code of an app that raises."""

_APP = ClientApp.__module__
_CHAIN = utils.__name__


def refusal(message: Message, reason: str) -> Message:
    """The reply that says why there is none."""
    return Message(Error(code=REFUSED, reason=reason), reply_to=message)


def is_outermost(frame: FrameType | None) -> bool:
    """Whether the mod whose frame this is, or was called from, is the first of its app's.

    Only one function of Flower's is between an app and its first mod; before any other mod there is
    the frame of the mod that called it.
    """
    while frame is not None and frame.f_globals.get("__name__") != _CHAIN:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_globals.get("__name__") == _APP
