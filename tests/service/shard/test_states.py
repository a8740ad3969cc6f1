"""State files of a shard: the same bytes in memory and on disk, restored after damage."""

import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.errors import ConfigError, DamagedStore, DiskFailed, Refused
from secureps.messages.orders import Commit
from secureps.messages.records import RunPinned
from secureps.messages.requests import Prepared, Telemetry
from secureps.messages.run import GroupVersion, Placement
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.model.optimizer import OptimizerState
from secureps.policy.plan import Plan
from secureps.roles.shard.memory_report import memory_used
from secureps.roles.shard.state import (
    UNLIMITED,
    GatherState,
    Limit,
    MakeState,
    ShardState,
    StepState,
)
from secureps.service.shard import states
from secureps.service.shard.states import (
    GroupValues,
    ShardFolders,
    States,
    block_digest,
    in_memory,
    nowhere,
    published_bytes,
)
from secureps.store.checkpoint import (
    checkpoint_path,
    digest_of_file,
    find_tensors,
    read_metadata,
    read_state,
)
from tests.kits.roles_kit import ADDRESSES, SHARDS, make_placement, make_plan, make_run

RULE = {"quorum": 3, "minimum": 2, "most": 4}
PLAN = make_plan(
    group=[
        {"name": "a", "pattern": "bias", "rule": RULE},
        {"name": "a-b", "pattern": "*", "rule": RULE, "pull_bits": 3},
    ]
)
GROUPS = {"a": (0,), "a-b": (0, 2)}
"""Of shard-a; that one name begins like the other is on purpose."""


def version(group: str, number: int) -> GroupValues:
    """Makes a version of a group."""
    sizes = {block: 5 + block for block in GROUPS[group]}
    values = {b: np.full(n, number + b / 8, np.float32) for b, n in sizes.items()}
    slots = {b: {"m": np.full(n, -number, np.float32)} for b, n in sizes.items()}
    optimizer = {b: OptimizerState(number, slots[b]) for b in sizes}
    return GroupValues(number, values, optimizer, codes(group, number))


def codes(group: str, number: int) -> dict[int, NDArray[np.uint8]]:
    blocks = GROUPS[group] if (group, number > 0) == ("a-b", True) else ()
    return {block: np.full(7, 10 * number + block, np.uint8) for block in blocks}


def same(left: GroupValues, right: GroupValues) -> bool:
    return (
        (left.version, sorted(left.values)) == (right.version, sorted(right.values))
        and all(
            left.values[b].tobytes() == right.values[b].tobytes()
            and left.optimizer[b].step == right.optimizer[b].step
            and left.optimizer[b].slots["m"].tobytes() == right.optimizer[b].slots["m"].tobytes()
            for b in left.values
        )
        and left.codes.keys() == right.codes.keys()
        and all(left.codes[b].tobytes() == right.codes[b].tobytes() for b in left.codes)
    )


