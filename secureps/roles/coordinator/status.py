"""The status of the run, in words an operator understands: the answer to `AskStatus`.

The status has the newest reports of what versions cost. Parties report their own seconds and bytes.
The coordinator adds the size of each update, when it published each version and with which clip,
and how long it waited for each client's update. Reports are for people: no decision depends on
them, and a restart forgets them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from secureps.crypto.roster import Roster
from secureps.errors import Malformed
from secureps.messages import requests
from secureps.messages.coordinator_records import CohortClosed, VersionCommitted
from secureps.messages.evaluation import EvaluationSkipped, EvaluationStatus, Metric
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.messages.scaling import ScalingDecided, ScalingStatus, ScalingStep
from secureps.messages.submission import UPDATE
from secureps.model.layout import Layout
from secureps.policy.cohorts.suspicion import BELIEVED, accusation, count_spare, tally_doubts
from secureps.policy.spending import adjacency, total_epsilon
from secureps.roles.coordinator import envelopes, opening, reign, resharding, trailing
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import REVOKED, WHY, CoordinatorState
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import counted, group_by_reason, named

Servers = tuple[requests.ServerStatus, ...]

NOT_TAKEN = "cannot be taken as it is: the coordinator's log says why"
"""Follows the name of a server that waits for an operator (`transaction.refuse_once`)."""

HERE = ("trains", "waits")
"""States of a live client."""

ENDED, NOT_KNOWN = "ended", "not known"
"""States of a client after the run's end, and of a client that may or may not be live."""

SKIPPED = 20
"""Most skipped evaluations for which a status has the reason: the newest."""


def status(
    tx: Transaction, telemetry: tuple[requests.Telemetry, ...], servers: Servers = ()
) -> requests.Status:
    federation = tx.federation
    pinned, privacy, gone = federation.pinned, tx.plan.section.privacy, federation.moving.left
    return requests.Status(
        run=pinned.run.id if pinned is not None else b"",
        incarnation=federation.incarnation,
        finished=federation.finished,
        groups=tuple(_group(tx, group, servers) for group in federation.model_groups),
        members=tuple(_member(tx, name) for name in sorted(federation.members)),
        shards=tuple(at for name, at in sorted(federation.shards.items()) if name not in gone),
        telemetry=telemetry,
        holdings=() if pinned is None else tuple(_holdings(federation, tx.layout)),
        evaluation=_evaluation(tx, servers),
        servers=servers,
        failure=federation.failure,
        adjacency=adjacency(tx.plan),
        delta=0.0 if privacy is None else privacy.delta,
        paused="" if federation.finished else federation.paused,
        steps=federation.timeline.steps,
        burnt=federation.timeline.burnt_in_all,
        move=None if federation.finished else resharding.measure_move(tx),
        scaling=_scaling_status(tx),
        checkpoint=next((c.number for c in reversed(federation.checkpoints) if c.complete), None),
    )


def _evaluation(tx: Transaction, servers: Servers) -> EvaluationStatus | None:
    if tx.plan.section.evaluation is None:
        return None
    state, own = tx.federation.trail, tx.trailing
    late: tuple[str, ...] = ()
    step, reason = "waiting", "between evaluations"
    if own is not None:
        under_way = _group(tx, own, servers)
        step, reason, late = under_way.step, under_way.reason, under_way.late
    elif at := tx.evaluation_due():
        step, reason, late = "judging", f"evaluates version {at}", (tx.plan.evaluator,)
    best, versions = trailing.best_version(tx), sorted(state.skipped)
    explained = versions[-SKIPPED:]
    skipped = tuple(
        EvaluationSkipped(each, state.skipped[each][:WHY] if each in explained else "")
        for each in versions
    )
    noise = tuple(Metric(name, value) for name, value in tx.plan.metric_noise.items())
    return EvaluationStatus(step, reason, late, state.newest, best, skipped, noise)


