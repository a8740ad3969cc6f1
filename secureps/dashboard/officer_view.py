"""Builds a privacy officer's page: the plan explained, and what was spent, opened and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from secureps.audit.page import words
from secureps.dashboard.course import Course, HolderRecord
from secureps.dashboard.holder_view import OwnLedger
from secureps.dashboard.observation import NOT_KNOWN, Cost, Seen
from secureps.dashboard.scores import Report, costs_of
from secureps.messages.requests import Status
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.run.report.status_tables import spent


@dataclass(frozen=True, slots=True)
class ClientSpending:
    """What a client spent, in this run and in all runs.

    Args:
        epsilon: in this run, in words, by the coordinator's status or journal.
        ledger: its own over all runs is at hand; only then the following are known.
        total: over all runs; None if nothing bounds it. `runs`: as `OwnLedger.told`.
        exact: how many updates left with no privacy, in words, which no total counts.
        trouble: why the ledger cannot be read.
    """

    name: str
    epsilon: str
    ledger: bool
    total: float | None
    exact: str
    runs: Mapping[str, str]
    trouble: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was refused or came to nothing."""

    date: str
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class LogCheck:
    """What `secureps audit-log verify` says of a file: whose it is, or what is wrong."""

    file: str
    sound: bool
    text: str


@dataclass(frozen=True, slots=True)
class OfficerView:
    """All that the privacy officer's page shows.

    Args:
        explanation: as `secureps check --json` has it; None before the run is founded.
        unit: what every epsilon is of, and at which delta; empty if nothing is private, and None
            where the plan is not known.
        costs: of versions, for their epsilon.
        holders, refused, rows: by the coordinator's journal; None where that is not at hand.
        logs: None where no audit logs were named.
    """

    explanation: Mapping[str, object] | None
    unit: str | None
    delta: float
    clients: tuple[ClientSpending, ...]
    costs: tuple[Cost, ...]
    holders: tuple[HolderRecord, ...] | None
    refused: tuple[Refusal, ...] | None
    rows: int
    logs: tuple[LogCheck, ...] | None


def officer_view(
    seen: Seen,
    explanation: Mapping[str, object] | None,
    course: Course | None,
    ledgers: Mapping[str, OwnLedger],
    logs: tuple[LogCheck, ...] | None,
    plan: Plan | None = None,
    report: Report | None = None,
) -> OfficerView:
    """The page, of what is at hand.

    Args:
        seen: with the journal's status where the coordinator's is missing.
        course: None without the coordinator's journal.
        ledgers: over all runs, by client.
        plan: None where it is not known; report: of a run of `up`, by itself.
    """
    unit, delta = _protected(seen.status, plan)
    return OfficerView(
        explanation=explanation,
        unit=unit,
        delta=delta,
        clients=tuple(_clients(seen, ledgers)),
        costs=tuple(cost for cost in costs_of(seen, report) if cost.epsilon is not None),
        holders=None if course is None else course.holders,
        refused=None if course is None else tuple(_refusals(course)),
        rows=0 if course is None else course.rows,
        logs=logs,
    )


def _protected(status: Status | None, plan: Plan | None) -> tuple[str | None, float]:
    """What every epsilon is of, and at which delta, by whoever says so."""
    if status is not None:
        return status.adjacency, status.delta
    if plan is None:
        return None, 0.0
    privacy = plan.section.privacy
    return adjacency(plan), 0.0 if privacy is None else privacy.delta


def _clients(seen: Seen, ledgers: Mapping[str, OwnLedger]) -> Iterator[ClientSpending]:
    members = {m.name: m for m in seen.status.members} if seen.status is not None else {}
    others = (
        NOT_KNOWN if seen.status is None else "never joined" if seen.ended else "has not joined"
    )
    for name in sorted(members.keys() | ledgers.keys()):
        ledger = ledgers.get(name)
        yield ClientSpending(
            name,
            spent(members[name]) if name in members else others,
            ledger is not None,
            None if ledger is None else ledger.epsilon,
            "" if ledger is None else ledger.exact,
            {} if ledger is None else ledger.told,
            "" if ledger is None else ledger.trouble,
        )


def _refusals(course: Course) -> Iterator[Refusal]:
    for entry in course.refused:
        yield Refusal(entry.date or f"{entry.at:.1f} s", entry.what, words(entry))
