"""A shard trusts only bytes with the recorded digest; its noise and steps follow from them."""

import dataclasses
import errno
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from secureps.buffers import Buffers
from secureps.crypto.sampling import SecretSeed, Seed, UnsafeSeed
from secureps.errors import DamagedStore, InternalError, KitError, Malformed, NotFinite, Refused
from secureps.messages import records, shard_records
from secureps.messages.encoding import file_digest, payload_digest
from secureps.messages.orders import Commit
from secureps.messages.records import RunPinned
from secureps.messages.requests import GetBlock, Prepared, PutBlock
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import (
    UPDATE,
    BlockHeader,
    Cohort,
    Member,
    SubmissionId,
    cohort_digest,
)
from secureps.model.layout import SCALE, GroupLayout
from secureps.model.optimizer import EXACT, OPTIMIZERS, OptimizerState
from secureps.policy.block_deltas import block_delta
from secureps.policy.plan import Plan
from secureps.roles.machine import Sweep
from secureps.roles.shard.state import (
    GatherState,
    MakeState,
    NoiseDamaged,
    PayloadsDamaged,
    ShardState,
    SumCohort,
    noise_key,
    state_key,
    sum_key,
)
from secureps.service.shard.states import GroupValues, ShardFolders, lay_out
from secureps.service.shard.worker import PIECE, ShardNoise, ShardWorker, Stepping
from secureps.store.spool import MemorySpool
from tests.kits.privacy_kit import adaptive_plan
from tests.kits.roles_kit import (
    ADDRESSES,
    SCHEMA,
    SHARDS,
    make_cohort,
    make_placement,
    make_plan,
    make_run,
)

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
    assert sum_key("all", 0, 0) not in set(shop.spool.keys())


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

    def fail(key: str, buffers: Buffers) -> memoryview:
        raise OSError(errno.EIO, "Input/output error")

    shop.takes(IDS[1], 7)
    monkeypatch.setattr(shop.spool, "read", fail)  # a disk with a bad sector
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


PRIVACY = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}


def noisy(cipher: str = "plain") -> Plan:
    group = {"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}
    return make_plan(cipher, group=[group], privacy=PRIVACY | {"placement": "aggregator"})


SEED = SecretSeed(bytes(range(32)))
NOISED = make_cohort()


def drawn(cohort: Cohort = NOISED, block: int = 0, seed: Seed = SEED) -> bytes:
    return kept(seed).seal(cohort, block)


def test_a_sum_that_is_made_again_gets_the_same_noise_and_no_other_does() -> None:
    """The same noise would cancel in the difference of two sums."""
    first, *others = NOISED.members
    cohorts = [
        dataclasses.replace(NOISED, members=tuple(others)),
        dataclasses.replace(NOISED, members=(dataclasses.replace(first, update=b"x"), *others)),
        dataclasses.replace(NOISED, members=(dataclasses.replace(first, weight=2), *others)),
        dataclasses.replace(NOISED, number=NOISED.number + 1),
        dataclasses.replace(NOISED, version=NOISED.version + 1),
    ]
    made = [drawn(), *(drawn(cohort) for cohort in cohorts), *(drawn(block=b) for b in (1, 2))]
    made.append(drawn(seed=SecretSeed(bytes(32))))
    assert len(set(made)) == len(made)
    assert drawn() == made[0]


def test_noise_is_in_every_value_and_on_the_grid() -> None:
    plan = noisy()
    layout = plan.layout(SCHEMA).group("all")
    values = np.frombuffer(drawn(), "<u2").astype(int)
    most = plan.grid("all", layout.size).most
    assert len(values) == layout.slots(0)
    noise = values - most
    assert noise.any()
    assert abs(noise).max() <= most


def test_it_is_added_only_where_a_plan_wants_it_and_there_is_a_key() -> None:
    with pytest.raises(InternalError, match="where the plan protects whole clients"):
        kept(plan=make_plan()).seal(NOISED, 0)
    for keys in ({}, {"a": b"x", "b": b"y"}):
        with pytest.raises(KitError, match="needs one holder's key in the shard's kit"):
            dataclasses.replace(kept(plan=noisy("bfv")), holder_keys=keys).seal(NOISED, 0)


def kept(seed: Seed = SEED, plan: Plan | None = None) -> ShardNoise:
    plan = plan or noisy()
    state = ShardState(SHARDS[0])
    state.apply(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
    return ShardNoise(state, MemorySpool(), seed, {})


def key(noise: ShardNoise, cohort: Cohort = NOISED, block: int = 0) -> str:
    about = cohort_digest(noise.state.run, cohort)
    return noise_key(cohort.group, cohort.number, block, about)


def test_it_is_drawn_once_for_a_cohort() -> None:
    noise = kept()
    noise.draw(NOISED, (0, 2), 1)
    assert noise.spool.keys() == sorted(key(noise, block=block) for block in (0, 2))
    first = noise.reader(NOISED)(0)
    assert first is not None
    assert bytes(first) == drawn()
    later = dataclasses.replace(noise, seed=SecretSeed(bytes(32)))
    later.draw(NOISED, (0, 2), 2)
    assert later.reader(NOISED)(0) == first, "another seed draws nothing that is there"
    assert kept(plan=make_plan()).reader(NOISED)(0) is None, "where the plan wants none"


def test_what_is_damaged_is_drawn_again_before_a_sum_and_given_to_nobody() -> None:
    noise = kept()
    noise.draw(NOISED, (0,), 1)
    whole = noise.spool.get(key(noise))
    for harm in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], b""):
        noise.spool.put(key(noise), harm)
        assert noise.read(key(noise)) is None
        with pytest.raises(NoiseDamaged, match="the noise of block 0 of cohort 0 of all is gone"):
            noise.reader(NOISED)(0)
        noise.draw(NOISED, (0,), 1)
        assert noise.spool.get(key(noise)) == whole


