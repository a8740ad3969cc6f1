"""Checks the arguments of public functions, because code further inside cannot name them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

P = ParamSpec("P")
T = TypeVar("T")

_TAKEN: dict[Any, Any] = {int: Integral, float: Real, Path: os.PathLike, dict: Mapping}
"""Maps a declared type to the wider type that is accepted for it."""

_GENERIC = (dict, Mapping, Callable)
"""Generic types that are checked without their parameters; others are not checked at all."""


def check_types(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a function raise a TypeError that names the argument if a value has a wrong type."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*given: P.args, **named: P.kwargs) -> T:
        hints = get_type_hints(function)
        try:
            arguments = signature.bind(*given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        for name, value in arguments.items():
            if name in hints and not _has_type(value, hints[name]):
                wanted = signature.parameters[name].annotation
                plain = isinstance(value, str | Real)  # anything else may be long, or private
                got = f"{value!r:.80}" if plain else f"a {type(value).__name__}"
                raise TypeError(f"{function.__name__}: {name} must be {wanted}, got {got}")
        return function(*given, **named)

    return checked


def _has_type(value: object, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_has_type(value, each) for each in get_args(hint))
    if hint is Any:
        return True
    kind = get_origin(hint) or hint
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is not hint and kind not in _GENERIC:
        return True
    return not isinstance(kind, type) or isinstance(value, _TAKEN.get(kind, kind))
