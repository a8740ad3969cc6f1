"""Reads how large a model is from the command line: numbers of values, or a file of shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from secureps.errors import ConfigError
from secureps.messages.schema import Schema, TensorSpec
from secureps.policy.plan import Plan
from secureps.wording import meant, named

Values = int | Mapping[str, int]
"""How many values a model has: of its one group, or of each group of the plan's file."""


def every_size(plan: Plan) -> str:
    """What to type for the sizes of all groups."""
    names = [group.name for group in plan.section.group]
    return "--values N" if len(names) == 1 else " ".join(f"--values {each}=N" for each in names)


def read_values(texts: Iterable[str]) -> Values | None:
    """The number of values that `--values` gives, or of each group; None if it gives none.

    Raises:
        ConfigError: it is neither N nor GROUP=N.
    """
    given: dict[str, int] = {}
    for text in texts:
        group, _, number = text.rpartition("=")
        if group in given or not re.fullmatch("[1-9][0-9]{0,14}", number):
            raise ConfigError(
                f"--values: {text!r} is no number of values from 1 on, or GROUP=N once of a group"
            )
        given[group] = int(number)
    if "" not in given:
        return given or None
    if len(given) > 1:
        raise ConfigError("--values: give one number for all of the model, or GROUP=N of each")
    return given[""]


def sizes_of(plan: Plan, values: Values) -> dict[str, int]:
    """How many values each group has, a table's row-blocks one by one.

    Raises:
        ConfigError: it is not said of every group, or there is no such group, or a table's values
            are not so many for each row.
    """
    sections = {group.name: group for group in plan.section.group}
    if isinstance(values, int):
        if len(sections) > 1:
            raise ConfigError(f"--values: the plan has {len(sections)} groups: {every_size(plan)}")
        values = dict.fromkeys(sections, values)
    if lacking := [name for name in sections if name not in values]:
        raise ConfigError(f"--values: says nothing of {named(lacking)}: {every_size(plan)}")
    sizes: dict[str, int] = {}
    for name, count in values.items():
        if (section := sections.get(name)) is None:
            raise ConfigError(f"--values: no group is called {name!r}; {meant(name, sections)}")
        if (cut := section.sparse) is None:
            sizes[name] = count + section.scaled
            continue
        width, rest = divmod(count, cut.rows)
        if rest:
            raise ConfigError(
                f"--values: {name} has {cut.rows} rows, and {count} values are not as many for each"
            )
        for number, block in enumerate(cut.names(name)):
            sizes[block] = width * min(cut.block, cut.rows - number * cut.block) + section.scaled
    return sizes


def read_schema(path: Path) -> Schema:
    """The tensors of a model, by a JSON file of their names and shapes: {"weight": [10, 64]}.

    Raises:
        ConfigError: the file is none.
    """
    try:
        told = json.loads(path.read_bytes())
        shapes = {str(name): tuple(shape) for name, shape in told.items()}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        shapes = {}
    sound = all(type(n) is int and n >= 0 for shape in shapes.values() for n in shape)
    if not shapes or not sound:
        raise ConfigError(f'{path}: no shapes of a model\'s tensors, as {{"weight": [10, 64]}}')
    return Schema(tuple(TensorSpec(name, shapes[name], "float32") for name in sorted(shapes)))
