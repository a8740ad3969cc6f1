"""A shard trusts only bytes on its disk that have the recorded digest."""

import dataclasses
import errno
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import DamagedStore, Malformed, Refused
from secureps.messages import records, shard_records
from secureps.messages.encoding import file_digest, payload_digest
from secureps.messages.orders import Commit
from secureps.messages.requests import GetBlock, Prepared, PutBlock
from secureps.messages.submission import UPDATE, BlockHeader, Member, SubmissionId, cohort_digest
from secureps.policy.plan import Plan
from secureps.roles.machine import Sweep
from secureps.roles.shard.state import (
    GatherState,
    MakeState,
    PayloadsDamaged,
    ShardState,
    SumCohort,
    noise_key,
    state_key,
    sum_key,
)
from secureps.service.shard.states import ShardFolders
from secureps.service.shard.worker import ShardNoise, ShardWorker
from secureps.store.spool import MemorySpool
from tests.kits.roles_kit import ADDRESSES, SHARDS, make_cohort, make_placement, make_plan, make_run

IDS = tuple(SubmissionId(client, "all", 1) for client in ("c0", "c1"))
COHORT = dataclasses.replace(
    make_cohort(), members=(Member(IDS[0], 1, 0), Member(IDS[1], 2, 0)), number=0
)


class Shop:
    """A shard that holds blocks 0 and 2, its worker, and its spool."""

    def __init__(self, folder: Path, plan: Plan | None = None) -> None:
        self.plan = plan or make_plan()
        self.run = make_run(self.plan)
        self.state, self.spool = ShardState(SHARDS[0]), MemorySpool()
        self.state.apply(records.RunPinned(self.run, make_placement(self.plan), ADDRESSES))
        folders = ShardFolders(folder / "states", folder / "checkpoints")
        noise = ShardNoise(self.state, self.spool, UnsafeSeed(1), {})
        self.worker = ShardWorker(self.state, self.spool, folders, noise)

    def header(self, id: SubmissionId, payload: bytes) -> BlockHeader:
        own = (id.client, UPDATE, id.group, id.sequence, 0)
        return BlockHeader(self.run.id, *own, len(payload), payload_digest(payload))

    def takes(self, id: SubmissionId, value: int) -> None:
        payload = np.full(16, value, "<u2").tobytes()
        header = self.header(id, payload)
        self.worker.take(PutBlock(header), payload)()
        self.state.apply(header)

    def made(self, total: bytes) -> None:
        """Records a sum of block 0."""
        digests = (payload_digest(total), payload_digest(b""))
        self.state.apply(shard_records.SumsMade(COHORT, digests))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


TOTAL = np.full(16, 5 + 2 * 7, "<i8").tobytes()


def test_a_sum_that_is_lost_is_made_again_from_its_members_blocks(shop: Shop) -> None:
    shop.takes(IDS[0], 5)
    shop.takes(IDS[1], 7)
    shop.made(TOTAL)
    key = sum_key("all", 0, 0)
    for damaged in (None, TOTAL[:-1] + b"\x01", b""):
        shop.spool.delete(key)
        if damaged is not None:
            shop.spool.put(key, damaged)
        assert shop.worker._read_sum("all", 0, 0) == TOTAL
        assert shop.spool.get(key) == TOTAL


def test_nothing_is_summed_while_its_base_is_not_whole(shop: Shop) -> None:
    """A sum that is opened and cannot become a version would be charged in vain."""
    keys = []
    for id, value in zip(IDS, (5, 7), strict=True):
        shop.takes(id, value)
        keys.append((shop.header(id, np.full(16, value, "<u2").tobytes()).key,))
    with pytest.raises(DamagedStore):
        shop.worker.work(SumCohort(COHORT, tuple(keys)))
    assert not shop.spool.has(sum_key("all", 0, 0))


def test_a_sum_that_comes_out_different_is_not_taken_for_the_one_on_record(shop: Shop) -> None:
    """The holders' answers open the recorded sum, and no other."""
    shop.takes(IDS[0], 5)
    shop.takes(IDS[1], 8)
    shop.made(TOTAL)
    with pytest.raises(Refused, match="made again, it came out different"):
        shop.worker._read_sum("all", 0, 0)
    assert shop.spool.keys("sum/") == []
    with pytest.raises(Refused, match="is not held any more"):
        shop.worker._read_sum("all", 1, 0)


