"""A shard that lost its journal writes a whole part of a checkpoint, or says what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import DamagedStore, Refused
from secureps.messages import coordinator_records
from secureps.messages.requests import Prepared
from secureps.roles.coordinator.group import Phase
from secureps.store.checkpoint import checkpoint_path
from tests.service.shard.test_damage import SHARD, Ward, flip


def lose_everything(ward: Ward) -> None:
    """Another disk: journal, payloads and states are gone, parts of checkpoints are not."""
    ward.play.kill(SHARD)
    ward.journals[SHARD].rows.clear()
    for where in ("spool", "states"):
        ward.wipe(where)


def to_part(ward: Ward, number: int) -> Path:
    """Plays until shard-0 has written its part of a checkpoint."""
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    ward.play.run(part.is_file)
    return part


@pytest.mark.parametrize(
    ("cipher", "phase"),
    [
        ("plain", Phase.HOLDING),
        ("rlwe", Phase.OPENING),
    ],
)
def test_it_goes_on_from_its_part_of_a_checkpoint(
    cipher: str, phase: Phase, tmp_path: Path
) -> None:
    ward = Ward(tmp_path, cipher, checkpoint_every=1)
    to_part(ward, 3)
    ward.until(phase, 3)
    lose_everything(ward)
    ward.play.start(SHARD)
    ward.ends_as_unharmed()
    ward.nothing_was_burnt()
    adopted = ward.journalled(SHARD, Prepared)[0]
    assert (adopted.version, adopted.cohort) == (3, -1)


@pytest.mark.parametrize("restarted", [False, True], ids=["away", "coordinator restarts"])
def test_no_version_is_committed_while_a_shard_that_was_prepared_is_away(
    restarted: bool, tmp_path: Path
) -> None:
    """If it came back without its disk, it could not make a committed version again."""
    ward = Ward(tmp_path, "plain", checkpoint_every=1)
    to_part(ward, 2)
    ward.until(Phase.PREPARING, 2)
    ward.play.kill("shard-1")
    ward.play.run(lambda: SHARD in ward.group.coming)
    lose_everything(ward)
    if restarted:
        ward.play.kill("coordinator")
        ward.play.start("coordinator")
    ward.play.start("shard-1")
    ward.play.run(lambda: "shard-1" in ward.group.coming or ward.group.version > 2)
    assert ward.group.version == 2
    ward.play.start(SHARD)
    ward.ends_as_unharmed()
    ward.nothing_was_burnt()


@pytest.mark.slow
def test_without_its_seed_a_shard_adds_other_noise_and_the_cohort_is_begun_anew(
    tmp_path: Path,
) -> None:
    """Two sums with noise of two seeds would tell their mean, so neither steps the model."""
    privacy = {"unit": "client", "placement": "aggregator", "noise_multiplier": 1.0}
    privacy |= {"delta": 1e-5, "budget": 999.0}
    group = {"clip": 3.0, "weighting": "uniform", "rule": {"quorum": 6}}
    ward = Ward(tmp_path, "rlwe", checkpoint_every=1, privacy=privacy, group=[group])
    to_part(ward, 2)
    ward.until(Phase.PREPARING, 2)
    lose_everything(ward)
    ward.play.lose(SHARD, UnsafeSeed(99))
    ward.play.start(SHARD)
    ward.play.run()
    (burnt,) = ward.journalled("coordinator", coordinator_records.CohortBurnt)
    assert burnt.reason.startswith("shard-0 lost the sums, and made again from the same blocks")
    assert ward.group.version == 4


@pytest.mark.parametrize("damaged", [False, True], ids=["none so new", "damaged"])
def test_without_such_a_part_it_ends_before_anything_is_opened(
    damaged: bool, tmp_path: Path
) -> None:
    ward = Ward(tmp_path, "bfv", checkpoint_every=1 if damaged else 2)
    ward.until(Phase.HOLDING, 3)
    number = 3 if damaged else 1
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    lose_everything(ward)
    if damaged:
        flip(part)
    ward.play.start(SHARD)
    with pytest.raises(Refused) as ended:
        ward.play.run()
    said = str(ended.value)
    what = "is damaged" if damaged else "holds version 2"
    assert f"no part of a checkpoint has version 3 of all: {part} {what}" in said
    whole = "000002" if damaged else "000001"
    assert f"or begin a new run from checkpoint {whole}" in said
    opened = ward.journalled("coordinator", coordinator_records.CohortOpened)
    assert len(opened) == 3
    assert ward.group.phase is Phase.HOLDING


def test_without_any_part_it_says_where_it_looked(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "plain", checkpoint_every=1)
    ward.until(Phase.HOLDING, 2)
    lose_everything(ward)
    shutil.rmtree(ward.play.checkpoints)
    ward.play.start(SHARD)
    with pytest.raises(Refused, match=f"none is in {ward.play.checkpoints}"):
        ward.play.run()


@pytest.mark.slow
def test_a_state_file_that_cannot_be_read_is_missed_before_the_sum_is_opened(
    tmp_path: Path,
) -> None:
    """An opened sum that cannot be stepped from would be charged for nothing."""
    ward = Ward(tmp_path, "bfv", checkpoint_every=2)
    ward.until(Phase.HOLDING, 3)
    ward.play.kill(SHARD)
    for path in ward.state_files():
        flip(path)
    shutil.rmtree(ward.play.checkpoints)
    ward.play.start(SHARD)
    with pytest.raises((DamagedStore, Refused), match="version 3 of all is lost"):
        ward.play.run()
    assert ward.group.phase is Phase.HOLDING
    assert len(ward.journalled("coordinator", coordinator_records.CohortOpened)) == 3
