"""What versions took, and what came to shards, since the last decision about scaling.

The coordinator measures it from its own records; only how long models and updates are on their
way clients say, and the median counts. Nothing is journalled: a restart measures anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection
from functools import partial
from statistics import fmean, median

from secureps.messages import coordinator_records as records
from secureps.messages.evaluation import EVALUATION
from secureps.messages.requests import CohortSteps, Submit, Telemetry
from secureps.messages.scaling import ShardLoad
from secureps.messages.submission import UPDATE, Cohort, Held
from secureps.policy.rules.registry import staleness_power
from secureps.policy.scaling.policies import Observation, Round, Waits
from secureps.roles.coordinator import termination
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import Transaction

UP, DOWN = "network_seconds", "pulling_seconds"
"""What clients say of an update's way, and of the model's (`roles.member`)."""
MEMORY = "memory_bytes"
"""What a shard says of what it may have in memory (`roles.shard.memory_report`)."""
NEWEST = 16
"""Rounds that are kept, and waits for each shard."""
LATE = 0.05
"""Part of a version's time that sums must take for shards to count as unlike each other."""
UNLIKE = 4.0
"""Times as slow as the median that a shard counts at most."""
TURNS = 3
"""Newest rounds of a group over which what comes in one is averaged."""
LEAST_SUMS = 3
"""Sums of each shard by which it is known how late it is with them."""