def test_without_one_members_block_it_is_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.takes(IDS[0], 5)
    shop.made(TOTAL)
    with pytest.raises(Refused, match=r"is lost: .*block 0 of c1/all/1 is not here"):
        shop.worker._read_sum("all", 0, 0)

    def fail(key: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    shop.takes(IDS[1], 7)
    monkeypatch.setattr(shop.spool, "get", fail)  # a disk with a bad sector
    with pytest.raises(Refused, match="is lost: shard-a: update/c0/all/1/0 is gone"):
        shop.worker._read_sum("all", 0, 0)


def test_what_another_shard_gave_is_used_while_it_is_what_came(tmp_path: Path) -> None:
    shop, key = Shop(tmp_path), state_key("all", 0, 1)
    values = dict.fromkeys(("all/0001", "all/0001/momentum"), np.ones(16, "<f4"))
    given = save({**values, "all/0001/step": np.ones(1, "<i8")})
    ask = GetBlock(shop.run.id, "all", 0, 1, state=True)
    task = GatherState(Commit(1, "all", 0, 0), (1,), (key,), 2)
    shop.worker.keep(ask, given, payload_digest(given))
    whole = shop.spool.get(key)
    for harm in (whole.replace(b"momentum", b"momentul"), whole[:-1], b""):
        shop.spool.put(key, harm)
        with pytest.raises(PayloadsDamaged, match=f"gone or damaged: {key}"):
            shop.worker.work(task)
    shop.spool.put(key, whole)
    done = shop.worker.work(task)
    assert done is not None
    assert isinstance(done.made, Prepared)
    assert done.made.blocks == (payload_digest(np.ones(16, "<f4").tobytes()),)


def test_a_block_is_what_its_header_says(tmp_path: Path) -> None:
    shop, payload = Shop(tmp_path), np.full(16, 9, "<u2").tobytes()
    header = shop.header(IDS[0], payload)
    with pytest.raises(Malformed, match="30 bytes came, the header announced 32"):
        shop.worker.take(PutBlock(header), payload[:-2])
    with pytest.raises(Malformed, match="does not have the digest of its header"):
        shop.worker.take(PutBlock(header), payload[:-2] + b"\x01\x00")
    beyond = np.full(16, 0xFFFF, "<u2").tobytes()
    with pytest.raises(Malformed, match="exceeds 65534"):
        shop.worker.take(PutBlock(shop.header(IDS[0], beyond)), beyond)
    assert shop.spool.keys() == []


def test_a_run_is_founded_on_its_own_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "v0.safetensors"
    model = {"bias": np.ones(5, np.float32), "weight": np.zeros((11, 5), np.float32)}
    file.write_bytes(save(model))
    digest = file_digest(file.read_bytes()).hex()
    shop = Shop(tmp_path, make_plan(initial=str(file), initial_digest=digest))
    made = shop.worker._make_first(MakeState("all", None))
    assert sorted(made.values) == [0, 2]
    assert made.values[0][:6].tolist() == [1.0] * 5 + [0.0]
    file.write_bytes(save(model | {"bias": np.full(5, 2, np.float32)}))
    other = file_digest(file.read_bytes()).hex()
    with pytest.raises(DamagedStore, match=f"founded on, for its digest is {other}: bring shard-a"):
        shop.worker._make_first(MakeState("all", None))
    file.unlink()
    with pytest.raises(DamagedStore, match=f"No such file or directory: bring .* {digest}, and"):
        shop.worker._make_first(MakeState("all", None))


ABOUT = b"a" * 32


def test_noise_that_is_lost_is_refused_and_ends_nobody(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"shard-a does not have sum/all/0/0/noise/{ABOUT.hex()}"):
        Shop(tmp_path).worker.fetch(noise_key("all", 0, 0, ABOUT))


def test_sums_and_noise_of_cohorts_that_are_over_go_at_a_start(shop: Shop) -> None:
    """Noise of an earlier cohort with a recorded number goes too."""
    shop.made(TOTAL)
    about = cohort_digest(shop.run.id, COHORT)
    shop.state.apply(Prepared("s", "all", 2, (b"",) * 2, b"", cohort=1))
    kept = [sum_key("all", 0, 0), noise_key("all", 0, 0, about), noise_key("all", 2, 0, ABOUT)]
    gone = [sum_key("all", 1, 0), noise_key("all", 1, 0, about), noise_key("all", 0, 0, ABOUT)]
    for key in (*kept, *gone, "update/c0/all/9/0/ff"):
        shop.spool.put(key, b"")
    shop.worker.work(Sweep(frozenset()))
    assert shop.spool.keys() == sorted(kept)
