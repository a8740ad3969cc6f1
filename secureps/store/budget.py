"""What a data holder's records have spent, over all runs: one ledger, charged before sealing.

A run's own journal knows nothing of the run before it, and the records are the same. Every fact is
written here first, under a lock that the clients of other runs take too: two at once spend no more
than one after the other. It is a journal with a height (`store.journal`), and never goes back. What
was charged and then not sealed stays charged: it is counted once, however often it is tried again.
Updates with no privacy are on record too, before they are sealed. No epsilon bounds what they tell,
so that only their number is: at most so many, for a row stands for some ahead (AHEAD).
What must not live here: what a fact costs (`privacy.accountant`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from secureps.errors import BudgetSpent, ConfigError, DiskFailed, OperatorError, PlanRefused
from secureps.messages.charge import CLIENT_ADJACENCY, Charge, Release
from secureps.messages.format import OLDEST_LEDGER
from secureps.messages.member_records import BudgetCharged, BudgetLowered, SentWithoutPrivacy
from secureps.messages.submission import SubmissionId
from secureps.privacy.ledger import OWN_DELTA
from secureps.store.atomic_file import make_directory, one_at_a_time
from secureps.store.journal import SqliteJournal
from secureps.store.journal_height import NO_SPACE, START, Mark, height_path, read_height
from secureps.wording import counted

Fact = Charge | Release
OnRecord = BudgetCharged | BudgetLowered | SentWithoutPrivacy

Rows = list[tuple[float, OnRecord]]
"""All that is on record, with Unix seconds, in order."""

AHEAD = 16
"""Of so many updates with no privacy one more is put on record ahead: a row for each of thousands
would be a wait for the disk each."""

HOUR = 3600.0
"""Seconds in which a site counts trainings."""


@dataclass(frozen=True, slots=True)
class RunSpent:
    """What one run spent: its id, how many facts, and their epsilon alone.

    `exact`: how many updates left with no privacy, at most; where there are any, the epsilon is
    infinite.
    """

    run: bytes
    facts: int
    epsilon: float
    exact: int = 0

    @property
    def told(self) -> str:
        """How many updates, and what they spent, in words."""
        return without_privacy(self.exact) or f"{self.facts} updates  epsilon {self.epsilon:.3f}"


def default_ledger(kit: Path, name: str) -> Path:
    """Beside the kit: another kit in the same place is charged to the same ledger."""
    return kit.absolute().parent / "ledgers" / f"{name}.db"


@dataclass(slots=True)
class _Read:
    """What this process has read, and up to which row: each update would read all before it."""

    rows: Rows = field(default_factory=list)
    upto: Mark = START


@dataclass(frozen=True, slots=True)
class BudgetLedger:
    """The ledger of one data set; nothing is made before something is charged.

    Args:
        path: of the file.
        budget: the epsilon that all runs together may come to, or a smaller one that is on record;
            None: it is only counted, unless one is.
        updates_per_hour: how many trainings of all runs may begin in an hour; None: none is
            counted.
        clock: Unix seconds.
    """

    path: Path
    budget: float | None = None
    updates_per_hour: int | None = None
    clock: Callable[[], float] = time.time
    _known: _Read = field(default_factory=_Read, init=False, repr=False, compare=False)

    def charge(self, run: bytes, fact: Fact, delta: float = OWN_DELTA) -> None:
        """Writes a fact, durably when it returns; what is on record costs nothing more.

        Raises:
            BudgetSpent: all runs together would come to more than the budget.
            PlanRefused: the facts on record are of the other unit.
            DamagedStore: the ledger is damaged, or an older copy.
            ConfigError: a later version wrote it, in another format.
            OperatorError: it cannot be written.
        """
        with self._tx() as journal:
            rows = self._read(journal)
            known = _facts(rows)
            if (run, fact) in known:
                return
            self._demand(rows, [fact], delta)
            by_unit = (fact, None) if isinstance(fact, Charge) else (None, fact)
            self._append(journal, [BudgetCharged(run, *by_unit)])

    def expose(self, run: bytes, ids: Sequence[SubmissionId]) -> None:
        """Has updates with no privacy on record, durably when it returns, all in one transaction.

        Raises:
            BudgetSpent: there is a budget, which they would be beyond.
            DamagedStore, ConfigError, OperatorError: as `charge`.
        """
        rows = self._unchanged()
        self._refuse_exact(rows)
        if not _further(rows, run, ids):
            return
        with self._tx() as journal:
            rows = self._read(journal)
            self._refuse_exact(rows)
            if further := _further(rows, run, ids):
                self._append(journal, further)

    def begin(self, run: bytes) -> float:
        """Counts a training that begins now, durably, if the hour has room for it.

        One that a kill cut short counts too: a restart begins another.

        Returns:
            seconds until one may begin; 0: this one does.

        Raises:
            DamagedStore, ConfigError, OperatorError: as `charge`.
        """
        if self.updates_per_hour is None:
            return 0.0
        with self._tx() as journal:
            rows = self._read(journal)
            now, begun = self.clock(), (at for at, row in rows if _training(row))
            # Of a clock that was wrong by more than an hour, and is set back, nothing is counted.
            counted = sorted(at for at in begun if abs(at - now) < HOUR)[-self.updates_per_hour :]
            if len(counted) == self.updates_per_hour:
                return min(counted[0] + HOUR - now, HOUR)
            self._append(journal, [BudgetCharged(run, None, None)])
            return 0.0

    def look(self, run: bytes, ahead: Sequence[Fact], delta: float = OWN_DELTA) -> None:
        """Refuses what `charge` would, and charges nothing: so that nobody trains in vain.

        Raises:
            BudgetSpent, PlanRefused, DamagedStore, OperatorError: as `charge`.
        """
        rows = self.rows()
        known = _facts(rows)
        new = [fact for fact in ahead if (run, fact) not in known]
        if new:
            self._demand(rows, new, delta)

    def look_exact(self) -> None:
        """Refuses what `expose` would, and writes nothing. Raises as that does."""
        self._refuse_exact(self.rows())

    @property
    def limit(self) -> float | None:
        """The budget that holds now; None if there is none. Raises as `charge` does."""
        return self._limit(self.rows())

    def lower(self, budget: float) -> None:
        """All runs together may come to less from now on, whoever charges; durably.

        Raises:
            ConfigError: it is no finite epsilon above 0, or lowers nothing.
            DamagedStore, OperatorError: as `charge`.
        """
        if not 0 < budget < math.inf:
            raise ConfigError(f"a budget is a finite epsilon above 0, got {budget:g}")
        with self._tx() as journal:
            limit = self._limit(self._read(journal))
            if limit is not None and budget >= limit:
                raise ConfigError(f"the budget is {limit:g} already, and is never raised here")
            self._append(journal, [BudgetLowered(budget)])

    def _limit(self, rows: Rows) -> float | None:
        lowered = [row.budget for _, row in rows if isinstance(row, BudgetLowered)]
        return min([*lowered, *([] if self.budget is None else [self.budget])], default=None)

    def _demand(self, rows: Rows, new: Sequence[Fact], delta: float) -> None:
        if (limit := self._limit(rows)) is None:
            return
        known = (fact for _, fact in _facts(rows))
        total = epsilon_of((*known, *new), min(delta, OWN_DELTA))
        if total > limit:
            raise BudgetSpent(
                f"another update would bring epsilon to {total:.2f} over all runs that {self.path} "
                f"counts, and the budget is {limit:g}, of {unit_of(new)}: nothing more is sealed"
            )

    def _refuse_exact(self, rows: Rows) -> None:
        if (limit := self._limit(rows)) is not None:
            raise BudgetSpent(
                f"the plan trains without privacy, and {self.path} has a budget of {limit:g} for "
                "all runs: nothing more is sealed"
            )

    def standing(self, delta: float) -> str:
        """What all runs came to, and of which budget, in words; empty if there is none.

        Raises:
            DamagedStore, OperatorError: as `charge`.
        """
        rows = self.rows()
        if (limit := self._limit(rows)) is None:
            return ""
        total = epsilon_of([fact for _, fact in _facts(rows)], min(delta, OWN_DELTA))
        return f"{total:.3f} of {limit:g} over all runs"

    def warning(self) -> str:
        """What a budget cannot bound any more; empty if there is no budget, or no such thing.

        Raises:
            DamagedStore, OperatorError: as `charge`.
        """
        rows = self.rows()
        limit, exact = self._limit(rows), without_privacy(sum(_exact(rows).values()))
        if limit is None or not exact:
            return ""
        return (
            f"{self.path} has {exact} on record, which no epsilon bounds: the budget of {limit:g} "
            "bounds what is spent besides"
        )

    def others(self, run: bytes) -> tuple[Fact, ...]:
        """What other runs spent."""
        return tuple(fact for other, fact in self.facts() if other != run)

    def facts(self) -> list[tuple[bytes, Fact]]:
        """All facts with their runs, in order; raises as `charge` does."""
        return _facts(self.rows())

    def rows(self) -> Rows:
        """All that is on record, with Unix seconds, in order; raises as `charge` does."""
        if not self.path.is_file():
            return []
        if rows := self._unchanged():
            return rows
        with self._tx() as journal:
            return self._read(journal)

    def spent(self) -> tuple[RunSpent, ...]:
        """What each run spent, in the order in which they began."""
        rows = self.rows()
        kinds = (BudgetCharged, SentWithoutPrivacy)
        facts: dict[bytes, list[Fact]] = {
            row.run: [] for _, row in rows if isinstance(row, kinds) and not _training(row)
        }
        exact = dict.fromkeys(facts, 0)
        for run, fact in _facts(rows):
            facts[run].append(fact)
        for (run, *_), most in _exact(rows).items():
            exact[run] += most
        return tuple(
            RunSpent(
                run, len(own), math.inf if exact[run] else epsilon_of(own, OWN_DELTA), exact[run]
            )
            for run, own in facts.items()
        )

    def _unchanged(self) -> Rows:
        """What this process has read, if nobody has written since; empty if it is to be read."""
        known = self._known
        if not known.rows or read_height(height_path(self.path)) != known.upto:
            return []
        return [*known.rows]

    def _read(self, journal: SqliteJournal) -> Rows:
        known = self._known
        new = journal.replay(known.upto)
        known.rows += [(at, row) for at, row in new if isinstance(row, OnRecord)]
        known.upto = journal.mark
        return [*known.rows]

    def _append(self, journal: SqliteJournal, records: Sequence[OnRecord]) -> None:
        journal.append(self.clock(), records)

    @contextmanager
    def _tx(self) -> Iterator[SqliteJournal]:
        """Waits until no other client is at it."""
        beside = self.path.with_name(self.path.name + ".turn")
        with ExitStack() as stack:
            try:
                make_directory(self.path.parent, 0o700)
                stack.enter_context(one_at_a_time(beside))
            except OSError as error:
                raise self._refused(error) from None
            yield stack.enter_context(closing(SqliteJournal(self.path, OLDEST_LEDGER)))

    def _refused(self, error: OSError) -> OperatorError:
        if error.errno in NO_SPACE:
            return DiskFailed(f"{self.path}: cannot write: {error.strerror}")
        return OperatorError(
            f"{self.path}: {error.strerror}: what is spent must be kept over all runs; name "
            "another file by --ledger"
        )


def _facts(rows: Rows) -> list[tuple[bytes, Fact]]:
    """The facts among these rows, with their runs."""
    charged = (row for _, row in rows if isinstance(row, BudgetCharged))
    return [(row.run, fact) for row in charged for fact in (row.charge, row.release) if fact]


def _exact(rows: Rows) -> dict[tuple[bytes, str, str], int]:
    """How many updates left with no privacy, at most, by run, client and group."""
    found = (row for _, row in rows if isinstance(row, SentWithoutPrivacy))
    return {(row.run, row.client, row.group): row.most for row in found}


def _further(rows: Rows, run: bytes, ids: Sequence[SubmissionId]) -> list[SentWithoutPrivacy]:
    """The rows of updates that are not on record yet, with some ahead."""
    known = _exact(rows)
    return [
        SentWithoutPrivacy(run, id.client, id.group, id.sequence + 1 + id.sequence // AHEAD)
        for id in ids
        if id.sequence >= known.get((run, id.client, id.group), 0)
    ]


def without_privacy(number: int) -> str:
    """How many updates left with no privacy, in words; empty if none did."""
    return f"at most {counted(number, 'update')} with no privacy" if number else ""


def _training(row: OnRecord) -> bool:
    """Whether a row counts a training that began."""
    return isinstance(row, BudgetCharged) and not (row.charge or row.release)


def epsilon_of(facts: Sequence[Fact], delta: float) -> float:
    """The epsilon of facts of one unit together; PlanRefused for facts of both."""
    from secureps.privacy.accountant import client_epsilon, epsilon

    charges = [fact for fact in facts if isinstance(fact, Charge)]
    releases = [fact for fact in facts if isinstance(fact, Release)]
    if charges and releases:
        raise PlanRefused(
            "the ledger counts single records in some runs and whole clients in others, and no "
            "epsilon is the sum of both: name another file by --ledger for this plan"
        )
    return client_epsilon(releases, delta) if releases else epsilon(charges, delta)


def unit_of(facts: Sequence[Fact]) -> str:
    """What the epsilon of facts of one unit is of, in words; facts do not say which adjacency."""
    if any(isinstance(fact, Release) for fact in facts):
        return CLIENT_ADJACENCY
    return "one record, added or removed or replaced by nothing as the plan of each run says"
