"""What a member of an opened sum hides among: the others' weights, and the other sums.

Two opened sums that share a client's update from one base version tell their difference to
whoever sees both. `both_open` allows a pair only where that gives nobody away, and pairs are
enough. Clients with their base versions are in a laminar family of sets: every two that meet are
the same, or one is a set of the other's tree of halves (`policy.cohorts.halving`), so all that
meet a largest one are sets of its tree. Whatever combination of the sums is taken, it is then a
combination of sums over whole leaves of that tree, each of `least` members or more whose weights
every pair has compared; and where clients of a leaf have trained again to other updates, all of
them have. What must not live here: what was opened (`roles.holder.ledger`), I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from secureps.crypto.cipher import WEIGHTS
from secureps.errors import Refused
from secureps.messages.submission import Cohort, Member
from secureps.policy.base import Base
from secureps.policy.cohorts.halving import leaves, within


def check_weights(weights: Sequence[int], least: int) -> None:
    """Accepts weights by which no few members stand out from the others.

    Every member must hide among `least`: those of a small weight are no fewer, the effective
    number (sum w)^2 / sum w^2 is no less, and the others weigh no less than the heaviest. What
    holds of disjoint sets holds of their union.

    Raises:
        Refused: one of the weights is not 1, 2 or 4, or they are too uneven.
    """
    if any(weight not in WEIGHTS for weight in weights):
        raise Refused(f"this holder opens cohorts of weights {WEIGHTS} only")
    for heavier in WEIGHTS[1:]:
        lighter = sum(weight < heavier for weight in weights)
        if 0 < lighter < least:  # modulo the heavier weight a sum is that of the lighter few
            raise Refused(
                f"{lighter} members weigh less than {heavier}: none, or {least} or more must"
            )
    total, squares = sum(weights), sum(weight * weight for weight in weights)
    if total * total < least * squares:
        raise Refused(
            f"members of so uneven weights hide among {total * total / squares:.1f}, this holder "
            f"wants {least} or more"
        )
    if squares < 2 * max(weights) ** 2:
        raise Refused("one member outweighs all the others")


def base_of(member: Member) -> Base:
    """What a client's updates were trained from."""
    return Base(member.version, member.step)


def mixed(one: Cohort, other: Cohort) -> bool:
    """Whether some of the clients of both have the same update in them, and some another one."""
    named = {member.id.client: member.update for member in other.members}
    pairs = [(m.update, named[m.id.client]) for m in one.members if m.id.client in named]
    return len({mine == theirs for mine, theirs in pairs}) == 2


def both_open(run: bytes, one: Cohort, other: Cohort, least: int) -> bool:
    """Whether two sums of one group may both be opened, and each member still hides.

    They have no update of a client from one base version in common. Or their clients are the same,
    with the same weights and base versions; or, for the same version, those of one are a set of the
    tree of the other's, each with the weight and the base version that it has there, and every leaf
    of the tree passes `check_weights` by itself. Then all that stand in both have the update there
    that they have here, or all have another one: else the difference would tell what a few changed.

    Args:
        run: run id, 32 bytes.
        one, other: no client stands in either of them twice.
        least: fewest members of a leaf.
    """
    mine = {member.id.client: (member.weight, base_of(member)) for member in one.members}
    theirs = {member.id.client: (member.weight, base_of(member)) for member in other.members}
    common = mine.keys() & theirs.keys()
    if all(mine[name][1] != theirs[name][1] for name in common):
        return True
    if mixed(one, other):
        return False
    if mine == theirs:
        return True
    if one.version != other.version or any(mine[name] != theirs[name] for name in common):
        return False
    whole, part = (mine, theirs) if len(mine) > len(theirs) else (theirs, mine)
    tree = (run, one.group, one.version, frozenset(whole))
    if not within(*tree, frozenset(part), least):
        return False
    try:
        for leaf in leaves(*tree, least):
            check_weights([whole[client][0] for client in leaf], least)
    except Refused:
        return False
    return True
