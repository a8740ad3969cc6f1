"""Rows of a data holder's ledger: updates with made-up names."""

from collections.abc import Iterable

from secureps.messages.charge import Charge, Release
from secureps.messages.member_records import UpdateReleased
from secureps.privacy.ledger import OWN_DELTA, to_row
from secureps.store.budget import BudgetLedger

Fact = Charge | Release


def row(run: bytes, fact: Fact, update: bytes = b"its integers") -> UpdateReleased:
    """Names an update that spends this, trained from a model of its version."""
    place = (run, fact.party, fact.group, fact.version, fact.step)
    return UpdateReleased(*place, update, fact.version.to_bytes(8), *to_row(fact))


def charge(ledger: BudgetLedger, run: bytes, fact: Fact, delta: float = OWN_DELTA) -> None:
    """Has an update on record that spends this; raises as `BudgetLedger.release`."""
    assert ledger.release([row(run, fact)], delta) == [""]


def expose(ledger: BudgetLedger, run: bytes, versions: Iterable[int], group: str = "all") -> None:
    """Has updates with no privacy on record; raises as `BudgetLedger.release`."""
    rows = [
        UpdateReleased(run, "client-00", group, version, 0, b"its integers", version.to_bytes(8))
        for version in versions
    ]
    assert ledger.release(rows) == [""] * len(rows)
