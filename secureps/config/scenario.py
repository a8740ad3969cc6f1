"""The sections of a scenario and of a study: a plan, its players, their times and their faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

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


Drawn = Annotated[float | None, Field(ge=0, le=1e15)]

NUMBERS = {
    "constant": ("value",),
    "uniform": ("low", "high"),
    "lognormal": ("median", "sigma"),
    "exponential": ("mean",),
}
"""The numbers of each kind of distribution."""


class LawSection(Table):
    """A distribution: a table with its `kind` and that kind's numbers, or one constant number.

    The bounds of the numbers keep products and quotients of two draws finite.
    """

    kind: Literal["constant", "uniform", "lognormal", "exponential"]
    value: Drawn = None
    low: Drawn = None
    high: Drawn = None
    median: Drawn = None
    sigma: Annotated[float | None, Field(ge=0, le=10)] = None
    mean: Drawn = None

    @model_validator(mode="before")
    @classmethod
    def _read_number(cls, law: Any) -> Any:
        return law if isinstance(law, Mapping) else {"kind": "constant", "value": law}

    @model_validator(mode="after")
    def _refuse_others(self) -> Self:
        wanted, given = NUMBERS[self.kind], self.numbers
        if set(given) != set(wanted):
            raise _wrong(f"{self.kind} takes {', '.join(wanted)}, not {', '.join(given) or 'none'}")
        if self.kind == "uniform" and given["high"] < given["low"]:
            raise _wrong(f"high, {given['high']:g}, is below low, {given['low']:g}")
        return self

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of its kind by name, in their order."""
        return {key: each for key, each in self if key != "kind" and each is not None}


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError("law", "{text}", {"text": text})


LEAST_BANDWIDTH = 1.0
"""The lowest bandwidth of a link, or median of a lognormal one, in bytes a second."""


def _check_link(law: LawSection) -> LawSection:
    if law.kind == "exponential":
        raise _wrong("an exponential one has links of almost 0 bytes a second; take lognormal")
    if (least := next(iter(law.numbers.values()))) < LEAST_BANDWIDTH:
        raise _wrong(
            f"a link has {LEAST_BANDWIDTH:g} byte a second or more, and not {least:g}; leave it "
            "out if bytes take no time"
        )
    return law


AT_ONCE = LawSection(kind="constant", value=0.0)


class DelaysSection(Table):
    """The delays of a population of clients, in seconds, and their chance to drop a version.

    `network` is the latency of a message, and `version` the time that servers take to make a
    version of a cohort. `device` is drawn once for each client and multiplies all its training
    times, because a slow device stays slow. `bandwidth`, in bytes a second each way, is drawn once
    for each client too (default: bytes take no time).
    """

    train: LawSection = AT_ONCE
    network: LawSection = AT_ONCE
    device: LawSection = LawSection(kind="constant", value=1.0)
    bandwidth: Annotated[LawSection, AfterValidator(_check_link)] | None = None
    version: LawSection = AT_ONCE
    dropout: float = Field(default=0.0, ge=0, le=1)


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

    A client that drops out of a version is gone for `downtime` seconds, then restarts from its
    journal. `stay` is for clients that come late or leave.
    """

    name: str = Field(pattern=NAME)
    plan: str
    script: str
    clients: int = Field(ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    settings: dict[str, Scalar] = Field(default={})
    delays: DelaysSection = DelaysSection()
    downtime: float = Field(default=60.0, ge=0)
    stay: tuple[StaySection, ...] = ()
    shards: ShardsSection = ShardsSection()
    study: StudySection | None = None
