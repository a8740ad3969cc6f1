"""Converts a model to and from Flower's `ArrayRecord`, and keeps `context.state` on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0

from secureps.client.returned import LOOK
from secureps.client.trainer import Array as NumpyArray
from secureps.client.trainer import check_like
from secureps.errors import ConfigError, DamagedStore, NotFinite, WrongShape
from secureps.store.checkpoint import read_state, write_state

Tensors = dict[str, NumpyArray]

KEPT = 3
"""Versions kept in `States`: the last one, and two for a run that went back."""

KINDS = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}
"""Flower's records, by their names in the files of `States`."""

_EMPTY = "_empty"
"""Flower's placeholder in a record of no arrays."""


@dataclass(frozen=True, eq=False)
class FlowerModel:
    """A model in the app's own order. Arrays without names are called arr_0, arr_1, ...

    Flower calls those "0", "1", ...; `nameless` says that the app gets these names again.
    """

    tensors: Tensors
    nameless: bool

    @classmethod
    def of_record(cls, record: ArrayRecord) -> FlowerModel:
        """Reads a record of the app; WrongShape if it has no arrays, or one that is not NumPy's."""
        arrays = {name: array for name, array in record.items() if name != _EMPTY}
        if not arrays:
            raise WrongShape("the app's model has no arrays")
        nameless = list(arrays) == [str(i) for i in range(len(arrays))]
        return cls({_ours(n, nameless): _numpy(n, a) for n, a in arrays.items()}, nameless)

    @classmethod
    def of_file(cls, tensors: Mapping[str, NumpyArray], names: Sequence[str] = ()) -> FlowerModel:
        """Takes a file's tensors in the order of `names`, else in its own; arr_0, ... by number."""
        numbered = [_ours(str(i), True) for i in range(len(tensors))]
        found = numbered if set(tensors) == set(numbered) else tensors
        order = list(names or found)
        return cls({name: tensors[name] for name in order}, order == numbered)

    def record(self, tensors: Mapping[str, NumpyArray]) -> ArrayRecord:
        """Makes the record of a state of this model, with copied arrays, else WrongShape."""
        reason = check_like(tensors, self.shapes)
        if reason is not None:
            raise WrongShape(f"not a state of this app's model: {reason}")
        names = {name: str(i) if self.nameless else name for i, name in enumerate(self.tensors)}
        return ArrayRecord({theirs: _array(np.asarray(tensors[n])) for n, theirs in names.items()})

    def read(self, record: ArrayRecord, given: Mapping[str, NumpyArray]) -> Tensors:
        """Reads the model that the app trained from `given`, in this model's order.

        Floating-point numbers of another width are cast back. Integers and booleans beside them
        stay as they were given: BatchNorm counts steps in them, which in an update's norm would
        leave the weights no room under the clip. Raises WrongShape for another model, NotFinite
        for a value that is not finite, perhaps only in the model's own width.
        """
        found = FlowerModel.of_record(record).tensors
        reason = check_like(found, self.shapes)
        if reason is not None:
            raise WrongShape(f"the app's fit returned another model: {reason}")
        trained = {name: _like(self.tensors[name], found[name], name) for name in self.tensors}
        real = {name for name, each in trained.items() if each.dtype.kind == "f"}
        return {n: given[n].copy() if real and n not in real else trained[n] for n in trained}

    def refuse_unsummable(self, where: str) -> None:
        """Refuses a model without numbers to average, such as serialized trees (ConfigError)."""
        if any(
            a.size and a.dtype.kind in "fiu" and a.dtype != np.uint8 for a in self.tensors.values()
        ):
            return
        listed = ", ".join(
            f"{name} ({array.dtype}, {array.size} values)"
            for name, array in list(self.tensors.items())[:3]
        )
        raise ConfigError(
            f"{where}: its model has no numbers to average: {listed}. What is "
            "serialized into bytes, as XGBoost's trees or a pickle, cannot be added up under "
            "encryption: send the model's numbers as arrays, or train such models with Flower alone"
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.tensors.items()}


def _ours(name: str, nameless: bool) -> str:
    return f"arr_{name}" if nameless else name


def _array(values: NumpyArray) -> Array:
    """Makes Flower's array with one copy of the values; Flower itself makes three."""
    if not values.flags.c_contiguous:
        return Array(values)
    header = BytesIO()
    write_array_header_1_0(header, header_data_from_array_1_0(values))
    data = b"".join((header.getvalue(), single_bytes(values)))
    return Array(str(values.dtype), values.shape, SType.NUMPY, data)


