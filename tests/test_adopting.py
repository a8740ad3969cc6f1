"""A shard that lost its journal: its part of a checkpoint is whole, or it says what is lacking."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from secureps.errors import DamagedStore, Refused
from secureps.messages import records
from secureps.roles.group_state import Phase
from secureps.store.checkpoint import checkpoint_path
from tests.test_damage import SHARD, Ward, flip


def lose_everything(ward: Ward) -> None:
    """Another disk: journal, payloads and states are gone, its parts of checkpoints are not."""
    ward.play.kill(SHARD)
    ward.journals[SHARD].rows.clear()
    for where in ("spool", "states"):
        ward.wipe(where)


def to_part(ward: Ward, number: int) -> Path:
    """To the moment at which shard-0 has written its part of a checkpoint."""
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    ward.play.run(part.is_file)
    return part


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.HOLDING])
@pytest.mark.parametrize("cipher", ["plain", "bfv"])
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
    adopted = ward.journalled(SHARD, records.StatePrepared)[0]
    assert (adopted.version, adopted.cohort) == (3, -1)


def test_an_older_copy_of_its_folder_catches_up(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "plain", checkpoint_every=1)
    to_part(ward, 1)
    older = len(ward.journals[SHARD].rows)
    to_part(ward, 3)
    ward.play.kill(SHARD)
    del ward.journals[SHARD].rows[older:]
    ward.play.start(SHARD)
    ward.ends_as_unharmed()


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
    opened = ward.journalled("coordinator", records.CohortOpened)
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


def test_a_state_file_that_cannot_be_read_is_missed_before_the_sum_is_opened(
    tmp_path: Path,
) -> None:
    """What is opened and cannot be stepped from is charged for nothing."""
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
    assert len(ward.journalled("coordinator", records.CohortOpened)) == 3
