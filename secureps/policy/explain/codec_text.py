"""What a group's codec sends, and what clients keep of the rest, in words.

What must not live here: bytes on the wire (`policy.explain.explanation`).
"""

from __future__ import annotations

from collections.abc import Iterator

from secureps.model.layout import GroupLayout
from secureps.policy.explain.memory import FLOAT_BYTES
from secureps.policy.plan import Plan


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
