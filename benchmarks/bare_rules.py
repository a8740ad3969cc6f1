"""Rules by their clocks and their learning alone: many settings and seeds in the time of one trial.

    python -m benchmarks.bare_rules at-work [--seeds N]
    python -m benchmarks.bare_rules queues [--seeds N] [--loads 0.5 1 2 4]

The clients are those of `simulations/ten_thousand.toml` and of `simulations/queues.toml`: the same
records and training, and the same log-normal speeds; buffers decide by the same `policy.rules`, and
rounds close at the first deadline with the quorum, as `policy.rules.sync` does. Parties, messages,
encryption and journals are left out: latencies are a constant, sums are float32, and
whoever is free is asked at once. So it finds settings worth a trial of `secureps study`, and how
far seeds differ; `docs/simulations.md` has both beside one another.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.intervals import ratio_interval
from benchmarks.queues import ARRIVALS
from benchmarks.report import Row, report
from clients import crowd_numpy as script
from secureps.config.plan import BufferedSection, PrioritySection, SyncSection
from secureps.messages.submission import SubmissionId
from secureps.policy.rules.priority import declared
from secureps.policy.rules.registry import build_rule
from secureps.policy.rules.rule import Arrival, Close, Drop, RuleState
from secureps.run.simulate.scenario_file import Scenario, load_scenario

SIMULATIONS = Path(__file__).parent.parent / "simulations"
MESSAGES = 0.5
"""Seconds of latency between the word of a version and the update that is made from it."""
SECONDS = 1500.0
"""Of a trial, at most."""
BATCH = 500
"""Holders that are trained in one product of matrices."""

Vector = NDArray[np.float32]
Streamed = BufferedSection | PrioritySection


class Crowd:
    """All holders of a scenario: their records, of shapes (clients, 16, 64) and (clients, 16)."""

    def __init__(self, scenario: Scenario) -> None:
        section, group = scenario.section, scenario.plan.section.group[0]
        assert group.clip is not None
        assert group.range is not None
        self.count, self.clip, self._range = section.clients, group.clip, group.range
        self.room = scenario.plan.room
        holders = [script.make(scenario.settings(client)) for client in range(self.count)]
        self.judge = holders[0]
        data = self.judge._data
        self._x = np.stack([data.x[holder._rows] for holder in holders])
        self._y = np.stack([np.eye(10, dtype=np.float32)[data.y[h._rows]] for h in holders])
        training = scenario.plan.section.training
        self._rate, self._steps = np.float32(training["lr"]), int(training["local_steps"])
        self._shapes = {name: value.shape for name, value in self.judge.parameters(0).items()}

    def first(self, seed: int) -> Vector:
        """A model to begin with."""
        return np.concatenate([v.ravel() for v in self.judge.parameters(seed).values()])

    def named(self, model: Vector) -> dict[str, Vector]:
        """The tensors of a model, or of a row of models."""
        found, at = dict[str, Vector](), 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            found[name] = model[..., at : at + size].reshape(*model.shape[:-1], *shape)
            at += size
        return found

    def accuracy(self, model: Vector) -> float:
        """On the records that nobody holds."""
        return float(self.judge.evaluate(self.named(model)).metrics["accuracy"])

    def updates(self, clients: Sequence[int], base: Vector) -> tuple[Vector, Vector]:
        """Their updates from a model, as the script trains and the plan clips, and their norms."""
        parts = [
            self._batch(np.array(clients[at : at + BATCH]), base)
            for at in range(0, len(clients), BATCH)
        ]
        updates = np.concatenate(parts)
        norms = np.linalg.norm(updates, axis=1)
        factors = np.minimum(1, self.clip / np.maximum(norms, 1e-9)).astype(np.float32)
        clipped = np.clip(updates * factors[:, None], -self._range, self._range)
        return clipped, np.minimum(norms, self.clip)

    def _batch(self, clients: NDArray[np.int64], base: Vector) -> Vector:
        models = np.repeat(base[None], len(clients), 0)
        own, x, y = self.named(models), self._x[clients], self._y[clients]
        for _ in range(self._steps):
            hidden = x @ own["hidden.weight"] + own["hidden.bias"][:, None]
            hidden = np.maximum(hidden, 0)
            scores = hidden @ own["out.weight"] + own["out.bias"][:, None]
            powers = np.exp(scores - scores.max(2, keepdims=True))
            error = (powers / powers.sum(2, keepdims=True) - y) / np.float32(y.shape[1])
            back = (error @ own["out.weight"].transpose(0, 2, 1)) * (hidden > 0)
            own["out.weight"] -= self._rate * (hidden.transpose(0, 2, 1) @ error)
            own["out.bias"] -= self._rate * error.sum(1)
            own["hidden.weight"] -= self._rate * (x.transpose(0, 2, 1) @ back)
            own["hidden.bias"] -= self._rate * back.sum(1)
        return models - base


@dataclass(frozen=True)
class Course:
    """What is played: a rule, the server's rate, the seconds that servers take for a version."""

    rule: SyncSection | Streamed
    rate: float = 1.0
    version: float = 0.0


