"""Observations of a run: presence of parties, costs of versions, its course, and its scores.

`Facts` has all of it that pages are made of.

Time is an argument: Unix seconds.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from secureps.audit.entries import KINDS, Entry, entries
from secureps.dashboard import Json
from secureps.dashboard.holder_view import OwnLedger
from secureps.errors import DamagedStore
from secureps.messages import coordinator_records as records
from secureps.messages.evaluation import EvaluationStatus
from secureps.messages.records import Dated, RunPinned
from secureps.messages.requests import SPENT, UP, CohortSteps, OpenRefused, Status
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles.coordinator import status as status_words
from secureps.roles.coordinator.state import KEPT_STEPS
from secureps.run.report.status_tables import skip_lines
from secureps.run.report.version_metrics import DOWN, SECONDS, Totals, split_scores
from secureps.store.act_lines import ActLine
from secureps.store.journal_rows import Row
from secureps.wording import named

KEPT = 40
"""Number of newest changes, and of a group's newest versions, that are kept."""

HERE, AWAY, AWAITED, SILENT = "here", "away", "awaited", "silent"
ENDED, NOT_KNOWN = status_words.ENDED, status_words.NOT_KNOWN


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations up to one moment.

    Args:
        status: the last one; None before the first.
        silent: why the last question had no answer; empty if it had one.
        silent_since: when the first question had none.
        over: no answer will come any more.
        recalled: the status is the journal's, which does not say who is there now.
        since: by party, the time of its last change.
        changes: of parties' presence, newest first: time, state, the state before and its seconds.
        costs: of versions (`build_cost`), oldest first.
        up, down: bytes of all versions.
    """

    status: Status | None = None
    silent: str = ""
    silent_since: float | None = None
    over: bool = False
    recalled: bool = False
    since: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[Json, ...] = ()
    costs: tuple[Json, ...] = ()
    up: float = 0.0
    down: float = 0.0

    @property
    def ended(self) -> bool:
        """True if the run has finished, or no process plays it any more."""
        return self.over or (self.status is not None and bool(self.status.finished))

    @property
    def fresh(self) -> bool:
        """True if the status is current: only then it says who is there."""
        return not (self.status is None or self.silent or self.recalled or self.ended)


def add_journal(seen: Seen, recalled: Status | None) -> Seen:
    """Uses the journal's status if the coordinator gave none, or gave its last before the end."""
    if recalled is None or (seen.status is not None and not seen.over):
        return seen
    return replace(seen, status=recalled, recalled=True)


def presence(status: Status) -> dict[str, tuple[str, str]]:
    """Returns the role and the presence of every party, in one word or with a reason."""
    found = {COORDINATOR: (COORDINATOR, HERE)}
    for server in status.servers:
        state = HERE if server.live else AWAY if server.registered else AWAITED
        if status.has_ended(server):
            state = ENDED
        found[server.name] = (server.role, state)
    for member in status.members:
        found[member.name] = ("client", HERE if member.live else member.state)
    return found


