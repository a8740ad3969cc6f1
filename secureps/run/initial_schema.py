"""Reads a model's schema or size from a plan's file of version 0, a file of shapes, or options."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import digests_of, read_initial, schema_of
from secureps.errors import ClientError, ConfigError, NotFinite
from secureps.files.objects import initial_path, redact
from secureps.messages.run import Schema, TensorSpec
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.wording import named, suggest

Tensors = Mapping[str, NDArray[Any]]


def settle_schema(plan: Plan, made: Schema) -> Schema:
    """Returns the schema of the plan's file, or else the script's; ConfigError if they differ."""
    found = read_initial_schema(plan)
    if found is None:
        return made
    of_file = found.untied.with_values({})
    if of_file != made.untied:
        raise ConfigError(
            f"initial: {redact(plan.section.initial or '')}: it has not the tensors of the "
            f"script's model: {of_file.difference(made)}"
        )
    return found


def read_initial_schema(plan: Plan) -> Schema | None:
    """Reads the schema of the plan's file of version 0; None if the first client makes version 0.

    The schema includes digests of the tensors that the plan freezes. Raises ConfigError if the file
    is no safetensors file, or has types or values from which no training can start.
    """
    if plan.section.initial is None:
        return None
    tensors, ties = read_initial(redact(plan.section.initial), initial_path(plan.section.initial))
    schema = schema_of(tensors, ties)
    layout = plan.layout(schema)
    try:
        refuse_unusable(layout, tensors)
    except ClientError as error:
        raise ConfigError(f"initial: {redact(plan.section.initial)}: {error}") from None
    frozen = layout.frozen if plan.section.frozen else None
    return schema.with_values(digests_of({s.name: tensors[s.name] for s in frozen or ()}))


def refuse_unusable(layout: Layout, tensors: Tensors, constants: Container[str] = ()) -> None:
    """Refuses values that shards could not publish (NotFinite, or WrongShape if one is inexact).

    Tensors that stay with clients may have any values, such as a mask of -inf.
    """
    for group in layout.groups:
        group.refuse_inexact(tensors, constants)
        for spec, view in group.views(tensors):
            with np.errstate(over="ignore"):
                values = view.astype(np.float32, copy=False)
            if not np.isfinite(values).all():
                raise NotFinite(
                    f"tensor {spec.name!r} has values that are NaN, infinite or too large for "
                    "float32: a run cannot begin from them, and needs a sound model"
                )


Values = int | Mapping[str, int]
"""The number of values of a model's only group, or of each group of the plan's file."""


def size_options(plan: Plan) -> str:
    names = [group.name for group in plan.section.group]
    return "--values N" if len(names) == 1 else " ".join(f"--values {each}=N" for each in names)


def read_values(texts: Iterable[str]) -> Values | None:
    """Reads `--values`: N for a single group, or GROUP=N for each; else ConfigError."""
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


def count_values(plan: Plan, values: Values) -> dict[str, int]:
    """Counts the values of each group or row-block; ConfigError unless they fit the plan."""
    sections = {group.name: group for group in plan.section.group}
    if isinstance(values, int):
        if len(sections) > 1:
            raise ConfigError(
                f"--values: the plan has {len(sections)} groups: {size_options(plan)}"
            )
        values = dict.fromkeys(sections, values)
    if lacking := [name for name in sections if name not in values]:
        raise ConfigError(f"--values: says nothing of {named(lacking)}: {size_options(plan)}")
    sizes: dict[str, int] = {}
    for name, count in values.items():
        if (section := sections.get(name)) is None:
            raise ConfigError(f"--values: no group is called {name!r}; {suggest(name, sections)}")
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
    """Reads a JSON file of tensor shapes such as {"weight": [10, 64]}, or raises ConfigError."""
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
