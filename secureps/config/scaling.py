"""The sections of what follows measured time: `[work]` of clients, `[scaling]` of servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from secureps.config.sections import Table


class WorkSection(Table):
    """Slow clients do less local work, so that they arrive in time (`policy.checks.local_work`).

    `target_seconds` is for pulling, training and pushing (default: the shortest deadline of the
    groups); `least` the smallest part of the work, a power of two.
    """

    target_seconds: float | None = Field(default=None, gt=0)
    least: float = Field(default=0.125, gt=0, le=1)


class ScalingSection(Table):
    """How the servers follow the load while a run trains (`policy.scaling`).

    `policy` decides on shards, deadlines and buffers, at most once in `every` seconds; with
    `balance` row-blocks move from shards that have too much to do. Shards are never fewer than
    `least_shards` and never more than `most_shards` (default: the plan's `shards`). Deadlines and
    buffers are the plan's times a factor: from `least_deadline` to `most_deadline`, and from
    `least_buffer` to 1; a buffer is never below the minimum cohort.
    """

    policy: Literal["fixed", "rule", "fitted"] = "fixed"
    balance: bool = True
    every: float = Field(default=60.0, gt=0, le=31_536_000)
    least_shards: int = Field(default=1, ge=1, le=1024)
    most_shards: int | None = Field(default=None, ge=1, le=1024)
    least_deadline: float = Field(default=1.0, gt=0, le=1)
    most_deadline: float = Field(default=1.0, ge=1, le=100)
    least_buffer: float = Field(default=1.0, gt=0, le=1)