class Disk:
    """shard-a's states in a folder; `version` makes versions again."""

    def __init__(self, folder: Path, plan: Plan = PLAN, limit: Limit = UNLIMITED) -> None:
        self.folder, self.limit = folder, limit
        self.folders = ShardFolders(folder / "states", folder / "checkpoints")
        self.state = ShardState(SHARDS[0])
        self.state.apply(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
        self.made: list[int] = []
        self.states = self.restarted()

    def restarted(self) -> States:
        """Makes new `States` on the same disk, with nothing in memory."""
        self.states = States(self.state, self.folders, self.make, self.limit)
        return self.states

    def make(self, task: MakeState | StepState, before: GroupValues | None) -> GroupValues:
        assert isinstance(task, StepState)
        assert before is not None
        assert same(before, version(task.cohort.group, before.version))
        self.made.append(task.cohort.version)
        return version(task.cohort.group, task.cohort.version)

    def keep(self, group: str, *numbers: int) -> None:
        for number in numbers:
            made = version(group, number)
            digest = self.states.keep(group, made)
            blocks = tuple(block_digest(made.values[block]) for block in GROUPS[group])
            if number:
                member = Member(SubmissionId("c0", group, number), 1, number - 1)
                cohort = Cohort(group, number, number, 1, (member,))
                self.state.apply(SumsMade(cohort, blocks))
            self.state.apply(Prepared("s", group, number, blocks, digest, cohort=number))

    def file(self, group: str, number: int) -> Path:
        return self.folders.states / f"{group}-{number:06d}.safetensors"

    def checkpoint(self, number: int, **versions: int) -> Path:
        at = tuple(GroupVersion(g.replace("_", "-"), v) for g, v in versions.items())
        part = self.states.write_part(number, at)
        return checkpoint_path(self.folders.checkpoints, number) / part.file


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_differences_are_there_for_as_long_as_their_versions_are_on_record(disk: Disk) -> None:
    disk.keep("a-b", *range(6))
    disk.states.forget("a-b", 5, 3)
    for number in (3, 4, 5):
        assert disk.states.codes("a-b", number, 2) == bytes([10 * number + 2] * 7)
    kept = [("a-b", 0, 4), ("a-b", 0, 5)]
    assert sorted(disk.states._kept) == kept, "nothing else is read for them"
    assert disk.restarted().codes("a-b", 3, 2) == bytes([32] * 7)
    with pytest.raises(DamagedStore):
        disk.states.codes("a-b", 2, 2)


def test_a_part_says_which_versions_it_holds(disk: Disk) -> None:
    disk.keep("a", 0, 1)
    disk.keep("a-b", 0)
    part = disk.checkpoint(3, a=1, a_b=0)
    assert read_metadata(part) == {"shard": "shard-a", "version.a": "1", "version.a-b": "0"}


def test_no_part_is_written_among_those_of_another_run(disk: Disk) -> None:
    disk.keep("a-b", 1)
    part = disk.checkpoint(1, a_b=1)
    before = part.read_bytes()
    (disk.folders.checkpoints / ".run").write_text("another")
    with pytest.raises(ConfigError, match="checkpoints of another run"):
        disk.checkpoint(1, a_b=1)
    assert part.read_bytes() == before


def test_forgetting_a_group_leaves_one_whose_name_begins_like_it(disk: Disk) -> None:
    disk.keep("a", 0, 1, 2)
    disk.keep("a-b", 0)
    disk.states.forget("a", 2, 2)
    names = sorted(path.name for path in disk.folders.states.iterdir())
    assert names == ["a-000002.safetensors", "a-b-000000.safetensors"]


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:-1])],
    ids=["gone", "empty", "torn"],
)
def test_a_version_comes_from_its_part_and_its_file_is_whole_again(
    disk: Disk, damage: Callable[[Path], None]
) -> None:
    disk.keep("a", 0)
    disk.keep("a-b", 0, 1)
    disk.checkpoint(0, a=0, a_b=0)
    disk.checkpoint(1, a=0, a_b=1)
    whole = disk.file("a-b", 1).read_bytes()
    damage(disk.file("a-b", 1))
    assert same(disk.restarted().values("a-b", 1), version("a-b", 1))
    assert disk.file("a-b", 1).read_bytes() == whole
    assert disk.made == []


def test_any_flipped_byte_of_the_newest_part_leads_to_an_older_way(disk: Disk) -> None:
    """Values, optimizer, names and metadata are all checked."""
    disk.keep("a", 0, 1)
    disk.checkpoint(0, a=0)
    part = disk.checkpoint(1, a=1)
    whole = part.read_bytes()
    looked = range(0, len(whole), 7)
    for index in looked:
        flipped = bytearray(whole)
        flipped[index] ^= 1 << (index % 8)
        part.write_bytes(flipped)
        disk.file("a", 1).unlink()
        disk.file("a", 0).unlink(missing_ok=True)
        assert same(disk.restarted().values("a", 1), version("a", 1)), index
    assert set(disk.made) == {1}
    assert len(disk.made) > len(looked) / 2, "or nothing of it was looked at"


def test_versions_are_made_again_one_after_another(disk: Disk) -> None:
    disk.keep("a", *range(6))
    for number in range(2, 6):
        disk.file("a", number).write_bytes(b"torn")
    assert same(disk.restarted().values("a", 5), version("a", 5))
    assert disk.made == [2, 3, 4, 5]
    assert same(disk.restarted().values("a", 3), version("a", 3))
    assert disk.made == [2, 3, 4, 5], "all of them are on disk again"


