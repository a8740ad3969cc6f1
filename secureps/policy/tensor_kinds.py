"""What training does to each tensor of a model, and whether a plan may average it.

Trainers declare it (`kinds` of `client.trainer.Trainer`). A tensor without a declaration counts as
trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from secureps.config.plan import ClientPrivacySection
from secureps.errors import PlanRefused
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import Plan
from secureps.wording import named

Kind = Literal["trained", "statistics", "constant"]
"""What a tensor is: moved by gradients; a summary of records (running means and variances); or
constant (frozen parameters, counters, tables of indices)."""

MOST = 0.5
"""A remark is made if a smaller share of the model's values trains together."""

ROOMY = 100.0
"""A range within which the variance of inputs of about unit size can move to its final value."""


def refuse_statistics(plan: Plan, schema: Schema, kinds: Mapping[str, Kind]) -> None:
    """Refuses running statistics that get noise, a codec or a bound on sums (PlanRefused).

    Noise soon takes a variance below 0. Under record-level privacy trainers refuse the layers that
    keep statistics.
    """
    for group in plan.layout(schema).groups:
        own = [spec.name for spec in group.tensors if kinds.get(spec.name) == "statistics"]
        if own and (plan.group(group.name).codec or plan.group(group.name).feedback):
            raise PlanRefused(
                f"tensor {own[0]!r}: running statistics are in other units than weights, and the "
                f"codec{plan.of(group.name)} would mix them: give them a [[group]] of their own "
                "without one, or keep them local"
            )
        bound = plan.group(group.name).bound
        if own and bound not in (None, "none"):
            raise PlanRefused(
                f"tensor {own[0]!r}: running statistics are not clipped, so sums of honest updates "
                f'may be longer than bound = "{bound}"{plan.of(group.name)} allows: give them a '
                "[[group]] of their own, or keep them local"
            )
    if not isinstance(plan.section.privacy, ClientPrivacySection):
        return
    local = {spec.name for spec in plan.layout(schema).local}
    found = [name for name, kind in kinds.items() if kind == "statistics" and name not in local]
    if found:
        patterns = sorted({f'"*{name.rpartition(".")[2]}"' for name in found})
        raise PlanRefused(
            f"tensor {named(list(map(repr, found)), 1)}: running statistics that client-level "
            "privacy averages get its noise, which takes variances below 0; keep them with each "
            f"client, local = [{', '.join(patterns)}], or use a layer that keeps none (GroupNorm)"
        )


def refuse_trained(plan: Plan, schema: Schema, kinds: Mapping[str, Kind]) -> None:
    """Refuses a script that trains a tensor that the plan has frozen (PlanRefused)."""
    for spec in plan.layout(schema).frozen or ():
        if kinds.get(spec.name, "constant") != "constant":
            raise PlanRefused(
                f"tensor {spec.name!r} is frozen, and the script trains it: have it leave the "
                "tensor as it is (requires_grad_(False)), or take it out of frozen"
            )


def remarks(plan: Plan, schema: Schema, kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    """Returns what may not average well in a model under a plan, and what to do about it."""
    schema = schema.untied
    return (
        *_crowded(plan, schema, kinds),
        *_idle(plan, schema, kinds),
        *_frozen(plan, schema),
        *_doubles(plan, schema, kinds),
    )


def _crowded(plan: Plan, schema: Schema, kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Warns of running statistics on a grid that was chosen for weights."""
    for group in plan.layout(schema).groups:
        found = [spec.name for spec in group.tensors if kinds.get(spec.name) == "statistics"]
        trained = [s for s in group.tensors if kinds.get(s.name, "trained") == "trained"]
        most = plan.grid(group.name, group.sent).range
        if found and trained and most < ROOMY:
            yield (
                f"running statistics ({named(found, 1)}) change by {most:g} in a version at most, "
                f"the range{plan.of(group.name)}: bring inputs to about -1 to 1, or give the "
                "statistics a [[group]] of their own (docs/tuning.md)"
            )


def _idle(plan: Plan, schema: Schema, kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    """Warns if only a small part of a model trains together."""
    layout = plan.layout(schema)
    local, frozen = layout.local, layout.frozen or ()
    staying = {*layout.staying}
    shared = [spec for spec in schema.tensors if spec not in staying]
    still = [spec for spec in shared if kinds.get(spec.name) == "constant"]
    total, idle = _values(schema.tensors) - _values(frozen), _values(still)
    together = _values(shared) - idle
    if total == 0 or together >= MOST * total:
        return ()
    told = f"only {together:,} of the model's {total:,} values train together"
    if local:
        told += f"; {_values(local):,} stay with each client (local)"
    if idle:
        noisy = isinstance(plan.section.privacy, ClientPrivacySection)
        told += (
            f"; {idle:,} travel{' and get noise' if noisy else ''} although nothing trains them: "
            "list them as frozen if every client makes them alike, else as local, "
            f"{still[0].name!r} for one (docs/personal.md)"
        )
    return (told,)


def _frozen(plan: Plan, schema: Schema) -> Iterator[str]:
    if frozen := plan.layout(schema).frozen:
        yield (
            f"{_values(frozen):,} of the model's {_values(schema.tensors):,} values are frozen: "
            "they cost no bytes and get no noise, and every party must have the same"
        )


def _doubles(plan: Plan, schema: Schema, kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Warns of float64 tensors, which lose digits; constants are checked by value elsewhere."""
    staying = {*plan.layout(schema).staying}
    found = [
        spec.name
        for spec in schema.tensors
        if spec.dtype == "float64" and spec not in staying and kinds.get(spec.name) != "constant"
    ]
    if found:
        yield (
            f"float64: {named(found, 1)}: all that travels is float32, of 7 digits; list as frozen "
            "what nothing trains and must keep its digits"
        )


def _values(specs: Iterable[TensorSpec]) -> int:
    return sum(math.prod(spec.shape) for spec in specs)
