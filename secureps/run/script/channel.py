"""Carries JSON records and tensors between a command and the process of a script.

Nothing is pickled, because a script's process is not trusted: unpickling its bytes could run code.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from secureps.errors import InternalError, ScriptFailed, SecurepsError, from_wire
from secureps.tracebacks import describe_error, find_place, is_foreign

Tensors = Mapping[str, NDArray[Any]]
Record = dict[str, Any]

_HEAD = struct.Struct(">QQ")
"""The header of a record: the lengths of the JSON object and of the safetensors file after it."""
_PIECE = 1 << 20


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
    return _HEAD.pack(len(text), len(data)) + text + data


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
        self._connection = connection
        self._file = connection.makefile("rwb")

    def send(self, record: Record, tensors: Tensors | None = None) -> None:
        self._file.write(pack(record, tensors or {}))
        self._file.flush()

    def receive(self) -> tuple[Record, dict[str, NDArray[Any]]] | None:
        """Waits for a record; None if the other end is gone, ScriptFailed for bad bytes."""
        try:
            head = self._file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            lengths = _HEAD.unpack(head)
            text, data = (self._read_bytes(length) for length in lengths)
        except ConnectionError:
            return None
        if (len(text), len(data)) != lengths:
            return None
        try:
            record, tensors = json.loads(text), load_tensors(data)
        except (ValueError, RecursionError, KeyError, TypeError, SafetensorError) as error:
            raise ScriptFailed(f"the script's process sent what is no record: {error}") from None
        if not isinstance(record, dict):
            raise ScriptFailed("the script's process sent what is no record")
        return record, tensors

    def _read_bytes(self, length: int) -> bytes:
        """Reads so many bytes, or fewer at the end, in pieces: a false length takes no memory."""
        pieces, missing = [], length
        while missing and (piece := self._file.read(min(missing, _PIECE))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def idle(self) -> bool:
        """True if the other end has sent nothing new and reads what is sent.

        Bytes that are buffered here are not seen, so answer all received records first.
        """
        readable, writable, _ = select.select([self._connection], [self._connection], [], 0)
        return not readable and bool(writable)

    def close(self) -> None:
        with suppress(OSError):  # the rest cannot be sent any more
            self._file.close()
        self._connection.close()
