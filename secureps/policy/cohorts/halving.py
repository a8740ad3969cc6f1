"""Which smaller cohorts may follow one that did not open, for the same version.

Whoever makes two sums of one version learns their difference. A cohort that did not open for
the coordinator may have opened for somebody, so what follows it must not take it apart at will.
Its clients in the order of their names are cut into halves, these into halves again, and only
these sets, whole, may follow. Any two of them are disjoint or nested, so that whatever sums are
subtracted from each other, what is left is a sum over whole leaves of this tree: no client hides
among fewer than `least`. Who chooses the first set chooses the tree with it; the size of its leaves
is what protects. The tree follows from the set alone, so each holder compares two sets at a time.
"""

from __future__ import annotations

from collections.abc import Set

Clients = frozenset[str]


def halves(whole: Set[str], least: int) -> tuple[Clients, ...]:
    """Cuts a set of clients into its two halves; none if one had fewer than `least` (>= 1)."""
    if len(whole) < 2 * least:
        return ()
    names = sorted(whole)
    middle = len(names) // 2
    return frozenset(names[:middle]), frozenset(names[middle:])


def leaves(whole: Set[str], least: int) -> tuple[Clients, ...]:
    """Returns the sets that are cut no further: disjoint, `least` or more clients in each."""
    cut = halves(whole, least)
    if not cut:
        return (frozenset(whole),)
    return tuple(leaf for half in cut for leaf in leaves(half, least))


def within(whole: Set[str], part: Set[str], least: int) -> bool:
    """Tells whether `part` is `whole`, or one of the sets that it is cut into."""
    while whole != part:
        half = [h for h in halves(whole, least) if part <= h]
        if not half:
            return False
        whole = half[0]
    return True