def test_a_thousand_versions_are_not_too_many(disk: Disk) -> None:
    disk.keep("a", 0)
    for number in range(1, 1001):
        record = disk.state.group("a").states[0]
        member = Member(SubmissionId("c0", "a", number), 1, number - 1)
        disk.state.apply(SumsMade(Cohort("a", number, number, 1, (member,)), (bytes(32),)))
        disk.state.apply(Prepared("s", "a", number, (bytes(32),), record.state, cohort=number))
    with pytest.raises(DamagedStore, match=r"a-000001\.safetensors: made again, it came out diff"):
        disk.restarted().values("a", 1000)


def test_what_is_lost_is_named(disk: Disk) -> None:
    disk.keep("a", 0, 1, 2)
    for number in range(3):
        disk.file("a", number).unlink()
    with pytest.raises(DamagedStore) as caught:
        disk.restarted().values("a", 2)
    assert str(caught.value) == (
        f"shard-a: version 2 of a is lost: {disk.file('a', 2)}: absent; so is version 0: "
        f"{disk.file('a', 0)}: absent; no whole part of a checkpoint here holds version 0, and "
        "what it was made from is gone: restore one of these files"
    )
    with pytest.raises(DamagedStore, match="nothing is on record of a version 9"):
        disk.states.values("a", 9)


def test_a_reason_of_old_sums_is_never_one_of_todays_cohort(disk: Disk) -> None:
    """A Refused would burn the present cohort again and again."""
    disk.keep("a", 0, 1)
    disk.file("a", 1).unlink()

    def refuse(task: MakeState | StepState, before: GroupValues | None) -> GroupValues:
        raise Refused("the sum of block 0 of cohort 1 of a is lost")

    states = States(disk.state, disk.folders, refuse)
    with pytest.raises(DamagedStore) as caught:
        states.values("a", 1)
    assert str(caught.value) == (
        f"shard-a: {disk.file('a', 1)}: damaged, and cannot be made again: the sum of block 0 of "
        "cohort 1 of a is lost"
    )


def test_a_version_that_is_older_than_what_is_kept_is_gone(disk: Disk) -> None:
    disk.keep("a", 0, 1, 2)
    disk.state.apply(Commit(1, "a", 2, 1))
    disk.states.forget("a", 2, 1)
    with pytest.raises(DamagedStore, match="nothing is on record of a version 0"):
        disk.restarted().values("a", 0)


class Elsewhere:
    """A shard's parts of checkpoints at a store, which may be down."""

    def __init__(self, *parts: Path) -> None:
        self.parts, self.down, self.asked = parts, False, 0

    def __call__(self) -> Iterator[Path]:
        self.asked += 1
        if self.down:
            raise DiskFailed("s3://bucket/run: EndpointConnectionError: no route")
        yield from self.parts


def moved(disk: Disk, *parts: Path) -> Elsewhere:
    """Moves all checkpoints of the shard's folder to a store."""
    there = disk.folder / "there"
    disk.folders.checkpoints.rename(there)
    own = disk.folders.checkpoints
    elsewhere = Elsewhere(*(there / part.relative_to(own) for part in parts))
    disk.folders = replace(disk.folders, elsewhere=elsewhere)
    return elsewhere


def test_what_is_nowhere_here_comes_from_a_store_and_is_made_on_from_there(disk: Disk) -> None:
    disk.keep("a-b", 0, 1, 2)
    elsewhere = moved(disk, disk.checkpoint(1, a_b=1), disk.checkpoint(0, a_b=0))
    whole = disk.file("a-b", 2).read_bytes()
    assert same(disk.restarted().values("a-b", 2), version("a-b", 2))
    assert elsewhere.asked == 0, "what is here is taken first"
    for number in range(3):
        disk.file("a-b", number).unlink()
    assert same(disk.restarted().values("a-b", 2), version("a-b", 2))
    assert (elsewhere.asked, disk.made) == (1, [2])
    assert disk.file("a-b", 2).read_bytes() == whole


