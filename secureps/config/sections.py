"""Reads TOML files, checks them against sections, and says what is wrong and where.

It also converts single values to and from text, for command lines and for files written here.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from secureps.errors import ConfigError
from secureps.wording import hint, suggest


class Section(BaseModel):
    """A table of settings with finite numbers; a text that is a number counts as one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_fixed_out(cls, values: Any, info: ValidationInfo) -> Any:
        fixed = FIXED.get(cls.__name__)
        if info.context != PINNED or fixed is None or not isinstance(values, Mapping):
            return values
        return {key: each for key, each in values.items() if key not in fixed}

    @model_serializer(mode="wrap")
    def _write_fixed(
        self, write: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if info.context != PINNED:
            return written
        name = type(self).__name__
        later, whole = LATER.get(name, {}), {**FIXED.get(name, {}), **written}
        return {k: v for k, v in whole.items() if k not in later or v != later[k]}

    @classmethod
    def key_names(cls) -> list[str]:
        """Returns the keys: first those of this section alone, then inherited ones."""
        own = [key for key in vars(cls).get("__annotations__", {}) if key in cls.model_fields]
        return [*own, *(key for key in cls.model_fields if key not in own)]


class Table(Section):
    """A table of a TOML file, in which every value has exactly the type of its key."""

    model_config = ConfigDict(strict=True)


KeyPath = tuple[str | int, ...]
"""A path to a value: keys, and in lists indices from 0."""


class Tables(dict[str, Any]):
    """The tables of a TOML file, and its lines."""

    def __init__(self, values: Mapping[str, Any], lines: list[str]) -> None:
        super().__init__(values)
        self.lines = lines

    def line(self, path: KeyPath) -> int | None:
        """Returns the line, from 1, that writes a key, a table or a list; else its table's line."""
        known = (path[:length] for length in range(len(path), 0, -1))
        return next((self._places[each] for each in known if each in self._places), None)

    @cached_property
    def _places(self) -> dict[KeyPath, int]:
        """The first line that begins with each key or table; `tomllib` tells none."""
        found, newest, table = dict[KeyPath, int](), dict[KeyPath, int](), KeyPath()
        for number, line in enumerate(self.lines, 1):
            header = line.lstrip().startswith("[")
            with suppress(ValueError):  # the line continues a value
                made = tomllib.loads(line if header else f"{line.partition('=')[0]} = 0")
                path = () if header else table
                while made:
                    ((key, made),) = made.items()
                    path = (*path, key)
                    found.setdefault(path, number)
                    if isinstance(made, list):  # [[key]] adds an item
                        newest[path], made = newest.get(path, -1) + 1, {}
                    if path in newest:
                        path = (*path, newest[path])
                        found.setdefault(path, number)
                table = path if header else table
        return found


PINNED = "pinned"
"""The context in which a section is read from, or written for, the text that pins a plan."""

FIXED: dict[str, dict[str, Any]] = {
    "AdaptiveSection": {"least": 2.0**-10, "most": 2.0**10, "rate": 0.2, "weight": 0.5},
    "CipherSection": {"envelope_seconds": 3600.0, "envelope_versions": 10},
    "EvaluationSection": {"bits": None},
    "GroupSection": {"tier": None},
    "PlanSection": {"shards_wait": 600.0},
    "RoundSection": {"deviations": 3.0},
    "ScalingSection": {"balance": True},
    "ScheduleSection": {"floor": 0.0, "total_steps": 100},
    "SupportSection": {"every": None},
    "WorkSection": {"least": 0.125},
}
"""Keys that plans no longer have, by section, with their former defaults.

A file that has one is refused. The text that pins a plan still has them all, so that an older plan
keeps its run id and its digest. Older checkpoints and audit logs may have texts with other values:
these are read, but no party takes part in such a run (`roles.pinned_run.read_plan`).
"""

LATER: dict[str, dict[str, Any]] = {
    "GroupSection": {
        **dict.fromkeys(("adaptive", "pull_bits", "sparse", "tier", "versions")),
        "codec": [],
        "feedback": False,
        "outcome": "model",
    },
    "PlanSection": {
        **dict.fromkeys(("scaling", "take_over_after", "work")),
        "frozen": [],
        "keep": 3,
        "replicas": 1,
    },
    "SyncSection": {"fraction": 1.0},
}
"""Keys that the text that pins a plan leaves out at these defaults, by section.

So the text, and the run id, of a plan from before these keys existed are still the same.
"""

S = TypeVar("S", bound=Section)

_LITERAL = re.compile("'([^']*)'")
"""A name in pydantic's "'local', 'distributed' or 'aggregator'"."""


def parse(kind: type[S], data: Mapping[str, Any], where: str, context: str | None = None) -> S:
    """Checks `data` against a section; ConfigError names every wrong key."""
    try:
        return kind.model_validate(_to_tuples(data), context=context)
    except RecursionError:
        raise ConfigError(f"{where}: tables lie too deep in one another") from None
    except ValidationError as error:
        errors = error.errors()
        listed: set[type[Section]] = set()  # sections whose keys were listed already
        wrong = [
            _say_error(kind, each, data, listed) for each in errors if not _is_echo(each, errors)
        ]
        raise ConfigError(f"{where}: {'; '.join(wrong)}") from None


def resolve_paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Makes the relative paths "..", "./x" and "../x" in a script's settings absolute.

    A single "." stays: it may be a decimal point.
    """
    return {
        key: os.path.normpath(folder.absolute() / value)
        if isinstance(value, str) and (value == ".." or value.startswith(("./", "../")))
        else value
        for key, value in settings.items()
    }


def _to_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_tuples(each) for key, each in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def _is_echo(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Tells whether a table counts as too short only because something in it is wrong."""
    own = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(own) and other["loc"][: len(own)] == own for other in errors
    )