class Observation:
    """Collects statuses; not thread-safe."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._known: dict[str, tuple[str, str]] = {}
        self.seen = Seen()

    def take(self, status: Status, now: float) -> Seen:
        self._totals.add(status.telemetry)
        self._note(presence(status), now)
        self.seen = replace(
            self.seen,
            status=status,
            silent="",
            silent_since=None,
            over=False,
            costs=self._costs(status),
            up=self._totals.total(UP),
            down=self._totals.total(DOWN),
        )
        return self.seen

    def miss(self, why: str, now: float, over: bool = False) -> Seen:
        """Notes that no status came; `over`: none will."""
        if self.seen.status is not None and not over:
            self._note(self._known | {COORDINATOR: (COORDINATOR, SILENT)}, now)
        since = self.seen.silent_since
        since = now if since is None else since
        self.seen = replace(self.seen, silent=why, silent_since=since, over=over)
        return self.seen

    def _note(self, found: dict[str, tuple[str, str]], now: float) -> None:
        since, changes = dict(self.seen.since), list(self.seen.changes)
        for party, (role, state) in found.items():
            before = self._known.get(party)
            if before == (role, state):
                continue
            if before is not None:
                seconds = now - since.get(party, now)
                change = {"at": now, "party": party, "role": role, "state": state}
                changes.insert(0, change | {"before": before[1], "seconds": seconds})
            since[party] = now
        self._known = found
        known = {party: at for party, at in since.items() if party in found}
        self.seen = replace(self.seen, since=known, changes=tuple(changes[:KEPT]))

    def _costs(self, status: Status) -> tuple[Json, ...]:
        found = []
        for group in status.groups:
            for version in range(max(1, group.version - KEPT + 1), group.version + 1):
                sums = self._totals.of_version(group.name, version)
                spent = self._totals.coordinators(SPENT, group.name, version)
                if sums or spent is not None:
                    found.append(build_cost(group.name, version, sums, spent))
        return tuple(found)


def build_cost(group: str, version: int, sums: Mapping[str, float], epsilon: float | None) -> Json:
    """Builds a version's cost for all parties: seconds by stage, bytes, the largest epsilon."""
    return {
        "group": group,
        "version": version,
        "seconds": {stage: sums.get(f"{stage}_seconds", 0.0) for stage in SECONDS},
        "up": sums.get(UP, 0.0),
        "down": sums.get(DOWN, 0.0),
        "epsilon": epsilon,
    }


# --- course ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """Facts of a coordinator's journal that its status lacks.

    Args:
        rows: how many it has.
        burnt: burnt cohorts, newest first.
        holders: by name, how many cohorts each helped to open, refused, and lied about.
        refused: refused or failed attempts, newest first.
    """

    rows: int = 0
    burnt: tuple[CohortSteps, ...] = ()
    holders: tuple[Json, ...] = ()
    refused: tuple[Entry, ...] = ()


def read_course(rows: Iterable[Row], burnt: Sequence[CohortSteps]) -> Course:
    """Collects a journal's rows; `burnt` has the newest burnt cohorts, oldest first."""
    run, last = b"", 0
    dated: Row | None = None
    holders = dict[str, Json]()
    refused = deque[Entry](maxlen=KEPT_STEPS)

    def count(names: Iterable[str], what: str, why: str = "") -> None:
        for name in names:
            fresh = {"name": name, "opened": 0, "refused": 0, "lied": 0, "why": ""}
            known = holders.get(name, fresh)
            holders[name] = known | {what: known[what] + 1, "why": why or known["why"]}

    for row in rows:
        last = row.seq
        match row.record:
            case RunPinned(info):
                run = info.id
            case Dated():
                dated = row
            case records.CohortOpened(holders=names):
                count(names or (), "opened")
            case OpenRefused(holder=name, reason=reason):
                count((name,), "refused", reason)
            case records.LiarsNamed(holders=names, reason=reason):
                count(names, "lied", reason)
            case _:
                pass
        told = KINDS.get(type(row.record))
        if told is not None and told.chapter == "refused":
            refused.extend(entries(run, filter(None, (dated, row))))
    counts = tuple(holders[name] for name in sorted(holders))
    return Course(last, tuple(reversed(burnt)), counts, tuple(reversed(refused)))


# --- scores of versions: the script's own, and the federation's evaluations --------


@dataclass(frozen=True, slots=True)
class Report:
    """The scores and costs of versions that `up` wrote.

    Args:
        scores: by version of the first group, the script's.
        costs: of the newest versions.
        up, down: bytes of all versions.
    """

    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    costs: tuple[Json, ...] = ()
    up: float = 0.0
    down: float = 0.0