@dataclass
class Played:
    """A trial: virtual seconds to the target (infinite: not reached), versions, mean staleness."""

    reached: float = math.inf
    versions: int = 0
    stale: list[int] = field(default_factory=list)
    best: float = 0.0


class Trial:
    """A rule under a seed, until its target is held, as a study judges it."""

    def __init__(self, crowd: Crowd, scenario: Scenario, course: Course, seed: int) -> None:
        study, self.limit = scenario.section.study, SECONDS
        assert study is not None
        self._crowd, self._course, self._study, self._seed = crowd, course, study, seed
        self._rng = np.random.default_rng(seed)
        delays = scenario.delays
        self._speed = np.array([delays.device.sample(self._rng) for _ in range(crowd.count)])
        self._train = delays.train
        self._model = crowd.first(seed)
        self._streak, self._judged = 0, 0
        self.played = Played()

    def play(self) -> Played:
        rule = self._course.rule
        if isinstance(rule, SyncSection):
            self._rounds(rule)
        else:
            self._streams(rule)
        return self.played

    def _over(self, now: float) -> bool:
        """Judges the newest model at all times until `now`."""
        study, played = self._study, self.played
        while self._judged * study.every <= now:
            score = self._crowd.accuracy(self._model)
            played.best = max(played.best, score)
            self._streak = self._streak + 1 if score >= study.target else 0
            if self._streak == study.hold:
                played.reached = (self._judged - study.hold + 1) * study.every
                return True
            self._judged += 1
        return now >= self.limit and not self._streak

    def _seconds(self, client: int) -> float:
        return float(self._speed[client]) * self._train.sample(self._rng) + MESSAGES

    def _rounds(self, rule: SyncSection) -> None:
        now, most, crowd = 0.0, rule.most or self._crowd.count, self._crowd
        while True:
            asked = self._rng.choice(crowd.count, most, replace=False)
            took = np.array([self._seconds(client) for client in asked])
            for extension in range(1, rule.extensions + 2):
                until = min(extension * rule.deadline, took.max())
                if (took <= until).sum() >= rule.quorum:
                    break
            now += until + self._course.version
            if self._over(now):
                return
            updates, _ = crowd.updates(asked[took <= until], self._model)
            self._model = self._model + np.float32(self._course.rate) * updates.mean(0)
            self.played.versions += 1

    def _streams(self, rule: Streamed) -> None:
        world = Stream(rule, self._crowd, self._rng.permutation(self._crowd.count).tolist())
        now, closes, made = 0.0, math.inf, self._model
        world.models[0] = self._model
        while True:
            for client in world.asks():
                heapq.heappush(world.training, (now + self._seconds(client), client, world.version))
            arrives = world.training[0][0] if world.training else math.inf
            now = min(arrives, closes)
            if self._over(now):
                return
            if closes <= arrives:
                self._model, closes = made, math.inf
                world.commit(made)
                self.played.versions += 1
            else:
                _, client, version = heapq.heappop(world.training)
                world.arrive(client, version, now)
            if math.isinf(closes) and (mean := world.cohort(now, self.played.stale)) is not None:
                made = self._model + np.float32(self._course.rate) * mean
                closes = now + self._course.version


