"""The fold of a journal's rows as plain values: what a compacted journal begins with.

    Fold           records that a machine applies first, and its state beside them
    to_state       a state as JSON's values, by the type that it is declared with
    from_state     the state again
    shape          the fields of everything that is in a state, in words: a part of the format

States are what machines keep in memory: unlike messages they have dicts, sets and enums. Equal
states, whose dicts are in one order, have equal plain values. What must not live here: which
fields a role folds (`roles`), rows and files (`store`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from secureps.errors import InternalError, Malformed
from secureps.messages.encoding import field_types

T = TypeVar("T")

Plain = Any
"""JSON's values."""


@dataclass(frozen=True, slots=True)
class Fold:
    """What the rows of a party's journal come to.

    Args:
        records: what its machine applies before anything: its run, and the rosters it followed.
        state: the rest of its state, in plain values.
    """

    records: tuple[Any, ...]
    state: Plain


@runtime_checkable
class Packed(Protocol):
    """A class of states that says itself how it is written, smaller than field by field."""

    def packed(self) -> Plain:
        """Its plain values."""

    @classmethod
    def unpacked(cls, plain: Plain) -> Packed:
        """The state again."""


def to_state(kind: Any, value: Any) -> Plain:
    """The plain values of a state that is declared with the type `kind`."""
    return _codec(kind).write(value)


def from_state(kind: Callable[..., T], plain: Plain) -> T:
    """The state of type `kind` that `to_state` wrote; Malformed if it is no such state."""
    try:
        return typing.cast(T, _codec(kind).read(plain))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise Malformed(f"this is no such state: {error}") from None


def shape(kind: Any) -> dict[str, list[str]]:
    """The fields, with their types, of every class in a state of type `kind`, by its name."""
    found: dict[str, list[str]] = {}

    def look(hint: Any) -> None:
        for each in typing.get_args(hint):
            look(each)
        if not isinstance(hint, type) or hint.__name__ in found:
            return
        if _is_packed(hint):
            found[hint.__name__] = ["packed"]
        elif issubclass(hint, enum.Enum):
            found[hint.__name__] = [str(each.value) for each in hint]
        elif dataclasses.is_dataclass(hint):
            found[hint.__name__] = [f"{n}: {_named(h)}" for n, h in field_types(hint).items()]
            for each in field_types(hint).values():
                look(each)

    look(kind)
    return found


def _named(hint: Any) -> str:
    arguments = [_named(each) for each in typing.get_args(hint) if each is not ...]
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return " or ".join(arguments)
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name} of ({', '.join(arguments)})" if arguments else name


def _is_packed(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "packed") and hasattr(kind, "unpacked")


@dataclass(frozen=True, slots=True)
class _Codec:
    write: Callable[[Any], Plain]
    read: Callable[[Plain], Any]


_SCALARS = (bool, int, float, str, type(None))
_MAPS = (dict, collections.Counter, collections.abc.Mapping)
_SETS = (set, frozenset)
_UNIONS = (types.UnionType, typing.Union)


@functools.cache
def _codec(kind: Any) -> _Codec:
    """How a type is written and read: made once, and then without a look at any type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is None:  # the values of a dict that stands for an ordered set
        kind = type(None)
    if kind in _SCALARS:
        return _Codec(_same, _scalar(kind))
    if kind is bytes:
        return _Codec(bytes.hex, bytes.fromhex)
    if _is_packed(kind):
        return _Codec(lambda value: value.packed(), kind.unpacked)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _Codec(lambda value: value.value, kind)
    if dataclasses.is_dataclass(kind):
        return _of_fields(kind)
    if origin in _UNIONS:
        return _of_union(arguments)
    if origin is tuple and arguments[1:] != (...,):
        return _of_tuple([_codec(each) for each in arguments])
    if origin in (tuple, list):
        return _of_items(origin, _codec(arguments[0]))
    if origin in _MAPS:
        values = int if origin is collections.Counter else arguments[1]
        made = dict if origin is collections.abc.Mapping else origin
        return _of_pairs(made, _codec(arguments[0]), _codec(values))
    if origin in _SETS:
        return _of_set(origin, _codec(arguments[0]))
    raise InternalError(f"a {kind} has no place in a state")


def _same(value: Any) -> Any:
    return value


def _scalar(kind: type) -> Callable[[Plain], Any]:
    def read(plain: Plain) -> Any:
        if type(plain) is not kind and not (kind is float and type(plain) is int):
            raise TypeError(f"expected {kind.__name__}, got {type(plain).__name__}")
        return plain

    return read


def _listed(plain: Plain) -> list[Plain]:
    if not isinstance(plain, list):
        raise TypeError(f"expected a list, got {type(plain).__name__}")
    return plain


def _of_fields(kind: Any) -> _Codec:
    """A dataclass is the list of its fields, in their order."""
    fields = [(name, _codec(hint)) for name, hint in field_types(kind).items()]

    def write(value: Any) -> Plain:
        return [codec.write(getattr(value, name)) for name, codec in fields]

    def read(plain: Plain) -> Any:
        return kind(
            *[codec.read(each) for (_, codec), each in zip(fields, _listed(plain), strict=True)]
        )

    return _Codec(write, read)


def _of_union(arguments: tuple[Any, ...]) -> _Codec:
    """None is null; one of several classes has its name before it."""
    kinds = [each for each in arguments if each is not type(None)]
    if len(kinds) == 1:
        one = _codec(kinds[0])
        return _Codec(
            lambda value: None if value is None else one.write(value),
            lambda plain: None if plain is None else one.read(plain),
        )
    named = {each.__name__: _codec(each) for each in kinds}

    def write(value: Any) -> Plain:
        name = type(value).__name__
        return None if value is None else [name, named[name].write(value)]

    return _Codec(write, lambda plain: None if plain is None else named[plain[0]].read(plain[1]))


def _of_tuple(codecs: list[_Codec]) -> _Codec:
    return _Codec(
        lambda value: [codec.write(each) for codec, each in zip(codecs, value, strict=True)],
        lambda plain: tuple(
            codec.read(each) for codec, each in zip(codecs, _listed(plain), strict=True)
        ),
    )


def _of_items(made: Any, one: _Codec) -> _Codec:
    return _Codec(
        lambda value: [one.write(each) for each in value],
        lambda plain: made(one.read(each) for each in _listed(plain)),
    )


def _of_pairs(made: Any, key: _Codec, item: _Codec) -> _Codec:
    """In the order of the dict: what is asked in order is answered as before."""
    return _Codec(
        lambda value: [[key.write(k), item.write(v)] for k, v in value.items()],
        lambda plain: made({key.read(k): item.read(v) for k, v in _listed(plain)}),
    )


def _of_set(made: Any, one: _Codec) -> _Codec:
    """Sets have no order of their own, and are written in one."""
    return _Codec(
        lambda value: sorted((one.write(each) for each in value), key=json.dumps),
        lambda plain: made(one.read(each) for each in _listed(plain)),
    )