def single_bytes(values: NumpyArray) -> memoryview:
    """The bytes of an array in C order; a copy only if it lies in another order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _numpy(name: str, array: Array) -> NumpyArray:
    try:
        found: NumpyArray = array.numpy()
    except (TypeError, ValueError):
        raise WrongShape(
            f"array {name!r} of the app's model is serialized as {array.stype!r}; only arrays of "
            "numbers that NumPy reads (numpy.ndarray) can be averaged"
        ) from None
    return found


def _like(wanted: NumpyArray, found: NumpyArray, name: str) -> NumpyArray:
    if found.dtype != wanted.dtype and not found.dtype.kind == wanted.dtype.kind == "f":
        raise WrongShape(
            f"the app's fit returned another model: tensor {name!r} is {found.dtype}, the "
            f"model's is {wanted.dtype}"
        )
    with np.errstate(over="ignore"):
        cast = found.astype(wanted.dtype, copy=False)
    if not np.isfinite(cast).all():
        raise NotFinite(f"local training made tensor {name!r} NaN or infinite: {LOOK}")
    return cast


def _place(version: int, evaluated: bool) -> str:
    """The name of the state after a version's fit, or after its evaluation; names ascend."""
    return f"state-{version:012d}{'-evaluated' * evaluated}"


def _version(place: str) -> int:
    return int(place.split("-")[1])


class States:
    """Keeps `context.state` by version, in a folder or in memory.

    A fit at version n starts from the newest state up to n, and leaves n + 1, so a killed client
    repeats it from the same state. The evaluation of version n comes between the last fit and this
    one.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, tuple[Tensors, str]] = {}

    def before(self, version: int, evaluates: bool = False) -> RecordDict:
        """The state that a fit or evaluation at `version` starts from; may raise DamagedStore."""
        newest = _place(version, not evaluates)
        return self._load([known for known in self._places() if known <= newest])

    def newest(self) -> RecordDict:
        """The state that the last fit or evaluation left."""
        return self._load(self._places())

    def keep(self, version: int, state: RecordDict, evaluated: bool = False) -> None:
        """Keeps the state after the fit, or evaluation, at `version`; a fit drops later states."""
        if not state and not self._places():
            return
        place = _place(version, True) if evaluated else _place(version + 1, False)
        arrays, text = to_plain(state)
        if self._folder is None:
            self._memory[place] = arrays, text
        else:
            write_state(self._file(place), arrays, {"state": text})
        known = self._places()
        later = {other for other in known if other > place and not evaluated}
        versions = sorted({_version(other) for other in known if other not in later})[-KEPT:]
        for other in known:
            if other in later or _version(other) < versions[0]:
                self._drop(other)

    def _places(self) -> list[str]:
        if self._folder is None:
            return sorted(self._memory)
        return sorted(path.stem for path in self._folder.glob("state-*.safetensors"))

    def _load(self, places: list[str]) -> RecordDict:
        if not places:
            return RecordDict()
        if self._folder is None:
            return from_plain(*self._memory[places[-1]])
        arrays, metadata = read_state(self._file(places[-1]))
        try:
            return from_plain(arrays, metadata["state"])
        except (KeyError, ValueError, TypeError) as error:
            raise DamagedStore(f"{self._file(places[-1])}: not a state: {error}") from None

    def _drop(self, place: str) -> None:
        if self._folder is None:
            del self._memory[place]
        else:
            self._file(place).unlink()

    def _file(self, place: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{place}.safetensors"


def to_plain(state: RecordDict) -> tuple[Tensors, str]:
    """Splits a state into its arrays' bytes, as tensors, and JSON of everything else."""
    arrays: Tensors = {}
    records: list[tuple[str, str, dict[str, Any]]] = []
    for name, record in state.items():
        items: dict[str, Any] = {}
        for key, value in record.items():
            if isinstance(value, Array):
                tensor = str(len(arrays))
                arrays[tensor] = np.frombuffer(value.data, dtype=np.uint8)
                items[key] = (tensor, value.dtype, value.shape, value.stype)
            else:
                items[key] = _scalars(value)
        kind = next(kind for kind, record_type in KINDS.items() if isinstance(record, record_type))
        records.append((name, kind, items))
    return arrays, json.dumps(records)


def from_plain(arrays: Mapping[str, NumpyArray], text: str) -> RecordDict:
    """Joins what `to_plain` split; KeyError, ValueError or TypeError if it did not write this."""
    state = RecordDict()
    for name, kind, items in json.loads(text):
        if kind == "arrays":
            values: dict[str, Any] = {
                key: Array(dtype, tuple(shape), stype, arrays[tensor].tobytes())
                for key, (tensor, dtype, shape, stype) in items.items()
            }
        else:
            values = {key: _from_scalars(value) for key, value in items.items()}
        state[name] = KINDS[kind](values)
    return state


def _scalars(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_scalars(each) for each in value] if isinstance(value, list) else value


def _from_scalars(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return [_from_scalars(each) for each in value] if isinstance(value, list) else value