def read_report(text: str) -> Report:
    """Parses metrics.jsonl; DamagedStore if it is none."""
    try:
        lines = [json.loads(line) for line in text.splitlines()]
        costs = [
            build_cost(line["group"], line["version"], line, line["epsilon"])
            for line in lines
            if line["version"] > 0
        ]
        scores = {
            line["version"]: split_scores(line)[0]
            for line in lines
            if line["group"] == lines[0]["group"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedStore(f"metrics.jsonl cannot be read: {error}") from None
    up, down = (sum(cost[way] for cost in costs) for way in ("up", "down"))
    judged = {version: own for version, own in scores.items() if own}
    newest = max((cost["version"] for cost in costs), default=0)
    return Report(judged, tuple(c for c in costs if c["version"] > newest - KEPT), up, down)


def merge_costs(seen: Seen, report: Report | None) -> tuple[Json, ...]:
    if report is None:
        return seen.costs
    known = {(cost["group"], cost["version"]): cost for cost in (*seen.costs, *report.costs)}
    return tuple(known[at] for at in sorted(known))


def scores_view(seen: Seen, report: Report | None) -> Json:
    """Builds the scores of the operator's page.

    Each `judged` version, newest first, has its metrics: `held_out` by the script's own `score`,
    `federated` on held-out records of members or of one evaluator. `noise` is the standard
    deviation of a federated metric. `nothing` says why no version was judged.
    """
    status = seen.status
    own = None if status is None else status.evaluation
    scores = {} if report is None else report.scores
    federated = {} if own is None else {each.version: each for each in own.results}
    best = 0 if own is None else own.best
    versions = sorted(scores.keys() | federated.keys(), reverse=True)
    kept = [each for number, each in enumerate(versions) if number < KEPT or each == best]
    judged = [
        {
            "version": version,
            "held_out": scores.get(version, {}),
            "federated": {m.name: m.value for m in federated[version].metrics}
            if version in federated
            else {},
            "best": 0 < version == best,
        }
        for version in kept
    ]
    return {
        "judged": judged,
        "noise": {} if own is None else {metric.name: metric.value for metric in own.noise},
        "notes": [] if own is None else list(_notes(own, seen.fresh)),
        "nothing": "" if judged else _nothing(seen, report),
    }


def _notes(own: EvaluationStatus, fresh: bool) -> Iterator[str]:
    evaluators = sorted({each.by for each in own.results if each.by})
    if evaluators:
        yield f"evaluated by {named(evaluators)}, in the clear"
    if fresh:
        yield f"evaluation {own.step}: {own.reason}"
    yield from skip_lines(own)


def _nothing(seen: Seen, report: Report | None) -> str:
    if seen.status is None and report is None:
        return "Not known: the coordinator has not answered, and no report is at hand."
    if seen.status is not None and seen.status.evaluation is None and report is None:
        return "The plan has no [evaluation], and no report of `secureps up` is at hand."
    return "No version was scored." if seen.ended else "No version is scored yet."


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that pages are made of; None: not available, or not yet.

    Args:
        asks: the coordinator is asked, so there is a run to show.
        owner: the client that has its own page here; empty without one.
        planned: id of the founded run that the plan is of; empty without one.
        recalled: the status from the coordinator's journal, if the coordinator gives none.
        report: what `up` wrote about its run's versions.
        logs: by audit log, its file, whether it is sound, and the result of `audit-log verify`.
        acts: done from here; None if none are allowed.
        offered: the allowed acts.
        troubles: by source, why it cannot be read.
    """

    asks: bool = False
    owner: str = ""
    seen: Seen = field(default_factory=Seen)
    plan: Plan | None = None
    planned: bytes = b""
    explanation: Mapping[str, object] | None = None
    course: Course | None = None
    recalled: Status | None = None
    report: Report | None = None
    own: Json | None = None
    ledgers: Mapping[str, OwnLedger] = field(default_factory=dict)
    logs: tuple[Json, ...] | None = None
    acts: tuple[ActLine, ...] | None = None
    offered: tuple[str, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
