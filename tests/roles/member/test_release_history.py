"""What a client has let out of each version, and of each model that it judged."""

from __future__ import annotations

import dataclasses

from secureps.messages.member_records import Sealed
from secureps.messages.submission import FOUNDING, SubmissionId
from secureps.roles.member.release_history import ReleaseHistory
from tests.kits.roles_kit import make_plan, make_receipt

PLAN, RUN = make_plan(), bytes(32)


def sealed(version: int, content: bytes = b"", judged: bytes = b"", sequence: int = 0) -> Sealed:
    id = SubmissionId("c0", "all", sequence)
    return Sealed(make_receipt(PLAN, RUN, id, version, bytes(32)), (), content, judged)


def test_the_same_content_is_one_release_however_often_it_is_sealed() -> None:
    """Which of the releases of a version the next one is follows from how many there are."""
    own = ReleaseHistory()
    for sequence, content in enumerate((b"one", b"two", b"one", b"", b"three", b"two")):
        own.add(sealed(3, content, sequence=sequence))
    assert own.known("all", 3) == (b"one", b"two", b"three")
    assert own.known("all", 4) == ()


def test_a_model_is_judged_under_the_first_version_for_ever() -> None:
    own = ReleaseHistory()
    for version in (2, 5):
        own.add(sealed(version, judged=b"model"))
    assert own.judged == {b"model": 2}


def test_the_first_founding_model_is_the_only_one() -> None:
    own, first = ReleaseHistory(), sealed(-1)
    assert first.receipt.purpose == FOUNDING
    assert own.objection(first.receipt) == ""
    own.add(first)
    other = dataclasses.replace(first.receipt, blocks=(bytes(32),) * len(first.receipt.blocks))
    own.add(dataclasses.replace(first, receipt=other))
    assert own.objection(first.receipt) == ""
    assert "only the first is ever sent" in own.objection(other)
    assert own.objection(sealed(0).receipt) == ""
