"""The sections of a scenario and of a study: a plan, and who plays it when, how fast, how often."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from secureps.config.plan import RuleSection, Scalar, _check_rule
from secureps.config.sections import NAME, Table


class VariantSection(Table):
    """A plan in a study (default: the scenario's), with what tuning chooses for all its groups.

    Each of `rules`, with each of `deadlines`, at each of the server's `rates`: where there is
    none, the plan's own.
    """

    name: str = Field(pattern=NAME)
    plan: str | None = None
    rules: tuple[Annotated[RuleSection, BeforeValidator(_check_rule)], ...] = ()
    deadlines: tuple[Annotated[float, Field(gt=0)], ...] = ()
    rates: tuple[Annotated[float, Field(gt=0)], ...] = ()


class StudySection(Table):
    """Rules compared by the virtual time after which the model is good enough (`run.study`).

    That is the first time from which `hold` judgements in a row, `every` seconds apart, have a
    `measure` of `target` or more. Every candidate of a variant is tried under the seed `tuning`;
    the soonest is judged under `seeds`. `sealed` versions are made both in the clear and under the
    plan's cipher, and compared. Where bytes take time (`delays.bandwidth`), those of the plan's
    cipher do; trials are played under it too, if none are compared.
    """

    measure: str = "accuracy"
    target: float
    hold: int = Field(default=1, ge=1)
    every: float = Field(gt=0)
    seconds: float = Field(gt=0)
    tuning: int = Field(default=0, ge=0, lt=1 << 64)
    seeds: tuple[Annotated[int, Field(ge=0, lt=1 << 64)], ...] = Field(min_length=1)
    sealed: int = Field(default=0, ge=0)
    baseline: str
    variant: tuple[VariantSection, ...] = Field(min_length=1)


class StaySection(Table):
    """Clients that do not stay from beginning to end.

    `count` of them, from number `first` on, come at `comes` seconds and are gone for good, without
    a word, at `leaves` (default: they stay).
    """

    first: int = Field(ge=0)
    count: int = Field(default=1, ge=1)
    comes: float = Field(default=0.0, ge=0)
    leaves: float | None = Field(default=None, gt=0)


class ShardsSection(Table):
    """What shards take in a simulation (default: no time at all).

    `bandwidth` is of each shard's link, in bytes a second each way; a shard adds up
    a block of an update in `block_seconds`; `slow` has factors on both, by shard.
    """

    bandwidth: float | None = Field(default=None, ge=1)
    block_seconds: float = Field(default=0.0, ge=0)
    slow: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})


class ScenarioSection(Table):
    """A simulation: a plan, a script, how many clients, and what goes wrong.

    `delays` is read by `scenario.delays`; a client that drops out of a version is gone
    for `downtime` seconds and then starts again from its journal. `stay` is for those that come
    late or leave.
    """

    name: str = Field(pattern=NAME)
    plan: str
    script: str
    clients: int = Field(ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    settings: dict[str, Scalar] = Field(default={})
    delays: dict[str, Any] = Field(default={})
    downtime: float = Field(default=60.0, ge=0)
    stay: tuple[StaySection, ...] = ()
    shards: ShardsSection = ShardsSection()
    study: StudySection | None = None