def _holdings(federation: CoordinatorState, layout: Layout) -> Iterator[requests.Holding]:
    placement = federation.placement
    for shard in placement.shards:
        spans = [
            group.span(block)
            for group in layout.groups
            for block in placement.blocks_of(group.name, shard)
        ]
        values = sum(stop - start for start, stop in spans)
        yield requests.Holding(shard, len(spans), 4 * values)


def clip_of(tx: Transaction, group: GroupState) -> float | None:
    section = tx.plan.group(group.name)
    if group.scale is None or section.adaptive is None:
        return None
    return group.scale * section.clip


def servers(tx: Transaction) -> Servers:
    """Returns the roster's shards and holders; once the run is placed, only shards that came.

    The coordinator is listed if something is wrong with its disk or its roster. Its standby is
    listed too, as live while it follows.
    """
    federation, here, roster = tx.federation, tx.sessions, tx.settings.roster
    spare = count_spare(len(roster.holders()), tx.plan.holders, tx.plan.threshold)
    accuse = tally_doubts(federation.accused, spare)
    gone = federation.moving.left
    shards = roster.names("shard") if federation.pinned is None else federation.shards
    found = [
        requests.ServerStatus(
            each.name,
            each.role,
            each.name in (federation.shards if each.role == "shard" else here.holders),
            each.name in here.watchers,
            accuse[each.name],
            _join_troubles(
                here.troubles.get(each.name),
                here.overdue.get(each.name),
                _describe_other_roster(roster, here.epochs.get(each.name)),
                NOT_TAKEN if each.name in here.elsewhere else None,
                f"has left: {gone[each.name]}" if each.name in gone else None,
            ),
        )
        for each in roster.certificates
        if each.role == "holder" or each.name in shards
    ]
    if own := _join_troubles(here.troubles.get(COORDINATOR), here.roster):
        found.append(requests.ServerStatus(COORDINATOR, COORDINATOR, True, True, trouble=own))
    if federation.reigns.followed:
        found.append(requests.ServerStatus(STANDBY, COORDINATOR, True, here.followed))
    return tuple(sorted(found, key=lambda each: each.name))


def _join_troubles(*troubles: str | None) -> str:
    return "; ".join(filter(None, troubles))


def _describe_other_roster(roster: Roster, known: int | None) -> str:
    """Describes a party's roster if it is not the coordinator's; empty if it is, or unknown."""
    if known in (None, roster.number):
        return ""
    return f"goes by roster {known}, and the coordinator by {roster.number}"


def describe_wait(tx: Transaction, group: GroupState, servers: Servers) -> str:
    """Says in one line what a group waits for: its reason, and the parties that are away.

    Servers are always needed; members are needed while a round waits for them. A holder that
    accuses more clients than it is believed of is named.
    """
    federation, reason, pinned = tx.federation, group.reason, tx.federation.pinned
    if pinned is not None:  # shards without blocks are not waited for
        servers = tuple(
            s for s in servers if s.role != "shard" or s.name in pinned.placement.shards
        )
    if group.phase is Phase.FOUNDING:
        reason = f"not founded: waits for {_describe_lacking(tx, group, servers)}"
    ill = (f"{each.name} {each.trouble}" for each in servers if each.trouble)
    reason = "; ".join([reason, *ill])
    if group.phase is Phase.DONE or pinned is None:
        return reason
    out = {name: why for name, why in group.absences.items() if name not in group.invited}
    if out and group.phase is Phase.COLLECTING:
        reason = f"{reason}; without: {group_by_reason(out)}"
    many = (server for server in servers if server.accuses > BELIEVED)
    reason = "; ".join([reason, *(f"{each.name} {accusation(each.accuses)}" for each in many)])
    names = [server.name for server in servers if not server.live and server.role != COORDINATOR]
    away = federation.members.keys() - tx.live if group.phase is Phase.WAITING else set[str]()
    names += sorted(away - federation.why_gone.keys())
    stopped = sorted(away & federation.retired)
    gone = federation.why_gone
    failed = sorted(n for n in away & gone.keys() if gone[n].startswith(requests.FAILED))
    rest = sorted((away & gone.keys()) - federation.retired - set(failed))
    absent = (
        f"{named(names)} {'is' if len(names) == 1 else 'are'} away" if names else "",
        f"{named(stopped)} stopped" if stopped else "",
        f"{named(failed)} failed" if failed else "",
        f"{named(rest)} {'rests' if len(rest) == 1 else 'rest'}" if rest else "",
    )
    return "; ".join([reason, *filter(None, absent)])


