"""Whom to believe when a key holder finds a flaw in its envelope, and nobody else can look into it.

Either a client sealed for it what does not open, or it lies. More holders than may be corrupt
would not all lie: a client that so many accuse is at fault. What fewer say is believed of few
clients, and costs these their part. A holder that says it of more is doubted instead: its word
keeps nobody out, and cohorts are opened without its shares. As many holders can be missed as the
others suffice to open with. Safety hangs on none of this: no key is touched for it, no cohort is
smaller for it, and what a holder does not open it gives no share of. What must not live here:
what becomes of a submission (`roles.examining`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

BELIEVED = 2
"""Clients of whom a holder is believed that too few others accuse, too."""

Accused = Mapping[str, Set[str]]
"""Clients in whose envelopes flaws were found, ever, and the holders that found them."""


def unsupported(accused: Accused, spare: int) -> Counter[str]:
    """How many clients each holder accuses whom no more than `spare` accuse in all.

    Args:
        spare: n - t, the holders that can be missed.
    """
    few = (holders for holders in accused.values() if len(holders) <= spare)
    return Counter(holder for holders in few for holder in holders)


def told(clients: int) -> str:
    """What is said of a holder that accuses so many clients without support."""
    return f"finds flaws in what {clients} client{'s' * (clients > 1)} sent, and too few others do"


def doubted(accused: Accused, spare: int, most: int) -> frozenset[str]:
    """Holders that accuse more than `most` clients without support: `spare` of them at most.

    Whoever accuses more comes first; among equals the names decide.
    """
    counts = unsupported(accused, spare)
    found = sorted((h for h, k in counts.items() if k > most), key=lambda h: (-counts[h], h))
    return frozenset(found[:spare])
