"""Builds the operator's page and the privacy officer's.

The operator's page has scores, what the run waits for, its six steps, parties and bytes; the
officer's the plan explained, and what was spent, opened and refused. A viewer who may not see
clients' names gets none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from secureps.audit.page import describe
from secureps.dashboard import Json
from secureps.dashboard.holder_view import OwnLedger
from secureps.dashboard.observation import (
    ENDED,
    HERE,
    NOT_KNOWN,
    SILENT,
    Course,
    Facts,
    Seen,
    merge_costs,
    presence,
    scores_view,
)
from secureps.messages.records import describe_starts
from secureps.messages.requests import GroupStatus, Holding, MemberStatus, ServerStatus, Status
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.roles.shard.memory_report import memory_used
from secureps.run.report.status_tables import STATES, epsilon_text, epsilon_title, state_word
from secureps.run.report.terminal import move_text
from secureps.service.metrics import hide_names
from secureps.wording import counted, named

STEPS = ("close", "hold", "open", "prepare", "commit", "publish")
"""The six steps of a version, as `docs/architecture.md` has them."""

AT = {"collecting": 1, "holding": 2, "opening": 3, "preparing": 4, "waiting": 6, "done": 6}
"""A group's step by its phase; 0 before version 0. Commit and publish are too short to be seen, so
between versions all six steps are done."""

ROWS = 200
"""The most clients on a page, those first that an operator may have to look after."""

NAMED = 20
"""Largest number of blockers that are named; a group's row has their number."""


def operator_view(facts: Facts, names: bool) -> Json:
    """Builds the page of `site/operator.js`; `names`: the viewer may see clients' names.

    `calm` is said if no party is to blame for waiting. `fresh`: the coordinator has just said who
    is there. `asked`: the run's state is known. `burnt` has burnt cohorts of the coordinator's
    journal, else those of the `timeline`. `up` and `down`, in bytes, are of all versions if
    `whole`, else of those since the dashboard began.
    """
    seen, course, plan, report = facts.seen, facts.course, facts.plan, facts.report
    if not names and seen.silent:  # this text may name a client
        seen = replace(seen, silent="it has ended" if seen.over else "the coordinator is silent")
    status = seen.status
    members = status.members if status is not None else ()
    founded = status is not None and bool(status.run)
    steps = status.steps if status is not None else ()
    burnt = [each for each in reversed(steps) if each.ended in BURNT]
    if course is not None:
        burnt = list(course.burnt)
    found, costs = blockers(seen, plan), merge_costs(seen, report)
    calm = "All who are waited for are at work." if found else "Nobody keeps it waiting."
    calm = "Nobody is waited for." if seen.ended else calm
    up, down = (seen.up, seen.down) if report is None else (report.up, report.down)
    counted_bytes = report is not None or bool(costs) or seen.fresh
    page: Json = {
        "run": status.run.hex()[:16] if status is not None else "",
        "headline": _headline(seen),
        "calm": calm if seen.ended or seen.fresh else "",
        "over": seen.ended,
        "fresh": seen.fresh,
        "asked": status is not None or course is not None,
        "scores": scores_view(seen, report),
        "blocking": found[:NAMED],
        "steps": STEPS,
        "groups": [_group(g, plan, names) for g in (status.groups if status else ())],
        "parties": list(_parties(seen)),
        "clients": list(_clients(seen)) if names else [],
        "clients_title": epsilon_title(status.adjacency, status.delta)
        if status is not None
        else "",
        "states": dict(Counter(state_word(_state(member, seen)) for member in members)),
        "changes": seen.changes,
        "costs": costs,
        "up": up if counted_bytes else None,
        "down": down if counted_bytes else None,
        "whole": report is not None,
        "timeline": list(steps) if founded else None,
        "burnt": burnt if founded else None,
        "burnt_in_all": status.burnt if status is not None else 0,
        "checkpoint": status.checkpoint if status is not None else None,
        "paused": status.paused if status is not None else "",
        "move": move_text(status.move) if status and status.move is not None else "",
    }
    return page if names else _without_names(page, {member.name for member in members})


