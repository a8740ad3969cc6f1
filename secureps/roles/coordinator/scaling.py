"""What follows from the load: blocks move, shards come and go, deadlines and buffers change.

Row-blocks move as soon as it is known that shards have unlike much to do, and enough time has
passed since the last decision; once enough versions were made too, the plan's policy decides. Each
decision is journalled with its reason before anything is done about it, and never made again: a
restart measures anew. A shard comes and goes by the act by which an operator has it come and go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secureps.config.plan import BufferedSection, PrioritySection, ScalingSection, SyncSection
from secureps.errors import ConfigError, Refused, UnknownParty
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.evaluation import EVALUATION
from secureps.messages.run import Placement
from secureps.messages.scaling import BlockAssigned, ScalingDecided, ScalingStatus, ScalingStep
from secureps.policy.rules.registry import staleness_power
from secureps.policy.scaling.balance import balance
from secureps.policy.scaling.fitted import Fitted
from secureps.policy.scaling.policies import (
    Action,
    Fixed,
    Limits,
    Observation,
    Rule,
    ScalingPolicy,
    deed,
    stay,
)
from secureps.policy.tiers import room_to_make
from secureps.roles.coordinator import resharding
from secureps.roles.coordinator.load import Load
from secureps.roles.coordinator.scaled import BY_ITSELF
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import counted

LEAST_VERSIONS = 3
"""Versions of each group that clients send to, on average, between two decisions of a policy."""

POLICIES: dict[str, ScalingPolicy] = {"fixed": Fixed(), "rule": Rule(), "fitted": Fitted()}
"""By the name that a plan gives them."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """What is done, before it is journalled."""

    action: Action
    what: str = ""
    shard: str = ""
    blocks: tuple[BlockAssigned, ...] = ()

    def changes(self, seen: Observation) -> bool:
        """Whether anything is another way from now on."""
        moved = self.action.deadline != seen.deadline or self.action.buffer != seen.buffer
        return moved or bool(self.what or self.blocks)


def advance(tx: Transaction, load: Load) -> None:
    """Decides, if it is time and there is something to go by."""
    section, federation = tx.plan.section.scaling, tx.federation
    if section is None or federation.pinned is None or federation.finished or federation.ending:
        return
    founded = all(group.version >= 0 for group in federation.model_groups)
    # A move that waits for its shard to come is not due, and another one would take its place.
    moves = federation.moving.what or resharding.due(tx)
    if federation.scaled.off or federation.acted.paused or not founded or moves:
        load.begin(tx.now, moved=True)
        return
    if load.since is None:
        return
    if tx.now - load.since < section.every:
        return
    if not tx.watchers.issuperset(federation.pinned.placement.shards):
        return  # one is away: nothing that is measured now is of the load
    measured = load.versions >= LEAST_VERSIONS * load.groups
    if not (measured or (section.balance and load.news(tx))):
        return
    seen = load.observed(tx, _spares(tx))
    decision = _balance(tx, load, seen) if section.balance else None
    if decision is None and measured:
        decision = _by_policy(tx, load, seen, section)
    if decision is not None:
        _carry_out(tx, load, section, seen, decision)
        load.begin(tx.now)


def _carry_out(
    tx: Transaction,
    load: Load,
    section: ScalingSection,
    seen: Observation,
    decision: _Decision,
) -> None:
    if section.policy == "fixed" and not decision.changes(seen):
        return
    reason = decision.action.reason
    if decision.what:
        try:
            resharding.act(tx, Act(decision.what, decision.shard, f"{BY_ITSELF}{reason}"))
        except (Refused, UnknownParty) as error:
            action = stay(seen, f"{reason}; and yet: {error}")
            decision, reason = _Decision(action), action.reason
    tx.write(
        ScalingDecided(
            what=decision.what,
            shard=decision.shard,
            deadline=decision.action.deadline,
            buffer=decision.action.buffer,
            blocks=decision.blocks,
            reward=seen.reward,
            shards=len(seen.shards),
            loads=load.told(tx),
            reason=reason,
            lost=seen.lost,
        )
    )


def _balance(tx: Transaction, load: Load, seen: Observation) -> _Decision | None:
    assert tx.federation.pinned is not None
    held = tx.federation.pinned.placement.held
    found = balance(held, load.at_once(tx), load.costs(tx))
    if found is None or _too_little(tx, load.memory, resharding.balanced(held, found.blocks)):
        return None
    return _Decision(stay(seen, found.reason), blocks=found.blocks)


def _by_policy(
    tx: Transaction, load: Load, seen: Observation, section: ScalingSection
) -> _Decision:
    limits = _limits(tx, section)
    policy = POLICIES[section.policy]
    before = [record for _, record in tx.federation.scaled.decided]
    action = policy.decide(seen, before, limits)
    what, shard = deed(action, seen)
    if what == ShardDeed.DRAIN:
        left = [name for name in seen.shards if name != shard]
        if text := _too_little(tx, load.memory, resharding.spread(tx, left)):
            return _Decision(stay(seen, f"{action.reason}; and yet: {text}"))
    return _Decision(action, what, shard)


def _too_little(
    tx: Transaction, memory: Mapping[str, float], held: Mapping[str, Sequence[tuple[str, ...]]]
) -> str:
    """Which shard could not work with the blocks that it would have, and why; empty for none.

    Such a shard would end, and the run with it.

    Args:
        memory: of the shards that have a limit and have said so, bytes. Each is taken to step one
            block at a time: the coordinator does not know its `threads`.
        held: where blocks are to lie: of every block of a group its shards.
    """
    assert tx.layout is not None
    groups = tx.layout.all_groups
    shards = {shard for blocks in held.values() for holders in blocks for shard in holders}
    then = Placement.by_block(0, sorted(shards), held)
    for shard in sorted(memory.keys() & shards):
        own = {group.name: then.blocks_of(group.name, shard) for group in groups}
        try:
            room_to_make(tx.plan, groups, own, int(memory[shard]), threads=1)
        except ConfigError as error:
            return f"{shard}: {error}"
    return ""


def _spares(tx: Transaction) -> tuple[str, ...]:
    """Shards that are here and hold nothing, and were not drained by an operator; by name."""
    left = tx.federation.moving.left.keys() | tx.federation.scaled.drained
    names = sorted(tx.federation.shards.keys() & tx.watchers)
    return tuple(name for name in names if name not in left and tx.spare(name))


def _limits(tx: Transaction, section: ScalingSection) -> Limits:
    """Of the first group of the model: factors are of all."""
    group = next(name for name in tx.plan.groups if name != EVALUATION)
    rule = tx.plan.group(group).rule
    return Limits(
        least_shards=max(section.least_shards, tx.plan.section.replicas),
        most_shards=tx.plan.section.most_shards,
        deadline=rule.deadline,
        least_deadline=section.least_deadline,
        most_deadline=section.most_deadline,
        minimum=rule.minimum,
        quorum=rule.quorum if isinstance(rule, SyncSection) else 0,
        extensions=rule.extensions if isinstance(rule, SyncSection) else 0,
        buffer=rule.buffer if isinstance(rule, BufferedSection | PrioritySection) else 0,
        least_buffer=section.least_buffer,
        power=staleness_power(rule),
        group=tx.plan.section.group[0].name if len(tx.plan.section.group) > 1 else "",
    )


def seen(tx: Transaction) -> ScalingStatus | None:
    """What was decided, for a status; None where the plan has no `[scaling]`."""
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
        steps=tuple(ScalingStep(at, told(record), record.reason) for at, record in scaled.decided),
        reward=last.reward if last else 0.0,
        lost=last.lost if last else 0.0,
    )


def told(record: ScalingDecided) -> str:
    """What a decision does, in a few words."""
    if record.blocks:
        return f"balance {counted(len(record.blocks), 'block')}"
    if record.what:
        return f"{record.what} {record.shard}"
    if (record.deadline, record.buffer) != (1.0, 1.0):
        return f"deadline x {record.deadline:.2f}, buffer x {record.buffer:.2f}"
    return "as planned"
