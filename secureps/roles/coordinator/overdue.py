"""Names servers that owe an answer for longer than the plan's deadline.

A server that hangs keeps its connection, and all others wait for it. The status and the log of the
coordinator say for whom, and for what.
"""

from __future__ import annotations

from collections.abc import Iterator

from secureps.roles.coordinator import checkpointing, opening
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Say

Step = tuple[str, int, str]
"""Of a group (or none): a version or checkpoint, and what is owed for it."""


def look(tx: Transaction) -> float | None:
    """Notes who is overdue, and says so once; returns when somebody may come to be."""
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
            silent = tuple(s for s in owners if s not in group.coming.blocks)
            return (group.name, version, "its part of version"), silent
        case Phase.FOUNDING if tx.plan.given(group.name):
            silent = tuple(s for s in owners if s not in group.coming.blocks)
            return (group.name, version, "its part of version"), silent
    return (group.name, version, ""), ()
