"""Makes a client's founding model, and compares models with the run's and with a file's.

The plan pins the file by its digest, and with it what a ServerApp tells clients. A client that has
the file compares the digest when it joins, and the values of version 0 when it pulls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.returned import taken_tensors
from secureps.client.script_errors import blamed
from secureps.client.trainer import FitResult, Trainer
from secureps.crypto.sampling import Seed
from secureps.errors import ConfigError, DamagedStore, WrongRun, WrongShape
from secureps.messages.schema import Schema, TensorSpec
from secureps.model.layout import GroupLayout
from secureps.store.checkpoint import map_state, read_metadata

PICKLES = (b"PK\x03\x04", b"\x80")
"""The first bytes of files that `torch.save` writes, since version 1.6 and before it."""

Tensors = dict[str, NDArray[Any]]


def initial_parameters(trainer: Trainer, seed: Seed) -> Tensors:
    """The founding model of this client; one unsafe seed gives all clients the same."""
    with blamed("parameters"):
        made = trainer.parameters(seed.derive("initial").integer(63))
    with blamed("what parameters returned"):
        return taken_tensors(made)


def schema_of(parameters: Mapping[str, Any], ties: Mapping[str, str] | None = None) -> Schema:
    """Names, shapes and dtypes of a model, sorted by name; `ties` as `tied()` gives them."""
    tied = ties or {}
    if unknown := [name for tie in tied.items() for name in tie if name not in parameters]:
        raise WrongShape(f"tied() names {unknown[0]}, and there is no such tensor")

    def spec(name: str) -> TensorSpec:
        array = parameters[name]
        dtype = f"{array.dtype}@{tied[name]}" if name in tied else str(array.dtype)
        return TensorSpec(name, tuple(int(n) for n in array.shape), dtype)

    return Schema(tuple(map(spec, sorted(parameters))))


def conformed(result: FitResult, schema: Schema, ties: Mapping[str, str]) -> FitResult:
    """Gives a trained model the run's names and types; WrongShape if it is another model."""
    given, run = result.parameters, schema.untied.telling({})
    for name, own in ties.items():
        apart = name in given and own in given and given[name] is not given[own]
        if apart and not np.array_equal(given[name], given[own]):
            raise WrongShape(
                f"{name} and {own} are two names of one tensor (tied), and came back different"
            )
    rest = {name: each for name, each in given.items() if name not in ties}
    made = {s.name: _like(s, rest.pop(s.name)) for s in run.tensors if s.name in rest}
    fitted = schema_of(made | rest)
    if fitted != run:
        raise WrongShape(run.difference(fitted))
    return replace(result, parameters=made)


def with_ties(tensors: Mapping[str, NDArray[Any]], ties: Mapping[str, str]) -> Tensors:
    """A model with each tensor under all its names, sorted by name."""
    further = {name: tensors[own] for name, own in ties.items() if own in tensors}
    return dict(sorted({**tensors, **further}.items()))


def shared_names(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Finds tied weights: further names of tensors, with the name that each stands for.

    Views of one memory are one tensor, as in a `state_dict` of torch. One object under two names is
    not: it may be zeros that two tensors begin from.
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


def _like(spec: TensorSpec, given: NDArray[Any]) -> NDArray[Any]:
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
        text = f"initial: {place}: not a safetensors file: {error}"
        if _is_pickle(path):
            text = (
                f"initial: {place} is a pickle, as torch.save writes it. Reading one runs the code "
                "in it, so none is ever read: load it where you trust it, and write "
                'safetensors.torch.save_model(model, "initial.safetensors")'
            )
        raise ConfigError(text) from None
    # safetensors.torch.save_model leaves a tied tensor out, and says so in these words
    ties = {
        name: own
        for name, own in told.items()
        if own in tensors
        and own != name
        and (name not in tensors or np.array_equal(tensors[name], tensors[own]))
    }
    return {**tensors, **{name: tensors[own] for name, own in ties.items()}}, ties


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(PICKLES)
    except OSError:
        return False


def refuse_other_start(
    layout: GroupLayout, initial: Mapping[str, NDArray[Any]], served: Sequence[NDArray[np.float32]]
) -> None:
    """Raises WrongRun if version 0, of float32 blocks, is not the file's model."""
    # A malicious server could found the run on a model whose updates give records away.
    own = layout.flatten(initial)
    if not all(np.array_equal(own[slice(*layout.span(k))], each) for k, each in enumerate(served)):
        raise WrongRun(
            "version 0 of the run is not the model of the file that this client was given "
            "(the setting initial); nothing was trained: ask the run's operator which file it is "
            "founded on"
        )
