"""Moves every group as far as it can go now: the one loop that all events of a coordinator end in.

Every step returns what its group waits for. Here alone that is stored, beside the fold of the
journal: a step without a reason leaves the words of its records. What must not live here: what any
step does (`roles.coordinator.synchronous`,
`roles.coordinator.asynchronous`, `roles.coordinator.commit`).
"""

from __future__ import annotations

from collections.abc import Iterator

from secureps.messages.coordinator_records import FounderChosen
from secureps.messages.evaluation import EVALUATION
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator import (
    asynchronous,
    checkpointing,
    commit,
    evaluation,
    opening,
    synchronous,
    termination,
)
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction


def advance(turn: Transaction) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if turn.federation.pinned is None or turn.federation.finished:
        return None
    _choose_founder(turn)
    if evaluation.unkept(turn):
        checkpointing.order(turn)  # a round may wait for it
    untils = [_advance_group(turn, group) for group in turn.federation.groups.values()]
    untils.append(_await_evaluator(turn))
    checkpointing.order(turn)
    termination.finish(turn)
    return min((until for until in untils if until is not None), default=None)


def _advance_group(turn: Transaction, group: GroupState) -> float | None:
    until = None
    for waits in _steps(turn, group):
        group.reason, until = waits.reason or group.reason, waits.until
    return until


def _steps(turn: Transaction, group: GroupState) -> Iterator[Wait]:
    yield Wait(None, turn.reasons.get(group.name, ""))
    if group.name == EVALUATION:
        yield synchronous.open_evaluation(turn, group)
    elif not turn.plan.bounds(group.name).rounds:
        if group.version >= 0:
            yield asynchronous.advance(turn, group)
    elif group.phase is Phase.WAITING and not termination.over(turn, group):
        yield synchronous.open_round(turn, group)
    if group.phase is Phase.OPENING and opening.wanted(turn.plan):
        yield commit.try_answers(turn, group)
    if group.phase is Phase.COLLECTING and not group.streaming:
        yield synchronous.decide(turn, group)


def _choose_founder(turn: Transaction) -> None:
    federation = turn.federation
    founding = [g for g in federation.groups.values() if g.phase is Phase.FOUNDING]
    waiting = [g for g in founding if not turn.plan.given(g.name)]
    if not any(not g.receipts for g in waiting):
        return
    if federation.founder not in turn.trainers:
        candidates = [client for client in federation.members if client in turn.trainers]
        if candidates:
            turn.write(FounderChosen(candidates[0]))
            for group in [g for g in waiting if not g.receipts]:
                turn.order(
                    federation.founder, synchronous.make_invite(turn, group, federation.founder)
                )


def _await_evaluator(turn: Transaction) -> float | None:
    """At the end of a run no round waits for a designated evaluator; the end does."""
    at = evaluation.due(turn)
    if EVALUATION in turn.federation.groups or not at:
        return None
    if not all(termination.over(turn, group) for group in turn.federation.model_groups):
        return None
    held = evaluation.await_evaluator(turn, at)
    return turn.now if held is None else held.until