def _say_error(
    kind: type[Section],
    error: ErrorDetails,
    data: Mapping[str, Any],
    listed: set[type[Section]],
) -> str:
    """Describes an error: the key as the file spells it, what is wrong, and the line."""
    key, section, path = _place(kind, error["loc"])
    at = data.line(path) if isinstance(data, Tables) else None
    line = "" if at is None else f" (line {at})"
    return f"{key or 'top level'}: {_say_fault(section, error, listed)}{line}"


def _say_fault(section: type[Section], error: ErrorDetails, listed: set[type[Section]]) -> str:
    kind, given = error["type"], error["input"]
    if kind == "extra_forbidden":
        key = str(error["loc"][-1])
        if gone := GONE.get((section.__name__, key)):
            return f"this key is gone: {gone}"
        if key in (fixed := FIXED.get(section.__name__, {})):
            return f"this key is gone: leave it out; it is {show_value(fixed[key])} in every run"
        told = hint if section in listed else suggest
        listed.add(section)
        about = told(MEANT.get((section.__name__, key.casefold()), key), section.key_names())
        return f"unknown key; {about}" if about else "unknown key"
    if kind == "literal_error" and (names := _LITERAL.findall(error["ctx"]["expected"])):
        return f"unknown value {show_value(given)}; {suggest(given, names)}"
    if kind == "missing":
        return "is missing" + FOUND.get(str(error["loc"][-1]), "")
    if kind == "tuple_type" and isinstance(given, Mapping):  # [group] where [[group]] is meant
        return f"must be a list in brackets (of tables: [[{error['loc'][-1]}]]), and is a table"
    known = {
        key: f"{value:g}" if isinstance(value, float) else show_value(value)
        for key, value in error.get("ctx", {}).items()
    }
    wanted = PATTERNS.get(error["ctx"]["pattern"]) if kind == MISMATCH else WANTED.get(kind)
    if wanted is None:
        return error["msg"]
    return f"must be {wanted.format(**known)}, and is {show_value(given)}"


GONE = {
    ("EvaluationSection", "bits"): "leave it out; metrics have the bits of the model, 12 at least",
    ("FederationSection", "checkpoint_copies"): "take `secureps up PLAN --copies URL` instead",
    ("FederationSection", "drop"): "leave it out; a ServerApp that needed it has code of its own, "
    "which runs inside Flower's engine alone (docs/flower.md)",
    ("GroupSection", "tier"): "leave it out; `memory` in a shard's file puts versions into files",
    ("ScheduleSection", "total_steps"): "leave it out; a cosine ends with the group's versions",
    ("ServeSection", "sealing"): "leave it out; servers open and step on the processor",
    ("SupportSection", "every"): "leave it out; without rounds it is the rule's max_staleness",
}
"""Keys that older plans and files may have, by section, and what to do instead."""

MEANT = {
    **{
        ("PlanSection", name): "cipher"
        for name in ("encryption", "encrypt", "crypto", "cryptography", "secagg", "security")
    },
    ("PlanSection", "rounds"): "versions",
    ("SyncSection", "min_clients"): "quorum",
    ("GroupSection", "clip_norm"): "clip",
    ("RecordPrivacySection", "clip_norm"): "max_grad_norm",
}
"""Names that others give to a key, by section, and the key's name here."""

