"""Version 0 of a model, its file, and the tensors that are never sent.

Version 0: the plan may pin its file by a digest. A client that has the file compares the digest
when it joins, and the values when it pulls version 0. The file's metadata may have what a ServerApp
decided when it ran once (`ServerAppRecords`), so that nobody else need run the ServerApp.

Each client keeps its own `local` tensors on its disk, by version. It makes `frozen` ones itself;
parties compare their digests when clients join.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter

from secureps.client.trainer import Array, FitResult, Setting, Trainer, blamed, convert_tensors
from secureps.crypto.sampling import Seed
from secureps.errors import ConfigError, DamagedStore, WrongRun, WrongShape
from secureps.messages.encoding import digest
from secureps.messages.run import GroupVersion, Schema, TensorSpec
from secureps.model.layout import GroupLayout
from secureps.store.checkpoint import map_state, read_metadata, read_state, write_state

Tensors = dict[str, NDArray[Any]]


def initial_parameters(trainer: Trainer, seed: Seed) -> Tensors:
    """Makes this client's founding model; under one unsafe seed all clients make the same."""
    with blamed("parameters"):
        made = trainer.parameters(seed.derive("initial").integer(63))
    with blamed("what parameters returned"):
        return convert_tensors(made)


def schema_of(parameters: Mapping[str, Any], ties: Mapping[str, str] | None = None) -> Schema:
    """Makes the schema of a model, sorted by name; `ties` are the result of `tied()`."""
    tied = ties or {}
    if unknown := [name for tie in tied.items() for name in tie if name not in parameters]:
        raise WrongShape(f"tied() names {unknown[0]}, and there is no such tensor")

    def spec(name: str) -> TensorSpec:
        array = parameters[name]
        dtype = f"{array.dtype}@{tied[name]}" if name in tied else str(array.dtype)
        return TensorSpec(name, tuple(int(n) for n in array.shape), dtype)

    return Schema(tuple(map(spec, sorted(parameters))))


def conform(result: FitResult, schema: Schema, ties: Mapping[str, str]) -> FitResult:
    """Gives a trained model the run's names and types; WrongShape if it is another model."""
    given, run = result.parameters, schema.untied.with_values({})
    for name, own in ties.items():
        apart = name in given and own in given and given[name] is not given[own]
        if apart and not np.array_equal(given[name], given[own]):
            raise WrongShape(
                f"{name} and {own} are two names of one tensor (tied), and came back different"
            )
    rest = {name: each for name, each in given.items() if name not in ties}
    made = {s.name: _cast_like(s, rest.pop(s.name)) for s in run.tensors if s.name in rest}
    fitted = schema_of(made | rest)
    if fitted != run:
        raise WrongShape(run.difference(fitted))
    return replace(result, parameters=made)


def add_ties(tensors: Mapping[str, NDArray[Any]], ties: Mapping[str, str]) -> Tensors:
    """Puts each tensor under all its names; the result is sorted by name."""
    further = {name: tensors[own] for name, own in ties.items() if own in tensors}
    return dict(sorted({**tensors, **further}.items()))


