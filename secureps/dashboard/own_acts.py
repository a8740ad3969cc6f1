"""What a data holder may do from its own page: leave, pause, lower its budget.

Each act is a line in the client's state folder, signed by the client's own key and durable there
before it is done; the client's process sees it within a second, or when it starts again. A budget
is lowered in the ledger over all runs first, and never raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from secureps.crypto.identity import Identity
from secureps.dashboard.access import Viewer
from secureps.dashboard.holder_view import HolderView
from secureps.errors import ConfigError, DamagedStore, NotReady
from secureps.messages.member_records import OwnDeed
from secureps.service.act_watch import act_text
from secureps.store.act_lines import ActLine, ActLines
from secureps.store.budget import BudgetLedger
from secureps.wording import finite

SAID = {
    OwnDeed.PAUSE: "paused: this client sends what it has sealed, and trains no more until it is "
    "to go on",
    OwnDeed.GO_ON: "this client goes on",
    OwnDeed.LOWER_BUDGET: "the budget is {budget:g} from now on, over all runs of this ledger",
    OwnDeed.LEAVE: "this client leaves the run, once what it has sealed has arrived; started "
    "again, it joins again",
}
"""What is told of an act that was begun."""


class OwnActs:
    """The acts of a data holder on its own client; one at a time.

    Args:
        name: of the client; me: its identity.
        state: its state folder.
        ledger: over all runs, with the budget that its options name.
        view: what its page shows now; None before it takes part in a run.
    """

    def __init__(
        self,
        name: str,
        me: Identity,
        state: Path,
        ledger: BudgetLedger,
        view: Callable[[], HolderView | None],
    ) -> None:
        self._name, self._ledger, self._view = name, ledger, view
        self._lines = ActLines(state, name, me)
        self._lock = threading.Lock()

    @property
    def offered(self) -> tuple[str, ...]:
        """All that a client does for its data holder."""
        return tuple(deed.value for deed in SAID)

    @property
    def done(self) -> tuple[ActLine, ...]:
        """All that were begun, oldest first; DamagedStore if the file was changed."""
        return self._lines.done

    def may(self, viewer: Viewer) -> bool:
        """The data holder alone, on its own page."""
        return viewer.role == "client" and viewer.name == self._name

    def do(self, what: str, of: Mapping[str, str]) -> str:
        """As `Acts`; `lower-budget` says to which `budget`.

        Raises:
            NotReady: the client takes part in no run yet.
            DamagedStore: acts that the client has done are not in the file.
        """
        with self._lock:
            if what not in self.offered:
                raise ConfigError(f"{what!r:.40} is nothing that can be done here")
            if (view := self._view()) is None:
                raise NotReady(f"{self._name} takes part in no run yet")
            if len(self.done) < view.acted:
                raise DamagedStore(
                    f"acts.jsonl has {len(self.done)} acts, and {self._name} has done {view.acted}"
                )
            budget = self._lower(view, of) if what == OwnDeed.LOWER_BUDGET else None
            if budget is not None:  # before its line: cut short here it is stricter, never laxer
                self._ledger.lower(budget)
            self._lines.note(act_text(OwnDeed(what), budget))
            return SAID[OwnDeed(what)].format(budget=budget or 0.0)

    def _lower(self, view: HolderView, of: Mapping[str, str]) -> float:
        """The new budget; ConfigError if there is none such, or it would not be smaller."""
        try:
            budget = finite(float(of.get("budget", "")))
        except ValueError:
            budget = None
        if budget is None or not budget > 0:
            raise ConfigError("a budget is a finite epsilon above 0")
        if view.budget is None:
            raise ConfigError(
                f"the plan {view.plan} trains without privacy, and no budget bounds that: leave "
                "instead"
            )
        limit = self._ledger.limit
        if limit is not None and budget >= limit:
            raise ConfigError(f"the budget is {limit:g} already, and is never raised here")
        return budget
