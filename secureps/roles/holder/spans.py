"""Which base versions each committee of key holders was asked to open.

Whoever has replaced a holder knows nothing of what was opened before: it would open once more what
it has no record of. Those that stay see to it that a committee opens newer bases than those before
it.
"""

from __future__ import annotations

from collections.abc import Callable

from secureps.errors import Refused
from secureps.messages.submission import Cohort


class Spans:
    """The oldest and the newest base version of each committee, by group."""

    def __init__(self) -> None:
        self.spans: dict[str, dict[bytes | None, tuple[int, int]]] = {}

    def add(self, cohort: Cohort) -> None:
        """Notes the bases of a cohort that counts as opened."""
        known = self.spans.setdefault(cohort.group, {})
        versions = [member.version for member in cohort.members]
        versions += known.get(cohort.committee, ())
        known[cohort.committee] = min(versions), max(versions)

    def check(self, cohort: Cohort, number_of: Callable[[bytes | None], int]) -> None:
        """Refused if another committee was asked for one of its bases, or an older one for newer.

        Args:
            number_of: of the first roster with a committee.
        """
        own, versions = number_of(cohort.committee), [member.version for member in cohort.members]
        for other, (first, last) in self.spans.get(cohort.group, {}).items():
            earlier = number_of(other) < own
            apart = min(versions) > last if earlier else max(versions) < first
            if other != cohort.committee and not apart:
                raise Refused(
                    f"{'an earlier' if earlier else 'a later'} committee of key holders was asked "
                    f"to open versions {first} to {last} of {cohort.group}: this one opens none of "
                    "them"
                )
