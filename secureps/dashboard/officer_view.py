"""Builds a privacy officer's page: the plan explained, and what was spent, opened and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from secureps.audit.page import words
from secureps.dashboard.board import Facts
from secureps.dashboard.course import Course
from secureps.dashboard.holder_view import OwnLedger
from secureps.dashboard.observation import NOT_KNOWN, Json, Seen
from secureps.dashboard.scores import costs_of
from secureps.messages.requests import Status
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.run.report.status_tables import spent


def officer_view(facts: Facts) -> Json:
    """Builds the page that `site/officer.js` shows; what is not at hand is None."""
    seen, course = facts.seen, facts.course
    unit, delta = _protected(seen.status, facts.plan)
    return {
        "explanation": facts.explanation,
        "unit": unit,
        "delta": delta,
        "clients": list(_clients(seen, facts.ledgers)),
        "costs": [cost for cost in costs_of(seen, facts.report) if cost.epsilon is not None],
        "holders": None if course is None else course.holders,
        "refused": None if course is None else list(_refusals(course)),
        "rows": 0 if course is None else course.rows,
        "logs": facts.logs,
    }


def _protected(status: Status | None, plan: Plan | None) -> tuple[str | None, float]:
    """Returns what an epsilon protects (empty: nothing; None: unknown), and its delta."""
    if status is not None:
        return status.adjacency, status.delta
    if plan is None:
        return None, 0.0
    privacy = plan.section.privacy
    return adjacency(plan), 0.0 if privacy is None else privacy.delta


def _clients(seen: Seen, ledgers: Mapping[str, OwnLedger]) -> Iterator[Json]:
    """Yields what each client spent in this run, and in all runs if its ledger is here."""
    members = {m.name: m for m in seen.status.members} if seen.status is not None else {}
    others = (
        NOT_KNOWN if seen.status is None else "never joined" if seen.ended else "has not joined"
    )
    for name in sorted(members.keys() | ledgers.keys()):
        ledger = ledgers.get(name)
        yield {
            "name": name,
            "epsilon": spent(members[name]) if name in members else others,
            "ledger": ledger is not None,
            "total": None if ledger is None else ledger.epsilon,
            "exact": "" if ledger is None else ledger.exact,
            "runs": {} if ledger is None else ledger.told,
            "trouble": "" if ledger is None else ledger.trouble,
        }


def _refusals(course: Course) -> Iterator[Json]:
    for entry in course.refused:
        date = entry.date or f"{entry.at:.1f} s"
        yield {"date": date, "what": entry.what, "text": words(entry)}
