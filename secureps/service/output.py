"""Lets a process outlive its own stdout and stderr: closed, or on a disk that is full.

Whatever a party computes is in its files; what it prints is only told.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Lossy(io.FileIO):
    """An open file to which every write succeeds: what the system does not take is lost."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            if (written := super().write(data)) is not None:
                return written
        return memoryview(data).nbytes


def ignore_output_errors() -> None:
    """From now on no print of this process fails; nothing changes where streams are no files."""
    for number in (0, 1, 2):  # a file that is opened later must not become stdout
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream, first = getattr(sys, name), getattr(sys, f"__{name}__")
        if stream is first and isinstance(stream, io.TextIOWrapper | None):  # no notebook's
            lossy = _lossy(number, stream)
            setattr(sys, name, lossy)
            setattr(sys, f"__{name}__", lossy)


def _lossy(number: int, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    if stream is not None:
        with suppress(OSError):
            stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Lossy(number, "w", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=stream.line_buffering if stream else True,
        write_through=stream.write_through if stream else False,
    )
