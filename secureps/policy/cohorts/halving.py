"""Which smaller cohorts may follow one that did not open, for the same version.

Whoever makes two sums of one version learns their difference. A cohort that did not open for
the coordinator may have opened for somebody, so what follows it must not take it apart at will:
it is cut into halves, these into halves again, and only these sets, whole, may follow. Any two of
them are disjoint or nested, and whatever sums of them are subtracted from each other, what is left
is a sum over whole leaves of this tree: no client hides among fewer than `least`. The size of the
leaves protects, and not who draws them: whoever chooses the first set chooses its tree.
A hash draws the tree, so that all parties compute the same one, compare two sets at a time, and cut
otherwise for every version: else two offenders in different halves would stay there.
"""

from __future__ import annotations

from collections.abc import Set

from secureps.messages.encoding import digest

Clients = frozenset[str]


def halves(
    run: bytes, group: str, version: int, whole: Set[str], least: int
) -> tuple[Clients, ...]:
    """Cuts a set of clients into two halves, drawn by a hash; none if one had fewer than `least`.

    Args:
        run: run id, 32 bytes; group and version: what the cohort was to make.
        least: >= 1.
    """
    if len(whole) < 2 * least:
        return ()
    names = sorted(whole)
    seed = digest(
        "secureps-buckets", run, group.encode(), version.to_bytes(8, "little"),
        *(name.encode() for name in names),
    )  # fmt: skip
    drawn = sorted(names, key=lambda name: digest("secureps-bucket", seed, name.encode()))
    middle = len(drawn) // 2
    return frozenset(drawn[:middle]), frozenset(drawn[middle:])


def leaves(
    run: bytes, group: str, version: int, whole: Set[str], least: int
) -> tuple[Clients, ...]:
    """Returns the sets that are cut no further: disjoint, `least` or more clients in each."""
    cut = halves(run, group, version, whole, least)
    if not cut:
        return (frozenset(whole),)
    return tuple(leaf for half in cut for leaf in leaves(run, group, version, half, least))


def within(
    run: bytes, group: str, version: int, whole: Set[str], part: Set[str], least: int
) -> bool:
    """Tells whether `part` is `whole`, or one of the sets that it is cut into."""
    while whole != part:
        half = [h for h in halves(run, group, version, whole, least) if part <= h]
        if not half:
            return False
        whole = half[0]
    return True
