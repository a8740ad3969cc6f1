"""The device of this process: found, and torch and Triton imported, here alone and when asked for.

A process without a device imports neither. What must not live here: kernels.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.errors import ConfigError
from secureps.extras import from_extras

DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of them is there wherever CUDA can have a device: on Linux, and in Windows' Linux."""

INTERPRETER = "TRITON_INTERPRET"
"""The variable by which Triton runs kernels in NumPy, on no device: for tests."""

_INTERPRETING = threading.RLock()
"""Triton's interpreter is for one thread at a time."""


def has_device_file() -> bool:
    """Whether there may be a device; imports nothing."""
    return any(path.exists() for path in DEVICE_FILES)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that kernels run on.

    Args:
        torch: the module.
        where: "cuda:0" and so on, whatever device a thread has that uses it; "cpu" under Triton's
            interpreter.
        name: of the device, for people.
    """

    torch: Any
    where: str
    name: str
    _idle: SimpleQueue[Any] = field(default_factory=SimpleQueue, init=False, compare=False)
    """Streams that nobody works in."""

    @property
    def interpreted(self) -> bool:
        """Whether kernels are played in NumPy: a lane costs little then, and a program much."""
        return self.where == "cpu"

    @property
    def lanes(self) -> int:
        """Of programs whose lanes know nothing of each other."""
        return 1 << 14 if self.interpreted else 256

    @property
    def even_lanes(self) -> int:
        """The same where they must divide every N."""
        return 2048 if self.interpreted else 512

    def empty(self, count: int, bits: int) -> Any:
        """Room for so many unsigned words of 32 or 64 bits."""
        return self.torch.empty(count, dtype=self._unsigned(bits), device=self.where)

    def staging(self, count: int, bits: int) -> Any:
        """The same on the host, where the device reads and writes it by itself."""
        pinned = not self.interpreted
        return self.torch.empty(count, dtype=self._unsigned(bits), pin_memory=pinned)

    def upload(self, words: NDArray[np.unsignedinteger[Any]]) -> Any:
        """A copy on the device, of uint32 or uint64; waits for it."""
        return self.torch.from_numpy(np.array(words)).to(self.where)

    def wipe(self, words: Any) -> None:
        """Writes zeros over words of the device."""
        signed = self.torch.int32 if words.element_size() == 4 else self.torch.int64
        words.view(signed).zero_()

    def stream(self) -> Any:
        """A stream that nobody else works in until it is given back; None under the interpreter."""
        try:
            return self._idle.get_nowait()
        except Empty:
            return None if self.interpreted else self.torch.cuda.Stream(self.where)

    def give_back(self, stream: Any) -> None:
        """Leaves a stream to whoever takes one next."""
        self._idle.put(stream)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """What is allocated, copied and started inside is a stream's, and done at the end."""
        if stream is None:
            with _INTERPRETING:
                yield
            return
        with self.torch.cuda.stream(stream):
            yield
            stream.synchronize()

    def _unsigned(self, bits: int) -> Any:
        return self.torch.uint32 if bits == 32 else self.torch.uint64


@cache
def device() -> Device:
    """The device; of several the one that is current in the thread that asks first.

    Raises:
        ConfigError: torch or Triton is not installed, or there is no device that they can use.
    """
    with from_extras():
        import torch
        import triton  # noqa: F401
    if os.environ.get(INTERPRETER) == "1":
        return Device(torch, "cpu", "Triton's interpreter")
    if not torch.cuda.is_available():
        raise ConfigError(
            "torch finds no CUDA device here: install NVIDIA's driver, and a torch that is built "
            "for CUDA, or take auto or cpu"
        )
    where = f"cuda:{torch.cuda.current_device()}"
    return Device(torch, where, str(torch.cuda.get_device_name(where)))
