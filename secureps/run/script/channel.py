"""Carries JSON records and tensors between a command and the process of a script.

Nothing is pickled, because a script's process is not trusted: unpickling its bytes could run code.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from secureps.errors import InternalError, ScriptFailed, SecurepsError, from_wire
from secureps.tracebacks import describe_error, find_place, is_foreign

Tensors = Mapping[str, NDArray[Any]]
Record = dict[str, Any]

_HEAD = struct.Struct(">Q")
"""The header of a record: the length of its JSON object, after which a safetensors file follows."""

_NO_RECORD = (
    *(ValueError, RecursionError, KeyError, TypeError, SafetensorError, struct.error),
    *(MemoryError, OverflowError),  # a false length, which takes no memory
)
"""Errors of bytes that are no record."""


def as_failure(error: Exception) -> Record:
    if isinstance(error, SecurepsError):
        return {"failed": [type(error).__name__, str(error)]}
    kind = ScriptFailed if is_foreign(error) else InternalError
    return {"failed": [kind.__name__, f"{describe_error(error)} ({find_place(error)})"]}


def refuse_failure(record: Record) -> None:
    match record:
        case {"failed": [str(kind), str(text)]}:
            raise from_wire(kind, text, None)


def pack(record: Record, tensors: Tensors) -> bytes:
    text, data = json.dumps(record).encode(), save_tensors(tensors)
    return _HEAD.pack(len(text)) + text + data


def unpack(data: bytes) -> tuple[Record, dict[str, NDArray[Any]]]:
    end = _HEAD.size + _HEAD.unpack_from(data)[0]
    return json.loads(data[_HEAD.size : end]), load_tensors(data[end:])


def save_tensors(tensors: Tensors) -> bytes:
    """Serializes tensors with their places before their names, by which safetensors sorts them."""
    if not tensors:
        return b""
    placed = enumerate(tensors.items())
    return save({f"{k:08} {name}": np.array(each, order="C") for k, (name, each) in placed})


def load_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    placed = sorted(load(data).items()) if data else []
    return {name.partition(" ")[2]: np.array(each) for name, each in placed}


class Channel:
    """One end of a stream of records, each of which may have tensors."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = Connection(connection.detach())

    def send(self, record: Record, tensors: Tensors | None = None) -> None:
        self._connection.send_bytes(pack(record, tensors or {}))

    def receive(self) -> tuple[Record, dict[str, NDArray[Any]]] | None:
        """Waits for a record; None if the other end is gone, ScriptFailed for bad bytes."""
        try:
            record, tensors = unpack(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        except _NO_RECORD as error:
            raise ScriptFailed(f"the script's process sent what is no record: {error}") from None
        if not isinstance(record, dict):
            raise ScriptFailed("the script's process sent what is no record")
        return record, tensors

    def close(self) -> None:
        self._connection.close()
