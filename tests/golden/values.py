"""An example of every record and message, with something in every field.

The same class always has the same example, because names and types of fields decide it.
"""

import dataclasses
import importlib
import json
import pkgutil
import types
import typing
from typing import Any

from secureps import messages
from secureps.messages.encoding import digest, field_types, to_plain
from secureps.store.journal_rows import RECORDS
from secureps.wire.msgpack import SIZES


def kinds() -> dict[str, type]:
    """Every record and message, by name."""
    modules = [
        importlib.import_module(f"{messages.__name__}.{module.name}")
        for module in pkgutil.iter_modules(messages.__path__)
    ]
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and kind.__module__ == module.__name__
    }


def full(kind: Any, where: str = "") -> Any:
    """A value of a type that differs from those of all other fields."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        named = {
            name: full(hint, f"{where}.{name}" if where else f"{kind.__name__}.{name}")
            for name, hint in field_types(kind).items()
        }
        return kind(**named)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[1:] == (...,):
        return (full(arguments[0], f"{where}[0]"), full(arguments[0], f"{where}[1]"))
    if origin is tuple:
        return tuple(full(each, f"{where}[{i}]") for i, each in enumerate(arguments))
    if origin in (typing.Union, types.UnionType):
        return full(arguments[0], where)
    seed = digest("golden", where.encode())
    name = where.rpartition(".")[2].partition("[")[0]
    if kind is bool:
        return True
    if kind is int:
        return int.from_bytes(seed[:2], "little")
    if kind is float:
        return int.from_bytes(seed[:3], "little") / 1024
    if kind is str:
        return f"{name}-{seed[:3].hex()}"
    assert kind is bytes, kind
    return (seed * 2)[: SIZES.get(name) or 5]


def row(record: Any) -> str | None:
    """The text of its row in a journal; None for what is never journalled."""
    if type(record).__name__ not in RECORDS:
        return None
    return json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False)
