"""Builds a data holder's page: its epsilon and budget, what left its machine, who could open that.

It reads only the data holder's own journal and ledger, and shows nothing about other parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from secureps.audit.entries import Spending, date_of, entries
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


class OwnRows:
    """Collects the rows of the client `name`'s journal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: RunInfo | None = None
        self._plan: Plan | None = None
        self._departure, self._spending = Departure(name), Spending()
        self._sent: dict[SubmissionId, Json] = {}
        self._bytes, self._unsafe = 0, False
        self._began: float | None = None

    def take(self, row: Row) -> None:
        match row.record:
            case RunPinned(run) if self._run is None:
                self._run, self._plan = run, Plan.from_text(run.plan)
            case Dated(unix):
                self._began = unix - row.at
            case OwnAct() as act:
                self._departure.apply(act)
            case Sealed(receipt) | (ReceiptSummary() as receipt):
                self._unsafe |= receipt.unsafe
                self._send(row.at, receipt)
            case SubmissionSettled(id, outcome) if id in self._sent:
                self._sent[id] = self._sent[id] | {"outcome": Outcome(outcome).value}
            case _:
                pass
        for entry in entries(b"", (row,)):  # facts do not depend on the run's id
            self._spending.take(entry)

    def _send(self, at: float, receipt: Receipt | ReceiptSummary) -> None:
        before = self._sent.get(receipt.id)
        self._bytes += receipt.size - (0 if before is None else before["bytes"])
        self._sent[receipt.id] = {
            "date": "" if self._began is None else date_of(self._began + at),
            "group": receipt.id.group,
            "version": receipt.version,
            "bytes": receipt.size,
            "purpose": receipt.purpose,
            "outcome": "under way",
        }

    def view(self, ledger: OwnLedger, holders: Sequence[str]) -> Json | None:
        """Builds the page of `site/holder.js`; None before the client takes part in a run.

        Args:
            holders: names of the key holders on its kit's roster.

        Returns:
            `epsilon` of this run (None: unbounded) and the plan's `budget` (None: no privacy).
                `total`, without the `exact` updates, and `own_budget` are over all runs. `open`
                says who could open a single update. `acted` is the number of the newest act that
                the client has done, `standing` its effect.
        """
        run, plan, departure = self._run, self._plan, self._departure
        if run is None or plan is None:
            return None
        privacy, unsafe = plan.section.privacy, self._unsafe
        spent = () if privacy is None else self._spending.epsilons(plan)
        epsilon = next((each.epsilon for each in spent if each.client == self._name), 0.0)
        return {
            "name": self._name,
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
            "ledger_trouble": ledger.trouble or (ledger.missing if self._sent else ""),
            "runs": ledger.told,
            "updates": tuple(islice(reversed(self._sent.values()), KEPT)),
            "count": len(self._sent),
            "bytes": self._bytes,
            "open": collusion(plan),
            "holders": tuple(holders) if plan.holders else (),
            "threshold": plan.threshold if plan.holders else 0,
            "sees": tuple((sight.role, sight.sees, sight.never) for sight in sights(plan)),
            "acted": departure.acted,
            "standing": "" if departure.wants is None else STANDING[departure.wants],
        }


STANDING = {OwnDeed.PAUSE: "paused", OwnDeed.LEAVE: "leaves"}
