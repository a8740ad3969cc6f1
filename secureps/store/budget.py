"""A data holder's privacy ledger over all runs; a row is durable before its update leaves.

A run's own journal does not know earlier runs over the same records, and it can be lost. For each
place (run, client, group, version, step) the ledger holds the digest of the one update that may
leave, computed from the sealed integers alone. The same update again is free. Another update for
the same place is refused, and so is one from the same model under another version: an attacker
could subtract the two sums.

Clients of other runs take the same lock, so that two at once cannot overspend. An update that was
charged and then not sealed stays charged. Updates without privacy are counted, because no epsilon
bounds them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from secureps.errors import BudgetSpent, ConfigError, DiskFailed, OperatorError, PlanRefused
from secureps.messages.charge import CLIENT_ADJACENCY, Charge, Fact, Release
from secureps.messages.evaluation import is_model_group
from secureps.messages.format import OLDEST_LEDGER
from secureps.messages.member_records import (
    BudgetCharged,
    BudgetLowered,
    SentWithoutPrivacy,
    UpdateReleased,
)
from secureps.privacy.ledger import OWN_DELTA, UNIT_NAMES, PersonCharge, from_row
from secureps.store.atomic_file import make_directory, one_at_a_time
from secureps.store.journal import SqliteJournal
from secureps.store.journal_rows import NO_SPACE, START, height_path, read_height
from secureps.wording import counted

OnRecord = UpdateReleased | BudgetCharged | BudgetLowered | SentWithoutPrivacy

Rows = list[tuple[float, OnRecord]]
"""All rows with their Unix seconds, in order."""

Append = Callable[[Sequence[OnRecord]], None]
"""Adds rows durably."""

Place = tuple[bytes, str, str, int, int]
"""Run, client, group, version and step of an update."""

HOUR = 3600.0
"""Seconds over which a site limits the number of trainings."""


@dataclass(frozen=True, slots=True)
class RunSpent:
    """The spending of one run: its id, the number of its charges, and their epsilon.

    `exact` is the most updates that left without privacy; if there are any, epsilon is infinite.
    """

    run: bytes
    facts: int
    epsilon: float
    exact: int = 0

    @property
    def text(self) -> str:
        return without_privacy(self.exact) or f"{self.facts} updates  epsilon {self.epsilon:.3f}"


def default_ledger(kit: Path, name: str) -> Path:
    """The ledger's path beside a kit; another kit in the same folder gets the same ledger."""
    return kit.absolute().parent / "ledgers" / f"{name}.db"


