"""Builds a data holder's page: its epsilon and budget, what left its machine, who could open that.

It reads only the data holder's own journal and ledger, and shows nothing about other parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from secureps.audit.entries import date_of, entries, epsilons
from secureps.dashboard import Json
from secureps.messages.member_records import OwnAct, OwnDeed, Sealed, SubmissionSettled
from secureps.messages.records import Dated, ReceiptSummary, RunPinned
from secureps.messages.run import RunInfo
from secureps.messages.submission import Outcome, Receipt, SubmissionId
from secureps.policy.explain.visibility import collusion, sights
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.privacy.ledger import OWN_DELTA
from secureps.roles.member.member import Departure
from secureps.store.budget import RunSpent, without_privacy
from secureps.store.journal_rows import Row

KEPT = 100


@dataclass(frozen=True, slots=True)
class OwnLedger:
    """A ledger over all runs.

    Args:
        runs: in the order in which they began.
        epsilon: of all private runs together, at OWN_DELTA; None if unbounded.
        budget: the data holder's own, if any.
        trouble: why the ledger cannot be read.
        missing: where no ledger was found.
    """

    runs: tuple[RunSpent, ...] = ()
    epsilon: float | None = 0.0
    budget: float | None = None
    trouble: str = ""
    missing: str = ""

    @property
    def exact(self) -> str:
        """The number of updates that left without privacy, in words; empty if none did."""
        return without_privacy(sum(run.exact for run in self.runs))

    @property
    def told(self) -> dict[str, str]:
        return {run.run.hex()[:16]: run.text for run in self.runs}


def holder_view(
    name: str, rows: Sequence[Row], ledger: OwnLedger, holders: Sequence[str]
) -> Json | None:
    """Builds the page of `site/holder.js`; None before the client takes part in a run.

    Args:
        name: of the client.
        rows: of its journal.
        holders: names of the key holders on its kit's roster.

    Returns:
        `epsilon` of this run (None: unbounded) and the plan's `budget` (None: no privacy).
            `total`, without the `exact` updates, and `own_budget` are over all runs. `open` says
            who could open a single update. `acted` is the number of the newest act that the client
            has done, `standing` its effect.
    """
    run: RunInfo | None = None
    began: float | None = None
    departure, unsafe = Departure(name), False
    sent: dict[SubmissionId, Json] = {}
    for row in rows:
        match row.record:
            case RunPinned(pinned) if run is None:
                run = pinned
            case Dated(unix):
                began = unix - row.at
            case OwnAct() as act:
                departure.apply(act)
            case Sealed(receipt) | (ReceiptSummary() as receipt):
                unsafe |= receipt.unsafe
                date = "" if began is None else date_of(began + row.at)
                sent[receipt.id] = _describe_sent(receipt, date)
            case SubmissionSettled(id, outcome) if id in sent:
                sent[id] = sent[id] | {"outcome": Outcome(outcome).value}
            case _:
                pass
    if run is None:
        return None
    plan = Plan.from_text(run.plan)
    privacy = plan.section.privacy
    spent = epsilons(plan, entries(b"", rows)) or ()  # facts do not depend on the run's id
    epsilon = next((each.epsilon for each in spent if each.client == name), 0.0)
    return {
        "name": name,
        "run": run.id.hex()[:16],
        "plan": plan.section.name,
        "epsilon": None if privacy is None or unsafe else epsilon,
        "budget": None if privacy is None else privacy.budget,
        "delta": None if privacy is None else privacy.delta,
        "unit": adjacency(plan),
        "unsafe": unsafe,
        "total": None if unsafe else ledger.epsilon,
        "exact": ledger.exact,
        "own_budget": ledger.budget,
        "own_delta": OWN_DELTA,
        "ledger_trouble": ledger.trouble or (ledger.missing if sent else ""),
        "runs": ledger.told,
        "updates": tuple(islice(reversed(sent.values()), KEPT)),
        "count": len(sent),
        "bytes": sum(each["bytes"] for each in sent.values()),
        "open": collusion(plan),
        "holders": tuple(holders) if plan.holders else (),
        "threshold": plan.threshold if plan.holders else 0,
        "sees": tuple((sight.role, sight.sees, sight.never) for sight in sights(plan)),
        "acted": departure.acted,
        "standing": "" if departure.wants is None else STANDING[departure.wants],
    }


def _describe_sent(receipt: Receipt | ReceiptSummary, date: str) -> Json:
    return {
        "date": date,
        "group": receipt.id.group,
        "version": receipt.version,
        "bytes": receipt.size,
        "purpose": receipt.purpose,
        "outcome": "under way",
    }


STANDING = {OwnDeed.PAUSE: "paused", OwnDeed.LEAVE: "leaves"}
