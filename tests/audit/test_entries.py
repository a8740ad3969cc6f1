"""Operation: an audit log has every kind of decision, and no secret."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.audit.entries import KINDS, LEFT_OUT, Entry, Spent, chapter_of, entries, epsilons
from secureps.errors import DamagedStore
from secureps.messages.charge import Fact
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.encoding import to_plain
from secureps.messages.member_records import Sealed
from secureps.messages.records import Dated, Incarnated, RosterFollowed
from secureps.messages.requests import Examined, KeyShare, OpenRefused
from secureps.messages.submission import Cohort, Member, SubmissionId, cohort_digest
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import make_fact, total_epsilon
from secureps.store.journal_rows import RECORDS, Row
from tests.golden.values import full as example
from tests.kits.audited import PLAN
from tests.kits.roles_kit import ROSTER, make_plan

RUN = b"r" * 32


def told(*records: Any) -> list[Any]:
    rows = [
        Row(seq, float(seq), record, bytes([seq]) * 32) for seq, record in enumerate(records, 1)
    ]
    return list(entries(RUN, rows))


def test_every_record_is_told_or_is_not() -> None:
    assert set(KINDS) & LEFT_OUT == set()
    assert set(KINDS) | LEFT_OUT == set(RECORDS.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_told_of_it_is_there_and_json(kind: type) -> None:
    assert set(KINDS[kind].fields) <= set(dir(kind))
    record = example(kind)
    if isinstance(record, RosterFollowed):
        record = RosterFollowed(ROSTER.to_bytes().decode())
    (entry,) = told(record)
    assert json.loads(json.dumps(entry.facts)) == entry.facts
    assert entry.facts
    assert chapter_of(entry.what) == KINDS[kind].chapter


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
        Dated(1_700_000_000.0, "coordinator", "coordinator"),
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


# --- what they come to ----------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return load_plan(path)


def facts(plan: Plan, client: str, *versions: int) -> list[Fact]:
    found = [make_fact(plan, client, "all", 77, version) for version in versions]
    return [each for each in found if each is not None]


def entry(row: int, spent: Fact) -> Entry:
    return Entry(row, b"", 0.0, None, "privacy spent", {"release": to_plain(spent)})


def test_each_client_by_its_own_facts_and_none_twice(plan: Plan) -> None:
    made = {"a": facts(plan, "a", 0), "b": facts(plan, "b", 0, 1), "c": facts(plan, "c", 2, 5)}
    rows = [each for name in "bac" for each in made[name]] + made["b"]
    found = epsilons(plan, [entry(row, each) for row, each in enumerate(rows)])
    assert found is not None
    assert found == tuple(Spent(name, round(total_epsilon(plan, made[name]), 3)) for name in "abc")
    assert found[0].epsilon != found[1].epsilon == found[2].epsilon


def test_without_privacy_there_is_none(plan: Plan) -> None:
    assert epsilons(make_plan(), []) is None
    assert epsilons(plan, []) == ()


def test_a_log_of_0_2_0_counts_every_update_of_a_version(plan: Plan) -> None:
    """Its name for `step` was `attempt`."""
    (one,) = facts(plan, "a", 0)
    rows = [entry(row, one) for row in range(3)]
    for attempt, each in enumerate(rows):
        told = each.facts["release"]
        assert isinstance(told, dict)
        del told["step"]
        told["attempt"] = attempt
    steps = [replace(one, step=step) for step in range(3)]
    assert epsilons(plan, rows) == (Spent("a", round(total_epsilon(plan, steps), 3)),)
    both = entry(4, one)
    both.facts["release"] = {**to_plain(one), "attempt": 1}
    with pytest.raises(DamagedStore, match="row 4, privacy spent: Release: expected exactly"):
        epsilons(plan, [both])


def test_facts_that_cannot_be(plan: Plan) -> None:
    (one,) = facts(plan, "a", 0)
    bad = entry(7, one)
    bad.facts["release"] = {"party": "a"}
    with pytest.raises(DamagedStore, match="row 7, privacy spent: Release: expected exactly"):
        epsilons(plan, [bad])
    other = Entry(8, b"", 0.0, None, "privacy spent", {"release": to_plain(one) | {"l2": -1.0}})
    with pytest.raises(DamagedStore, match="row 8, privacy spent: "):
        epsilons(plan, [other])
