"""What the entries of an audit log come to in epsilon, client by client.

From what the log itself says: the plan in its first line, and the facts in its entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from secureps.audit.entries import Entry
from secureps.errors import DamagedStore, Malformed, SecurepsError
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import from_plain
from secureps.policy.plan import Plan
from secureps.policy.spending import Fact, spent
from secureps.privacy.ledger import Ledger
from secureps.wording import finite

DIGITS = 3
"""Decimals of an epsilon in a log."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Epsilon of a client at the plan's delta, rounded; None if no noise protects it."""

    client: str
    epsilon: float | None


def epsilons(plan: Plan, entries: Iterable[Entry]) -> tuple[Spent, ...] | None:
    """What each client has spent, by name; None under a plan without privacy.

    Raises:
        DamagedStore: an entry has no facts that can be.
    """
    if plan.section.privacy is None:
        return None
    spending = Spending()
    for entry in entries:
        spending.take(entry)
    return spending.epsilons(plan)


class Spending:
    """The privacy facts among entries, which come one by one."""

    def __init__(self) -> None:
        self._ledger, self._parties = Ledger(), set[str]()

    def take(self, entry: Entry) -> None:
        """One entry more; DamagedStore if it has no facts that can be."""
        fact = _fact(entry)
        if fact is None:
            return
        try:
            self._ledger.append(fact)
        except SecurepsError as error:
            raise DamagedStore(f"row {entry.row}, {entry.what}: {error}") from None
        self._parties.add(fact.party)

    def epsilons(self, plan: Plan) -> tuple[Spent, ...]:
        """What each client has spent by now, by name, under a plan with privacy."""
        alike: dict[frozenset[tuple[Fact, int]], float | None] = {}
        found = []
        for party in sorted(self._parties):
            tally = self._ledger.tally(party)
            facts = frozenset((replace(fact, party=""), count) for fact, count in tally.items())
            if facts not in alike:
                alike[facts] = finite(round(spent(plan, tally), DIGITS))
            found.append(Spent(party, alike[facts]))
        return tuple(found)


def _fact(entry: Entry) -> Fact | None:
    try:
        if "charge" in entry.facts:
            return from_plain(Charge, entry.facts["charge"])
        if "release" in entry.facts:
            return from_plain(Release, entry.facts["release"])
    except Malformed as error:
        raise DamagedStore(f"row {entry.row}, {entry.what}: {error}") from None
    return None
