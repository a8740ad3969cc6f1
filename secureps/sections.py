"""Tables of TOML files: read, checked against a section, and said what is wrong and where.

Single values travel as text, on a command line or in a file that is written here.

What must not live here: any single section (`config`).
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from secureps.errors import ConfigError
from secureps.spelling import meant


class Section(BaseModel):
    """A table of a TOML file; its numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=Section)

_LITERAL = re.compile("'([^']*)'")
"""A name in pydantic's "'local', 'distributed' or 'aggregator'"."""


def parse(kind: type[S], data: dict[str, Any], where: str) -> S:
    """The section of class `kind` in `data`; ConfigError names every key that is wrong."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
        wrong = "; ".join(_told(kind, each) for each in errors if not _follows(each, errors))
        raise ConfigError(f"{where}: {wrong}") from None


def _follows(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Whether a table counts as absent only because something in it is wrong."""
    own = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(own) and other["loc"][: len(own)] == own for other in errors
    )


def _told(kind: type[Section], error: ErrorDetails) -> str:
    """A key, as the file spells it, and what is wrong; of an unknown name, which are known."""
    key, section = _place(kind, error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key; {meant(error['loc'][-1], section.model_fields)}"
    if error["type"] == "literal_error" and (names := _LITERAL.findall(error["ctx"]["expected"])):
        return f"{key}: unknown value {error['input']!r:.80}; {meant(error['input'], names)}"
    return f"{key or 'top level'}: {error['msg']}"


def _place(kind: type[Section], location: tuple[int | str, ...]) -> tuple[str, type[Section]]:
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


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """All sections that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _tag(section: type[Section]) -> str:
    for key in ("unit", "name"):
        if key in section.model_fields and (tags := get_args(section.model_fields[key].annotation)):
            return str(tags[0])
    return "own"


def toml_value(text: str) -> bool | int | float | str:
    """What `text` means as a TOML value: a finite number, true, false; anything else is text."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = values["value"]
    if len(values) != 1 or not isinstance(value, bool | int | float | str):
        return text
    return value if isinstance(value, str) or math.isfinite(value) else text


def toml_text(value: bool | int | float | str) -> str:
    """A value as TOML: `toml_value` gives it back, of the same type."""
    if isinstance(value, str):  # a JSON string is a basic string, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; ConfigError when it is missing or does not parse."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: Is a directory; name a file in it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no TOML file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None
