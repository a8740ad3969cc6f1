"""Moves every group as far as it can go now: the one loop that all events of a coordinator end in.

Every step returns what its group waits for. Here alone that is stored, beside the fold of the
journal: a step without a reason leaves the words of its records.
"""

from __future__ import annotations

from collections.abc import Iterator

from secureps.messages.evaluation import EVALUATION
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator import (
    asynchronous,
    checkpointing,
    commit,
    departures,
    envelope_checks,
    evaluation,
    founding,
    key_release,
    opening,
    overdue,
    resharding,
    succession,
    synchronous,
    termination,
)
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction


def advance(tx: Transaction) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if tx.federation.pinned is None or tx.federation.finished:
        return None
    leaves = departures.leave(tx)
    resharding.advance(tx)
    founding.choose_founder(tx)
    if evaluation.unkept(tx) and not resharding.due(tx):
        checkpointing.order(tx)  # a round may wait for it
    paused = tx.federation.acted.paused or resharding.due(tx) or checkpointing.awaited(tx)
    untils = [_advance_group(tx, group, paused) for group in tx.federation.groups.values()]
    untils += (leaves, _await_evaluator(tx))
    if not resharding.due(tx):
        checkpointing.order(tx)
    key_release.release(tx)
    if tx.federation.moving.target is None:
        termination.finish(tx)
    untils.append(overdue.look(tx))
    return min((until for until in untils if until is not None), default=None)


def _advance_group(tx: Transaction, group: GroupState, paused: str) -> float | None:
    until = None
    for waits in _steps(tx, group, paused):
        group.reason, until = waits.reason or group.reason, waits.until
    return until


def _steps(tx: Transaction, group: GroupState, paused: str) -> Iterator[Wait]:
    yield Wait(None, tx.reasons.get(group.name, ""))
    succession.settle(tx, group)
    envelope_checks.settle(tx, group)
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
    """Whether a group stays between two versions while the run pauses, or blocks move.

    A cohort that is closed comes to its version all the same.
    """
    return group.phase in (Phase.WAITING, Phase.COLLECTING) and not termination.over(tx, group)


def _await_evaluator(tx: Transaction) -> float | None:
    """At the end of a run no round waits for a designated evaluator; the end does."""
    at = evaluation.due(tx)
    if EVALUATION in tx.federation.groups or not at:
        return None
    if not all(termination.over(tx, group) for group in tx.federation.model_groups):
        return None
    held = evaluation.await_evaluator(tx, at)
    return tx.now if held is None else held.until
