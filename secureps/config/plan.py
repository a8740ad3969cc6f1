"""The sections of a plan's file, key by key; `policy.plan` checks the plan as a whole."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from secureps.config.sections import BOUND, CLASS, MEMORY, NAME, Table, show_value
from secureps.config.site_files import MESSAGE, MOST_EXAMPLES
from secureps.wording import suggest


class SupportSection(Table):
    """Sends one of every `one_in` values, the same for all members, drawn anew for each version.

    Without rounds a draw stays for several versions (`GroupSection.support_every`).
    """

    name: Literal["support"]
    one_in: int = Field(ge=2, le=256)


class RotateSection(Table):
    """Rotates the values that are sent by a randomised Hadamard transform (`codec.chain`)."""

    name: Literal["rotate"]


class RoundSection(Table):
    """Rounds rotated values to a grid whose range fits an update of some length.

    `length` is the update's length: the clip, or the mean norm of the last cohort's updates, which
    makes the range move (`codec.grid`).
    """

    name: Literal["round"]
    length: Literal["clip", "mean_norm"] = "clip"


STAGES = ("support", "rotate", "round")
"""The codec's stages in their order: values are selected, then rotated, then rounded."""


def _stage(stage: Any) -> Any:
    """Turns a bare stage name into a table, and checks the name."""
    table = {"name": stage} if isinstance(stage, str) else stage
    name = table.get("name") if isinstance(table, dict) else getattr(table, "name", None)
    if name not in STAGES:
        text = f"no such stage, {show_value(name)}; {suggest(name, STAGES)}"
        raise PydanticCustomError("stage", "{text}", {"text": text})
    return table


Stage = Annotated[
    Annotated[SupportSection | RotateSection | RoundSection, Field(discriminator="name")],
    BeforeValidator(_stage),
]


class WorkSection(Table):
    """Slow clients do less local work, so that they arrive in time (`roles.member.outbox.portion`).

    `target_seconds` is for pulling, training and pushing (default: the shortest deadline of the
    groups).
    """

    target_seconds: float | None = Field(default=None, gt=0)


class ScalingSection(Table):
    """Section that lets the servers follow the load during a run (`policy.scaling`).

    `policy` decides on shards, deadlines and buffers, at most once in `every` seconds. Under each,
    row-blocks move away from overloaded shards. The number of shards stays between `least_shards`
    and `most_shards` (default: the plan's `shards`). Deadlines are the plan's times a factor from
    `least_deadline` to `most_deadline`, buffers times a factor from `least_buffer` to 1; a buffer
    is never below the minimum cohort.
    """

    policy: Literal["fixed", "rule", "fitted"] = "fixed"
    every: float = Field(default=60.0, gt=0, le=31_536_000)
    least_shards: int = Field(default=1, ge=1, le=1024)
    most_shards: int | None = Field(default=None, ge=1, le=1024)
    least_deadline: float = Field(default=1.0, gt=0, le=1)
    most_deadline: float = Field(default=1.0, ge=1, le=100)
    least_buffer: float = Field(default=1.0, gt=0, le=1)


class ScheduleSection(Table):
    """The learning rate over the server's steps (`model.optimizer`).

    A cosine falls to zero with the last of the group's versions.
    """

    name: Literal["constant", "cosine", "exponential", "warmup"] = "constant"
    decay: float = Field(default=0.99, gt=0, le=1)
    warmup_steps: int = Field(default=10, ge=1)


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Table):
    """The server's step on the averaged update (`model.optimizer`)."""

    name: Literal[
        "sgd", "momentum", "nesterov", "adam", "yogi", "fedadam", "fedyogi", "fedadagrad"
    ] = "sgd"
    learning_rate: float = Field(default=1.0, gt=0)
    schedule: ScheduleSection = ScheduleSection()
    momentum: float = Field(default=0.9, ge=0, lt=1)
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    tau: float = Field(default=1e-3, gt=0)


def _scalar(value: Any) -> Any:
    """Gives one complaint about a value that is no scalar, instead of one per scalar type."""
    huge = isinstance(value, float) and not math.isfinite(value)
    if huge or not isinstance(value, bool | int | float | str):
        raise PydanticCustomError("scalar", "no scalar")
    return value


Scalar = Annotated[bool | int | float | str, BeforeValidator(_scalar)]


MOST_CAPACITY = 4096
"""The largest total weight of a cohort that a plan may ask room for."""


