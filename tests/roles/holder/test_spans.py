"""A committee opens newer base versions than those before it, and none of theirs."""

from __future__ import annotations

import pytest

from secureps.errors import Refused
from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.roles.holder.ledger import Spans

NUMBERS = {b"first": 0, b"second": 4}


def number_of(committee: bytes | None) -> int:
    return NUMBERS.get(committee or b"", -1)


def cohort(committee: bytes, *versions: int, group: str = "all") -> Cohort:
    members = tuple(Member(SubmissionId(f"c{k}", group, v), 1, v) for k, v in enumerate(versions))
    return Cohort(group, 1, max(versions) + 1, 1, members, committee=committee)


def opened(*cohorts: Cohort) -> Spans:
    spans = Spans()
    for each in cohorts:
        spans.check(each, number_of)
        spans.add(each)
    return spans


def test_a_committee_opens_what_it_opened_again() -> None:
    opened(cohort(b"first", 3, 5), cohort(b"first", 4, 4), cohort(b"first", 2, 2))


def test_a_later_one_opens_newer_versions_alone() -> None:
    spans = opened(cohort(b"first", 3, 5), cohort(b"first", 4, 4))
    for versions in ((5, 5), (4, 6), (3, 3), (2, 7)):
        with pytest.raises(Refused, match=r"an earlier committee .* versions 3 to 5 of all"):
            spans.check(cohort(b"second", *versions), number_of)
    spans.check(cohort(b"second", 6, 7), number_of)
    spans.check(cohort(b"second", 3, 3, group="other"), number_of)


def test_an_earlier_one_opens_older_versions_alone() -> None:
    spans = opened(cohort(b"first", 3, 3), cohort(b"second", 6, 8))
    spans.check(cohort(b"first", 4, 5), number_of)
    for versions in ((6, 6), (5, 7), (9, 9)):
        with pytest.raises(Refused, match=r"a later committee .* versions 6 to 8 of all"):
            spans.check(cohort(b"first", *versions), number_of)


def test_one_from_before_all_that_is_known_is_earlier() -> None:
    spans = opened(cohort(b"forgotten", 3, 3))
    with pytest.raises(Refused, match="an earlier"):
        spans.check(cohort(b"first", 3, 3), number_of)
    spans.check(cohort(b"first", 4, 4), number_of)
