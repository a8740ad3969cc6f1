"""Checks that a run is founded on the file of version 0 that a data holder was given.

The plan pins the file by its digest, and with it what a ServerApp tells clients. A client that has
the file compares the digest when it joins, and the values of version 0 when it pulls them. What
must not live here: making the file (`run.server_app`), and what is in it beside tensors
(`client.flower.served`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.script_errors import blamed
from secureps.client.trainer import Trainer
from secureps.errors import WrongRun
from secureps.model.layout import GroupLayout


def initial_digest(trainer: Trainer) -> str:
    """The hex digest of the file of version 0 that a trainer was given; empty without a file."""
    with blamed("initial_digest"):
        tells = getattr(trainer, "initial_digest", None)
        return "" if tells is None else str(tells())


def refuse_other_start(
    layout: GroupLayout, initial: Mapping[str, NDArray[Any]], served: NDArray[np.float32]
) -> None:
    """Refuses a run whose version 0 is not the file's.

    Args:
        initial: the file's tensors; served: float32 of shape (values of the group,).

    Raises:
        WrongRun: the values differ.
    """
    # A malicious server could found the run on a model whose updates give records away.
    if not np.array_equal(layout.flatten(initial), served):
        raise WrongRun(
            "version 0 of the run is not the model of the file that this client was given "
            "(the setting initial); nothing was trained: ask the run's operator which file it is "
            "founded on"
        )