def test_a_store_that_is_down_is_asked_again_and_a_damaged_part_is_not_believed(disk: Disk) -> None:
    disk.keep("a-b", 0)
    part = disk.checkpoint(0, a_b=0)
    elsewhere = moved(disk, part)
    disk.file("a-b", 0).unlink()
    elsewhere.down = True
    with pytest.raises(DiskFailed, match="no route"):
        disk.restarted().values("a-b", 0)
    elsewhere.down = False
    whole = elsewhere.parts[0].read_bytes()
    elsewhere.parts[0].write_bytes(whole[:-1] + b"!")
    with pytest.raises(DamagedStore, match="version 0 of a-b is lost"):
        disk.restarted().values("a-b", 0)
    elsewhere.parts[0].write_bytes(whole)
    assert same(disk.restarted().values("a-b", 0), version("a-b", 0))


def test_a_shard_without_its_disk_adopts_a_part_at_a_store(disk: Disk) -> None:
    disk.keep("a-b", 0, 1)
    digest = disk.state.group("a-b").states[1].state
    elsewhere = moved(disk, disk.checkpoint(1, a_b=1))
    disk.state = ShardState(SHARDS[0])
    disk.state.apply(RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES))
    disk.file("a-b", 1).unlink()
    made = disk.restarted().gather(lost(digest), [])
    assert elsewhere.asked == 1
    disk.state.apply(made)
    assert same(disk.states.values("a-b", 1), version("a-b", 1))
    with pytest.raises(DamagedStore, match="its journal is gone"):
        disk.restarted().gather(lost(digest, 2), [])


def lost(digest: bytes, number: int = 1) -> GatherState:
    return GatherState(Commit(1, "a-b", number, 0, (), digest), GROUPS["a-b"])


def test_a_version_is_made_of_what_another_shard_gives_of_its_blocks(tmp_path: Path) -> None:
    giver, disk = Disk(tmp_path / "giver"), Disk(tmp_path / "taker")
    giver.keep("a-b", 0, 1)
    parts = [giver.states.block("a-b", 1, block) for block in GROUPS["a-b"]]
    digest = giver.states.keep("a-b", version("a-b", 1))
    assert disk.states.gather(lost(digest), parts).state == digest
    assert disk.file("a-b", 1).read_bytes() == giver.file("a-b", 1).read_bytes()
    told = disk.states.gather(lost(b""), parts)
    assert (told.state, len(told.blocks)) == (digest, 2)
    disk.state.apply(told)
    assert same(disk.states.values("a-b", 1), version("a-b", 1))


def test_a_file_for_a_coming_placement_lies_beside_the_one_that_counts(tmp_path: Path) -> None:
    """Deletions spare it, and a part of a checkpoint has both files.

    Once the placement is in force, it replaces the other file.
    """
    disk, now = Disk(tmp_path), make_placement(PLAN)
    held = now.held | {"a-b": [now.holders("a-b", 0), *[SHARDS[1:]] * (len(now.held["a-b"]) - 1)]}
    coming = Placement.by_block(2, now.shards, held)
    disk.state.apply(RunPinned(make_run(PLAN), now, ADDRESSES, coming))
    disk.keep("a-b", 0, 1)
    (first, _), record = GROUPS["a-b"], disk.state.group("a-b").states[1]
    order = Commit(1, "a-b", 1, 0, record.blocks[:1])
    made = disk.states.gather(GatherState(order, (first,), (), 2), [])
    assert (made.blocks, made.epoch) == (record.blocks[:1], 2)
    path, whole = disk.folders.state("a-b", 1, 2), read_state(disk.file("a-b", 1))[0].keys()
    assert read_state(path)[0].keys() < whole
    disk.state.apply(made)
    disk.states.forget("a-b", 1, 1)
    assert path.is_file()
    assert read_state(disk.checkpoint(1, a_b=1))[0].keys() == whole
    disk.state.apply(RunPinned(make_run(PLAN), coming, ADDRESSES))
    disk.states.forget("a-b", 1, 1)
    assert list(disk.folders.states.glob("a-b-*")) == [path]
    assert list(disk.restarted().values("a-b", 1).values) == [first]