FOUND = {"noise_multiplier": "; secureps check PLAN --epsilon 3 finds it, and the budget"}
"""Hints that tell how to find the value of a missing key."""

WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text in quotes",
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list in brackets",
    "greater_than": "above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "below {lt}",
    "less_than_equal": "{le} or less",
    "scalar": "a finite number, text, true or false",
    "literal_error": "{expected}",
    "too_short": "a list or table of {min_length} or more",
    "too_long": "a list or table of {max_length} or fewer",
}
"""Our text for a wrong value, by pydantic's type of error; other errors keep pydantic's."""

MISMATCH = "string_pattern_mismatch"
NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
CLASS = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
DIGEST = r"^[0-9a-f]{64}$"
PIN = r"^(auto|off|[0-9]{1,3})$"
MEMORY = r"^[0-9]{1,6}(\.[0-9]{1,3})? ?(?:[kMGT]B|[KMGT]iB)$"
BOUND = r"^(clip|none|([2-9]|[1-9]\d{1,3})(\.\d{1,3})?x median)$"
PATTERNS = {
    NAME: "1 to 63 of a-z 0-9 . _ -, the first a letter or digit",
    CLASS: 'a class of yours as "package.module:Class"',
    DIGEST: "a digest: 64 of 0-9 a-f",
    PIN: "auto, off, or the number of a NUMA node in quotes",
    MEMORY: 'a number with kB, MB, GB, TB or KiB, MiB, GiB, TiB, as "2 GiB"',
    BOUND: '"clip", "none", or "Nx median" with N from 2, as "3x median"',
}
"""Descriptions of the patterns above."""

_UNITS = {
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}


def memory_bytes(text: str) -> int:
    """Parses a text of pattern MEMORY: "2 GiB" is 2147483648 bytes."""
    digits = text.rstrip("kKMGTiB")
    return int(float(digits) * _UNITS[text[len(digits) :]])


def memory_text(count: int) -> str:
    """Returns the shortest text that means so many bytes or a little more: "12 MiB"."""
    power = max((p for p in range(1, 5) if 1024**p <= count), default=1)
    return f"{-(-count // 1024**power)} {'KMGT'[power - 1]}iB"


def show_value(value: Any) -> str:
    """Formats a value as in a TOML file, shortened for an error."""
    match value:
        case bool() | int() | float() | str():
            text = toml_text(value)
        case Mapping():
            text = "a table"
        case list() | tuple():
            text = "a list"
        case _:
            text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


SHOWN = 80
"""The most characters of a value in an error."""


def _place(kind: type[Section], location: KeyPath) -> tuple[str, type[Section], KeyPath]:
    """Returns the key at a pydantic location (list items from 1), its section, and its path."""
    key, section, inside = "", kind, [kind]
    path: KeyPath = ()
    for part in location:
        if isinstance(part, int):
            key += f" {part + 1}"
            path = (*path, part)
        elif len(inside) > 1:  # the tag of one of several sections, which is not in the file
            section = next(each for each in inside if _tag(each) == part)
            inside = [section]
        else:
            section = inside[0] if inside else section
            key += f".{part}" if key else part
            path = (*path, part)
            field = section.model_fields.get(part)
            inside = [] if field is None else list(_sections(field.annotation))
    return key, section, path


def _sections(annotation: Any) -> Iterator[type[Section]]:
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
    """Parses `text` as a TOML boolean, number or string; returns any other text unchanged."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = values["value"]
    if len(values) != 1 or not isinstance(value, bool | int | float | str):
        return text
    return value if isinstance(value, str | int) or math.isfinite(value) else text


def toml_text(value: bool | int | float | str) -> str:
    """Formats a value as TOML, so that `toml_value` gives it back."""
    if isinstance(value, str):  # a JSON string is a TOML basic string, except for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def toml_tables(tables: Mapping[str, Any]) -> str:
    """Formats plain values, lists and tables as a TOML file; None is left out."""
    return tomli_w.dumps(_leave_none_out(tables))


def _leave_none_out(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _leave_none_out(each) for key, each in value.items() if each is not None}
    return [*map(_leave_none_out, value)] if isinstance(value, list | tuple) else value


def read_toml(path: Path) -> Tables:
    """Reads a TOML file; ConfigError if it is missing or does not parse."""
    try:
        text = _decode(path.read_bytes()).replace("\r\n", "\n")
        return Tables(tomllib.loads(text), text.split("\n"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: Is a directory; name a file in it") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no TOML file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None


def _decode(data: bytes) -> str:
    """Decodes UTF-8, or UTF-16 by the byte order mark that Windows writes."""
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if utf16 else "utf-8-sig")