def shared_names(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Finds tied weights: further names of tensors, with the name that each stands for.

    Two views of one memory are one tensor, as in a `state_dict` of torch. One object under two
    names counts as two tensors, because it may be zeros that both begin from.
    """
    first, ties = dict[Any, tuple[str, Any]](), dict[str, str]()
    for name, each in tensors.items():
        if hasattr(each, "data_ptr"):
            place = each.data_ptr(), tuple(each.shape), each.stride(), each.dtype
        elif isinstance(each, np.ndarray):
            place = each.ctypes.data, each.shape, each.strides, each.dtype
        else:
            continue
        own, tensor = first.setdefault(place, (name, each))
        if tensor is not each and 0 not in each.shape:
            ties[name] = own
    return ties


def _cast_like(spec: TensorSpec, given: NDArray[Any]) -> NDArray[Any]:
    """Casts a tensor to the run's type, if that can hold its values (else WrongShape)."""
    dtype = np.dtype(spec.dtype)
    if given.dtype == dtype or tuple(given.shape) != spec.shape or given.dtype.kind == "c":
        return given
    values = np.asarray(given)
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(made, values):
        raise WrongShape(
            f"{spec.name} is {values.dtype}, and the run's {spec.dtype} cannot hold its values"
        )
    return made


def initial_digest(trainer: Trainer) -> str:
    """The hex digest of a trainer's file of version 0; empty without a file."""
    with blamed("initial_digest"):
        tells = getattr(trainer, "initial_digest", None)
        return "" if tells is None else str(tells())


def read_initial(place: str, path: Path) -> tuple[Tensors, dict[str, str]]:
    """Reads a file of version 0: its tensors, read-only, and further names; else ConfigError."""
    try:
        tensors, told = map_state(path, None), read_metadata(path)
    except DamagedStore as error:
        raise ConfigError(
            f"initial: {place}: not a safetensors file: {error}. What torch.save writes is a "
            "pickle, which is never read, because that would run the code in it: load it where you "
            'trust it, and write safetensors.torch.save_model(model, "initial.safetensors")'
        ) from None
    # safetensors.torch.save_model leaves a tied tensor out, and says so in these words
    ties = {
        name: own
        for name, own in told.items()
        if own in tensors
        and own != name
        and (name not in tensors or np.array_equal(tensors[name], tensors[own]))
    }
    return {**tensors, **{name: tensors[own] for name, own in ties.items()}}, ties


def refuse_other_start(
    layout: GroupLayout, initial: Mapping[str, NDArray[Any]], served: Sequence[NDArray[np.float32]]
) -> None:
    """Raises WrongRun if version 0, of float32 blocks, is not the file's model."""
    # Else a malicious server could start from a model whose updates give records away.
    own = layout.flatten(initial)
    if not all(np.array_equal(own[slice(*layout.span(k))], each) for k, each in enumerate(served)):
        raise WrongRun(
            "version 0 of the run is not the model of the file that this client was given "
            "(the setting initial); nothing was trained: ask the run's operator which file it is "
            "founded on"
        )


# --- local tensors -----------------------------------------------------------------


Model = Sequence[GroupVersion]
"""The versions of a model's groups, at least one."""

KEPT = 3
"""Trainings kept, because a restarted client may have to train from an earlier one again."""


class LocalTensors:
    """The local tensors of one client, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, model: Model, before: Tensors, after: Tensors) -> None:
        """Saves the local tensors after a training from `model`, if it changed them."""
        if all(np.array_equal(before[name], each) for name, each in after.items()):
            return
        number = 1 + _add_versions(model)
        write_state(self._file(number), after, {"version": str(number)})
        for path in self._files()[:-KEPT]:
            path.unlink()

    def load(self, model: Model | None = None) -> Tensors | None:
        """Loads the newest tensors, saved at or before `model` if given; None if there are none."""
        found = self._files()
        if model is not None:
            found = [path for path in found if path <= self._file(_add_versions(model))]
        return dict(read_state(found[-1])[0]) if found else None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("local-*.safetensors"))

    def _file(self, number: int) -> Path:
        return self._folder / f"local-{number:08d}.safetensors"


def _add_versions(model: Model) -> int:
    """Adds up the versions of all groups, because this sum grows with each training.

    The newest version need not grow, where groups take turns or go at their own pace.
    """
    return sum(at.version for at in model)


def digests_of(tensors: Tensors) -> dict[str, str]:
    return {name: _hash_bits(array).hex() for name, array in tensors.items()}


def take_frozen(initial: Tensors, frozen: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Takes the frozen tensors of a fresh model; WrongShape if they differ from those announced."""
    taken = {spec.name: initial[spec.name] for spec in frozen}
    for spec in frozen:
        if spec.values != _hash_bits(taken[spec.name]).hex():
            raise WrongShape(
                f"{spec.name} is frozen, and has other values than when this client joined: the "
                "file that it comes from has changed, or parameters(seed) is not one model"
            )
    return taken


def refuse_changed(before: Tensors, after: Tensors, frozen: Sequence[TensorSpec]) -> None:
    for spec in frozen:
        if _hash_bits(before[spec.name]) != _hash_bits(after[spec.name]):
            raise WrongShape(
                f"{spec.name} was trained, and the plan has it frozen: leave it as it came "
                "(requires_grad_(False)), or take it out of frozen"
            )


def _hash_bits(array: NDArray[Any]) -> bytes:
    """Hashes an array in little-endian row order, the same on every machine."""
    whole = np.asarray(array)
    little = whole.astype(whole.dtype.newbyteorder("<"), copy=False)
    return digest("secureps-frozen", little.tobytes())


# --- served ------------------------------------------------------------------------

KEY = "flower"
"""The key of `ServerAppRecords` in the file's metadata."""

MOST_BYTES = 1 << 20
"""The longest JSON that is read, so that a malicious file cannot fill a client's memory."""

MOST_RECORDS = 64
"""The most records in a round's message."""


def _check_records(text: str) -> str:
    """Returns the JSON of a round's records, if it is valid; else ValueError or TypeError."""
    records = json.loads(text)
    if len(records) > MOST_RECORDS:
        raise ValueError("too many records")
    for name, kind, items in records:
        named = isinstance(name, str) and isinstance(items, dict)
        if not named or kind not in ("metrics", "config"):
            raise ValueError(f"{name!r:.80} is no record")
    return text


@dataclass(frozen=True)
class RoundRecords:
    """The records, without arrays, that clients get from one round, from 1, until they change.

    `records` is JSON, with (name, kind, items) of each.
    """

    since: Annotated[int, Field(ge=1)]
    records: Annotated[str, AfterValidator(_check_records)]


@dataclass(frozen=True)
class ServerAppRecords:
    """Records that a ServerApp sends its clients; the defaults are those of Flower's FedAvg.

    Args:
        names: of the model's arrays, in the app's order; empty: as in the file.
        arrays, config: names of the records.
        weighted_by: the metric that is a reply's weight.
        run: changes of run_config.
    """

    names: tuple[str, ...] = ()
    arrays: str = "arrays"
    config: str = "config"
    weighted_by: str = "num-examples"
    run: Mapping[str, Setting] = field(default_factory=dict)
    fits: tuple[RoundRecords, ...] = ()
    evaluations: tuple[RoundRecords, ...] = ()

    def records_at(self, evaluates: bool, number: int) -> str:
        """Returns the records that clients get in round `number` (from 1), as JSON."""
        known = self.evaluations if evaluates else self.fits
        before = [told for told in known if told.since <= max(number, 1)]
        return before[-1].records if before else "[]"


def write_served(
    path: Path,
    model: Mapping[str, Array],
    served: ServerAppRecords,
    ties: Mapping[str, str] | None = None,
) -> None:
    """Writes the file of version 0; `ties` are further names of tensors."""
    text = json.dumps(asdict(served))
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"the ServerApp tells its clients {len(text)} bytes in all rounds; {MOST_BYTES} fit: "
            "tell them less, or the same in more rounds"
        )
    write_state(path, dict(model), {**(ties or {}), KEY: text}, None)


