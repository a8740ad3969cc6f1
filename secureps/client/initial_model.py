"""Makes a client's founding model, and checks that a run is founded on the file it was given.

The plan pins the file by its digest, and with it what a ServerApp tells clients. A client that has
the file compares the digest when it joins, and the values of version 0 when it pulls them. What
must not live here: making the file (`run.server_app`), and what is in it beside tensors
(`client.flower.served`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.held_tensor import HeldTensor
from secureps.client.script_errors import blamed
from secureps.client.trainer import FitResult, Trainer
from secureps.crypto.sampling import Seed
from secureps.errors import WrongRun, WrongShape
from secureps.messages.schema import Schema, TensorSpec
from secureps.model.layout import GroupLayout

Tensors = dict[str, NDArray[Any]]


def initial_parameters(trainer: Trainer, seed: Seed) -> Tensors:
    """The founding model of this client; the same for all clients under one unsafe seed.

    Raises:
        ScriptFailed: the trainer raised.
    """
    with blamed("parameters"):
        return trainer.parameters(seed.derive("initial").integer(63))


def schema_of(parameters: Mapping[str, NDArray[Any]]) -> Schema:
    """Names, shapes and dtypes of a model, sorted by name; WrongShape if one is no array."""
    if not isinstance(parameters, Mapping):
        kind = type(parameters).__name__
        raise WrongShape(f"it is a {kind}, and must be a dict of NumPy arrays by their names")
    for name, array in parameters.items():
        if not isinstance(array, np.ndarray | np.generic | HeldTensor):
            raise WrongShape(f"{name} is a {type(array).__name__}, and must be a NumPy array")
    return Schema(
        tuple(
            TensorSpec(name, tuple(int(n) for n in array.shape), str(array.dtype))
            for name, array in sorted(parameters.items())
        )
    )


def check_result(result: FitResult, schema: Schema) -> None:
    """Refuses anything but a FitResult with a model of the run's schema (WrongShape)."""
    if not isinstance(result, FitResult):
        raise WrongShape(f"it is a {type(result).__name__}, and must be a FitResult")
    run, fitted = schema.telling({}), schema_of(result.parameters)
    if fitted != run:
        raise WrongShape(run.difference(fitted))


def initial_digest(trainer: Trainer) -> str:
    """The hex digest of the file of version 0 that a trainer was given; empty without a file."""
    with blamed("initial_digest"):
        tells = getattr(trainer, "initial_digest", None)
        return "" if tells is None else str(tells())


def refuse_other_start(
    layout: GroupLayout, initial: Mapping[str, NDArray[Any]], served: Sequence[NDArray[np.float32]]
) -> None:
    """Refuses a run whose version 0 is not the file's.

    Args:
        initial: the file's tensors; served: the group's blocks, float32.

    Raises:
        WrongRun: the values differ.
    """
    # A malicious server could found the run on a model whose updates give records away.
    own = layout.flatten(initial)
    if not all(np.array_equal(own[slice(*layout.span(k))], each) for k, each in enumerate(served)):
        raise WrongRun(
            "version 0 of the run is not the model of the file that this client was given "
            "(the setting initial); nothing was trained: ask the run's operator which file it is "
            "founded on"
        )