class CipherSection(Table):
    """Section that says how clients seal updates.

    `capacity` is W, the largest total weight of a cohort. The run has `holders` key holders
    (default: 4 under rlwe, 1 under bfv), of which `threshold` must agree (rlwe only; default: more
    than half, 3 of 4). `security` is the ring's (rlwe only): "conservative" also withstands 128
    bits of core-SVP.
    """

    name: str = "rlwe"
    capacity: int = Field(default=32, ge=1, le=MOST_CAPACITY)
    holders: int | None = Field(default=None, ge=1, le=64)
    threshold: int | None = Field(default=None, ge=1, le=64)
    security: Literal["standard", "conservative"] = "standard"


class TimedSection(Table):
    """The key of every rule: `deadline`, in seconds of the run's clock."""

    deadline: float = Field(default=60.0, gt=0)


class GatheredSection(TimedSection):
    """Keys of the rules that open `minimum` members together or more."""

    minimum: int = Field(default=5, ge=1)


class CohortSection(GatheredSection):
    """Keys of the rules that bound a cohort by `most` (default: what the capacity allows)."""

    most: int | None = Field(default=None, ge=1)


class StreamSection(TimedSection):
    """Keys of the rules without rounds.

    An update whose base is more than `max_staleness` versions old is refused. At most `concurrency`
    clients train at a time (default: all).
    """

    max_staleness: int = Field(default=10, ge=0, le=1000)
    concurrency: int | None = Field(default=None, ge=1)


