"""The sections of a scenario and of a study: a plan, its players, their times and their faults."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from secureps.config.plan import RuleSection, Scalar, _check_rule
from secureps.config.sections import NAME, Table


class VariantSection(Table):
    """A plan in a study (default: the scenario's), and the choices of tuning for all its groups.

    Tuning tries each of `rules` with each of `deadlines` at each of the server's learning `rates`;
    an empty list means the plan's own.
    """

    name: str = Field(pattern=NAME)
    plan: str | None = None
    rules: tuple[Annotated[RuleSection, BeforeValidator(_check_rule)], ...] = ()
    deadlines: tuple[Annotated[float, Field(gt=0)], ...] = ()
    rates: tuple[Annotated[float, Field(gt=0)], ...] = ()


class StudySection(Table):
    """Rules compared by the virtual time after which the model is good enough (`run.study`).

    That is the first time from which `hold` consecutive judgements, `every` seconds apart, have a
    `measure` of at least `target`. Every candidate of a variant is tried with the seed `tuning`;
    the fastest is judged with `seeds`. Trials are in the clear, or, where bytes take time
    (`delays.bandwidth`), under the plan's cipher.
    """

    measure: str = "accuracy"
    target: float
    hold: int = Field(default=1, ge=1)
    every: float = Field(gt=0)
    seconds: float = Field(gt=0)
    tuning: int = Field(default=0, ge=0, lt=1 << 64)
    seeds: tuple[Annotated[int, Field(ge=0, lt=1 << 64)], ...] = Field(min_length=1)
    baseline: str
    variant: tuple[VariantSection, ...] = Field(min_length=1)


class StaySection(Table):
    """Clients that come late or leave early.

    `count` of them, from number `first` on, come at `comes` seconds and leave without a word at
    `leaves` (default: never).
    """

    first: int = Field(ge=0)
    count: int = Field(default=1, ge=1)
    comes: float = Field(default=0.0, ge=0)
    leaves: float | None = Field(default=None, gt=0)


class ShardsSection(Table):
    """What shards take in a simulation (default: no time).

    `bandwidth` is of each shard's link, in bytes per second each way. A shard adds one block of an
    update in `block_seconds`. `slow` has factors on both, by shard.
    """

    bandwidth: float | None = Field(default=None, ge=1)
    block_seconds: float = Field(default=0.0, ge=0)
    slow: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})


class ScenarioSection(Table):
    """A simulation: a plan, a script, how many clients, and what goes wrong.

    `scenario.delays` reads `delays`. A client that drops out of a version is gone for `downtime`
    seconds, then restarts from its journal. `stay` is for clients that come late or leave.
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
