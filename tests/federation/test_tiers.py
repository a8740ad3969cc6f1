"""A shard with little memory makes the same model, killed or not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.errors import ConfigError, Refused
from secureps.policy.memory import footprint
from secureps.roles.shard.memory_report import memory_used
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Conditions
from tests.kits.federations import (
    Tensors,
    Walker,
    events_of,
    finished,
    killed_at,
    layout_of,
    same,
    small_federation,
    small_plan,
)
from tests.kits.shoppers import SYNC, shopping, sparse_plan

LITTLE = 16 * 4 * 3
"""Bytes: the least for blocks of 16 values and Adam's two vectors; a group has seven or eight."""


def plan_of(cipher: str, **group: Any) -> Any:
    plan = small_plan(cipher, versions=3, block_size=16)
    own = plan.section.group[0].model_copy(update=group)
    return small_plan(cipher, versions=3, block_size=16, group=[own.model_dump(exclude_none=True)])


@cache
def with_enough(cipher: str) -> Tensors:
    with TemporaryDirectory() as folder:
        play = small_federation(plan_of(cipher), Path(folder))
        play.run(lambda: finished(play))
        return play.model()


@pytest.mark.parametrize(
    ("cipher", "memory", "tier"),
    [
        ("plain", LITTLE, None),
        ("rlwe", LITTLE, None),
        ("plain", 40 * LITTLE, None),
        ("plain", None, "mapped"),
        ("plain", 40_000, "resident"),
    ],
)
def test_memory_changes_no_bit(
    cipher: str, memory: int | None, tier: str | None, tmp_path: Path
) -> None:
    plan = plan_of(cipher, tier=tier)
    play = small_federation(plan, tmp_path, Conditions(memory=memory))
    play.run(lambda: finished(play))
    assert same(play.model(), with_enough(cipher))
    used = memory_used(play.coordinator.telemetry)
    assert used.keys() == (set() if memory is None else {"shard-0", "shard-1"})
    for each in used.values():
        assert each.memory == memory
        assert each.resident <= each.memory
        assert each.hits + each.waits > 0


def test_less_than_the_least_is_refused_with_the_least(tmp_path: Path) -> None:
    play = small_federation(plan_of("plain"), tmp_path, Conditions(memory=LITTLE - 1))
    with pytest.raises(Refused, match=r'is too little for what this shard holds: .*"1 KiB"'):
        play.run(lambda: finished(play))
    assert play.parties["shard-0"].halted.result(0).error is ConfigError


def test_killed_at_any_time_it_is_the_same_model(tmp_path: Path) -> None:
    conditions = Conditions(memory=LITTLE)
    events = events_of(small_federation(plan_of("plain"), tmp_path / "whole", conditions))
    for moment in range(events // 3, events, events // 3):
        play = small_federation(plan_of("plain"), tmp_path / str(moment), conditions)
        killed_at(play, "shard-0", moment)
        assert same(play.model(), with_enough("plain")), moment


def test_row_blocks_come_and_go(tmp_path: Path) -> None:
    """A limit within which one row-block of a shard's two or three is made in memory."""
    models = []
    for memory in (None, 68_000):
        plan = sparse_plan("plain", SYNC)
        play, _ = shopping(plan, tmp_path / str(memory), Conditions(memory=memory))
        play.run(partial(finished, play))
        models.append(play.model())
    assert same(*models)


@pytest.mark.parametrize(("sparse", "memory"), [(False, 68_000), (True, 300_000), (False, None)])
def test_check_predicts_what_is_in_memory_and_in_files(
    sparse: bool, memory: int | None, tmp_path: Path
) -> None:
    """Of the busiest shard, within 1.5 times."""
    conditions = Conditions(memory=memory)
    if sparse:
        plan = sparse_plan("plain", SYNC)
        play, _ = shopping(plan, tmp_path, conditions, [[0, 1, 2, 3]] * 8)
    else:
        plan = small_plan(block_size=1024, shards=1)
        play = small_federation(plan, tmp_path, conditions, kind=lambda i: Walker(i, (100, 100)))
    play.run(lambda: finished(play))
    groups = layout_of(play).groups
    used = footprint(plan, groups, replace(assume_service(plan), memory=memory))
    resident, files = [], []
    for shard in assume_service(plan).shards:
        states = play.parties[shard].worker._states  # type: ignore[attr-defined]
        held = [made.nbytes for known in states._held.values() for made in known.values()]
        known = {each.name: states._state.group(each.name).states for each in groups}
        newest = [states.values(at, max(its)).nbytes for at, its in known.items() if its]
        most = max(newest) if memory is None else states.tiers._room_in_memory()
        made = [each for each in newest if each <= most]
        resident.append(sum(held) + max(made, default=0))  # one more is being made
        files.append(sum(path.stat().st_size for path in (tmp_path / shard / "states").iterdir()))
    assert max(resident) / 1.5 <= used.state <= 1.5 * max(resident)
    assert max(files) / 1.5 <= used.files <= 1.5 * max(files)
