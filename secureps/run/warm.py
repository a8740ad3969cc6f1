"""`secureps warm`: compiles and keeps every kernel before a party needs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import typer

from secureps.codec.grid import Grid
from secureps.crypto.cipher import CipherParameters, Place
from secureps.errors import InternalError

EVERY_RING = (
    CipherParameters("rlwe", 32, (1 << 16) - 2),
    CipherParameters("rlwe", 32, 1 << 18),
    CipherParameters("rlwe", 32, (1 << 16) - 2, slots=1 << 20),
    CipherParameters("rlwe", 32, (1 << 16) - 2, security="conservative"),
    CipherParameters("rlwe", 64, (1 << 16) - 2, security="conservative"),
)
"""Parameters that together use every ring."""


def warm() -> str:
    """Compiles all missing kernels, by sealing, adding and opening a block in every ring.

    Returns a line for the operator. Raises ConfigError if the folder cannot be made, or another
    user may write to it.
    """
    from secureps.compiled import compiled_here, load_kernels, missing, note_all_kernels
    from secureps.crypto.suite import cipher

    began, before = time.perf_counter(), compiled_here()
    folder = load_kernels()
    values = np.arange(64)
    grid, words = Grid(16, 1.0), np.zeros(values.size, np.uint32)
    grid.encode(values.astype(np.float32), words)  # float32 for updates, float64 after a codec
    grid.encode(values.astype(np.float64), words)
    for parameters in EVERY_RING:
        place = Place(bytes(32), "warm", bytes(32), values.size)
        kind = cipher(parameters)
        sealer, adder = kind.sealer(place, None), kind.adder()
        payload, sums = sealer.seal(0, values), adder.zero(values.size)
        adder.check(values.size, payload)
        adder.add(sums, payload, 1)
        opened = kind.opener(place, sealer.key).open(0, adder.total(sums), values.size)
        if not np.array_equal(opened, values):
            raise InternalError("kernels were compiled to something else than they say")
    note_all_kernels()
    if missing:
        return f"nothing is compiled without numba ({missing}); pip install numba"
    compiled, seconds = compiled_here() - before, time.perf_counter() - began
    return f"compiled {compiled} kernels in {seconds:.1f} s, kept in {folder}"


def warm_once(say: Callable[[str], None]) -> Path:
    """Compiles missing kernels once, before a plan's parties would all compile the same ones.

    Returns the folder of the kernels, for processes that do not get it otherwise (`keep_in`).
    """
    from secureps.compiled import has_all_kernels, kernel_folder

    if not has_all_kernels():
        say("compiles kernels, once for this release: some seconds")
        warm()
    return kernel_folder().parent


def print_warm() -> None:
    """Each release has a folder of kernels that only you may write to. Without it parties
    compile kernels at their first use, which takes some seconds.
    """
    typer.echo(warm())
