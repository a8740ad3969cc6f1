"""What a group's codec sends, and what clients keep of the rest, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import FLOAT_BYTES, block_delta, bytes_down
from secureps.policy.plan import Plan

LOUD = 0.5
"""Noise of rounding in a mean, as long as this much of an update, is too much for any codec."""


def codec_words(plan: Plan, group: GroupLayout, head: str) -> Iterator[str]:
    """What to know of a group's codec and feedback; nothing where it has neither.

    Args:
        head: what each begins with.
    """
    section = plan.group(group.name)
    if section.codec:
        grid = plan.grid(group.name, group.sent)
        rotated = ", rotated," if section.rotates else ""
        yield (
            f"{head}of {group.size:,} values an update sends {group.sent:,}{rotated} each as one "
            f"of {grid.levels + 1:,} integers within +-{grid.range:.3g}"
        )
    if section.follows_norms:
        yield (
            f"{head}the range is that of version 0, and follows the mean norm of the updates of "
            "each cohort, which is sent encrypted and opened with the sum: everybody learns it, "
            "as the mean"
        )
    yield from _rounding(plan, group, head)
    if section.feedback:
        kept = FLOAT_BYTES * group.size
        yield (
            f"{head}what an update does not carry its client adds to the next one, and keeps until "
            f"then in its state folder, in the clear: {kept:,} bytes"
        )
    elif section.one_in is not None:
        yield (
            f"{head}each value that is sent stands for {section.one_in}, noise and rounding with "
            "it: feedback = true sends the others later instead"
        )
    delta = block_delta(plan, group, 0)
    if delta is not None:
        whole, each = FLOAT_BYTES * group.size, bytes_down(plan, group)
        yield (
            f"{head}clients pull what changed since the version that they have, {each:,} bytes a "
            f"version, and the whole, {whole:,} bytes, when they begin or are {delta.behind + 1} "
            "versions behind or more; a shard keeps what was rounded off for the next version"
        )


def _rounding(plan: Plan, group: GroupLayout, head: str) -> Iterator[str]:
    """How much noise rounding adds to an update as long as a clip that the plan states.

    Of a normal value of deviation s, on a grid of step t s, the variance is s^2 t^2 / 6 on average
    where t is small, and s t E|x| = 0.8 s^2 t where most values lie within a step of zero.
    """
    section = plan.group(group.name)
    if plan.mechanism(group.name, group.sent) or "clip" not in section.model_fields_set:
        return
    value = section.clip / math.sqrt(group.size)
    steps = plan.grid(group.name, group.sent).step / value
    alone = math.sqrt(min(steps**2 / 6, math.sqrt(2 / math.pi) * steps))
    members = section.rule.minimum
    mean = alone / math.sqrt(members)
    if not section.codec and mean < LOUD:
        return
    much = "" if mean < LOUD else ": take more bits, or rotate and round, which narrow the range"
    yield (
        f"{head}rounding adds noise {alone:.0%} as long as an update of the clip's length, "
        f"{mean:.0%} in the mean of {members}{much}"
    )
