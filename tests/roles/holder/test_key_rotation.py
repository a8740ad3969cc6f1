"""When a holder's key is due, and how long those before it stay."""

from __future__ import annotations

import pytest

from secureps.config.plan import CipherSection
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.holder_records import KeyReplaced, KeysErased
from secureps.roles.holder.ledger import KEPT, KeyRotation

SECTION = CipherSection(envelope_versions=3, envelope_seconds=100.0)
DAY = 1.7e9


def announced(number: int, least: int = 0) -> EnvelopeKeyAnnounced:
    return EnvelopeKeyAnnounced(bytes(32), "keys-0", number, b"", least)


def rotation(*records: KeyReplaced | KeysErased) -> KeyRotation:
    made = KeyRotation()
    for record in records:
        made.apply(record)
    return made


def served(made: KeyRotation, times: int) -> KeyRotation:
    for _ in range(times):
        made.serve()
    return made


def test_the_kits_key_goes_when_the_run_begins_where_there_is_a_calendar() -> None:
    assert rotation().due(SECTION, DAY) == 1
    assert rotation().due(SECTION, None) is None
    assert served(rotation(), 2).due(SECTION, None) is None
    assert served(rotation(), 3).due(SECTION, None) == 1


@pytest.mark.parametrize(
    ("times", "later", "due"), [(2, 99.0, None), (3, 0.0, 6), (0, 100.0, 6), (0, -5.0, None)]
)
def test_a_key_serves_so_many_cohorts_or_so_long(times: int, later: float, due: int | None) -> None:
    made = served(rotation(KeyReplaced(announced(5), DAY)), times)
    assert made.due(SECTION, DAY + later) == due
    assert made.due(SECTION, None) == (6 if times == 3 else None)


def test_a_new_key_begins_anew_and_the_same_said_again_does_not() -> None:
    made = served(rotation(KeyReplaced(announced(5), DAY)), 3)
    made.apply(KeyReplaced(announced(6), DAY + 50))
    assert made.due(SECTION, DAY + 149) is None
    served(made, 2).apply(KeyReplaced(announced(6, 6), DAY + 60))
    assert made.due(SECTION, DAY + 150) == 7
    assert served(made, 1).due(SECTION, DAY + 60) == 7


def test_what_was_replaced_is_erased_after_a_day_down_or_not() -> None:
    made = rotation(KeyReplaced(announced(1), DAY), KeyReplaced(announced(2), DAY + 10))
    assert made.overdue(None) == made.overdue(DAY + KEPT - 1) == 0
    assert made.overdue(DAY + KEPT) == 1
    assert made.overdue(DAY + KEPT + 10) == made.overdue(DAY + 9 * KEPT) == 2
    made.apply(KeysErased(1))
    assert (made.least, made.overdue(DAY + KEPT)) == (1, 1)
    assert made.overdue(DAY + KEPT + 10) == 2


def test_what_is_erased_stays_so_whatever_is_said_later() -> None:
    made = rotation(KeyReplaced(announced(7), DAY), KeysErased(5), KeysErased(3))
    assert (made.least, made.overdue(DAY)) == (5, 5)


def test_what_is_erased_is_told() -> None:
    made = rotation(KeyReplaced(announced(1), DAY), KeysErased(1))
    assert made.due(SECTION, DAY + 1) == 1
    made.apply(KeyReplaced(announced(1, 1), DAY + 1))
    assert made.due(SECTION, DAY + 1) is None
