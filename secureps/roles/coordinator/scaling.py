"""Scaling by load: moves blocks, adds and drains shards, changes deadlines and buffers.

Once enough versions were made, and enough time has passed since the last decision, row-blocks move
if some shards have much more to do than others; else the plan's policy decides. Each decision is
journalled with its reason before it is carried out. A shard is added or drained by the same act
that an operator gives. A restart measures anew.

The coordinator measures the `Load` between two decisions from its own records. Only how long models
and updates take in transit is reported by clients, and the median of their reports counts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median

from secureps.errors import Refused, UnknownParty
from secureps.messages import coordinator_records as records
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.requests import Submit, Telemetry
from secureps.messages.run import Placement
from secureps.messages.scaling import (
    ScalingDecided,
    ShardLoad,
)
from secureps.messages.submission import UPDATE, Cohort
from secureps.policy.memory import why_little_memory
from secureps.policy.plan import bytes_up
from secureps.policy.rules.registry import staleness_power
from secureps.policy.scaling.policies import (
    Action,
    Observation,
    Round,
    ScalingPolicy,
    Waits,
    balance,
    decide_by_model,
    decide_by_thresholds,
    decide_nothing,
    stay,
)
from secureps.roles.coordinator import resharding
from secureps.roles.coordinator.state import BY_ITSELF
from secureps.roles.coordinator.transaction import Transaction

UP, DOWN = "network_seconds", "pulling_seconds"
"""Clients' figures of how long an update and a model take in transit (`roles.member`)."""
MEMORY = "memory_bytes"
"""A shard's figure of its memory limit (`roles.shard.memory_report`)."""
NEWEST = 16
"""Newest rounds that are kept."""


