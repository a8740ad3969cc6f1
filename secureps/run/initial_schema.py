"""Reads what a plan's file of version 0 is: its tensors, and whether a run can begin from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import read_initial, schema_of
from secureps.client.local_tensors import digests_of
from secureps.errors import ConfigError, WrongShape
from secureps.files.objects import initial_path, shown
from secureps.messages.schema import Schema
from secureps.model.layout import Layout
from secureps.policy.plan import Plan

Tensors = Mapping[str, NDArray[Any]]


def founding_schema(plan: Plan, made: Schema) -> Schema:
    """The schema that a run begins from: of the plan's file, else of the script's model.

    Raises:
        ConfigError: the file's model is not the script's; or as `initial_schema`.
    """
    found = initial_schema(plan)
    if found is None:
        return made
    of_file = found.untied.telling({})
    if of_file != made.untied:
        raise ConfigError(
            f"initial: {shown(plan.section.initial or '')}: it has not the tensors of the script's "
            f"model: {of_file.difference(made)}"
        )
    return found


def initial_schema(plan: Plan) -> Schema | None:
    """The schema of the plan's file of version 0, or None if the first client founds.

    It has digests of the tensors that the plan freezes: the file has those, too.

    Raises:
        ConfigError: not a safetensors file, or of types that numpy does not have; or a tensor that
            is trained has values that nobody could train from.
        PlanRefused: as `Plan.layout`.
        DiskFailed, DamagedStore: as `initial_path`.
    """
    if plan.section.initial is None:
        return None
    tensors, ties = read_initial(shown(plan.section.initial), initial_path(plan.section.initial))
    schema = schema_of(tensors, ties)
    layout = plan.layout(schema)
    _refuse_unusable(shown(plan.section.initial), layout, tensors)
    frozen = layout.frozen if plan.section.frozen else None
    return schema.telling(digests_of({s.name: tensors[s.name] for s in frozen or ()}))


def _refuse_unusable(file: str, layout: Layout, tensors: Tensors) -> None:
    """Refuses what shards could not publish; what stays with clients may be anything."""
    for group in layout.groups:
        for spec, view in group.views(tensors):
            with np.errstate(over="ignore"):
                values = view.astype(np.float32, copy=False)
            if not np.isfinite(values).all():
                raise ConfigError(
                    f"initial: {file}: tensor {spec.name!r} has values that are NaN, infinite or "
                    "too large for float32: a run cannot begin from them; export a sound model"
                )
        try:
            group.refuse_inexact(tensors)
        except WrongShape as error:
            raise ConfigError(f"initial: {file}: {error}") from None