class BudgetLedger:
    """The ledger of one data set; the first charge makes its file.

    All methods raise DamagedStore (the file is damaged or an older copy), ConfigError (another
    version wrote it in another format) or OperatorError (it cannot be read or written).

    Args:
        budget: the largest epsilon of all runs together; a smaller budget on record wins. None:
            epsilon is only counted, unless a budget is on record.
        updates_per_hour: how many trainings of all runs may begin in an hour; None: any number.
        clock: Unix seconds.
    """

    def __init__(
        self,
        path: Path,
        budget: float | None = None,
        updates_per_hour: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.budget, self.updates_per_hour = path, budget, updates_per_hour
        self.clock = clock
        # Rows read so far and the last of them, so that an update does not read the whole file.
        self._rows: Rows = []
        self._upto = START
        # By place, the update that may leave, and the model that it came from.
        self._places: dict[Place, tuple[bytes, bytes]] = {}
        # By run, client, group and model, the version and step of its first training.
        self._bases: dict[tuple[bytes, str, str, bytes], tuple[int, int]] = {}
        # Runs whose rows an older version wrote: these rows count updates but do not name them.
        self._unnamed: set[bytes] = set()
        self._kinds: set[type] = set()

    def release(self, rows: Sequence[UpdateReleased], delta: float = OWN_DELTA) -> list[str]:
        """Charges updates durably before they leave, all in one transaction.

        Returns:
            For each update, why it may not leave; empty if it may. A refused update is not charged,
            and an update on record costs nothing more.

        Raises:
            BudgetSpent: all runs together would exceed the budget, or there is a budget and an
                update has no privacy.
            PlanRefused: the charges on record are of the other unit.
        """
        if self._is_current() and not self._select_new(rows):
            self._demand_all(rows, delta)
            return [self._explain_refusal(row) for row in rows]
        with self._transaction() as append:
            self._demand_all(rows, delta)
            said, taken = list[str](), list[UpdateReleased]()
            for row in rows:
                said.append(self._explain_refusal(row))
                taken += self._select_new([row])
            if taken:
                append(taken)
            return said

    def explain_repeat(self, row: UpdateReleased) -> str:
        """Says why a row's model must not be trained or judged under its version, else "".

        The local steps of one version may train the same model; metrics have no steps.
        """
        self._refresh()
        first = self._bases.get((row.run, row.client, row.group, row.model))
        if first is None or (first[0] == row.version and is_model_group(row.group)):
            return ""
        if first == (row.version, row.step):
            return ""
        if not is_model_group(row.group):
            return "this client has judged this model before, for other metrics"
        return (
            f"version {row.version} of {row.group} is the same model as version {first[0]}: two "
            "sums of updates from one model would tell their difference; if training has come to "
            "rest, it is the result (secureps export); if updates are smaller than a step of the "
            "grid, plan more bits or a smaller range"
        )

    def _explain_refusal(self, row: UpdateReleased) -> str:
        """Says why an update may not leave; empty if it may, also a second time."""
        known = self._places.get(_place(row))
        # The same update of another model is refused too: it would tell that nothing changed.
        if known is not None and known != (row.update, row.model):
            step = f", step {row.step}" if row.step else ""
            return (
                f"another update of version {row.version} of {row.group}{step} is in the ledger, "
                "and only that one may ever leave"
            )
        if known is None and row.run in self._unnamed:
            return (
                "its ledger does not say which updates of this run have left: an older one wrote it"
            )
        return self.explain_repeat(row)

    def has_trained(self, run: bytes, client: str) -> bool:
        """True if this client's updates of the run are, or may be, on record."""
        self._refresh()
        return run in self._unnamed or any(place[:2] == (run, client) for place in self._places)

    def _select_new(self, rows: Sequence[UpdateReleased]) -> list[UpdateReleased]:
        return [r for r in rows if _place(r) not in self._places and not self._explain_refusal(r)]

    def _demand_all(self, rows: Sequence[UpdateReleased], delta: float) -> None:
        new = self._select_new(rows)
        if any(_is_unprotected(row) for row in rows):
            self.refuse_unprotected()
        if facts := [fact for row in new for fact in from_row(row.charge, row.release)]:
            self._demand(facts, delta)

    def begin_training(self, run: bytes) -> float:
        """Counts a training that begins now, durably, if the hour has room for it.

        Returns 0, or the seconds until a training may begin. An interrupted training counts too.
        """
        if self.updates_per_hour is None:
            return 0.0
        with self._transaction() as append:
            now, begun = self.clock(), (at for at, row in self._rows if _is_training(row))
            # Rows from a clock that was more than an hour ahead are not counted.
            counted = sorted(at for at in begun if abs(at - now) < HOUR)[-self.updates_per_hour :]
            if len(counted) == self.updates_per_hour:
                return min(counted[0] + HOUR - now, HOUR)
            append([BudgetCharged(run, None, None)])
            return 0.0

    def refuse_spent(self, run: bytes, ahead: Sequence[Fact], delta: float = OWN_DELTA) -> None:
        """Raises BudgetSpent as `release` would, before a training in vain."""
        known = self.facts()
        if new := [fact for fact in ahead if (run, fact) not in known]:
            self._demand(new, delta)

    def refuse_unprotected(self) -> None:
        """Raises BudgetSpent for an update without privacy, before a training in vain."""
        if (limit := self.limit) is not None:
            raise BudgetSpent(
                f"the plan trains without privacy, and {self.path} has a budget of {limit:g} for "
                "all runs: nothing more is sealed"
            )

    @property
    def limit(self) -> float | None:
        lowered = [row.budget for _, row in self._refresh() if isinstance(row, BudgetLowered)]
        return min([*lowered, *([] if self.budget is None else [self.budget])], default=None)

    def lower(self, budget: float) -> None:
        """Lowers the budget of all runs together from now on, durably.

        Raises:
            ConfigError: it is no finite epsilon above 0, or not below the present budget.
        """
        if not 0 < budget < math.inf:
            raise ConfigError(f"a budget is a finite epsilon above 0, got {budget:g}")
        with self._transaction() as append:
            if (limit := self.limit) is not None and budget >= limit:
                raise ConfigError(f"the budget is {limit:g} already, and is never raised here")
            append([BudgetLowered(budget)])

    def _demand(self, new: Sequence[Fact], delta: float) -> None:
        if PersonCharge in (kinds := self._kinds.union(map(type, new))):
            demand_unit(kinds)  # even without a budget: what records spent says nothing of persons
        if (limit := self.limit) is None:
            return
        known = (fact for _, fact in _select_facts(self._rows))
        total = epsilon_of((*known, *new), min(delta, OWN_DELTA))
        if total > limit:
            raise BudgetSpent(
                f"another update would bring epsilon to {total:.2f} over all runs that {self.path} "
                f"counts, and the budget is {limit:g}, of {unit_of(new)}: nothing more is sealed"
            )

    def describe_spent(self, delta: float) -> str:
        """Describes what all runs spent of the budget; empty if there is none."""
        if (limit := self.limit) is None:
            return ""
        total = epsilon_of([fact for _, fact in self.facts()], min(delta, OWN_DELTA))
        return f"{total:.3f} of {limit:g} over all runs"

    def warning(self) -> str:
        """Describes updates that the budget does not bound; empty if there are none."""
        limit, exact = self.limit, without_privacy(sum(_count_unprotected(self._rows).values()))
        if limit is None or not exact:
            return ""
        return (
            f"{self.path} has {exact} on record, which no epsilon bounds: the budget of {limit:g} "
            "bounds what is spent besides"
        )

    def facts(self) -> list[tuple[bytes, Fact]]:
        return _select_facts(self.rows())

    def rows(self) -> Rows:
        return [*self._refresh()]

    def _refresh(self) -> Rows:
        """Reads new rows of the file, unless this is in a transaction, which has read them."""
        if not self._is_current():
            with self._transaction():
                pass
        return self._rows

    def spent(self) -> tuple[RunSpent, ...]:
        rows = self.rows()
        facts: dict[bytes, list[Fact]] = {
            row.run: [] for _, row in rows if isinstance(row, CHARGING) and not _is_training(row)
        }
        for run, fact in _select_facts(rows):
            facts[run].append(fact)
        exact = _count_unprotected(rows)
        return tuple(
            RunSpent(
                run, len(own), math.inf if exact[run] else epsilon_of(own, OWN_DELTA), exact[run]
            )
            for run, own in facts.items()
        )

    def _is_current(self) -> bool:
        if not self.path.is_file():
            return self._upto == START
        return read_height(height_path(self.path)) == self._upto

    @contextmanager
    def _transaction(self) -> Iterator[Append]:
        """Takes the lock and reads new rows; yields a function that adds rows."""
        beside = self.path.with_name(self.path.name + ".turn")
        with ExitStack() as stack:
            try:
                make_directory(self.path.parent, 0o700)
                stack.enter_context(one_at_a_time(beside))
            except OSError as error:
                raise self._disk_error(error) from None
            journal = stack.enter_context(closing(SqliteJournal(self.path, OLDEST_LEDGER)))
            for at, row in list(journal.replay(self._upto)):  # the list: damage adds no row
                if isinstance(row, OnRecord):
                    self._add(at, row)
            self._upto = journal.mark
            yield lambda records: journal.append(self.clock(), records)

    def _add(self, at: float, row: OnRecord) -> None:
        self._rows.append((at, row))
        self._kinds.update(type(fact) for _, fact in _select_facts([(at, row)]))
        if isinstance(row, UpdateReleased):
            self._places[_place(row)] = row.update, row.model
            if row.model:
                of_model = (row.run, row.client, row.group, row.model)
                self._bases.setdefault(of_model, (row.version, row.step))
        elif isinstance(row, SentWithoutPrivacy) or (
            isinstance(row, BudgetCharged) and not _is_training(row)
        ):
            self._unnamed.add(row.run)

    def _disk_error(self, error: OSError) -> OperatorError:
        if error.errno in NO_SPACE:
            return DiskFailed(f"{self.path}: cannot write: {error.strerror}")
        return OperatorError(
            f"{self.path}: {error.strerror}: what is spent must be kept over all runs; name "
            "another file by --ledger"
        )


_IN_MEMORY = Path("a ledger in memory")


class MemoryLedger(BudgetLedger):
    """The ledger of a simulated client, in memory."""

    def __init__(self) -> None:
        super().__init__(_IN_MEMORY)

    def _is_current(self) -> bool:
        return True

    @contextmanager
    def _transaction(self) -> Iterator[Append]:
        def append(records: Sequence[OnRecord]) -> None:
            for row in records:
                self._add(self.clock(), row)

        yield append


CHARGING = (UpdateReleased, BudgetCharged, SentWithoutPrivacy)
"""Rows that charge a run."""


def _place(row: UpdateReleased) -> Place:
    return row.run, row.client, row.group, row.version, row.step


def _is_unprotected(row: UpdateReleased) -> bool:
    """True if an update leaves without privacy; evaluations of held-out records do not count."""
    return row.fact is None and is_model_group(row.group)


def _select_facts(rows: Rows) -> list[tuple[bytes, Fact]]:
    charged = (row for _, row in rows if isinstance(row, UpdateReleased | BudgetCharged))
    return [(row.run, fact) for row in charged for fact in from_row(row.charge, row.release)]


def _count_unprotected(rows: Rows) -> Counter[bytes]:
    exact = Counter(
        row.run for _, row in rows if isinstance(row, UpdateReleased) and _is_unprotected(row)
    )
    before = (row for _, row in rows if isinstance(row, SentWithoutPrivacy))
    for (run, *_), most in {(r.run, r.client, r.group): r.most for r in before}.items():
        exact[run] += most
    return exact


def without_privacy(number: int) -> str:
    return f"at most {counted(number, 'update')} with no privacy" if number else ""


def _is_training(row: OnRecord) -> bool:
    return isinstance(row, BudgetCharged) and not (row.charge or row.release)


def epsilon_of(facts: Sequence[Fact], delta: float) -> float:
    """Computes the epsilon of charges of one unit; PlanRefused if units are mixed."""
    from secureps.privacy.accountant import client_epsilon, epsilon

    demand_unit(map(type, facts))
    charges = [fact for fact in facts if isinstance(fact, Charge)]
    releases = [fact for fact in facts if isinstance(fact, Release)]
    return client_epsilon(releases, delta) if releases else epsilon(charges, delta)


_UNITS = {Charge: "record", PersonCharge: "person", Release: "client"}
"""The unit of each kind of charge, as plans name it."""

_COUNTED = {"record": "single records", "person": "persons", "client": "whole clients"}


def demand_unit(kinds: Iterable[type]) -> str:
    """Names the unit of charges, "record" if there are none; PlanRefused if there are several."""
    found = set(kinds)
    units = [unit for kind, unit in _UNITS.items() if kind in found]
    if len(units) > 1:
        one, other, *_ = (_COUNTED[unit] for unit in units)
        raise PlanRefused(
            f"the ledger counts {one} in some runs and {other} in others, and no epsilon is the "
            "sum of both: name another file by --ledger for this plan"
        )
    return units[0] if units else "record"


def unit_of(facts: Sequence[Fact]) -> str:
    """Says what these charges protect; they do not know their plan's adjacency."""
    if (unit := demand_unit(map(type, facts))) == "client":
        return CLIENT_ADJACENCY
    name = UNIT_NAMES[unit]
    return f"{name}, added or removed or replaced by nothing as the plan of each run says"
