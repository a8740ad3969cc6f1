"""Tensors of a state file where they lie: mapped into memory, or copied from file to file.

The system keeps pages of files in memory for as long as it has room for them, mapped or read. A
disk that fails under a map ends the process (SIGBUS), as a kill does; so a file, or the tensor of
it that is wanted, is read for its digest before it is mapped, where a disk that fails is an error.
`Scratch` is room for a version that is being made: a file without a name, which is gone with the
process that made it.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from secureps.errors import DamagedStore, DiskFailed
from secureps.file_access import open_to_read
from secureps.messages.encoding import payload_digest, payload_hasher
from secureps.store.checkpoint import (
    HEADER_START,
    TYPES,
    Filed,
    digest_of_file,
    header_end,
    reading,
)

_PIECE = 1 << 20
"""Bytes that are read at a time for a digest."""
_HEADER = 4096
"""Bytes that are read first, for a header: that of a few tensors is shorter."""
_BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The upper half of a float32, which NumPy has no type for."""


def filed_tensors(path: Path, digest: bytes | None) -> dict[str, Filed]:
    """Where the tensors of a safetensors file lie in it.

    Args:
        digest: what `write_state` returned, of a file that is read once as a whole to see that it
            is that one; None: its header is looked at alone.
    Raises:
        DamagedStore: absent, torn, of types that numpy does not have, or not of that digest.
    """
    with reading(path, buffered=False) as file:
        found = _filed(path, file, _read(file, 0, _HEADER))
    if digest is not None and digest_of_file(path) != digest:
        raise DamagedStore(f"{path}: damaged: its digest is another")
    return found


def _read(file: Any, start: int, length: int) -> NDArray[np.uint8]:
    """So many bytes of a file, or those that there are."""
    room = np.empty(max(0, min(length, os.fstat(file.fileno()).st_size - start)), np.uint8)
    file.seek(start)
    have = 0
    while have < room.size and (count := file.readinto(room[have:].data)):
        have += count
    return room[:have]


def _filed(path: Path, file: Any, begin: NDArray[np.uint8]) -> dict[str, Filed]:
    """Where tensors lie in a file of which the beginning was read."""
    size = os.fstat(file.fileno()).st_size
    end = header_end(path, bytes(begin[:HEADER_START]), size)
    here = end <= begin.size
    text = begin[HEADER_START:end] if here else _read(file, HEADER_START, end - HEADER_START)
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise DamagedStore(f"{path}: not a state file: {error}") from None
    return _placed(path, header, end, size)


def _placed(path: Path, header: Any, start: int, size: int) -> dict[str, Filed]:
    """The tensors that a header lists, all of which are within the file; nothing is behind them."""
    found: dict[str, Filed] = {}
    try:
        for name, each in header.items():
            if name == "__metadata__":
                continue
            begin, end = map(int, each["data_offsets"])
            shape = tuple(map(int, each["shape"]))
            dtype = _BFLOAT16 if each["dtype"] == "BF16" else np.dtype(TYPES[each["dtype"]])
            tensor = Filed(path, dtype, shape, start + begin)
            if min((*shape, begin)) < 0 or tensor.nbytes != end - begin or start + end > size:
                raise ValueError(f"{name} is not in it")
            found[name] = tensor
        if start + sum(each.nbytes for each in found.values()) != size:
            raise ValueError(f"its tensors are not all of its {size} bytes")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DamagedStore(f"{path}: not a state file: {error}") from None
    return found


def map_state(path: Path, digest: bytes | None) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, read-only, without reading them.

    Those of bfloat16 are read, and are float32 with the same values.

    Raises:
        DamagedStore: as `filed_tensors`.
        MemoryError: the process may have no more address space, or no more maps.
    """
    placed = filed_tensors(path, digest)
    try:
        with open_to_read(path, buffered=False) as file:
            whole = _mapped(file, 0, mmap.ACCESS_READ)
    except OSError as error:
        raise DamagedStore(f"{path}: {error.strerror}") from None
    except ValueError as error:  # it has become empty
        raise DamagedStore(f"{path}: torn: {error}") from None
    return {name: _view(whole, tensor) for name, tensor in placed.items()}


def map_tensor(path: Path, name: str, digest: bytes) -> NDArray[Any]:
    """A tensor of a safetensors file, read-only; of the file, it alone is read for its digest.

    Raises:
        DamagedStore: absent, torn, or not of that `payload_digest`.
        MemoryError: as `map_state`.
    """
    with reading(path, buffered=False) as file:
        tensor = _filed(path, file, _read(file, 0, _HEADER)).get(name)
        if tensor is None:
            raise DamagedStore(f"{path}: there is no {name} in it")
        hasher, end = payload_hasher(), tensor.offset + tensor.nbytes
        for start in range(tensor.offset, end, _PIECE):
            hasher.update(_read(file, start, min(_PIECE, end - start)).data)
        if hasher.digest() != digest:
            raise DamagedStore(f"{path}: {name} is damaged: its digest is another")
        return _view(_mapped(file, 0, mmap.ACCESS_READ), tensor)


def read_tensors(path: Path, digest: bytes) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, in memory: it is read once, for them and their digest.

    Args:
        digest: what `write_state` returned.
    Raises:
        DamagedStore: as `filed_tensors`.
    """
    with reading(path, buffered=False) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _PIECE:
            _filed(path, file, _read(file, 0, _HEADER))  # a hole is no reason to take memory
        data = _read(file, 0, size)
        if payload_digest(data.data) != digest:
            raise DamagedStore(f"{path}: damaged: its digest is another")
        return {name: _view(data, tensor) for name, tensor in _filed(path, file, data).items()}


def _mapped(file: BinaryIO, length: int, access: int = mmap.ACCESS_DEFAULT) -> mmap.mmap:
    """Maps a file.

    Raises:
        MemoryError: the process may have no more address space, or no more maps: no fault of the
            file's, and none that waiting mends.
        OSError, ValueError: as `mmap.mmap`.
    """
    try:
        return mmap.mmap(file.fileno(), length, access=access)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{file.name} cannot be mapped") from error
        raise


def _view(whole: mmap.mmap | NDArray[np.uint8], tensor: Filed) -> NDArray[Any]:
    if tensor.dtype == _BFLOAT16:
        halves = _view(whole, replace(tensor, dtype=np.dtype("<u2")))
        return (halves.astype(np.uint32) << 16).view(np.float32)
    count, dtype = tensor.nbytes // tensor.dtype.itemsize, tensor.dtype.newbyteorder("<")
    if count == 0:
        return np.empty(tensor.shape, tensor.dtype)
    return np.frombuffer(whole, dtype, count, tensor.offset).reshape(tensor.shape)


class Scratch:
    """Room in a folder's file system: vectors in files without names.

    Their pages are written out when memory is short, and all of it is gone when nobody refers to
    a vector any more, or the process ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def vector(self, values: int) -> NDArray[np.float32]:
        """A float32 vector of so many values, 1 or more, whatever they are.

        Raises:
            DiskFailed: there is no room for it.
            MemoryError: as `map_state`.
        """
        length = values * np.dtype(np.float32).itemsize
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and not later
                    os.posix_fallocate(file.fileno(), 0, length)
                else:
                    file.truncate(length)
                whole = _mapped(file, length)
        except OSError as error:
            raise DiskFailed(f"{self._folder}: no room: {error.strerror}") from error
        return np.frombuffer(whole, np.float32, values)