def test_what_another_shard_drew_is_taken_as_it_is() -> None:
    ours, theirs = kept(), kept(SecretSeed(bytes(32)))
    theirs.draw(NOISED, (0,), 1)
    served = theirs.read(key(theirs))
    assert served is not None
    with pytest.raises(Malformed, match="noise came without its digest, or with another"):
        ours.take(key(ours), served[:-1])
    ours.take(key(ours), served)
    assert ours.reader(NOISED)(0) == theirs.reader(NOISED)(0)
    late = drawn()
    ours.take(key(ours), late + payload_digest(late))
    assert ours.read(key(ours)) == served, "what came first may be in a sum already"


def test_what_belongs_to_no_cohort_any_more_goes() -> None:
    """Cohort 1 was dissolved, 2 replaced another cohort of its number, and 3 may be closed."""
    noise = kept()
    cohorts = [make_cohort(number=number, version=2) for number in range(4)]
    another = dataclasses.replace(cohorts[2], members=cohorts[2].members[:1])
    for cohort in (*cohorts, another):
        noise.draw(cohort, (0, 2), 1)
        noise.spool.put(sum_key("all", cohort.number, 0), b"sum")
    noise.forget()
    assert len(noise.spool.keys()) == 14, "nothing is on record: each may be wanted"
    noise.state.apply(SumsMade(cohorts[2], (b"",) * 2))
    noise.forget("other")
    assert len(noise.spool.keys()) == 14
    noise.forget("all")
    left = [key(noise, cohort, block) for cohort in cohorts[2:] for block in (0, 2)]
    left += [sum_key("all", number, 0) for number in (2, 3)]
    assert noise.spool.keys() == sorted(left)
    noise.state.apply(Prepared("s", "all", 2, (b"",) * 2, b"", cohort=3))
    noise.forget()
    assert noise.spool.keys() == sorted(k for k in left if "/2/" in k[:10])


EXAMPLES = (5, 9, 32)
SHARES = Fraction(sum(EXAMPLES), 32)
"""Of three members that count by so many examples of at most 32."""

SIZES = (1, 1000, PIECE - 1, PIECE, 2 * PIECE + 7)
"""Values of a block, cut in pieces or not."""


def plan_of(optimizer: str, **changes: Any) -> Plan:
    group = {"rule": {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0, "extensions": 1}}
    own = {"most_examples": 32, "optimizer": {"name": optimizer}, **changes}
    return make_plan(group=[group | own])


def before(plan: Plan, size: int) -> GroupValues:
    rng = np.random.default_rng(7)
    values = {b: rng.normal(size=size).astype(np.float32) for b in (0, 2)}
    first = {b: plan.optimizer("all").init(v) for b, v in values.items()}
    states = {
        b: OptimizerState(3, {n: rng.random(size).astype(np.float32) for n in sorted(state.slots)})
        for b, state in first.items()
    }
    return GroupValues(4, values, states)


def sums_of(plan: Plan, size: int, seed: int) -> NDArray[np.int64]:
    """Sums that three members of weight 1 may have sent."""
    levels = plan.grid("all", size).levels
    return np.random.default_rng(seed).integers(0, 3 * levels, size, np.int64, endpoint=True)


def counted() -> Cohort:
    """Three members weighted by their examples."""
    members = zip(make_cohort().members, EXAMPLES, strict=True)
    unlike = tuple(dataclasses.replace(member, examples=n) for member, n in members)
    return dataclasses.replace(make_cohort(), members=unlike)


def test_vectors_lie_one_after_another() -> None:
    asked: list[int] = []

    def vector(count: int) -> NDArray[np.float32]:
        asked.append(count)
        return np.zeros(count, np.float32)

    made = lay_out({3: 2, 7: 5}, vector)
    made[3][:], made[7][:] = 1, 2
    assert asked == [7]
    whole = made[7].base
    assert whole is not None
    assert whole.tolist() == [1, 1, 2, 2, 2, 2, 2]
    assert lay_out({}) == {}