def _without_names(value: Any, clients: Collection[str]) -> Any:
    """Replaces clients' names, as whole words, in every text of a page.

    A client whose name is an ordinary word has that word hidden too: a missing word breaks no
    promise, a visible name would.
    """
    match value:
        case str():
            return "a client" if value in clients else hide_names(value, clients)
        case dict():
            return {key: _without_names(each, clients) for key, each in value.items()}
        case list() | tuple():
            return [_without_names(each, clients) for each in value]
    return _without_names(asdict(value), clients) if is_dataclass(value) else value  # type: ignore[arg-type]


PRESENT = ("trains", "waits", "gone")
"""States of a client that tell its presence."""

BURNT = ("burnt", "spoilt")
"""Ends of a cohort that is charged but never opened."""


def blockers(seen: Seen, plan: Plan | None) -> list[Json]:
    """Lists the parties that keep the run waiting: first the servers that it needs, then clients.

    A key holder is listed if fewer than the plan's threshold are there, and always before version
    0; a client if a group waits for its update. A party that is only at work is not `ill`.
    """
    status = seen.status
    if seen.ended:
        return []
    if seen.silent:  # only the coordinator knows who else is there
        return [_blocker(COORDINATOR, COORDINATOR, seen.silent, seen.silent_since)]
    if status is None or not seen.fresh:
        return []
    found = [
        _blocker(server.name, server.role, _trouble(server), seen.since.get(server.name))
        for server in _find_needed(status, plan)
    ]
    return [*found, *_find_late(seen, status)]


def _blocker(name: str, role: str, why: str, since: float | None, ill: bool = True) -> Json:
    return {"name": name, "role": role, "why": why, "since": since, "ill": ill}


def _find_needed(status: Status, plan: Plan | None) -> Iterator[ServerStatus]:
    founded = bool(status.run) and all(group.version >= 0 for group in status.groups)
    here = sum(server.live for server in status.servers if server.role == "holder")
    enough = plan is not None and founded and here >= plan.threshold
    placed = {holding.shard for holding in status.holdings if holding.blocks}
    for server in status.servers:
        spare = server.name == STANDBY or (server.role == "holder" and enough)
        if server.role == "shard" and placed and server.name not in placed:
            continue  # no block is placed on this shard, so the run does not need it
        if (not server.live and not spare) or server.trouble:
            yield server


def _trouble(server: ServerStatus) -> str:
    state = "" if server.live else "is away" if server.registered else "was never here"
    return "; ".join(filter(None, (state, server.trouble)))


def _find_late(seen: Seen, status: Status) -> Iterator[Json]:
    gone = {member.name: member for member in status.members if not member.live}
    late: dict[str, list[str]] = {}
    for group in status.groups:
        for name in group.late:
            late.setdefault(name, []).append(group.name)
    for name, groups in late.items():
        of = f" of {named(groups)}" if len(status.groups) > 1 else ""
        if name not in gone:
            yield _blocker(name, "client", f"owes an update{of}", None, ill=False)
            continue
        why = f"owes an update{of}, and is {state_word(gone[name].state)}"
        yield _blocker(name, "client", why, seen.since.get(name))


def _headline(seen: Seen) -> str:
    status = seen.status
    # `up` knows more about its run's end, for example that the report is missing
    known = not seen.over or seen.silent == (status and status.finished)
    if status is not None and status.finished and known:
        return f"{'failed' if status.failure else 'finished'}: {status.finished}"
    if seen.silent:
        return seen.silent
    if status is None:
        return "no status yet"
    if seen.recalled:
        return "this is by the coordinator's journal: nobody was asked how the run stands now"
    reasons = dict.fromkeys(group.reason for group in status.groups)
    return " / ".join(reasons) or "waits for the coordinator's plan"


def _group(group: GroupStatus, plan: Plan | None, names: bool) -> Json:
    wanted = plan.versions(group.name) if plan is not None and group.name in plan.groups else None
    return {
        "name": group.name,
        "version": group.version,
        "wanted": wanted,
        "step": AT.get(group.step, 0),
        "phase": group.step,
        "reason": group.reason,
        "late": group.late[:ROWS] if names else (),
        "late_in_all": len(group.late),
    }


