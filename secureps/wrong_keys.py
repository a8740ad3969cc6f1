"""What is wrong with a table, in words: the key as the file spells it, and which keys there are.

What must not live here: the tables themselves (`config`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails


def follows(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Whether a table counts as absent only because something in it is wrong."""
    own = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(own) and other["loc"][: len(own)] == own for other in errors
    )


def told(kind: type[BaseModel], error: ErrorDetails) -> str:
    """A key, as the file spells it, and what is wrong; for an unknown one, which are known."""
    key, section = _place(kind, error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{key or 'top level'}: {error['msg']}"
    known = list(section.model_fields)
    close = difflib.get_close_matches(str(error["loc"][-1]), known, 1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"{key}: unknown key; {hint}"


def _place(kind: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, type[BaseModel]]:
    """The key at a pydantic location, tables counted from 1, and the section that it is in."""
    key, section, inside = "", kind, [kind]
    for part in location:
        if isinstance(part, int):
            key += f" {part + 1}"
        elif len(inside) > 1:  # the tag of one of several sections, which no file spells
            section = next(each for each in inside if _tag(each) == part)
            inside = [section]
        else:
            section = inside[0] if inside else section
            key += f".{part}" if key else part
            field = section.model_fields.get(part)
            inside = [] if field is None else list(_sections(field.annotation))
    return key, section


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """All sections that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _tag(section: type[BaseModel]) -> str:
    for key in ("unit", "name"):
        if key in section.model_fields and (tags := get_args(section.model_fields[key].annotation)):
            return str(tags[0])
    return "own"
