"""A data holder's own page, from its journal and ledger."""

import json
import math
from dataclasses import replace

import pytest

from secureps.dashboard import Json
from secureps.dashboard.holder_view import OwnLedger, holder_view
from secureps.messages.member_records import Sealed
from secureps.policy.plan import Plan
from secureps.policy.spending import total_epsilon
from secureps.privacy.ledger import Ledger
from secureps.store.budget import RunSpent
from secureps.store.journal_rows import Row

HOLDERS = ("holder-0", "holder-1", "holder-2")


def receipts(rows: list[Row]) -> list[Sealed]:
    return [row.record for row in rows if isinstance(row.record, Sealed)]


def seen(rows: list[Row], ledger: OwnLedger | None = None) -> Json:
    view = holder_view("client-00", rows, ledger or OwnLedger(), HOLDERS)
    assert view is not None
    return view


def sent(rows: list[Row]) -> list[Json]:
    view = seen(rows)
    return list(reversed(view["updates"]))


def test_epsilon_is_what_the_facts_that_left_come_to(rows: list[Row]) -> None:
    view = seen(rows)
    ledger = Ledger()
    for each in receipts(rows):
        if each.receipt.fact is not None:
            ledger.append(each.receipt.fact)
    plan = Plan.from_text(next(r.record.run.plan for r in rows if hasattr(r.record, "run")))
    assert view["epsilon"] == pytest.approx(
        total_epsilon(plan, ledger.tally("client-00")), abs=1e-3
    )
    assert (view["budget"], view["delta"], view["unsafe"]) == (500.0, 1e-5, False)


def test_no_epsilon_bounds_what_an_unsafe_seed_made(rows: list[Row]) -> None:
    sealed = next(row for row in rows if isinstance(row.record, Sealed))
    unsafe = replace(sealed.record, receipt=replace(sealed.record.receipt, unsafe=True))
    told = [replace(row, record=unsafe) if row is sealed else row for row in rows]
    view = seen(told, OwnLedger((), 0.5))
    assert (view["unsafe"], view["epsilon"], view["total"]) == (True, None, None)


def test_all_that_left_is_listed_with_its_end(rows: list[Row]) -> None:
    updates = sent(rows)
    sealed = receipts(rows)
    assert [each["bytes"] for each in updates] == [each.receipt.size for each in sealed]
    assert {each["outcome"] for each in updates} == {"durable"}
    view = seen(rows)
    assert view["updates"] == tuple(reversed(updates))
    assert (view["count"], view["bytes"]) == (len(sealed), sum(e.receipt.size for e in sealed))


def test_what_is_not_settled_is_under_way(rows: list[Row]) -> None:
    last = max(n for n, row in enumerate(rows) if isinstance(row.record, Sealed))
    assert sent(rows[: last + 1])[-1]["outcome"] == "under way"


def test_who_could_open_it_is_said_with_names(rows: list[Row]) -> None:
    view = seen(rows)
    assert (view["holders"], view["threshold"]) == (HOLDERS, 2)
    assert any("any 2 of the 3 key holders" in who for who in view["open"])
    assert "client" in {role for role, _, _ in view["sees"]}


def test_all_runs_are_the_ledgers(rows: list[Row]) -> None:
    this = next(r.record.run.id for r in rows if hasattr(r.record, "run"))
    others = (RunSpent(b"\x02" * 32, 4, 0.5), RunSpent(b"\x03" * 32, 7, math.inf, 30))
    ledger = OwnLedger((*others, RunSpent(this, 3, 0.25)), 0.75, 8.0)
    view = seen(rows, ledger)
    assert view["runs"] == {
        "02" * 8: "4 updates  epsilon 0.500",
        "03" * 8: "at most 30 updates with no privacy",
        view["run"]: "3 updates  epsilon 0.250",
    }
    assert (view["own_budget"], view["ledger_trouble"]) == (8.0, "")
    assert (view["total"], view["exact"]) == (0.75, "at most 30 updates with no privacy")


def test_a_ledger_that_is_not_there_is_not_known_and_not_empty(rows: list[Row]) -> None:
    missing = OwnLedger(missing="there is none at ledgers/client-00.db")
    view = seen(rows, missing)
    assert view["ledger_trouble"] == "there is none at ledgers/client-00.db"
    first = next(n for n, row in enumerate(rows) if isinstance(row.record, Sealed))
    before = seen(rows[:first], missing)
    assert before["ledger_trouble"] == "", "nothing has left yet"


def test_nobody_else_is_on_it(rows: list[Row]) -> None:
    view = seen(rows)
    told = json.dumps(view, allow_nan=False)
    assert "client-01" not in told
    assert "client-02" not in told


def test_before_there_is_a_run_there_is_no_page() -> None:
    assert holder_view("client-00", [], OwnLedger(), ()) is None