def _party(name: str, role: str, state: str, since: float | None, detail: str) -> Json:
    return {"name": name, "role": role, "state": state, "since": since, "detail": detail}


def _parties(seen: Seen) -> Iterator[Json]:
    status = seen.status
    yield _coordinator(seen)
    if status is None:
        return
    held = {holding.shard: holding for holding in status.holdings}
    used, states = memory_used(status.telemetry), presence(status)
    for server in status.servers:
        if server.name == COORDINATOR:
            continue
        parts = [server.trouble]
        if server.role == "shard" and held:
            own = held.get(server.name, Holding(server.name, 0, 0))
            parts.insert(0, counted(own.blocks, "block"))
            parts.insert(1, used[server.name].told if server.name in used else "")
        detail = "; ".join(filter(None, parts))
        since = seen.since.get(server.name) if seen.fresh else None
        state = _state_now(states[server.name][1], seen)
        yield _party(server.name, server.role, state, since, detail)


def _coordinator(seen: Seen) -> Json:
    """Builds the coordinator's row; it is silent only if the run continues and it was asked."""
    if seen.silent and not seen.ended:
        return _party(COORDINATOR, COORDINATOR, SILENT, seen.silent_since, seen.silent)
    since = seen.since.get(COORDINATOR) if seen.fresh else None
    detail = ""
    if seen.status is not None:
        troubles = (each.trouble for each in seen.status.servers if each.name == COORDINATOR)
        detail = next(troubles, "") or describe_starts(seen.status.incarnation)
    return _party(COORDINATOR, COORDINATOR, _state_now(HERE, seen), since, detail)


def _state_now(state: str, seen: Seen) -> str:
    return ENDED if seen.ended else state if seen.fresh else NOT_KNOWN


def _clients(seen: Seen) -> Iterator[Json]:
    members = seen.status.members if seen.status is not None else ()
    states = {member.name: _state(member, seen) for member in members}
    order = sorted(members, key=lambda m: (STATES.index(state_word(states[m.name])), m.name))
    for each in order[:ROWS]:
        since, live = (seen.since.get(each.name), each.live) if seen.fresh else (None, None)
        yield {
            "name": each.name,
            "state": states[each.name],
            "live": live,
            "since": since,
            "updates": each.submissions,
            "epsilon": epsilon_text(each),
        }


def _state(member: MemberStatus, seen: Seen) -> str:
    """Returns a client's state; "not known" if the state tells a presence that is not current."""
    tells_presence = state_word(member.state) in (*PRESENT, NOT_KNOWN)
    return _state_now(member.state, seen) if tells_presence else member.state


# --- officer view ------------------------------------------------------------------


def officer_view(facts: Facts) -> Json:
    """Builds the page of `site/officer.js`; None stands for what is not available."""
    seen, course = facts.seen, facts.course
    unit, delta = _protected(seen.status, facts.plan)
    return {
        "explanation": facts.explanation,
        "unit": unit,
        "delta": delta,
        "clients": list(_spent_by_client(seen, facts.ledgers)),
        "costs": [cost for cost in merge_costs(seen, facts.report) if cost["epsilon"] is not None],
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


def _spent_by_client(seen: Seen, ledgers: Mapping[str, OwnLedger]) -> Iterator[Json]:
    """Yields what each client spent in this run, and in all runs if its ledger is here."""
    members = {m.name: m for m in seen.status.members} if seen.status is not None else {}
    others = (
        NOT_KNOWN if seen.status is None else "never joined" if seen.ended else "has not joined"
    )
    for name in sorted(members.keys() | ledgers.keys()):
        ledger = ledgers.get(name)
        yield {
            "name": name,
            "epsilon": epsilon_text(members[name]) if name in members else others,
            "ledger": ledger is not None,
            "total": None if ledger is None else ledger.epsilon,
            "exact": "" if ledger is None else ledger.exact,
            "runs": {} if ledger is None else ledger.told,
            "trouble": "" if ledger is None else ledger.trouble,
        }


def _refusals(course: Course) -> Iterator[Json]:
    for entry in course.refused:
        date = entry.date or f"{entry.at:.1f} s"
        yield {"date": date, "what": entry.what, "text": describe(entry)}
