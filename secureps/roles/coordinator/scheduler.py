"""Moves every group as far as it can go now: the one loop that all events of a coordinator end in.

Every step returns what its group waits for, and only here is that stored: a step without a reason
leaves the words of its records. A server that hangs keeps its connection, and all others wait for
it: at the end of the loop, servers that owe an answer for longer than the plan's deadline are
named.
"""

from __future__ import annotations

from collections.abc import Iterator

from secureps.messages.evaluation import EVALUATION
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator import (
    asynchronous,
    checkpointing,
    commit,
    envelopes,
    evaluation,
    founding,
    opening,
    resharding,
    synchronous,
    termination,
)
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Say


def advance(tx: Transaction) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if tx.federation.pinned is None or tx.federation.finished:
        return None
    leaves = resharding.leave(tx)
    resharding.advance(tx)
    founding.choose_founder(tx)
    if evaluation.unkept(tx) and not resharding.due(tx):
        checkpointing.order(tx)  # a round may wait for it
    paused = tx.federation.paused or resharding.due(tx) or checkpointing.awaited(tx)
    untils = [_advance_group(tx, group, paused) for group in tx.federation.groups.values()]
    untils += (leaves, _await_evaluator(tx))
    if not resharding.due(tx):
        checkpointing.order(tx)
    envelopes.release(tx)
    if tx.federation.coming is None:
        termination.finish(tx)
    untils.append(look(tx))
    return min((until for until in untils if until is not None), default=None)


def _advance_group(tx: Transaction, group: GroupState, paused: str) -> float | None:
    until = None
    for waits in _steps(tx, group, paused):
        group.reason, until = waits.reason or group.reason, waits.until
    return until


def _steps(tx: Transaction, group: GroupState, paused: str) -> Iterator[Wait]:
    yield Wait(None, tx.reasons.get(group.name, ""))
    envelopes.give_up_lost(tx, group)
    envelopes.leave_out_doubted(tx, group)
    paused = paused if _between(tx, group) else ""
    if paused:
        yield Wait(None, paused)
    elif group.name == EVALUATION:
        yield synchronous.open_evaluation(tx, group)
    elif not tx.plan.bounds(group.name).rounds:
        if group.version >= 0:
            yield asynchronous.advance(tx, group)
    elif group.phase is Phase.WAITING and not termination.over(tx, group):
        yield synchronous.open_round(tx, group)
    if group.phase is Phase.OPENING and opening.wanted(tx.plan):
        yield commit.try_answers(tx, group)
    if group.phase is Phase.COLLECTING and not group.streaming and not paused:
        yield synchronous.decide(tx, group)


def _between(tx: Transaction, group: GroupState) -> bool:
    """Whether a group is between two versions, where a pause or a move of blocks holds it.

    A cohort that is closed comes to its version all the same.
    """
    return group.phase in (Phase.WAITING, Phase.COLLECTING) and not termination.over(tx, group)


def _await_evaluator(tx: Transaction) -> float | None:
    """Has the end of a run wait for a designated evaluator: no round does any more."""
    at = evaluation.due(tx)
    if EVALUATION in tx.federation.groups or not at:
        return None
    if not all(termination.over(tx, group) for group in tx.federation.model_groups):
        return None
    held = evaluation.await_evaluator(tx, at)
    return tx.now if held is None else held.until


Step = tuple[str, int, str]
"""Of a group (or none): a version or checkpoint, and what is owed for it."""


def look(tx: Transaction) -> float | None:
    """Notes which servers are overdue, and says so once; returns when another one may be."""
    sessions, names, until = tx.sessions, dict[str, str](), list[float]()
    owed = {step: parties for step, parties in _owed(tx) if parties}
    sessions.steps = {step: sessions.steps.get(step, tx.now) for step in owed}
    for (group, version, what), parties in owed.items():
        deadline = tx.plan.group(group or tx.plan.groups[0]).rule.deadline
        end = sessions.steps[group, version, what] + deadline
        if tx.now < end:
            until.append(end)
            continue
        text = f"owes {what} {version} for more than {deadline:g} s, the plan's deadline"
        names |= {party: text for party in parties if party in tx.watchers}
    for party in sorted(names.keys() - sessions.overdue.keys()):
        tx.step.effects.append(Say(f"{party} {names[party]}"))
    sessions.overdue = names
    return min(until, default=None)


def _owed(tx: Transaction) -> Iterator[tuple[Step, tuple[str, ...]]]:
    for group in tx.federation.groups.values():
        yield _owed_of(tx, group)
    if parts := checkpointing.parts_due(tx):
        yield ("", tx.federation.checkpoints[-1].number, "its part of checkpoint"), parts


def _owed_of(tx: Transaction, group: GroupState) -> tuple[Step, tuple[str, ...]]:
    owners, version = tx.federation.owners(group.name), group.version + 1
    match group.phase:
        case Phase.HOLDING if group.making is not None:
            silent = tuple(s for s in owners if s not in group.making.held)
            return (group.name, version, "its sums for version"), silent
        case Phase.OPENING if opening.wanted(tx.plan):
            return (group.name, version, "its share for version"), opening.silent(tx, group)
        case Phase.OPENING:
            return (group.name, version, "the opened sums for version"), tx.holders
        case Phase.PREPARING:
            silent = tuple(s for s in owners if s not in group.coming)
            return (group.name, version, "its part of version"), silent
        case Phase.FOUNDING if tx.plan.given(group.name):
            silent = tuple(s for s in owners if s not in group.coming)
            return (group.name, version, "its part of version"), silent
    return (group.name, version, ""), ()
