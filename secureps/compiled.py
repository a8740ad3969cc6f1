"""Compiles kernels with numba, which release the interpreter's lock, and caches them in a folder.

Without numba nothing is compiled, and NumPy computes the same bits (`fall_back_to`).

numba unpickles what it cached, so a folder that another user may write to is refused: a planted
file would run code. numba notices changes of a kernel's own file only, and kernels call one
another, so the folder's name is a digest of all their sources, and of all that keys numba's cache.
"""

from __future__ import annotations

import functools
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from secureps.errors import ConfigError
from secureps.file_access import open_to_others, owned_by_others, user
from secureps.messages.encoding import digest

try:
    import llvmlite.binding as llvm
    import numba
    from numba.extending import intrinsic
except (ImportError, OSError) as error:  # not installed, or LLVM does not load
    missing = str(error)
else:
    missing = ""
"""The reason why numba cannot be imported; empty if it can."""

log = logging.getLogger("secureps")

ROOMS = ("codec", "crypto")
"""The packages of secureps that have kernels."""

ALL = "all"
"""The file that says that a folder of kernels is complete."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class _Kept:
    """The kernels of this process, and the folder that caches them (`wanted` by `keep_in`)."""

    kernels: list[Any] = field(default_factory=list)
    wanted: Path | None = None
    folder: Path | None = None
    warned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_KEPT = _Kept()


def keep_in(folder: Path) -> None:
    """Sets the folder of compiled kernels; also in a fork that has loaded them from another."""
    with _KEPT.lock:
        _KEPT.wanted, _KEPT.folder = folder.absolute(), None


def use_kernels() -> bool:
    """Loads the compiled kernels (`load_kernels`); False without numba, which is logged once."""
    if not missing:
        load_kernels()
        return True
    with _KEPT.lock:
        first, _KEPT.warned = not _KEPT.warned, True
    if first:
        log.warning(
            "seals and opens with NumPy alone, to the same bits and many times slower: numba "
            "cannot be imported (%s); pip install numba",
            missing,
        )
    return False


def kernel_folder() -> Path:
    """Finds or makes the folder of these sources' kernels, on this processor, by this numba.

    Raises:
        ConfigError: the folder cannot be made, or another user owns it or may write to it.
    """
    facts = [str(sys.implementation.cache_tag).encode(), *(s.read_bytes() for s in _sources())]
    facts += [f"{each.absolute()} {each.stat().st_mtime_ns}".encode() for each in _sources()]
    if not missing:
        processor = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
        facts += [f"{each}".encode() for each in (numba.__version__, *processor)]
    name = digest("secureps-kernels", *facts).hex()[:16]
    tops = list(_tops()) if _KEPT.wanted is None else [_KEPT.wanted]
    for top in tops:
        try:
            return _make_own_folder(top, name)
        except OSError as error:
            refused = error
    raise ConfigError(
        f"compiled kernels cannot be kept in {tops[-1]}: {refused}; name another folder (--kernels)"
    ) from refused


def _tops() -> Iterator[Path]:
    """Yields the folder in the user's home, then one for users who cannot write to a home."""
    with suppress(RuntimeError):  # neither HOME nor an entry in the system's list of users
        yield Path.home() / ".cache" / "secureps" / "kernels"
    yield Path(tempfile.gettempdir()) / f"secureps-kernels-{user()}"


def _make_own_folder(top: Path, name: str) -> Path:
    """Makes a folder in `top`; ConfigError if another user owns or may write to one of them."""
    top.parent.mkdir(parents=True, exist_ok=True)
    folder = top / name
    for each in (top, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        found = each.stat()
        if owned_by_others(found) or open_to_others(found, 0o022):
            raise ConfigError(
                f"{each} belongs to others or can be written to by them, and what is kept "
                "there is executed: chmod 700 it, or name another folder (--kernels)"
            )
    return folder


def load_kernels() -> Path:
    """Makes kernels use the folder's cache; those that are not in it compile at their first call.

    Raises:
        ConfigError: as `kernel_folder`.
    """
    with _KEPT.lock:
        if _KEPT.folder is None:
            _KEPT.folder = kernel_folder()
            for each in _KEPT.kernels:
                _keep(each, _KEPT.folder)
        return _KEPT.folder


def has_all_kernels() -> bool:
    """True if the folder has every kernel."""
    return bool(missing) or (kernel_folder() / ALL).exists()


def note_all_kernels() -> None:
    """Notes for later processes that the folder now has every kernel."""
    if not missing:
        (load_kernels() / ALL).touch(mode=0o600)


def _sources() -> list[Path]:
    own = Path(__file__)
    return [own, *(each for room in ROOMS for each in sorted(own.with_name(room).glob("*.py")))]


def compiled_here() -> int:
    """The number of signatures that this process compiled because the folder lacked them."""
    return sum(sum(each.stats.cache_misses.values()) for each in _KEPT.kernels)


def kernel(function: F) -> F:
    """Decorates a kernel: its first call compiles it, or takes it from the folder."""
    if missing:
        return function
    made = numba.njit(nogil=True, error_model="numpy")(function)
    _KEPT.kernels.append(made)
    if _KEPT.folder is not None:
        _keep(made, _KEPT.folder)
    return cast(F, made)


def _keep(made: Any, folder: Path) -> None:
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        made.enable_caching()
    finally:
        numba.config.CACHE_DIR = before


def fall_back_to(plain: F) -> Callable[[F], F]:
    """Decorates a compiled function: without numba `plain` is called, which makes the same bits."""

    def decorate(made: F) -> F:
        @functools.wraps(made, updated=())
        def call(*arguments: Any) -> Any:
            return (made if use_kernels() else plain)(*arguments)

        return cast(F, call)

    return decorate


def inlined(function: F) -> F:
    """Decorates a function that is compiled into each kernel that calls it."""
    if missing:
        return function
    return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


def _count_ones(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return numba.uint64(numba.uint64), generate


count_ones = cast(
    Callable[[np.uint64], np.uint64], _count_ones if missing else intrinsic(_count_ones)
)
"""The number of set bits of a 64-bit word, by LLVM's ctpop: no table, no branch."""
