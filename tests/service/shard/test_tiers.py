"""Versions in memory and in files have the same bytes; and what the process holds in memory."""

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.errors import DamagedStore
from secureps.messages.requests import Telemetry
from secureps.policy.plan import Plan
from secureps.roles.shard.memory_report import memory_used
from secureps.roles.shard.state import Limit
from secureps.service.shard import states
from secureps.service.shard.states import ShardFolders, in_memory, nowhere, published_bytes
from secureps.store.checkpoint import digest_of_file, find_tensors, read_state
from tests.kits.roles_kit import make_plan
from tests.service.shard.test_states import RULE, Disk, same, version

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
    data[find_tensors(disk.file("a", 0), None)["a/0000/m"].offset] ^= 1
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