@pytest.mark.parametrize("wrong", [[b"no tensors"], "one block", "another state", "moved"])
def test_what_is_no_state_of_these_blocks_is_not_taken(wrong: Any, tmp_path: Path) -> None:
    giver, disk = Disk(tmp_path / "giver"), Disk(tmp_path / "taker")
    giver.keep("a-b", 0, 1)
    parts = [giver.states.block("a-b", 1, block) for block in GROUPS["a-b"]]
    given = {"one block": parts[:1]}.get(str(wrong), parts if isinstance(wrong, str) else wrong)
    task = lost(b"d" * 32)
    if wrong == "moved":  # of its file nothing is known, of its blocks their digests are
        others = Commit(1, "a-b", 1, 0, (b"d" * 32,) * 2)
        task = GatherState(others, GROUPS["a-b"], epoch=2)
    with pytest.raises(DamagedStore, match="version 1 of a-b is lost: "):
        disk.states.gather(task, given)


def test_a_shard_deletes_its_own_parts_of_checkpoints_that_do_not_stay(disk: Disk) -> None:
    disk.keep("a", 0)
    disk.keep("a-b", 0)
    parts = [disk.checkpoint(number, a=0, a_b=0) for number in range(5)]
    others = parts[1].with_name("shard-b.safetensors")
    others.write_bytes(b"another shard's")
    disk.states.prune_parts(4, ())
    assert all(part.is_file() for part in parts), "the coordinator did not say which stay"
    disk.states.prune_parts(4, (0, 3))
    assert [part.is_file() for part in parts] == [True, False, False, True, True]
    assert others.is_file()
    assert not parts[2].parent.exists()


ROOMY, TIGHT = 8000, 700
"""Bytes of a limit within which all versions of these tests could lie, and few."""


def plan_of() -> Plan:
    both = {"rule": RULE}
    return make_plan(
        group=[
            {"name": "a", "pattern": "bias", **both},
            {"name": "a-b", "pattern": "*", "pull_bits": 3, **both},
        ]
    )


def limited(folder: Path, memory: int | None) -> Disk:
    return Disk(folder, plan_of(), Limit(memory))


def counted(disk: Disk) -> tuple[int, int]:
    """Hits and waits."""
    report = Telemetry("shard-a", "a", 1, disk.states.tiers.figures(0))
    used = memory_used([report])["shard-a"]
    return used.hits, used.waits


@pytest.mark.parametrize("memory", [TIGHT, ROOMY, None])
def test_versions_are_the_same_wherever_they_lie(memory: int | None, tmp_path: Path) -> None:
    disk = limited(tmp_path, memory)
    disk.keep("a-b", 0, 1, 2)
    for _ in range(2):
        for number in (1, 2):
            found, wanted = disk.states.values("a-b", number), version("a-b", number)
            assert same(found, wanted)
            assert found.mapped is (disk.states._in_memory("a-b", number) is None)
            for block, values in wanted.values.items():
                assert disk.states.published("a-b", number, block) == published_bytes(values)
                assert disk.states.codes("a-b", number, block) == bytes([10 * number + block] * 7)
        kept = disk.states._kept.values()
        assert any(not made.mapped for made in kept) is (memory is None)
        disk.restarted()
    assert disk.made == []


def test_only_the_newest_two_stay_in_memory(tmp_path: Path) -> None:
    disk = limited(tmp_path, None)
    disk.keep("a-b", 0, 1, 2)
    disk.states.forget("a-b", 2, 0)
    kept = disk.states._kept.items()
    assert [at[2] for at, made in kept if not made.mapped] == [1, 2]
    assert same(disk.states.values("a-b", 0), version("a-b", 0))