class Load:
    """The load of one run, measured since `since`."""

    def __init__(self) -> None:
        self.since: float | None = None  # None: from the next version on
        self.memory: dict[str, float] = {}
        """By shard, its memory limit in bytes."""
        self._asked: dict[str, int] = {}
        self._rounds: deque[Round] = deque(maxlen=NEWEST)
        self._begin()

    def begin(self, now: float, moved: bool = False) -> None:
        """Measures anew from now on, or after a move of blocks from the next version on.

        A round that a move has delayed must not count.
        """
        self.since = None if moved else now
        if moved:
            self._rounds.clear()
        self._begin()

    def _begin(self) -> None:
        self.versions = self._updates = self._lost = 0
        self._fresh = 0.0
        self._sent: Counter[str] = Counter()
        self._ways: dict[str, dict[str, float]] = {UP: {}, DOWN: {}}

    @property
    def groups(self) -> int:
        return max(1, len(self._sent))

    def take(self, report: Telemetry, shards: Collection[str]) -> None:
        """Takes a party's own report; its figures are finite, and only shards report memory."""
        # Only the newest report of each party: repeating one does not shift the median.
        for figure in report.figures:
            if figure.name in (UP, DOWN):
                self._ways[figure.name][report.party] = figure.value
            elif figure.name == MEMORY and report.party in shards:
                self.memory[report.party] = figure.value

    def measure(self, tx: Transaction) -> None:
        for record in tx.step.records:
            if tx.plan.trails(getattr(record, "group", "")):
                continue
            match record:
                case records.RoundOpened(group=name, invited=invited):
                    self._asked[name] = len(invited)
                case Submit(receipt) if receipt.purpose == UPDATE:
                    self._sent[receipt.id.group] += receipt.size
                case records.CohortClosed(cohort) if not tx.plan.trails(cohort.group):
                    self._close(tx, cohort)
                case records.RoundGivenUp(group=name):
                    self._lost += self._asked.pop(name, 0)
                case records.SubmissionsDropped(ids=ids):
                    self._lost += len(ids)
                case records.CohortBurnt(group=name):
                    self._lost += len(tx.group(name).burnt_members)
                case records.VersionCommitted(version=version) if version > 0:
                    if self.since is None:
                        self.begin(tx.now)
                        continue
                    self.versions += 1
                case _:
                    pass

    def _close(self, tx: Transaction, cohort: Cohort) -> None:
        name, newest = cohort.group, cohort.version - 1
        power = staleness_power(tx.plan.group(name).rule)
        self._updates += len(cohort.members)
        self._fresh += sum((1 + newest - m.version) ** -power for m in cohort.members)
        group = tx.group(name)
        asked = self._asked.pop(name, None)
        if asked is None or not group.rounds or group.opened_at is None:
            return
        self._lost += max(0, asked - len(cohort.members))
        came = sorted(group.members.arrived[id] - group.opened_at for id in group.receipts)
        closed = tx.now - group.opened_at
        self._rounds.append(Round(max(asked, len(came)), tuple(came), closed))

    # --- results ----------------------------------------------------------------------

    def observe(self, tx: Transaction, spares: tuple[str, ...]) -> Observation:
        assert self.since is not None
        seconds = max(tx.now - self.since, 1e-9)
        asked = self._updates + self._lost
        lost = self._lost / asked if asked else 0.0
        scaled = tx.federation.scaled
        return Observation(
            reward=self._fresh / seconds * (1 - lost),
            lost=lost,
            waits=self._waits(tx),
            rounds=tuple(self._rounds),
            shards=tx.federation.placement.shards,
            spares=spares,
            deadline=scaled.deadline,
            buffer=scaled.buffer,
        )

    @property
    def transfer(self) -> float:
        """The median seconds that a model and its update travel, by the clients' newest reports."""
        return sum(median(way.values()) for way in self._ways.values() if way)

    def _waits(self, tx: Transaction) -> Waits:
        def mean(seconds: list[float]) -> float:
            return fmean(seconds) if seconds else 0.0

        since = self.since or 0.0
        own = [s for s in tx.federation.timeline.steps if not tx.plan.trails(s.group)]
        done = [s for s in own if s.committed is not None and s.committed > since]
        held = [(s.held if s.held is not None else s.closed) for s in done]
        opened = [s.opened if s.opened is not None else h for s, h in zip(done, held, strict=True)]
        ways = zip(done, held, opened, strict=True)
        return Waits(
            clients=mean([s.closed - s.began for s in done]),
            transfer=self.transfer,
            shards=mean([h - s.closed + (s.committed or o) - o for s, h, o in ways]),
            holders=mean([o - h for h, o in zip(held, opened, strict=True)]),
        )

    def bytes_on_shards(self, tx: Transaction) -> dict[str, float]:
        """Returns the bytes of updates a second that came for the blocks of each shard."""
        placement, seconds = tx.federation.placement, max(tx.now - (self.since or 0.0), 1e-9)
        found = dict.fromkeys(placement.shards, 0.0)
        for group, blocks in placement.held.items():
            for shards in blocks:
                for shard in shards:
                    found[shard] += self._sent[group] / seconds / len(blocks)
        return found


# --- decisions --------------------------------------------------------------------

LEAST_VERSIONS = 3
"""Versions of each active group, on average, between two decisions."""

POLICIES: dict[str, ScalingPolicy] = {
    "fixed": decide_nothing,
    "rule": decide_by_thresholds,
    "fitted": decide_by_model,
}


def advance(tx: Transaction, load: Load) -> None:
    section, federation = tx.plan.section.scaling, tx.federation
    if section is None or federation.pinned is None or federation.finished or federation.ending:
        return
    founded = all(group.version >= 0 for group in federation.model_groups)
    # A move may also wait for its shard to come. Another decision must not replace it.
    moves = federation.moving.what or resharding.describe_due_move(tx)
    if federation.scaled.off or federation.paused or not founded or moves:
        load.begin(tx.now, moved=True)
        return
    if load.since is None or tx.now - load.since < section.every:
        return
    if load.versions < LEAST_VERSIONS * load.groups:
        return
    if not tx.watchers.issuperset(federation.placement.shards):
        return  # a shard is away, so the measured times do not show the load
    seen = load.observe(tx, _spares(tx))
    action = _balance(tx, load, seen) or _by_policy(tx, load, seen, POLICIES[section.policy])
    if section.policy != "fixed" or action != stay(seen, action.reason):
        _carry_out(tx, load, seen, action)
    load.begin(tx.now)


