"""How kernels are compiled: by numba, without the interpreter's lock, and kept in a folder.

numba reads what it kept with pickle, so that the folder is this user's alone (mode 0700); one
that others may write to is refused. What must not live here: kernels.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic

from secureps.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def kernel_folder() -> Path:
    """Where compiled kernels are kept, made if it is missing.

    Raises:
        ConfigError: somebody else owns it or may write to it.
    """
    folder = Path.home() / ".cache" / "secureps" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ConfigError(f"{folder} can be written to by others: chmod 700 it, or remove it")
    return folder


def kernel(function: F) -> F:
    """Compiles at the first call, or takes what an earlier process compiled."""
    numba.config.CACHE_DIR = str(kernel_folder())
    options = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
    return cast(F, numba.njit(**options)(function))


def inlined(function: F) -> F:
    """A part of kernels: compiled with each that calls it."""
    return cast(F, numba.njit(inline="always", error_model="numpy")(function))


@intrinsic
def ones(typing_context: Any, word: Any) -> Any:
    """How many bits of a 64-bit word are set: LLVM's ctpop, no table and no branch."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return numba.uint64(numba.uint64), generate
