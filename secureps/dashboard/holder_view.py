"""What a data holder sees: its own epsilon and budget, what left its machine, who could open that.

From its own journal and ledger alone; nothing of anybody else. What must not live here: reading
them (`dashboard.sources`), and a page's looks (`dashboard/site`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from secureps.audit.entries import date_of, entries
from secureps.audit.spending import epsilons
from secureps.messages.member_records import OwnAct, OwnDeed, Sealed, SubmissionSettled
from secureps.messages.outcome import Outcome
from secureps.messages.records import Dated, RunPinned, SealedBefore
from secureps.messages.submission import SubmissionId
from secureps.policy.explain.visibility import collusion, sights
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.privacy.ledger import OWN_DELTA
from secureps.roles.member.leaving import Departure
from secureps.store.budget import RunSpent
from secureps.store.journal_rows import Row
from secureps.wording import finite

KEPT = 100
"""Updates that are listed: the newest."""


@dataclass(frozen=True, slots=True)
class SentUpdate:
    """What left the machine: of which group, from which version, bytes, and what became of it."""

    date: str
    group: str
    version: int
    bytes: int
    purpose: str
    outcome: str


@dataclass(frozen=True, slots=True)
class RunSpending:
    """What one run spent of the records; `this`: the one that the page is of."""

    run: str
    updates: int
    epsilon: float | None
    this: bool


@dataclass(frozen=True, slots=True)
class OwnLedger:
    """What the ledger over all runs says.

    Args:
        runs: in the order in which they began.
        epsilon: of all runs together, at `delta`; None if nothing bounds it.
        budget: the data holder's own; None: it has none.
        trouble: why the ledger cannot be read.
    """

    runs: tuple[RunSpent, ...] = ()
    epsilon: float | None = 0.0
    budget: float | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class HolderView:
    """All that the data holder's page shows.

    Args:
        epsilon: in this run at the plan's delta; None: nothing bounds it; `budget` the plan's, None
            for a plan without privacy.
        total, own_budget: over all runs, as the ledger has them.
        updates: newest first; `bytes` of all that was ever sealed.
        open: who could open a single update; `holders` who hold shares of its keys, `threshold` of
            whom must agree.
        sees: by role, what it sees and what it never sees.
        acted: the number of its data holder's newest act that the client has done; standing: what
            that came to, empty while it takes part.
    """

    name: str
    run: str
    plan: str
    epsilon: float | None
    budget: float | None
    delta: float | None
    unit: str
    unsafe: bool
    total: float | None
    own_budget: float | None
    own_delta: float
    ledger_trouble: str
    runs: tuple[RunSpending, ...]
    updates: tuple[SentUpdate, ...]
    count: int
    bytes: int
    open: tuple[str, ...]
    holders: tuple[str, ...]
    threshold: int
    sees: tuple[tuple[str, str, str], ...]
    acted: int
    standing: str


def holder_view(
    name: str, rows: Sequence[Row], ledger: OwnLedger, holders: Sequence[str]
) -> HolderView | None:
    """The page of the client `name`; None before it takes part in a run.

    Args:
        rows: of its journal.
        holders: names of the key holders on its kit's roster.
    """
    run = next((row.record.run for row in rows if isinstance(row.record, RunPinned)), None)
    if run is None:
        return None
    plan, updates = Plan.from_text(run.plan), sent(rows)
    privacy = plan.section.privacy
    departure = Departure(name)
    for row in rows:
        if isinstance(row.record, OwnAct):
            departure.apply(row.record)
    spent = epsilons(plan, entries(run.id, rows)) or ()
    sealed = (row.record for row in rows if isinstance(row.record, Sealed | SealedBefore))
    unsafe = any(each.receipt.unsafe for each in sealed)
    epsilon = next((each.epsilon for each in spent if each.client == name), 0.0)
    return HolderView(
        name=name,
        run=run.id.hex()[:16],
        plan=plan.section.name,
        epsilon=None if privacy is None or unsafe else epsilon,
        budget=None if privacy is None else privacy.budget,
        delta=None if privacy is None else privacy.delta,
        unit=adjacency(plan),
        unsafe=unsafe,
        total=None if unsafe else ledger.epsilon,
        own_budget=ledger.budget,
        own_delta=OWN_DELTA,
        ledger_trouble=ledger.trouble,
        runs=tuple(
            RunSpending(r.run.hex()[:16], r.facts, finite(r.epsilon), r.run == run.id)
            for r in ledger.runs
        ),
        updates=tuple(reversed(updates[-KEPT:])),
        count=len(updates),
        bytes=sum(each.bytes for each in updates),
        open=collusion(plan),
        holders=tuple(holders) if plan.holders else (),
        threshold=plan.threshold if plan.holders else 0,
        sees=tuple((sight.role, sight.sees, sight.never) for sight in sights(plan)),
        acted=departure.acted,
        standing="" if departure.wants is None else STANDING[departure.wants],
    )


STANDING = {OwnDeed.PAUSE: "paused", OwnDeed.LEAVE: "leaves"}


def sent(rows: Iterable[Row]) -> list[SentUpdate]:
    """All that a client's journal says it sealed, oldest first."""
    found: dict[SubmissionId, SentUpdate] = {}
    began: float | None = None
    for row in rows:
        match row.record:
            case Dated(unix):
                began = unix - row.at
            case Sealed(receipt) | SealedBefore(receipt):
                date = "" if began is None else date_of(began + row.at)
                of = (receipt.id.group, receipt.version, receipt.size, receipt.purpose)
                found[receipt.id] = SentUpdate(date, *of, "under way")
            case SubmissionSettled(id, outcome) if id in found:
                found[id] = replace(found[id], outcome=Outcome(outcome).value)
            case _:
                pass
    return list(found.values())