class Stream:
    """Clients that are asked one by one, and what waits: a coordinator without parties."""

    def __init__(self, section: Streamed, crowd: Crowd, order: Sequence[int]) -> None:
        self._rule, self._section, self._crowd = build_rule(section, crowd.room), section, crowd
        self._wanted = section.waiting if isinstance(section, PrioritySection) else section.buffer
        self._room = max(64, 4 * self._wanted)
        self._idle = deque(order)
        self._last = np.full(crowd.count, -1)
        self._counts = np.zeros(crowd.count, int)
        self._waiting: dict[SubmissionId, Arrival] = {}
        self._fits: dict[SubmissionId, Vector] = {}
        self._late: list[Arrival] = []
        self.training: list[tuple[float, int, int]] = []
        self.models: dict[int, Vector] = {}
        self.version = 0

    def asks(self) -> list[int]:
        """Who is asked now: of those who have not sent from this version, the longest idle."""
        found, most = list[int](), self._section.concurrency or self._crowd.count
        for _ in range(len(self._idle)):
            full = len(self.training) + len(found) >= most
            if full or len(self._waiting) >= self._room:
                break
            client = self._idle.popleft()
            if self._last[client] >= self.version:
                self._idle.append(client)
            else:
                found.append(client)
        return found

    def arrive(self, client: int, version: int, now: float) -> None:
        id = SubmissionId(str(client), "all", int(self._counts[client]))
        self._counts[client] += 1
        self._last[client] = version
        self._idle.append(client)
        self._waiting[id] = arrival = Arrival(id, version, now)
        self._late.append(arrival)

    def commit(self, model: Vector) -> None:
        self.version += 1
        self.models[self.version] = model
        bases = [arrival.version for arrival in self._waiting.values()]
        least = min([*bases, *(version for _, _, version in self.training)], default=self.version)
        self.models = {v: m for v, m in self.models.items() if v >= least}

    def cohort(self, now: float, stale: list[int]) -> Vector | None:
        """The weighted mean of a cohort, once the rule closes one."""
        while len(self._waiting) >= self._wanted:
            self._learn()
            state = RuleState(self.version, frozenset(), opened_at=0.0, training=())
            match self._rule.decide(now, tuple(self._waiting.values()), state):
                case Drop(ids):
                    self._take(ids)
                case Close(members):
                    stale += [self.version - member.version for member in members]
                    weights = np.array([member.weight for member in members], np.float32)
                    rows = self._take([member.id for member in members])
                    return np.asarray(weights @ rows / weights.sum(), np.float32)
                case _:
                    return None
        return None

    def _take(self, ids: Sequence[SubmissionId]) -> Vector:
        for id in ids:
            del self._waiting[id]
        return np.stack([self._fits.pop(id) for id in ids])

    def _learn(self) -> None:
        """The updates of all that came since, and what their clients say of their sizes."""
        by_base: dict[int, list[Arrival]] = {}
        for arrival in self._late:
            by_base.setdefault(arrival.version, []).append(arrival)
        for version, arrivals in by_base.items():
            clients = [int(arrival.id.client) for arrival in arrivals]
            updates, norms = self._crowd.updates(clients, self.models[version])
            for arrival, update, norm in zip(arrivals, updates, norms, strict=True):
                size = declared(float(norm), self._crowd.clip)
                self._waiting[arrival.id] = replace(arrival, magnitude=size)
                self._fits[arrival.id] = update
        self._late = []


# --- what is compared ---------------------------------------------------------------------


