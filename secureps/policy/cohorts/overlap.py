"""What a member of an opened sum hides among: the others' weights, and the other sums.

Two opened sums that share a client's update from one base version tell their difference to
whoever sees both. `may_both_open` allows two cohorts that meet in a (client, base) only if one is a
set of the other's tree of halves (`policy.cohorts.suspicion`), for the same version, with the same
updates and weights. Pairs are enough: sets of which any two are disjoint or nested are laminar, all
that meet a largest one are sets of its tree, and so every combination of the opened sums is a
combination of sums over whole leaves of trees. A leaf has `least` clients or more, whose weights
single nobody out.
"""

from __future__ import annotations

from collections.abc import Sequence

from secureps.crypto.cipher import WEIGHTS
from secureps.errors import Refused
from secureps.messages.submission import Base, Cohort
from secureps.policy.cohorts.suspicion import leaves, within

Place = tuple[int, Base, bytes]
"""What a client adds to a sum: its weight, what its update was trained from, and its name."""


def check_members(cohort: Cohort, least: int) -> None:
    """Checks that a cohort by itself hides its members: whoever adds or opens it checks this.

    Raises:
        Refused: as `check_clients`, or its weights are too uneven.
    """
    check_clients(cohort, least)
    if flaw := uneven([member.weight for member in cohort.members], least):
        raise Refused(flaw)


def check_clients(cohort: Cohort, least: int) -> None:
    """Checks whose updates a cohort has.

    Raises:
        Refused: fewer than `least` clients, a client twice, or an update of another group.
    """
    clients = {member.id.client for member in cohort.members}
    if len(clients) != len(cohort.members):
        raise Refused("a client stands in the cohort twice")
    if len(clients) < least:
        raise Refused(f"a cohort of {len(clients)} clients, and {least} or more are opened")
    if any(member.id.group != cohort.group for member in cohort.members):
        raise Refused(f"an update of another group stands in a cohort of {cohort.group}")


def uneven(weights: Sequence[int], least: int) -> str:
    """Says how few members stand out by these weights; empty if none do.

    Every member must hide among `least`: those of a small weight are no fewer, the effective
    number (sum w)^2 / sum w^2 is no less, and the others weigh no less than the heaviest. What
    holds of disjoint sets holds of their union. No weights but 1, 2 and 4 are opened.
    """
    if any(weight not in WEIGHTS for weight in weights):
        return f"cohorts of weights {WEIGHTS} are opened, and no others"
    for heavier in WEIGHTS[1:]:
        lighter = sum(weight < heavier for weight in weights)
        if 0 < lighter < least:  # modulo the heavier weight a sum is that of the lighter few
            return f"{lighter} members weigh less than {heavier}: none, or {least} or more must"
    total, squares = sum(weights), sum(weight * weight for weight in weights)
    if total * total < least * squares:
        return (
            f"members of so uneven weights hide among {total * total / squares:.1f}, and {least} "
            "or more are wanted"
        )
    return "one member outweighs all the others" if squares < 2 * max(weights) ** 2 else ""


def places(cohort: Cohort) -> dict[str, Place]:
    """Returns what each client adds to the sum, by name."""
    return {m.id.client: (m.weight, m.base, m.update) for m in cohort.members}


def may_both_open(run: bytes, one: Cohort, other: Cohort, least: int) -> bool:
    """Tells whether two sums of one group may both be opened, and each member still hides.

    Args:
        run: run id, 32 bytes.
        one, other: no client stands in either of them twice, and each passes `check_members`.
        least: fewest members of a leaf.
    """
    mine, theirs = places(one), places(other)
    common = mine.keys() & theirs.keys()
    if all(mine[client][1] != theirs[client][1] for client in common):
        return True  # they have no (client, base) in common
    part, whole = sorted((mine, theirs), key=len)
    if one.version != other.version or any(whole.get(c) != place for c, place in part.items()):
        return False
    if part.keys() == whole.keys():
        return True
    tree = (run, one.group, one.version, whole.keys())
    if not within(*tree, part.keys(), least):
        return False
    of_leaves = ([whole[client][0] for client in leaf] for leaf in leaves(*tree, least))
    return not any(uneven(weights, least) for weights in of_leaves)
