"""What a plan's `[scaling]` may do, in words of `secureps check`.

What must not live here: whether it is sound (`policy.checks.scaling`).
"""

from __future__ import annotations

from secureps.config.plan import PlanSection
from secureps.policy.checks.scaling import most_shards
from secureps.wording import counted


def scaling_words(section: PlanSection, blocks: int | None) -> list[str]:
    """What may follow the load, and why it may not.

    Args:
        blocks: of the model; None if its size is not known.
    """
    own = section.scaling
    if own is None:
        return []
    most, parts = most_shards(section), list[str]()
    if own.policy != "fixed":
        parts.append(f"{own.least_shards} to {most} shards")
        if own.least_deadline < own.most_deadline:
            parts.append(f"deadlines of {own.least_deadline:g} to {own.most_deadline:g} times")
        if own.least_buffer < 1:
            parts.append(f"buffers of {own.least_buffer:g} to 1 times")
    parts += ["row-blocks move"] if own.balance else []
    text = ", ".join(parts) or "nothing"
    words = [f"scaling by {own.policy}, at most once in {own.every:g} s: {text}"]
    if own.policy != "fixed" and blocks is not None and blocks < most:
        words.append(
            f"the model has {counted(blocks, 'block')}, and a shard holds one at least: no more "
            f"than {counted(blocks, 'shard')} can have work; name a smaller block_size"
        )
    return words
