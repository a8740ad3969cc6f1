"""Of every class of record it is decided whether an auditor is told, and of what: no secrets."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from secureps.audit.entries import NOT_TOLD, TOLD, chapter_of, entries
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.member_records import Sealed
from secureps.messages.records import Dated, Incarnated, RosterFollowed
from secureps.messages.requests import Examined, KeyShare, OpenRefused
from secureps.messages.submission import Cohort, Member, SubmissionId, cohort_digest
from secureps.store.journal_rows import RECORDS, Row
from tests.golden.values import full as example
from tests.kits.roles_kit import ROSTER

RUN = b"r" * 32


def told(*records: Any) -> list[Any]:
    rows = [
        Row(seq, float(seq), record, bytes([seq]) * 32) for seq, record in enumerate(records, 1)
    ]
    return list(entries(RUN, rows))


def test_every_record_is_told_or_is_not() -> None:
    assert set(TOLD) & NOT_TOLD == set()
    assert set(TOLD) | NOT_TOLD == set(RECORDS.values())


@pytest.mark.parametrize("kind", TOLD, ids=lambda kind: kind.__name__)
def test_what_is_told_of_it_is_there_and_json(kind: type) -> None:
    assert set(TOLD[kind].fields) <= set(dir(kind))
    record = example(kind)
    if isinstance(record, RosterFollowed):
        record = RosterFollowed(ROSTER.to_bytes().decode())
    (entry,) = told(record)
    assert json.loads(json.dumps(entry.facts)) == entry.facts
    assert entry.facts
    assert chapter_of(entry.what) == TOLD[kind].chapter


def test_what_a_client_keeps_to_itself_is_not_told() -> None:
    sealed = example(Sealed)
    receipt = dataclasses.replace(sealed.receipt, examples=123457)
    text = json.dumps([entry.facts for entry in told(dataclasses.replace(sealed, receipt=receipt))])
    assert "123457" not in text
    assert all(envelope.hex() not in text for envelope in sealed.receipt.envelopes)


def test_an_opening_says_for_how_many_and_whom() -> None:
    members = tuple(Member(SubmissionId(f"client-{n}", "all", 3), 1, 4) for n in range(3))
    cohort = Cohort("all", 7, 5, 1, members)
    (entry,) = told(CohortClosed(cohort, "all have come"))
    assert entry.facts == {
        "group": "all",
        "cohort": 7,
        "version": 5,
        "count": 3,
        "clients": ["client-0", "client-1", "client-2"],
        "digest": cohort_digest(RUN, cohort).hex(),
        "reason": "all have come",
    }


def test_rows_that_tell_nothing_leave_no_entry_and_dates_date_what_follows() -> None:
    refused = OpenRefused("holder-0", "all", 2, "an older base", b"")
    found = told(
        refused,
        Dated(1_700_000_000.0),
        Incarnated(1),
        KeyShare("holder-0", "all", 2, b"share", b""),
        Examined("holder-0", SubmissionId("client-0", "all", 0), "", b""),
        Examined("holder-0", SubmissionId("client-0", "all", 0), "no seed", b""),
        refused,
    )
    assert [(entry.row, entry.what) for entry in found] == [
        (1, "opening refused"),
        (6, "flaw found"),
        (7, "opening refused"),
    ]
    assert [entry.date for entry in found] == [
        None,
        "2023-11-14T22:13:24Z",
        "2023-11-14T22:13:25Z",
    ]
    assert found[0].facts["cohort"] == 2
    assert found[0].journal == b"\x01" * 32