def square_of(values: Any) -> float:
    return float(np.sum(np.square(values)))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"replace"}))
@pytest.mark.parametrize("size", SIZES)
def test_pieces_make_what_a_whole_block_makes(name: str, size: int) -> None:
    plan, cohort = plan_of(name), counted()
    layout = GroupLayout("all", (), 3 * size, size)
    known, sums = before(plan, size), sums_of(plan, size, size)
    grid = plan.grid("all", layout.size)
    mean = grid.mean(grid.decode_sum(sums, cohort.weight), SHARES)
    values, state = plan.optimizer("all").apply(mean, known.values[2], known.optimizer[2])
    stepping = Stepping(plan, layout, cohort, known)
    made = stepping.step(2, sums)
    assert stepping.squares[2] == pytest.approx(square_of(grid.decode_sum(sums, cohort.weight)))
    assert made.values[2].tobytes() == values.tobytes()
    assert (made.optimizer, made.codes) == ({2: state}, {})
    assert made.values[2].dtype == np.float32


@pytest.mark.parametrize("codec", [(), ("rotate",), ({"name": "support", "one_in": 3}, "rotate")])
@pytest.mark.parametrize("name", ["sgd", "fedyogi"])
def test_what_is_published_follows_what_the_optimizer_makes(
    codec: tuple[Any, ...], name: str
) -> None:
    """The optimizer steps from its own unrounded values."""
    group = {"rule": {"quorum": 3, "minimum": 2}, "optimizer": {"name": name}, "codec": codec}
    plan, exact = (
        make_plan(group=[group | {"most_examples": 32, "clip": 4.0, "range": 1.0} | more])
        for more in ({"pull_bits": 4}, {})
    )
    cohort, size = make_cohort(), PIECE + 9
    one_in = plan.group("all").one_in
    layout = GroupLayout("all", (), 3 * size, size, None, one_in)
    delta = block_delta(plan, layout, 2)
    assert delta is not None
    values = np.random.default_rng(7).normal(size=size).astype(np.float32)
    known = GroupValues(4, {2: values}, {2: plan.optimizer("all").init(values)})
    sums = sums_of(plan, -(-size // (one_in or 1)), 5)
    stepped = Stepping(plan, layout, cohort, known).step(2, sums)
    made, after, codes = stepped.values[2], stepped.optimizer[2], stepped.codes[2]
    assert delta.follow(values, codes.data, cohort.version).tobytes() == made.tobytes()
    start = GroupValues(4, {2: values}, {2: exact.optimizer("all").init(values)})
    right = Stepping(exact, layout, cohort, start).step(2, sums).values[2]
    assert after.slots[EXACT].tobytes() == right.tobytes()
    assert 0 < np.abs(made - right).max() <= np.abs(right - values).max() / 7
    again = Stepping(plan, layout, cohort, known).step(2, sums)
    assert again.values[2].tobytes() == made.tobytes()


def test_a_block_that_lies_in_a_file_is_stepped_without_writing_to_it() -> None:
    plan, size = plan_of("sgd", pull_bits=4), 500
    layout, known = GroupLayout("all", (), 3 * size, size), before(plan, size)
    known.values[2].flags.writeable = False
    Stepping(plan, layout, make_cohort(), known).step(2, sums_of(plan, size, 1))


@pytest.mark.parametrize("size", [PIECE, PIECE + 1])
def test_the_last_value_is_the_scale_of_the_clip_and_not_stepped(size: int) -> None:
    plan = adaptive_plan("distributed")
    layout = GroupLayout("all", (SCALE,), size, size)
    known = before(plan, size)
    known.values[0][-1] = 0.5
    cohort = dataclasses.replace(make_cohort(), scale=0.5)
    sums = sums_of(plan, size, 1)
    grid, clip = plan.grid("all", size), plan.adaptive("all")
    assert clip is not None
    mean = grid.mean(grid.decode_sum(sums, cohort.weight), Fraction(3))
    measured = float(mean[-1])
    mean *= np.float32(0.5)
    mean[-1] = 0
    values, state = plan.optimizer("all").apply(mean, known.values[0], known.optimizer[0])
    values[-1] = clip.next_scale(0.5, measured)
    stepping = Stepping(plan, layout, cohort, known)
    made = stepping.step(0, sums)
    decoded = grid.decode_sum(sums, cohort.weight)
    assert stepping.squares[0] == pytest.approx(square_of(decoded[:-1]), rel=1e-12)
    assert made.values[0].tobytes() == values.tobytes()
    assert made.optimizer[0] == state


def test_sums_whose_mean_is_not_finite_are_refused() -> None:
    plan, cohort, size = plan_of("sgd", range=1e38), make_cohort(), 5000
    layout = GroupLayout("all", (), 3 * size, size)
    stepping = Stepping(plan, layout, cohort, before(plan, size))
    with pytest.raises(NotFinite, match="does not fit into float32"):
        stepping.step(0, np.zeros(size, np.int64))
