"""Whom to believe when a key holder finds a flaw in its envelope, and nobody else can look into it.

Either a client sealed for it what does not open, or it lies. Of n holders t open a cohort, so that
n - t can be missed (n: of those that it is sealed for who are on the roster still); no more than
these are taken to be corrupt, but one where only t are left of more (`missable`):

    more than n - t accuse a client     one of them is honest: the client is at fault
    fewer do                            all of them may lie: each is believed of `BELIEVED` clients
                                        that too few accuse, and of none if it accuses more

A holder that accuses more is doubted: its word keeps nobody out, and cohorts are opened without its
shares. What corrupt holders say of an honest client too few say, so that it counts against each of
them, whatever others are accused of, and by whom: each keeps out `BELIEVED` honest clients at
most, also where clients collude with it and seal nonsense for an honest holder.

While no more than n - t are doubted, the others open whatever stays in. More are doubted only if
clients collude: honest holders say nothing of honest clients, so that with c corrupt ones
n - t + 1 - c honest ones must accuse more than `BELIEVED` clients each. More holders than can be
missed refuse a cohort with such clients, and it never opens. Nobody can tell then which holders are
honest; to leave out whom some of them accuse would leave the choice to the others.

Where only t are left nobody can be missed. Each is believed of `BELIEVED` clients all the same, for
what it does not open nobody does; of more it is not, and what they sent waits until it, or whoever
is missing, has been replaced. With t = n from the beginning each is believed whatever it says.

Safety hangs on none of this: no key is touched for it, no cohort is smaller for it, and what a
holder does not open it gives no share of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

from secureps.wording import counted

BELIEVED = 2
"""Clients of whom a holder is believed that too few others accuse, too."""

Accused = Mapping[str, Set[str]]
"""Clients in whose envelopes flaws were found, ever, and the holders that found them."""


def missable(left: int, holders: int, threshold: int) -> int:
    """Counts the holders that are taken to be corrupt, of so many that are left of the plan's."""
    return max(left - threshold, min(1, holders - threshold))


def unsupported(accused: Accused, spare: int) -> Counter[str]:
    """Counts for each holder the clients that it accuses, and that at most `spare` accuse in all.

    Args:
        spare: n - t, the holders that can be missed (`missable`).
    """
    few = (holders for holders in accused.values() if len(holders) <= spare)
    return Counter(holder for holders in few for holder in holders)


def told(clients: int) -> str:
    """Says that a holder accuses so many clients without support."""
    return f"finds flaws in what {counted(clients, 'client')} sent, and too few others do"


def doubted(accused: Accused, spare: int, most: int) -> frozenset[str]:
    """Finds the holders that accuse more than `most` clients without support.

    `most` is `BELIEVED`, or 0 where no client can be left out.
    """
    return frozenset(h for h, count in unsupported(accused, spare).items() if count > most)


def believed(accused: Accused, client: str, holder: str, spare: int, most: int) -> bool:
    """Tells whether a client is left out because this holder accuses it (see `doubted`)."""
    return len(accused[client]) > spare or holder not in doubted(accused, spare, most)
