"""The section of a data holder's own file: what its site allows, whatever a plan says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from secureps.config.sections import DIGEST, Table

Reveal = Literal["nothing", "keys", "values"]
"""What a coordinator hears of a refusal: that there is one, which keys, or the whole reason."""

MESSAGE = r"^(train|query|(train|evaluate|query)\.[A-Za-z_][A-Za-z0-9_]*)$"
"""Types of messages to a client's app that are not the evaluation itself; "train" is no custom one,
for every plan has it."""

Digests = Annotated[tuple[Annotated[str, Field(pattern=DIGEST)], ...], Field(min_length=1)]


class SiteSection(Table):
    """One site's policy; without a key it has no word in the matter.

    `minimum` is the smallest cohort, and `threshold` how few key holders may open a sum, by any
    plan that this site takes part in. `budget` is the largest epsilon of all runs together, counted
    in `ledger` (a path relative to the file; default: beside the kit), and
    `updates_per_hour` how many trainings may begin in any hour, of all runs too. `plans` are
    digests of plans as `secureps check` shows them, and `scripts` SHA-256 digests of files. Under
    `evaluation = false` no record is used to judge a model, and under `network = false` the script
    runs in a process of its own that has no network. A client counts as `records`, and publishes
    this number in place of how many examples it has. `messages` are types of an app's own that
    a run may use: none by default. `reveal` is what the coordinator hears of a refusal.
    """

    minimum: int | None = Field(default=None, ge=1)
    threshold: int | None = Field(default=None, ge=1, le=64)
    budget: float | None = Field(default=None, gt=0)
    ledger: str | None = None
    plans: Digests | None = None
    scripts: Digests | None = None
    evaluation: bool = True
    records: int | None = Field(default=None, ge=1, le=1 << 40)
    updates_per_hour: int | None = Field(default=None, ge=1)
    network: bool = True
    messages: tuple[Annotated[str, Field(pattern=MESSAGE)], ...] = ()
    reveal: Reveal = "keys"