def _describe_lacking(tx: Transaction, group: GroupState, servers: Servers) -> str:
    """Says what version 0 waits for: first servers, then a model, then the shards' work."""
    plan, federation = tx.plan, tx.federation
    if federation.pinned is None:
        enough = len(federation.shards) >= plan.section.shards
        absent = [s for s in servers if not s.registered and not (enough and s.role == "shard")]
        client = "" if plan.section.initial is not None else "a first client"
        parts = [", ".join(server.name for server in absent), client]
        return " and ".join(part for part in parts if part) or "its servers"
    if group.receipts or plan.is_given(group.name):
        made = group.coming
        makers = [shard for shard in federation.owners(group.name) if shard not in made]
        return f"{named(makers)} to make version 0"
    return f"the first model of {federation.founder or 'a client'}"


def _group(tx: Transaction, group: GroupState, servers: Servers) -> requests.GroupStatus:
    late = [name for name in sorted(tx.federation.members) if group.awaits(name)]
    over = group.phase is Phase.WAITING and tx.is_over(group)  # though others go on
    phase, clip = (Phase.DONE if over else group.phase).value, clip_of(tx, group)
    reason = describe_wait(tx, group, servers)
    ill = (f"{name} {tx.sessions.troubles[name]}" for name in late if name in tx.sessions.troubles)
    reason = "; ".join([reason, *ill])
    if stuck := envelopes.describe_stuck(tx, group):
        reason = f"{reason}; {stuck}"
    if others := opening.other_holders(tx, group):
        reason = f"{reason}; {others}"
    if not tx.federation.finished and (waits := reign.describe_wait(tx)):
        reason = f"{waits}; {reason}"
    return requests.GroupStatus(group.name, group.version, phase, reason, tuple(late), clip)


def _member(tx: Transaction, name: str) -> requests.MemberStatus:
    federation = tx.federation
    live = name in tx.live
    owes = any(group.awaits(name) for group in federation.groups.values())
    trains, waits = HERE
    state, away = (trains if owes else waits), "gone"
    if federation.finished:
        state = away = ENDED
    if (reason := federation.why_gone.get(name)) is not None:
        away = "stopped" if name in federation.retired else "rests"
        if reason.startswith(requests.FAILED):
            away = reason
        elif reason:
            away += f": {reason}"
    if (out := federation.isolated.get(name)) is not None:
        state = away = "revoked" if out == REVOKED else "left out"
        if name in federation.left_out:
            state = away = f"{state}: {out}"
    state = state if live else away
    if (trouble := tx.sessions.troubles.get(name)) and not federation.finished:
        state = f"{state}: {trouble}"
    return requests.MemberStatus(
        name=name,
        live=live,
        state=state,
        submissions=federation.included[name],
        charges=federation.ledger.count(name),
        epsilon=_epsilon(tx, name),
        unsafe=federation.is_unprotected(name),
    )


def most_spent(tx: Transaction) -> float | None:
    if tx.plan.section.privacy is None:
        return None
    return max((_epsilon(tx, name) for name in tx.federation.members), default=0.0)


def _epsilon(tx: Transaction, name: str) -> float:
    privacy = tx.plan.section.privacy
    if privacy is None or tx.federation.is_unprotected(name):
        return math.inf  # noise that others may know protects nothing
    ledger = tx.federation.ledger
    known = ledger.count(name)
    return tx.remember(("spent", name), known, lambda: total_epsilon(tx.plan, ledger.tally(name)))


KEPT = 4096
"""Most reports that a status has: the newest."""

MOST = 1e15
"""Largest figure of a party (a petabyte), so that sums of figures stay finite."""