def gain(before: Sequence[float], after: Sequence[float]) -> str:
    """How many times sooner, seed by seed: the geometric mean and its 95 % interval (Student)."""
    if math.inf in (*before, *after):
        return "not all reached it"
    middle, low, high = ratio_interval(before, after)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def row(of: Mapping[str, str | float], trials: Sequence[Played], base: Sequence[Played]) -> Row:
    reached = [trial.reached for trial in trials]
    stale = [tau for trial in trials for tau in trial.stale]
    found = {
        **of,
        "seconds": statistics.median(reached),
        "least": min(reached),
        "most": max(reached),
        "versions": statistics.median(trial.versions for trial in trials),
        "stale": statistics.fmean(stale) if stale else 0.0,
        "sooner": "1" if trials is base else gain([b.reached for b in base], reached),
    }
    print(found, reached, flush=True)
    return found


def best(crowd: Crowd, scenario: Scenario, courses: Sequence[Course]) -> Course:
    """The soonest under seed 0; each is given up once it is later than the best before it."""
    found, soonest = courses[0], SECONDS
    for course in courses if len(courses) > 1 else ():
        trial = Trial(crowd, scenario, course, 0)
        trial.limit = soonest
        played = trial.play()
        print(_words(course), played.reached, f"{played.best:.3f}", flush=True)
        if played.reached < soonest:
            found, soonest = course, played.reached
    return found


def at_work(seeds: Sequence[int]) -> list[Row]:
    """Rounds and buffers of `ten_thousand.toml`; and rounds that wait for most, as is common."""
    scenario = load_scenario(SIMULATIONS / "ten_thousand.toml")
    study, crowd = scenario.section.study, Crowd(scenario)
    assert study is not None
    asks = study.variant[0].rules[0]
    assert isinstance(asks, SyncSection)

    def rounds(deadline: float, rate: float) -> Course:
        return Course(asks.model_copy(update={"deadline": deadline}), rate)

    def buffers(buffer: int, rate: float) -> Course:
        own = {"buffer": buffer, "minimum": 100, "max_staleness": 300, "concurrency": 10000}
        return Course(BufferedSection(name="buffered", **own), rate)

    deadlines, rates = (4.5, 4.0, 5.0, 7.0, 10.0, 20.0), (2.0, 1.5, 1.0, 3.0)
    kinds = {
        "sync": [rounds(d, r) for d in deadlines for r in rates],
        "buffered": [buffers(k, r) for k in (500, 300, 1000) for r in (0.5, 0.3, 1.0)],
        "sync, 1.3 asked for one": [rounds(41.0, 1.0)],
    }
    base, rows = list[Played](), list[Row]()
    for kind, courses in kinds.items():
        tuned = best(crowd, scenario, courses)
        trials = [Trial(crowd, scenario, tuned, seed).play() for seed in seeds]
        base = base or trials
        rows.append(row({"rule": kind, "tuned": _words(tuned)}, trials, base))
    return rows


def _words(course: Course) -> str:
    rule = course.rule
    own = f"deadline {rule.deadline:g}" if isinstance(rule, SyncSection) else f"K {rule.buffer}"
    return f"{own}, rate {course.rate:g}"


def queues(seeds: Sequence[int], loads: Sequence[float]) -> list[Row]:
    """First come, freshness and magnitude in `queues.toml`, by load, each at its best rate."""
    scenario = load_scenario(SIMULATIONS / "queues.toml")
    study, crowd, rows = scenario.section.study, Crowd(scenario), list[Row]()
    assert study is not None
    for load in loads:
        base = list[Played]()
        for variant in study.variant:
            rule = variant.rules[0]
            assert isinstance(rule, BufferedSection | PrioritySection)
            courses = [Course(rule, r, load * rule.buffer / ARRIVALS) for r in (0.3, 0.5, 0.2, 1.0)]
            tuned = best(crowd, scenario, courses)
            trials = [Trial(crowd, scenario, tuned, seed).play() for seed in seeds]
            base = base or trials
            what: dict[str, str | float] = {
                "load": load,
                "rule": variant.name,
                "tuned": _words(tuned),
            }
            rows.append(row(what, trials, base))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("at-work", "queues"))
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 1 on")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    given, began = parser.parse_args(), time.process_time()
    seeds = range(1, given.seeds + 1)
    rows = at_work(seeds) if given.what == "at-work" else queues(seeds, given.loads)
    report(f"bare-{given.what}", "virtual seconds to the target, without parties", rows)
    print(f"{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
