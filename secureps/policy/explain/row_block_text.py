"""Which row-blocks of a table no cohort will ever be made of, in words, before a run has ended.

How many are said, and of which table: who touches what stays where it is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from secureps.policy.plan import Plan


def touched_by_few(plan: Plan, touching: Mapping[str, int]) -> frozenset[str]:
    """The row-blocks that fewer clients touch than a version waits for.

    Args:
        touching: how many clients touch each; those that none touches may be left out.
    """
    blocks = chain.from_iterable(plan.section.tables.values())
    return frozenset(each for each in blocks if touching.get(each, 0) < plan.bounds(each).start)


def row_block_words(plan: Plan, few: Collection[str]) -> Iterator[str]:
    """Says of each table how many of its row-blocks are among these, if any is."""
    for table, blocks in plan.section.tables.items():
        if number := len(set(few).intersection(blocks)):
            yield (
                f"{number} of {len(blocks)} row-blocks of {table} are touched by fewer than "
                f"{plan.bounds(blocks[0]).start} clients, without whom no version is made: they "
                "stay as they began; make the block of [group.sparse] larger, or the rule's "
                "minimum, and what else a version waits for, smaller"
            )
