"""A shard that lost payloads or state files ends in the same bits.

Each test plays the small federation up to an event, damages files of shard-0 there, and plays on.
If no cohort had to be burnt, the model equals that of the unharmed run bit for bit.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import Refused
from secureps.messages import coordinator_records
from secureps.messages.requests import GetSum
from secureps.messages.submission import FOUNDING, UPDATE
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import ShardState, model_key, sum_key
from secureps.run.simulate.simulation import Conditions
from secureps.store.checkpoint import checkpoint_path
from secureps.store.journal import MemoryJournal
from secureps.store.spool import DiskSpool, MemorySpool, Spool
from tests.kits.faults_kit import FaultyNetwork, seen
from tests.kits.federations import same, small_federation, small_plan, unharmed

SHARD = "shard-0"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS: list[Callable[[Path], None]] = [flip, Path.unlink]
harms = pytest.mark.parametrize("harm", HARMS, ids=["flipped", "gone"])


class Ward:
    """A small federation whose shard-0 keeps its payloads on disk."""

    def __init__(self, folder: Path, cipher: str, clients: int = 6, **changes: Any) -> None:
        self.cipher = cipher
        self.folder = folder
        self.journals: dict[str, MemoryJournal] = {}
        conditions = Conditions(
            spool=self.spool,
            journal=lambda name: self.journals.setdefault(name, MemoryJournal()),
            network=FaultyNetwork,
        )
        plan = small_plan(cipher, clients=clients, **changes)
        self.play = small_federation(plan, folder, conditions, clients=clients)

    def spool(self, name: str) -> Spool:
        return DiskSpool(self.folder / "spool" / name) if name == SHARD else MemorySpool()

    # --- moments ------------------------------------------------------------------

    @property
    def group(self) -> GroupState:
        return self.play.coordinator.federation.groups["all"]

    def until(self, phase: Phase, version: int) -> None:
        """Plays up to the event in which the coordinator enters this step of the next version.

        Its orders have not arrived yet.
        """
        self.play.run(lambda: (self.group.phase, self.group.version) == (phase, version))

    # --- shard-0 ------------------------------------------------------------------

    @property
    def state(self) -> ShardState:
        machine = self.play.parties[SHARD].machine
        assert isinstance(machine, Shard)
        return machine.state

    @property
    def block(self) -> int:
        """The first block that shard-0 holds."""
        return self.state.own("all")[0]

    def file(self, key: str) -> Path:
        return DiskSpool(self.folder / "spool" / SHARD).path(key)

    def files(self, purpose: str) -> list[Path]:
        """The payloads on shard-0 that were sent for this purpose."""
        spooled = self.state.spooled.values()
        return [self.file(header.key) for header in spooled if header.purpose == purpose]

    @property
    def sum(self) -> Path:
        return self.file(sum_key("all", self.group.number, self.block))

    def wipe(self, where: str) -> None:
        """Deletes everything in a folder except the journal."""
        path = self.folder / "spool" / SHARD if where == "spool" else self.folder / SHARD / "states"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)

    # --- the end ------------------------------------------------------------------

    def ends_as_unharmed(self) -> None:
        self.play.run()
        assert same(self.play.model(), unharmed(self.cipher)[0])

    def journalled(self, party: str, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.journals[party].rows if isinstance(record, kind)]

    def nothing_was_burnt(self) -> None:
        assert self.journalled("coordinator", coordinator_records.CohortBurnt) == []
        assert self.journalled("coordinator", coordinator_records.RoundGivenUp) == []
        assert {fate.outcome for fate in self.play.coordinator.federation.fates.values()} == {
            "durable"
        }


def test_a_sum_that_went_while_its_request_waited_is_refused_and_no_more(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "bfv")
    ward.until(Phase.OPENING, 2)
    worker, run = ward.play.parties[SHARD].worker, ward.state.pinned.run.id
    with pytest.raises(Refused, match="the sum of block 0 of cohort 9 of all is not held any more"):
        worker.fetch(sum_key("all", 9, 0))
    with pytest.raises(Refused, match="version 7 of all is gone; pull the newest"):
        worker.fetch(model_key("all", 7, ward.block))
    ward.sum.unlink()
    for path in ward.files(UPDATE):
        path.unlink()
    asked = ward.play.parties[SHARD].request("holder-0", GetSum(run, "all", 2, ward.block))
    ward.play.run(asked.done)
    assert isinstance(asked.exception(), Refused)
    assert not ward.play.parties[SHARD].halted.done()


@harms
@pytest.mark.parametrize("founder", ["there", "away"])
def test_a_founding_block_that_is_damaged_is_sent_again(
    founder: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    ward = Ward(tmp_path, "plain")
    ward.play.run(lambda: "all" in ward.play.versions() and bool(ward.group.receipts))
    harm(ward.files(FOUNDING)[0])
    if founder == "away":
        ward.play.kill("client-00")
        ward.play.loop.call_later(1.0, lambda: ward.play.start("client-00"))
    ward.ends_as_unharmed()
    ward.nothing_was_burnt()
    assert seen(ward.play.network, "coordinator", "client-00", "SendAgain") >= 1


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