def read_served(path: Path) -> tuple[dict[str, Array], Mapping[str, str], ServerAppRecords | None]:
    """Reads a file of version 0: tensors, ties, and a ServerApp's decisions; else ConfigError."""
    mapped, ties = read_initial(str(path), path)
    tensors = {name: each.copy() for name, each in mapped.items()}
    if not tensors:
        raise ConfigError(f"initial: {path} has no tensors")
    text = read_metadata(path).get(KEY)
    if text is None:
        return tensors, ties, None
    try:
        served = _parse(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"initial: {path}: what it says of a ServerApp cannot be read: make it again with "
            "`secureps flower`"
        ) from None
    if sorted(served.names) != sorted(tensors):
        raise ConfigError(f"initial: {path}: its tensors are not those that its ServerApp named")
    return tensors, ties, served


def _parse(text: str) -> ServerAppRecords:
    """Parses the JSON of `write_served`; ValueError, KeyError or TypeError if it is another."""
    if len(text) > MOST_BYTES:
        raise ValueError("too long")
    if missing := {each.name for each in fields(ServerAppRecords)} - set(json.loads(text)):
        raise KeyError(*missing)
    return TypeAdapter(ServerAppRecords).validate_json(text, strict=True)


@dataclass(frozen=True, eq=False)
class ServerAppResult:
    """A ServerApp's decisions that a plan can follow.

    Args:
        model: version 0, in the app's order; empty if a client has to make it.
        ties: further names of its tensors.
        optimizer: a plan's section, or None for the mean itself.
    """

    model: Mapping[str, Array]
    ties: Mapping[str, str]
    served: ServerAppRecords
    strategy: str
    optimizer: Mapping[str, Any] | None
