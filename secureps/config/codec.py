"""The stages of a codec, as a plan's `[[group.codec]]` has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from secureps.config.sections import Table, shown
from secureps.wording import meant


class SupportSection(Table):
    """Of every `one_in` values one is sent, the same for all members, drawn anew each version.

    Without rounds they are drawn anew `every` so many versions.
    """

    name: Literal["support"]
    one_in: int = Field(ge=2, le=256)
    every: int | None = Field(default=None, ge=1)


class RotateSection(Table):
    """What is sent goes through a randomised Hadamard transform (`codec.rotate`)."""

    name: Literal["rotate"]


class RoundSection(Table):
    """The grid's range is so many standard deviations of a rotated update of one length.

    `length` is which: the clip, or the mean norm of the updates of the cohort before, which moves
    the range (`codec.moving_range`).
    """

    name: Literal["round"]
    deviations: float = Field(default=3.0, ge=0.1, le=1000)
    length: Literal["clip", "mean_norm"] = "clip"


STAGES = ("support", "rotate", "round")
"""In their order: what is not sent is not rotated, and what is rounded is not changed again."""


def _stage(stage: Any) -> Any:
    """`"rotate"` says no more than a name, which must be of a stage."""
    table = {"name": stage} if isinstance(stage, str) else stage
    name = table.get("name") if isinstance(table, dict) else getattr(table, "name", None)
    if name not in STAGES:
        text = f"no such stage, {shown(name)}; {meant(name, STAGES)}"
        raise PydanticCustomError("stage", "{text}", {"text": text})
    return table


Stage = Annotated[
    Annotated[SupportSection | RotateSection | RoundSection, Field(discriminator="name")],
    BeforeValidator(_stage),
]
