"""Clips an update, and tells the client's own terminal what `clip` and `range` cut off.

Whoever chose `clip` or `range` too small would otherwise never learn of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from secureps.client.update import Update, furthest, pieces
from secureps.codec.moving_range import MovingRange
from secureps.config.plan import PrioritySection
from secureps.errors import NotFinite
from secureps.messages.encoding import payload_hasher
from secureps.model.difference import Part
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.rules.priority import declared
from secureps.policy.scales import moved
from secureps.policy.tensor_kinds import Kind
from secureps.privacy.adaptive import AdaptiveClip
from secureps.privacy.mechanism import PIECE, clip_factor, shrink
from secureps.service.logs import tell

EVENT = "UpdateCut"

FAR = 1000.0
"""An update so many times as long as the clip is a fault of the training, not of the plan."""


def clip_update(
    plan: Plan,
    layout: GroupLayout,
    delta: Part,
    scale: float | None,
    kinds: Mapping[str, Kind],
) -> Update:
    """Clips an update of a group to its L2 norm; running statistics are left as they are.

    Statistics are in the units of a layer's inputs, not of gradient steps: counted in the same norm
    as the weights, they would shrink the weights' part to nothing. No plan adds noise to
    them (`policy.tensor_kinds.refuse_statistics`), so no privacy depends on their length.

    Args:
        delta: makes the values of the group.
        scale: of the group, None where it has none.

    Raises:
        NotFinite: a value is not finite.
    """
    mover, clip = moved(plan, layout.name, layout.sent), plan.group(layout.name).clip
    if isinstance(mover, AdaptiveClip) and scale is not None:
        joint = mover.clipped(delta(0, layout.size), scale)
        return Update.of(joint, mover.norm)
    statistics = [part for name, part in layout.parts() if kinds.get(name) == "statistics"]
    hasher, largest = payload_hasher(), 0.0

    def counted() -> Iterator[NDArray[np.float32]]:
        """Without statistics; what of an update is hashed and measured is all of it."""
        nonlocal largest, hasher
        hasher, largest = payload_hasher(), 0.0
        for start in range(0, layout.size, PIECE):
            values = delta(start, min(start + PIECE, layout.size))
            hasher.update(values.astype("<f4", copy=False).data.cast("B"))
            largest = max(largest, furthest(values))
            if statistics and not np.isfinite(values).all():
                raise NotFinite("an update has a value that is not a finite float32")
            for part in within(statistics, start, start + values.size):
                values[part] = 0
            yield values

    factor, norm = clip_factor(counted, clip)

    def clipped(first: int, last: int) -> NDArray[np.float32]:
        values = delta(first, last)
        kept = [(part, values[part].copy()) for part in within(statistics, first, last)]
        shrink(values, factor)
        for part, as_it_was in kept:
            values[part] = as_it_was
        return values

    of_it = clipped if factor < 1 else delta
    known = (hasher.digest(), largest, min(norm, clip), of_it)
    update = Update(layout.size, *known, uncut=norm if norm > clip else None)
    if isinstance(mover, MovingRange) and scale is not None:
        return _in_units(update, scale, mover.told(update.norm, scale))
    return update


def _in_units(update: Update, scale: float, last: np.float32) -> Update:
    """An update in units of a scale, with another last value."""

    def part(first: int, end: int) -> NDArray[np.float32]:
        values = update.part(first, end)
        values /= np.float32(scale)
        if end == update.size:
            values[-1] = last
        return values

    return dataclasses.replace(update, part=part)


def magnitude(plan: Plan, group: str, update: Update) -> int | None:
    """The norm that a receipt declares, if the rule asks for it."""
    section = plan.group(group)
    if not isinstance(section.rule, PrioritySection) or section.rule.score != "magnitude":
        return None
    return declared(update.norm, section.clip)


def tell_cuts(
    party: str, where: str, layout: GroupLayout, update: Update, share: float, most: float | None
) -> None:
    """Tells the client what the clip and then the range cut off its update, in one line.

    The range is measured after the clip. So the line names a range that holds what the clip leaves,
    and a clip with a range that hold the whole update: a plan takes the one or the other.

    Args:
        update, share: the values that are put on the grid are `share` times these, in float64.
        most: the range; None where noise or a codec decides what values become.
    """
    said = list[str]()
    if update.uncut is not None:
        left = 100 * update.norm / update.uncut
        said.append(f"update norm {update.uncut:.3g}, clip {update.norm:.3g}: cut to {left:.2g} %")
    if most is not None:
        said += _range_words(layout, update, share, most)
    if said:
        tell(party, EVENT, where + "; ".join(said))


def _range_words(layout: GroupLayout, update: Update, share: float, most: float) -> Iterator[str]:
    """Says what the range cuts off, and which numbers of the plan would hold the update."""
    whole, in_plan = update.largest * share, "in the plan's [[group]]"
    wider = f" and range = {_room(whole):g}" if whole > most else ""
    count = {}
    if wider:  # `largest` is of the values before the clip: these are counted after it
        count = {name: update.beyond(part, share, most) for name, part in layout.parts()}
    if beyond := sum(count.values()):
        worst = max(count, key=lambda name: count[name])
        largest = share * max(map(furthest, pieces(update.part, 0, update.size)))
        after = "then " if update.uncut is not None else ""
        yield (
            f"{after}{beyond:,} of the update's {update.size:,} values are beyond range {most:.3g}"
            f": cut to it, {count[worst]:,} of them in {worst}"
        )
        yield f"the largest is {largest:.3g}: range = {_room(largest):g} {in_plan} holds it"
    if update.uncut is not None and update.uncut > FAR * update.norm:
        yield (
            "no clip suits an update this long: its inputs are not scaled, or its learning rate is "
            "too high"
        )
    elif update.uncut is not None:
        clip = f"clip = {_room(update.uncut):g}"
        yield f"{clip}{wider} {in_plan} would hold the whole update"


def _room(largest: float) -> float:
    """The next number of one digit: the next update may be a little larger."""
    digit = 10.0 ** math.floor(math.log10(largest))
    return float(f"{math.ceil(largest / digit) * digit:.0e}")


def within(parts: Sequence[slice], first: int, last: int) -> Iterator[slice]:
    """What of these slices of a vector lies in its values [first, last), counted from `first`."""
    for part in parts:
        start, stop = max(part.start, first), min(part.stop, last)
        if start < stop:
            yield slice(start - first, stop - first)