def test_uses_that_waited_for_the_disk_are_told_from_those_that_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, reads = limited(tmp_path, TIGHT), iter([5, 5, 5, 7, 7, 8])
    disk.keep("a", 0)
    disk.keep("a-b", 0, 1)
    monkeypatch.setattr(states, "_count_disk_reads", lambda: next(reads))
    disk.states.published("a", 0, 0)
    assert counted(disk) == (1, 0)
    disk.states.values("a-b", 0)
    assert counted(disk) == (1, 1)
    disk.states.codes("a-b", 1, 2)
    assert counted(disk) == (1, 2)
    assert limited(tmp_path / "free", None).states.tiers.figures(0) == ()


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="the system does not say")
def test_reads_of_what_is_in_memory_are_none_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    (tmp_path / "file").read_bytes()
    before = states._count_disk_reads()
    (tmp_path / "file").read_bytes()
    assert states._count_disk_reads() == before


def test_what_the_process_holds_is_told(tmp_path: Path) -> None:
    made = version("a-b", 1)
    assert made.nbytes == 2 * 4 * (5 + 7) + 2 * 7, "values, momentum, differences"
    disk = limited(tmp_path, ROOMY)
    disk.keep("a-b", 0)
    disk.states.values("a-b", 0)
    for mapped in (False, True):
        report = Telemetry("shard-a", "a-b", 1, disk.states.figures(replace(made, mapped=mapped)))
        used = memory_used([report])["shard-a"]
        assert (used.memory, used.resident) == (ROOMY, made.nbytes * (not mapped))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read as a whole for their digests."""
    found = list[Path]()

    def reading(path: Path) -> bytes:
        found.append(path)
        return digest_of_file(path)

    monkeypatch.setattr("secureps.store.checkpoint.digest_of_file", reading)
    return found


def test_a_mapped_version_is_read_by_its_digest_once_for_its_sum_and_its_step(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other groups step in between; few versions stay mapped, and no replaced one."""
    disk = limited(tmp_path, TIGHT)
    disk.keep("a-b", 0)
    disk.keep("a", 0)
    both = ("a-b", "a")
    files = [disk.file(group, 0) for group in both]
    for _ in range(2):
        for group in both:
            assert same(disk.states.values(group, 0), version(group, 0))
    assert read == files
    disk.keep("a-b", 0)
    disk.states.values("a-b", 0)
    assert read == [*files, files[0]]
    monkeypatch.setattr(states, "MAPS", 1)
    read.clear()
    disk.states.forget("a", 0, 0)
    for group in ("a-b", "a", "a", "a-b"):
        disk.states.values(group, 0)
    assert read == [files[1], files[0]]


def test_a_block_is_pulled_without_the_rest_of_its_file(tmp_path: Path) -> None:
    """Its optimizer state is damaged: a pull does not notice, and a sum finds and repairs it."""
    disk = limited(tmp_path, TIGHT)
    disk.keep("a", 0)
    disk.checkpoint(1, a=0)
    whole = disk.file("a", 0).read_bytes()
    data = bytearray(whole)
    data[find_tensors(disk.file("a", 0), None)[0]["a/0000/m"].offset] ^= 1
    disk.file("a", 0).write_bytes(data)
    wanted = published_bytes(version("a", 0).values[0])
    for _ in range(2):
        pulled = disk.states.published("a", 0, 0)
        assert pulled == wanted
        assert pulled.readonly
    assert disk.file("a", 0).read_bytes() == data
    assert same(disk.states.values("a", 0), version("a", 0))
    assert disk.file("a", 0).read_bytes() == whole
    assert disk.states.published("a", 0, 0) == wanted


def test_a_damaged_file_is_found_before_it_is_mapped(tmp_path: Path) -> None:
    """A step checks the file's digest, a pull the block's; both are restored."""
    for pull in (False, True):
        disk = limited(tmp_path / str(pull), TIGHT)
        disk.keep("a-b", 0)
        disk.checkpoint(1, a_b=0)
        file = disk.file("a-b", 0)
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        data[-40] ^= 1  # of values, beside optimizer state
        file.write_bytes(data)
        if pull:
            wanted = version("a-b", 0).values
            assert all(
                disk.states.published("a-b", 0, block) == published_bytes(values)
                for block, values in wanted.items()
            )
        else:
            assert same(disk.states.values("a-b", 0), version("a-b", 0))
        assert disk.states.values("a-b", 0).mapped, "the file is whole again"
        file.unlink()
        assert disk.states.published("a-b", 0, 2) == published_bytes(version("a-b", 0).values[2])