class Window:
    """The newest reports, in the order in which they came."""

    def __init__(self) -> None:
        self._reports: deque[requests.Telemetry] = deque(maxlen=KEPT)

    @property
    def newest(self) -> tuple[requests.Telemetry, ...]:
        return tuple(self._reports)

    def take(self, report: requests.Telemetry, groups: Mapping[str, GroupState]) -> None:
        """Keeps a party's own report, unless it is of a version that is not in the making yet."""
        names = [figure.name for figure in report.figures]
        if report.group not in groups:
            raise Malformed(f"no group is called {report.group!r}")
        if len(names) > 16 or any(len(name) > 64 for name in names):
            raise Malformed("telemetry has at most 16 figures, with names of 64 letters")
        if wrong := {requests.WAITED, requests.ARRIVED, requests.UP}.intersection(names):
            raise Malformed(f"{min(wrong)} is the coordinator's figure, not a party's")
        if not all(0 <= figure.value <= MOST for figure in report.figures):
            raise Malformed(f"telemetry has seconds and bytes: from 0 to {MOST:g}")
        # Reports of arbitrary versions would fill the memory of a reader that keeps all of them.
        # Two versions ahead are allowed: a restarted coordinator may be behind its shards.
        if 0 <= report.version <= groups[report.group].version + 2:
            self._reports.append(report)

    def measure(self, tx: Transaction) -> None:
        for record in tx.step.records:
            match record:
                case requests.Submit(receipt):
                    client, group, made = receipt.id.client, receipt.id.group, receipt.version + 1
                    if receipt.purpose == UPDATE:
                        size = (requests.Figure(requests.UP, float(receipt.size)),)
                        self._reports.append(
                            requests.Telemetry(client, group, made, size, receipt.step)
                        )
                    self._waited(tx, group, (client,), arrived=True)
                case CohortClosed(cohort):
                    own = tx.federation.groups[cohort.group]
                    late = sorted(own.invited - own.open_receipts.clients.keys())
                    self._waited(tx, cohort.group, late, arrived=False)
                case VersionCommitted(name, version):
                    clip, spent = clip_of(tx, tx.federation.groups[name]), most_spent(tx)
                    known = {requests.PUBLISHED: tx.now, requests.CLIP: clip, requests.SPENT: spent}
                    figures = tuple(
                        requests.Figure(n, v) for n, v in known.items() if v is not None
                    )
                    self._reports.append(requests.Telemetry(COORDINATOR, name, version, figures))

    def _waited(self, tx: Transaction, name: str, clients: Iterable[str], arrived: bool) -> None:
        group = tx.federation.groups[name]
        if group.opened_at is None:
            return  # the founding model, or the round was given up in this transaction
        seconds = requests.Figure(requests.WAITED, tx.now - group.opened_at)
        figures = (seconds, requests.Figure(requests.ARRIVED, float(arrived)))
        for client in clients:
            self._reports.append(requests.Telemetry(client, name, group.version + 1, figures))


def _scaling_status(tx: Transaction) -> ScalingStatus | None:
    section, scaled = tx.plan.section.scaling, tx.federation.scaled
    if section is None:
        return None
    last = scaled.decided[-1][1] if scaled.decided else None
    return ScalingStatus(
        policy=section.policy,
        off=scaled.off,
        deadline=scaled.deadline,
        buffer=scaled.buffer,
        loads=last.loads if last else (),
        steps=tuple(
            ScalingStep(at, describe_decision(record), record.reason)
            for at, record in scaled.decided
        ),
        reward=last.reward if last else 0.0,
        lost=last.lost if last else 0.0,
    )


def describe_decision(record: ScalingDecided) -> str:
    if record.blocks:
        return f"balance {counted(len(record.blocks), 'block')}"
    if record.what:
        return f"{record.what} {record.shard}"
    if (record.deadline, record.buffer) != (1.0, 1.0):
        return f"deadline x {record.deadline:.2f}, buffer x {record.buffer:.2f}"
    return "as planned"
