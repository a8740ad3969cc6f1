"""Clips an update, and tells the client's own terminal what `clip` and `range` cut off.

Whoever chose `clip` or `range` too small would otherwise never learn of it. What must not live
here: telemetry, receipts or journals, because no noise covers an update's norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from secureps.config.plan import PrioritySection
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.rules.priority import declared
from secureps.policy.tensor_kinds import Kind
from secureps.privacy.mechanism import clip_l2
from secureps.service.logs import tell

EVENT = "UpdateCut"


def clip_update(
    of: tuple[str, Plan],
    layout: GroupLayout,
    delta: NDArray[np.float32],
    scale: float | None,
    kinds: Mapping[str, Kind],
) -> NDArray[np.float32]:
    """Clips an update of a group to its L2 norm; running statistics are left as they are.

    Statistics are in the units of a layer's inputs, not of gradient steps: counted in the same norm
    as the weights, they would shrink the weights' part to nothing. No plan adds noise to
    them (`policy.tensor_kinds.refuse_statistics`), so no privacy depends on their length.

    Args:
        of: the client that is told, and the plan.
        delta: float32 of shape (values of the group,).
        scale: of an adaptive clip, None where it stays.

    Raises:
        NotFinite: a value is not finite.
    """
    party, plan = of
    adaptive, clip = plan.adaptive(layout.name), plan.group(layout.name).clip
    if adaptive is not None and scale is not None:
        return adaptive.clipped(delta, scale)
    clipped, norm = clip_l2(without_statistics(layout, delta, kinds), clip)
    for part in _statistics(layout, kinds):
        clipped[part] = delta[part]
    if norm > clip:
        cut = f"cut to {100 * clip / norm:.2g} %"
        where = plan.headed(layout.name, "")
        tell(party, EVENT, f"{where}update norm {norm:.3g}, clip {clip:.3g}: {cut}")
    return clipped


def without_statistics(
    layout: GroupLayout, delta: NDArray[np.float32], kinds: Mapping[str, Kind]
) -> NDArray[np.float32]:
    """The update that the clip measures: a copy, if it has running statistics, with zeros there."""
    parts = _statistics(layout, kinds)
    bare = delta.copy() if parts else delta
    for part in parts:
        bare[part] = 0
    return bare


def magnitude(
    plan: Plan, layout: GroupLayout, clipped: NDArray[np.float32], kinds: Mapping[str, Kind]
) -> int | None:
    """The norm that a receipt declares, if the rule asks for it; statistics do not count."""
    section = plan.group(layout.name)
    if not isinstance(section.rule, PrioritySection) or section.rule.score != "magnitude":
        return None
    counted = without_statistics(layout, clipped, kinds)
    return declared(float(np.linalg.norm(counted)), section.clip)


def tell_range(
    party: str,
    where: str,
    layout: GroupLayout,
    clipped: NDArray[np.float32],
    share: float,
    most: float,
) -> None:
    """Tells the client how many values of its share exceed the grid's range, and in which tensor.

    Args:
        clipped, share: the values that are put on the grid are `share` times these, in float64.
        most: the range.
    """
    if max(float(clipped.max(initial=0)), -float(clipped.min(initial=0))) * share > most:
        beyond = np.abs(clipped.astype(np.float64) * share) > most
        count = {name: int(beyond[part].sum()) for name, part in _parts(layout)}
        worst = max(count, key=lambda name: count[name], default="")
        text = f"{int(beyond.sum()):,} of the update's {clipped.size:,} values are beyond range"
        whose = f", {count[worst]:,} of them in {worst}" if count.get(worst) else ""
        tell(party, EVENT, f"{where}{text} {most:.3g}: cut to it{whose}")


def _statistics(layout: GroupLayout, kinds: Mapping[str, Kind]) -> list[slice]:
    """The slices of the group's values that hold running statistics."""
    return [part for name, part in _parts(layout) if kinds.get(name) == "statistics"]


def _parts(layout: GroupLayout) -> Iterator[tuple[str, slice]]:
    """Each tensor's name and its slice of the group's values; in a row-block, of its rows."""
    start = 0
    for spec in layout.tensors:
        shape = spec.shape
        if layout.rows is not None:
            shape = (layout.rows[1] - layout.rows[0], *shape[1:])
        yield spec.name, slice(start, start := start + math.prod(shape))