def test_differences_in_a_file_are_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = limited(tmp_path, TIGHT)
    disk.keep("a-b", 0, 1)
    read = "secureps.store.checkpoint.digest_of_file"
    monkeypatch.setattr(read, lambda path: pytest.fail(f"{path} was read as a whole"))
    assert disk.states.codes("a-b", 1, 2) == bytes([12] * 7)
    with pytest.raises(KeyError):
        disk.states.codes("a-b", 0, 2)
    disk.file("a-b", 1).write_bytes(b"torn")
    with pytest.raises(DamagedStore):
        disk.states.codes("a-b", 1, 2)
    assert disk.made == [], "the block is asked for"


def test_a_file_is_read_once_for_all_blocks_that_move(tmp_path: Path, read: list[Path]) -> None:
    disk = limited(tmp_path, TIGHT)
    disk.keep("a-b", 0, 1)
    free = limited(tmp_path / "free", None)
    free.keep("a-b", 0, 1)
    for number, block in ((1, 0), (1, 2), (0, 2), (0, 0)):
        given = disk.states.block("a-b", number, block)
        assert given == free.states.block("a-b", number, block)
    assert read == [disk.file("a-b", 1), disk.file("a-b", 0)]
    disk.states.forget("a-b", 1, 0)
    disk.states.block("a-b", 0, 0)
    assert len(read) == 3, "of what may be pruned no file stays mapped"
    disk.keep("a-b", 0)
    disk.states.block("a-b", 0, 0)
    assert len(read) == 4, "nor is what was replaced given"


def test_a_checkpoint_is_copied_from_files_and_is_the_same(tmp_path: Path) -> None:
    parts = []
    for name, memory in (("free", None), ("tight", TIGHT), ("roomy", ROOMY)):
        disk = limited(tmp_path / name, memory)
        disk.keep("a", 0)
        disk.keep("a-b", 0, 1)
        parts.append(disk.checkpoint(1, a=0, a_b=1).read_bytes())
        assert disk.states.tiers.bounded is (memory is not None)
    assert parts[0] == parts[1] == parts[2]


def test_a_checkpoint_of_a_damaged_file_is_made_of_what_mends_it(tmp_path: Path) -> None:
    disk = limited(tmp_path, TIGHT)
    disk.keep("a-b", 0, 1)
    disk.file("a-b", 1).write_bytes(b"damaged")
    part = disk.checkpoint(1, a_b=1)
    assert disk.made == [1]
    assert read_state(part)[0]["a-b/0002"].tolist() == version("a-b", 1).values[2].tolist()


def test_where_a_version_is_made(tmp_path: Path) -> None:
    def in_file(disk: Disk, size: int) -> bool:
        return disk.states.tiers.allocate(size) is not in_memory

    free, tight = limited(tmp_path, None), limited(tmp_path, ROOMY)
    assert not in_file(free, 1 << 40)
    assert [in_file(tight, size) for size in (ROOMY, ROOMY + 1)] == [False, True]
    vector = tight.states.tiers.allocate(ROOMY + 1)(50)
    vector[:] = 1
    assert vector.dtype.name == "float32"
    assert vector.sum() == 50


def test_a_groups_files_are_found_again_by_their_names(tmp_path: Path) -> None:
    folders = ShardFolders(tmp_path / "states", tmp_path / "checkpoints")
    assert (list(folders.state_files("a")), list(folders.elsewhere())) == ([], [])
    assert folders.elsewhere is nowhere
    folders.states.mkdir()
    for group, number, epoch in (("a", 3, 0), ("a", 3, 7), ("a", 1_000_000, 0), ("a-000001", 3, 0)):
        folders.state(group, number, epoch).touch()
    found = {(number, epoch): path.name for path, number, epoch in folders.state_files("a")}
    assert found == {
        (3, 0): "a-000003.safetensors",
        (3, 7): "a-000003.7.safetensors",
        (1_000_000, 0): "a-1000000.safetensors",
    }
