"""What a data holder sees: its own epsilon and budget, what left its machine, who could open that.

From its own journal and ledger alone; nothing of anybody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from secureps.audit.entries import Spending, date_of, entries
from secureps.messages.member_records import OwnAct, OwnDeed, Sealed, SubmissionSettled
from secureps.messages.records import Dated, ReceiptSummary, RunPinned, SealedBefore
from secureps.messages.run import RunInfo
from secureps.messages.submission import Outcome, Receipt, SubmissionId
from secureps.policy.explain.visibility import collusion, sights
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.privacy.ledger import OWN_DELTA
from secureps.roles.member.leaving import Departure
from secureps.store.budget import RunSpent, without_privacy
from secureps.store.journal_rows import Row

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
class OwnLedger:
    """What the ledger over all runs says.

    Args:
        runs: in the order in which they began.
        epsilon: of all private runs together, at `delta`; None if nothing bounds it.
        budget: the data holder's own; None: it has none.
        trouble: why the ledger cannot be read; missing: it is not there, and this is where.
    """

    runs: tuple[RunSpent, ...] = ()
    epsilon: float | None = 0.0
    budget: float | None = None
    trouble: str = ""
    missing: str = ""

    @property
    def exact(self) -> str:
        """How many updates left with no privacy, in words; empty if none did."""
        return without_privacy(sum(run.exact for run in self.runs))

    @property
    def told(self) -> dict[str, str]:
        """By run, what it spent, in words."""
        return {run.run.hex()[:16]: run.told for run in self.runs}


@dataclass(frozen=True, slots=True)
class HolderView:
    """All that the data holder's page shows.

    Args:
        epsilon: in this run at the plan's delta; None: nothing bounds it; `budget` the plan's, None
            for a plan without privacy.
        total, own_budget: over all runs, as the ledger has them; `exact`: how many updates left
            with no privacy, in words, which `total` does not count. `runs`: as `OwnLedger.told`.
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
    exact: str
    own_budget: float | None
    own_delta: float
    ledger_trouble: str
    runs: Mapping[str, str]
    updates: tuple[SentUpdate, ...]
    count: int
    bytes: int
    open: tuple[str, ...]
    holders: tuple[str, ...]
    threshold: int
    sees: tuple[tuple[str, str, str], ...]
    acted: int
    standing: str


class OwnRows:
    """What the rows of the client `name`'s journal tell, which come one by one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: RunInfo | None = None
        self._plan: Plan | None = None
        self._departure, self._spending = Departure(name), Spending()
        self._sent: dict[SubmissionId, SentUpdate] = {}
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
            case Sealed(receipt) | SealedBefore(receipt):
                self._unsafe |= receipt.unsafe
                self._send(row.at, receipt)
            case SubmissionSettled(id, outcome) if id in self._sent:
                self._sent[id] = replace(self._sent[id], outcome=Outcome(outcome).value)
            case _:
                pass
        for entry in entries(b"", (row,)):  # facts are the same, whatever the run
            self._spending.take(entry)

    def _send(self, at: float, receipt: Receipt | ReceiptSummary) -> None:
        date = "" if self._began is None else date_of(self._began + at)
        of = (receipt.id.group, receipt.version, receipt.size, receipt.purpose)
        before = self._sent.get(receipt.id)
        self._bytes += receipt.size - (0 if before is None else before.bytes)
        self._sent[receipt.id] = SentUpdate(date, *of, "under way")

    def view(self, ledger: OwnLedger, holders: Sequence[str]) -> HolderView | None:
        """The page by now; None before the client takes part in a run.

        Args:
            holders: names of the key holders on its kit's roster.
        """
        run, plan, departure = self._run, self._plan, self._departure
        if run is None or plan is None:
            return None
        privacy, unsafe = plan.section.privacy, self._unsafe
        spent = () if privacy is None else self._spending.epsilons(plan)
        epsilon = next((each.epsilon for each in spent if each.client == self._name), 0.0)
        return HolderView(
            name=self._name,
            run=run.id.hex()[:16],
            plan=plan.section.name,
            epsilon=None if privacy is None or unsafe else epsilon,
            budget=None if privacy is None else privacy.budget,
            delta=None if privacy is None else privacy.delta,
            unit=adjacency(plan),
            unsafe=unsafe,
            total=None if unsafe else ledger.epsilon,
            exact=ledger.exact,
            own_budget=ledger.budget,
            own_delta=OWN_DELTA,
            ledger_trouble=ledger.trouble or (ledger.missing if self._sent else ""),
            runs=ledger.told,
            updates=tuple(islice(reversed(self._sent.values()), KEPT)),
            count=len(self._sent),
            bytes=self._bytes,
            open=collusion(plan),
            holders=tuple(holders) if plan.holders else (),
            threshold=plan.threshold if plan.holders else 0,
            sees=tuple((sight.role, sight.sees, sight.never) for sight in sights(plan)),
            acted=departure.acted,
            standing="" if departure.wants is None else STANDING[departure.wants],
        )


STANDING = {OwnDeed.PAUSE: "paused", OwnDeed.LEAVE: "leaves"}