class Load:
    """The load of one run, measured since `since`."""

    def __init__(self) -> None:
        self.since: float | None = None  # None: from the next version on
        self.memory: dict[str, float] = {}
        """Bytes that parties have said they may have resident; of shards, their limits."""
        self._asked: dict[str, int] = {}
        self._came: defaultdict[str, list[float]] = defaultdict(list)
        self._coming: Counter[str] = Counter()
        self._turns: defaultdict[str, deque[int]] = defaultdict(partial(deque, maxlen=TURNS))
        self._closed: dict[str, float] = {}
        self._rounds: deque[Round] = deque(maxlen=NEWEST)
        self._begin()

    def begin(self, now: float, moved: bool = False) -> None:
        """Measures anew, from now on; after a move of blocks from the next version on.

        A round that a move has held up would count from its middle.
        """
        self.since = None if moved else now
        if moved:
            self._rounds.clear()
        self._begin()

    def _begin(self) -> None:
        self.versions = self._seen = 0
        self._updates = self._lost = 0
        self._fresh = 0.0
        self._sent: Counter[str] = Counter()
        self._updates_of: Counter[str] = Counter()
        self._ways: dict[str, dict[str, float]] = {UP: {}, DOWN: {}}
        self._steps: list[CohortSteps] = []
        self._lags: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=NEWEST))

    @property
    def groups(self) -> int:
        return max(1, len(self._sent))

    def take(self, report: Telemetry, shards: Collection[str]) -> None:
        """Takes up a party's own report; its figures are finite and not negative.

        Args:
            shards: of the run: they alone say anything of memory.
        """
        if report.group == EVALUATION:
            return
        # The newest of each: whoever says it a thousand times has one voice in the median.
        for figure in report.figures:
            if figure.name in (UP, DOWN):
                self._ways[figure.name][report.party] = figure.value
            elif figure.name == MEMORY and report.party in shards:
                self.memory[report.party] = figure.value

    def measure(self, tx: Transaction) -> None:
        """Takes up the records of a transaction."""
        for record in tx.step.records:
            if getattr(record, "group", "") == EVALUATION:
                continue
            match record:
                case records.RoundOpened(group=name, invited=invited):
                    self._asked[name], self._came[name] = len(invited), []
                    self._coming[name] = 0
                case Submit(receipt) if receipt.purpose == UPDATE:
                    group = tx.group(receipt.id.group)
                    self._sent[group.name] += receipt.size
                    self._updates_of[group.name] += 1
                    if group.opened_at is not None and not group.streaming:
                        self._came[group.name].append(tx.now - group.opened_at)
                        self._coming[group.name] += receipt.size
                case records.CohortClosed(cohort) if cohort.group != EVALUATION:
                    self._close(tx, cohort)
                case records.RoundGivenUp(group=name):
                    self._lost += self._asked.pop(name, 0)
                case records.SubmissionsDropped(ids=ids):
                    self._lost += len(ids)
                case records.CohortBurnt(group=name):
                    self._lost += len(tx.group(name).burnt_members)
                case Held(shard, name) if name in self._closed:
                    self._lags[shard].append(tx.now - self._closed[name])
                case records.VersionCommitted(group=name, version=version) if version > 0:
                    if self.since is None:
                        self.begin(tx.now)
                        continue
                    self.versions += 1
                    made, steps = (name, version), tx.federation.timeline.steps
                    self._steps += [s for s in steps if (s.group, s.version) == made][-1:]
                case _:
                    pass

    def _close(self, tx: Transaction, cohort: Cohort) -> None:
        name, newest = cohort.group, cohort.version - 1
        power = staleness_power(tx.plan.group(name).rule)
        self._closed[name] = tx.now
        self._updates += len(cohort.members)
        self._fresh += sum((1 + newest - m.version) ** -power for m in cohort.members)
        group = tx.group(name)
        asked = self._asked.pop(name, None)
        if asked is None or group.streaming or group.opened_at is None:
            return
        self._lost += max(0, asked - len(cohort.members))
        self._turns[name].append(self._coming[name])
        came = tuple(sorted(self._came.pop(name, ())))
        self._rounds.append(Round(max(asked, len(came)), came, tx.now - group.opened_at))

    # --- what it comes to -------------------------------------------------------------

    def observed(self, tx: Transaction, spares: tuple[str, ...]) -> Observation:
        assert self.since is not None
        seconds = max(tx.now - self.since, 1e-9)
        asked = self._updates + self._lost
        lost = self._lost / asked if asked else 0.0
        scaled = tx.federation.scaled
        return Observation(
            seconds=seconds,
            versions=self.versions,
            updates=self._updates,
            reward=self._fresh / seconds * (1 - lost),
            lost=lost,
            live=sum(map(tx.trains, tx.live)),
            waits=self._waits(),
            rounds=tuple(self._rounds),
            shards=tx.federation.placement.shards,
            spares=spares,
            deadline=scaled.deadline,
            buffer=scaled.buffer,
            ways=self._both_ways(),
            blocks=sum(len(tx.federation.placement.held[group]) for group in self._sent),
        )

    def _both_ways(self) -> tuple[float, ...]:
        up, down = self._ways[UP], self._ways[DOWN]
        return tuple(sorted(up[name] + down[name] for name in up.keys() & down.keys()))

    def _waits(self) -> Waits:
        def mean(seconds: list[float]) -> float:
            return fmean(seconds) if seconds else 0.0

        done = [s for s in self._steps if s.committed is not None]
        held = [(s.held if s.held is not None else s.closed) for s in done]
        opened = [s.opened if s.opened is not None else h for s, h in zip(done, held, strict=True)]
        ways = zip(done, held, opened, strict=True)
        transfers = [median(way.values()) for way in self._ways.values() if way]
        return Waits(
            clients=mean([s.closed - s.began for s in done]),
            transfer=sum(transfers),
            shards=mean([h - s.closed + (s.committed or o) - o for s, h, o in ways]),
            holders=mean([o - h for h, o in zip(held, opened, strict=True)]),
            queue=2 * max(transfers, default=0.0),
        )

    def at_once(self, tx: Transaction) -> dict[str, float]:
        """Bytes of updates that are on their way at once, by group that makes more versions.

        In a group with rounds that is what came for one of its newest rounds; without rounds, an
        update of each member. Bytes a second would mislead: a full link carries the same whatever
        waits.
        """
        found = dict[str, float]()
        for group in tx.federation.model_groups:
            if not self._tells(tx, group):
                continue
            if group.streaming:
                members = len(tx.attendance(group).here)
                found[group.name] = self._sent[group.name] / self._updates_of[group.name] * members
            else:
                found[group.name] = fmean(self._turns[group.name])
        return found

    def _tells(self, tx: Transaction, group: GroupState) -> bool:
        sent = self._updates_of[group.name] if group.streaming else self._turns.get(group.name)
        return bool(sent) and not termination.over(tx, group)

    def news(self, tx: Transaction) -> bool:
        """Whether each group has made another version, on average, since this was last true.

        Not before `at_once` is known of each group, and how late each shard is: a slow one would
        get back what it gave away for that.
        """
        shards = tx.federation.placement.shards
        if self.versions < self._seen + self.groups:
            return False
        if any(len(self._lags.get(shard, ())) < LEAST_SUMS for shard in shards):
            return False
        asked = (each for each in tx.federation.model_groups if each.opened_at is not None)
        if not all(self._tells(tx, group) for group in asked):
            return False
        self._seen = self.versions
        return True

    def by_group(self, tx: Transaction) -> dict[str, float]:
        seconds = max(tx.now - (self.since or 0.0), 1e-9)
        return {group: sent / seconds for group, sent in self._sent.items()}

    def costs(self, tx: Transaction) -> dict[str, float]:
        """What a byte costs each shard: by the weight in its file, and by how late its sums are.

        Lateness counts only where sums take a notable part of a version's time, and at most UNLIKE
        times.
        """
        shards = tx.federation.placement.shards
        costs = {name: 1 / tx.federation.shards[name].weight for name in shards}
        sent = self.on_shards(tx)
        paces = {
            name: median(lags) / sent[name]
            for name, lags in self._lags.items()
            if name in costs and lags and sent[name] > 0
        }
        waits = self._waits()
        longest = max((median(lags) for lags in self._lags.values() if lags), default=0.0)
        if len(paces) < len(shards) or longest <= LATE * waits.version:
            return costs
        usual = median(pace / costs[name] for name, pace in paces.items())
        if not usual > 0:
            return costs  # most held in no time at all: nothing to be slow beside
        return {
            name: cost * min(max(paces[name] / cost / usual, 1 / UNLIKE), UNLIKE)
            for name, cost in costs.items()
        }

    def on_shards(self, tx: Transaction) -> dict[str, float]:
        """Bytes of updates a second that came for the blocks of each shard."""
        placement, loads = tx.federation.placement, self.by_group(tx)
        found = dict.fromkeys(placement.shards, 0.0)
        for group, blocks in placement.held.items():
            for shards in blocks:
                for shard in shards:
                    found[shard] += loads.get(group, 0.0) / len(blocks)
        return found

    def told(self, tx: Transaction) -> tuple[ShardLoad, ...]:
        """The load of each shard, as it is journalled and shown."""
        return tuple(ShardLoad(name, load) for name, load in self.on_shards(tx).items())