def _carry_out(tx: Transaction, load: Load, seen: Observation, action: Action) -> None:
    if action.what:
        act = Act(action.what, action.shard, f"{BY_ITSELF}{action.reason}")
        try:
            resharding.begin_move(tx, act)
        except (Refused, UnknownParty) as error:
            action = stay(seen, f"{action.reason}; and yet: {error}")
    decided = ScalingDecided(
        what=action.what,
        shard=action.shard,
        deadline=action.deadline,
        buffer=action.buffer,
        blocks=action.blocks,
        reward=seen.reward,
        shards=len(seen.shards),
        loads=tuple(ShardLoad(name, of) for name, of in load.bytes_on_shards(tx).items()),
        reason=action.reason,
        lost=seen.lost,
    )
    tx.write(decided)


def _balance(tx: Transaction, load: Load, seen: Observation) -> Action | None:
    held = tx.federation.placement.held
    costs = {name: 1 / tx.federation.shards[name].weight for name in seen.shards}
    found = balance(held, find_bytes_at_once(tx), costs)
    if found is None or _why_too_little(tx, load.memory, resharding.assign_blocks(held, found[0])):
        return None
    blocks, reason = found
    return stay(seen, reason, blocks)


def find_bytes_at_once(tx: Transaction) -> dict[str, int]:
    """Returns the bytes of an update of each member, by group that makes more versions.

    Bytes a second would mislead: a full link carries as many however long the queue is.
    """
    found = dict[str, int]()
    for group in (each for each in tx.federation.model_groups if not tx.is_over(each)):
        members, layout = len(tx.present(group)), tx.layout.group(group.name)
        if group.rounds:
            members = min(members, tx.plan.bounds(group.name).most)
        found[group.name] = members * bytes_up(tx.plan.fit_cipher(layout), layout)
    return found


def _by_policy(tx: Transaction, load: Load, seen: Observation, policy: ScalingPolicy) -> Action:
    action = policy(seen, tx.plan)
    if action.what == ShardDeed.DRAIN:
        left = [name for name in seen.shards if name != action.shard]
        if text := _why_too_little(tx, load.memory, resharding.spread_blocks(tx, left)):
            return stay(seen, f"{action.reason}; and yet: {text}")
    return action


def _why_too_little(
    tx: Transaction, memory: Mapping[str, float], held: Mapping[str, Sequence[tuple[str, ...]]]
) -> str:
    """Returns which shard would have too little memory for its blocks, and why; empty if none.

    Such a shard would end, and the run with it.

    Args:
        memory: the limits in bytes of shards that reported one. The coordinator does not know a
            shard's `threads`, and assumes that it steps one block at a time.
        held: by group, the shards of each block after the change.
    """
    groups = tx.layout.all_groups
    shards = {shard for blocks in held.values() for holders in blocks for shard in holders}
    then = Placement.by_block(0, sorted(shards), held)
    for shard in sorted(memory.keys() & shards):
        own = {group.name: then.blocks_of(group.name, shard) for group in groups}
        if text := why_little_memory(tx.plan, groups, own, int(memory[shard]), threads=1):
            return f"{shard}: {text}"
    return ""


def _spares(tx: Transaction) -> tuple[str, ...]:
    """Returns shards that are here without blocks, and were not drained by an operator."""
    left = tx.federation.moving.left.keys() | tx.federation.scaled.drained
    names = sorted(tx.federation.shards.keys() & tx.watchers)
    return tuple(name for name in names if name not in left and tx.is_spare(name))