class SyncSection(CohortSection):
    """Rounds: members that are invited together are summed together (`policy.rules.registry`).

    `start` members must be live before a round opens (default: the quorum). A `fraction` of the
    live members is invited, at least the quorum and at most `most`, drawn anew for every version.
    Groups of one "sync" rule share their rounds; "fragments" take turns, one in each round.
    """

    name: Literal["sync", "fragments"] = "sync"
    quorum: int = Field(ge=1)
    start: int | None = Field(default=None, ge=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    extensions: int = Field(default=2, ge=0)


class SspSection(CohortSection):
    """Stale synchronous parallel (`policy.rules.registry`); `slack` is s."""

    name: Literal["ssp"]
    slack: int = Field(ge=0, le=64)
    deadline: float = Field(default=600.0, gt=0)


class QueueSection(StreamSection, GatheredSection):
    """Keys of the rules that wait until `buffer` updates are there; `power` is p of FedBuff."""

    buffer: int = Field(ge=1)
    power: float = Field(default=0.5, ge=0, le=8)


class BufferedSection(QueueSection):
    """FedBuff (`policy.rules.registry`); `buffer` is K."""

    name: Literal["buffered"]


class AsyncSection(StreamSection):
    """The classical parameter server: every update makes a version (FedBuff with K = 1)."""

    name: Literal["async"]
    max_staleness: int = Field(default=100, ge=0, le=1000)

    @property
    def minimum(self) -> int:
        """Every update is opened alone."""
        return 1

    @property
    def power(self) -> float:
        """Every update weighs the same."""
        return 0.0


class PrioritySection(QueueSection):
    """The best `buffer` of `pool` updates (`policy.rules.registry`).

    `score` is "freshness", "magnitude", or "package.module:function"; `pool` is how many must wait
    before any are chosen (default: twice the buffer).
    """

    name: Literal["priority"]
    pool: int | None = Field(default=None, ge=1)
    score: str = "freshness"
    ageing: float = Field(default=60.0, gt=0)

    @property
    def waiting(self) -> int:
        """Number of updates that must wait before any are chosen."""
        return 2 * self.buffer if self.pool is None else self.pool


class OwnRuleSection(CohortSection):
    """A user's rule, `name` = "package.module:Class" (`policy.rules.registry`).

    A member weighs at most `most_weight`. The class is built from `settings`.
    """

    name: str = Field(pattern=CLASS)
    most_weight: Literal[1, 2, 4] = 1
    max_staleness: int = Field(default=10, ge=0, le=1000)
    settings: dict[str, Scalar] = Field(default={})


def _rule(rule: Any) -> Any:
    name = rule.get("name", "sync") if isinstance(rule, dict) else getattr(rule, "name", None)
    if isinstance(name, str) and ":" in name:
        return "own"
    return "sync" if name == "fragments" else name


RULES = ("sync", "ssp", "buffered", "async", "priority", "fragments")

RuleSection = Annotated[
    Annotated[SyncSection, Tag("sync")]
    | Annotated[SspSection, Tag("ssp")]
    | Annotated[BufferedSection, Tag("buffered")]
    | Annotated[AsyncSection, Tag("async")]
    | Annotated[PrioritySection, Tag("priority")]
    | Annotated[OwnRuleSection, Tag("own")],
    Discriminator(_rule),
]


def _check_rule(rule: Any) -> Any:
    """Turns a bare rule name into a table, and checks the name."""
    table = {"name": rule} if isinstance(rule, str) else rule
    if _rule(table) not in (*RULES, "own"):
        given = table.get("name") if isinstance(table, dict) else table
        text = f"no such rule, {show_value(given)}; {suggest(given, RULES)}"
        own = 'or your own as "package.module:Class"'
        raise PydanticCustomError("rule", "{text}", {"text": f"{text}, {own}"})
    return table


class AdaptiveSection(Table):
    """A clip that follows the updates' norms, beginning at `clip` (`privacy.client_level`).

    `quantile` of the updates shall be shorter than the clip.
    """

    quantile: float = Field(default=0.5, gt=0, lt=1)


class SparseSection(Table):
    """A table of which each client touches few rows, cut into row-blocks of `block` rows.

    Every tensor of the group has `rows` rows. Each row-block is a group, "NAME.0", "NAME.1", ...,
    with its own versions, cohorts and keys, under the group's rule.
    """

    rows: int = Field(ge=1, le=1 << 32)
    block: int = Field(ge=1)

    def names(self, name: str) -> tuple[str, ...]:
        """The names of the groups into which the group `name` is cut."""
        return tuple(f"{name}.{k}" for k in range(-(-self.rows // self.block)))


def _states_no_size(group: dict[str, Any]) -> bool:
    """Tells whether a group has neither clip nor range; a stage `round` demands a clip."""
    stages = group.get("codec")
    named = stages if isinstance(stages, list | tuple) else ()
    rounds = (
        "round" in (each, each.get("name") if isinstance(each, dict) else "") for each in named
    )
    return not any(rounds) and not {"clip", "range"} & group.keys()


class GroupSection(Table):
    """Parameters that share one rule, grid and clip.

    `pattern` is a shell pattern over tensor names. `range` is the grid's (default: the clip, or 1
    without one). By `weighting` all clients count alike, or by their public number of examples, up
    to `most_examples` (default: `records` of the privacy; weighting by examples is the default
    where there is a bound). `versions` is how many the group makes (default: the plan's). `codec`
    shortens updates before they are rounded; with `feedback` a client sends the rest later. Clients
    pull differences of `pull_bits` bits per value (default: whole blocks). By `bound` no step is
    made of a sum that is longer than clipped updates can be (default: where no plan allows running
    statistics, which are not clipped), or by "Nx median" than N times what sums usually are.

    A cohort's `outcome` is a step of the model, or a total: clients then send whole numbers of
    `bits` bits including the sign, and their total is the next version (`policy.checks.sections`).
    """

    name: str = Field(default="all", pattern=NAME)
    pattern: str = "*"
    outcome: Literal["model", "sum"] = "model"
    clip: float = Field(default=16.0, gt=0)
    bound: str | None = Field(default=None, pattern=BOUND)
    adaptive: AdaptiveSection | None = None
    bits: int = Field(default=16, ge=2, le=24)
    range: float | None = Field(default=None, gt=0)
    codec: tuple[Stage, ...] = ()
    feedback: bool = False
    pull_bits: int | None = Field(default=None, ge=2, le=8)
    weighting: Literal["examples", "uniform"] = "uniform"
    most_examples: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    versions: int | None = Field(default=None, ge=1)
    sparse: SparseSection | None = None
    rule: Annotated[RuleSection, BeforeValidator(_check_rule)]
    optimizer: OptimizerSection = OptimizerSection()

    def _stage_value(self, stage: str, key: str) -> Any | None:
        """Returns the value of a stage's key; None without this stage."""
        return next((getattr(each, key) for each in self.codec if each.name == stage), None)

    @property
    def one_in(self) -> int | None:
        """One of so many values is sent; None if all are."""
        return self._stage_value("support", "one_in")

    @property
    def support_every(self) -> int | None:
        """Number of versions that share one support; None if each version has its own.

        Only updates of one support can be added up. Without rounds it stays for as many versions as
        an update may be behind, so that most of those that wait are of the same one.
        """
        rule = self.rule
        if self.one_in is None or isinstance(rule, SyncSection | SspSection):
            return None
        return max(1, rule.max_staleness)

    @property
    def rotates(self) -> bool:
        """True if values are rotated."""
        return self._stage_value("rotate", "name") is not None

    @property
    def follows_norms(self) -> bool:
        """True if the grid's range moves with the norms of updates."""
        return self._stage_value("round", "length") == "mean_norm"

    @property
    def scaled(self) -> bool:
        """True if updates travel in units of a moving scale."""
        return self.adaptive is not None or self.follows_norms

    @property
    def fits_length(self) -> bool:
        """True if the grid's range follows from the length of an update."""
        return self._stage_value("round", "name") is not None


class NoiseSection(Table):
    """Keys of every unit of privacy.

    A client stops when its epsilon reaches `budget`. `delta` is the probability with which epsilon
    may fail to hold.
    """

    noise_multiplier: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    budget: float = Field(gt=0)


class RecordPrivacySection(NoiseSection):
    """DP-SGD inside the clients, by record or by person.

    With `adjacency` "add-or-remove", epsilon bounds the effect of adding or removing a record, and
    a client's weight is a public number: `records`, or one of its own. With "zero-out" it bounds
    the effect of blanking a record, and the weight is the client's number of records, then public.
    With the unit "person" epsilon bounds the effect of all records of one person: `records` counts
    persons, and the gradients of a person's records are clipped as one.
    """

    unit: Literal["record", "person"] = "record"
    adjacency: Literal["add-or-remove", "zero-out"] = "add-or-remove"
    records: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    max_grad_norm: float = Field(gt=0)
    sample_rate: float = Field(gt=0, le=1)


class ClientPrivacySection(NoiseSection):
    """Client-level privacy: noise on whole updates, clipped to each group's `clip`.

    `placement` is where the noise is added (`privacy.client_level`). `honest` is how many members
    of a cohort are trusted to add their share ("distributed" only).
    """

    unit: Literal["client"]
    placement: Literal["local", "distributed", "aggregator"]
    honest: int | None = Field(default=None, ge=2)


class BestSection(Table):
    """Which evaluated version is the best: the one with the most or the least of a metric."""

    metric: str
    goal: Literal["max", "min"]


class StopSection(Table):
    """When evaluations end a run early, by the metric of `best`.

    `patience` is how many consecutive evaluations may fail to improve on the best one before them
    by more than `least`. The run also ends when the metric reaches `target`.
    """

    patience: int | None = Field(default=None, ge=1)
    least: float = Field(default=0.0, ge=0)
    target: float | None = None


EVALUATED = "evaluation"
"""The name of the part of a contribution that is the evaluation itself."""

Magnitudes = Annotated[
    dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1, max_length=256)
]
"""Metrics by name, and the largest magnitude of each."""


class EvaluationSection(Table):
    """Clients, or one named `evaluator`, judge published versions on held-out records.

    `metrics` has each metric's largest magnitude: values are clipped to it, and travel as integers
    of that range. `reports` has the same for the metrics of other messages: "train" are those of a
    client's last training. `most_examples` and `rule` (of rounds; default: the first group's) are
    as in a group.
    """

    every: int = Field(ge=1)
    metrics: Magnitudes
    reports: dict[Annotated[str, Field(pattern=MESSAGE)], Magnitudes] = Field(default={})
    most_examples: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    rule: SyncSection | None = None
    evaluator: str | None = Field(default=None, pattern=NAME)
    best: BestSection | None = None
    stop: StopSection | None = None

    @property
    def parts(self) -> tuple[tuple[str, dict[str, float]], ...]:
        """The metrics by message: the evaluation first, then the reports, sorted."""
        return (EVALUATED, self.metrics), *sorted(self.reports.items())

    @property
    def contributed(self) -> tuple[str, ...]:
        """The names of the values that a client contributes, in order.

        These are the metrics, sorted; with reports, each part's share and then its metrics.
        """
        if not self.reports:
            return tuple(sorted(self.metrics))
        return tuple(
            name
            for message, most in self.parts
            for name in (
                f"share of {message}",
                *(self.title(message, each) for each in sorted(most)),
            )
        )

    @property
    def magnitudes(self) -> dict[str, float]:
        """The largest magnitude of every metric, sorted by name."""
        named = ((self.title(part, n), most) for part, of in self.parts for n, most in of.items())
        return dict(sorted(named))

    @staticmethod
    def title(message: str, metric: str) -> str:
        """Returns a metric's public name: "accuracy", or "train.accuracy" of a report."""
        return metric if message == EVALUATED else f"{message}.{metric}"


def _unit(privacy: Any) -> Any:
    given = isinstance(privacy, dict)
    unit = privacy.get("unit", "record") if given else getattr(privacy, "unit", None)
    return "record" if unit == "person" else unit  # one section has both


PrivacySection = Annotated[
    Annotated[RecordPrivacySection, Tag("record")] | Annotated[ClientPrivacySection, Tag("client")],
    Discriminator(
        _unit,
        custom_error_type="unit",
        custom_error_message='unit must be "record", "person" or "client"',
    ),
]


class FederationSection(Table):
    """The script, clients and settings when one machine plays all parties (`up`).

    With `baselines` the run is compared with training alone and centrally. `site` is the policy
    of all data holders' sites, a file beside the plan. `memory` is each shard's, as in its own
    file. `records` has one public number per client, by which it counts instead of
    `privacy.records`.
    """

    script: str
    clients: int = Field(ge=1)
    settings: dict[str, Scalar] = Field(default={})
    records: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] = ()
    baselines: bool = True
    site: str | None = None
    memory: str | None = Field(default=None, pattern=MEMORY)


class PlanSection(Table):
    """A whole plan file."""

    name: str = Field(pattern=NAME)
    versions: int = Field(ge=1)
    shards: int = Field(default=2, ge=1, le=1024)
    replicas: int = Field(default=1, ge=1, le=8)
    block_size: int | None = Field(default=None, ge=16, le=1 << 22)
    checkpoint_every: int = Field(default=1, ge=1)
    keep: int = Field(default=3, ge=0, le=1 << 20)
    lease: float = Field(default=20.0, gt=0)
    newcomers_wait: float = Field(default=86400.0, ge=0, le=31_536_000)
    take_over_after: float | None = Field(default=None, ge=5, le=31_536_000)
    initial: str | None = None
    local: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    cipher: CipherSection = CipherSection()
    privacy: PrivacySection | None = None
    training: dict[str, Scalar] = Field(default={})
    work: WorkSection | None = None
    scaling: ScalingSection | None = None
    group: tuple[GroupSection, ...] = Field(min_length=1)
    evaluation: EvaluationSection | None = None
    federation: FederationSection | None = None

    @property
    def most_shards(self) -> int:
        """The most shards of a run: those of `[scaling]`, or else `shards`."""
        own = self.scaling
        return self.shards if own is None or own.most_shards is None else own.most_shards

    @property
    def shard_memory(self) -> dict[str, str]:
        """The keys about memory in the files of shards; empty without a limit."""
        memory = None if self.federation is None else self.federation.memory
        return {} if memory is None else {"memory": memory}

    @property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """The row-blocks of every group that is cut, by the group's name."""
        return {g.name: g.sparse.names(g.name) for g in self.group if g.sparse is not None}

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Fills in the size of updates and the weighting of clients, where a group leaves them out.

        The default range has room for ordinary updates. Under client-level privacy, where noise is
        proportional to the clip, there is a small clip instead. A sum without noise has neither.
        """
        groups = values.get("group") if isinstance(values, dict) else None
        if not isinstance(groups, list | tuple):
            return values
        privacy = values.get("privacy")
        client = _unit(privacy) == "client"
        room = {"clip": 1.0} if client else {"range": 1.0}
        public = isinstance(privacy, dict) and privacy.get("adjacency") != "zero-out"
        records = privacy.get("records") if public else None
        if type(records) is not int or records < 1:  # an error of [privacy], and of no group
            records = None

        def complete(group: Any) -> Any:
            if not isinstance(group, dict):
                return group
            free = _states_no_size(group) and (client or group.get("outcome") != "sum")
            return _counting(room | group if free else group, records)

        return values | {"group": tuple(map(complete, groups))}


def _counting(group: dict[str, Any], records: Any) -> dict[str, Any]:
    """Fills in the weighting: by examples where there is a bound, else uniform.

    Checkpoints of 0.2.0 have plans whose `most_examples` is null, whose clients agreed on a bound.
    They are read as uniform. `records` is the bound of the privacy section.
    """
    if group.get("weighting", "examples") != "examples":
        return group
    stated = group.get("most_examples")
    if (most := records if stated is None else stated) is not None:
        return {**group, "weighting": "examples", "most_examples": most}
    return group if "most_examples" not in group else {**group, "weighting": "uniform"}
