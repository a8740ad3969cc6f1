"""Spools: a contract for both kinds, and damage to the directory."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secureps.buffers import Buffers
from secureps.errors import Malformed, OperatorError
from secureps.messages.encoding import payload_digest
from secureps.messages.submission import BlockHeader
from secureps.store.spool import KEY_LIMIT, DiskSpool, MemorySpool, Spool

BAD = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a/...",
    "a b",
    "a\n",
    "a\\b",
    "a~b",
    "~0.tmp",
    "ä",
    "a\0b",
    "x" * (KEY_LIMIT + 1),
]

KEYS = st.lists(
    st.text("ab.-_*9", min_size=1, max_size=4).filter(lambda part: part.strip(".") != ""),
    min_size=1,
    max_size=3,
).map("/".join)


class SpoolContract:
    """The suite of every spool."""

    @pytest.fixture
    def spool(self, tmp_path: Path) -> Spool:
        raise NotImplementedError

    @pytest.mark.parametrize("pieces", [(), (b"",), (b"one",), (b"one", b"", memoryview(b"two"))])
    def test_pieces_are_kept_under_their_digest(
        self, spool: Spool, pieces: tuple[bytes, ...]
    ) -> None:
        whole = b"".join(pieces)
        assert spool.keep("a/b", iter(pieces)) == (len(whole), payload_digest(whole))
        assert spool.keys() == [f"a/b/{payload_digest(whole).hex()}"]
        assert spool.get(spool.keys()[0]) == whole

    def test_of_pieces_that_fail_nothing_is_kept(self, spool: Spool) -> None:
        def failing() -> Iterator[bytes]:
            yield b"one"
            raise Malformed("the second")

        with pytest.raises(Malformed, match="the second"):
            spool.keep("a/b", failing())
        for name in ("a b", "x" * KEY_LIMIT):
            with pytest.raises(Malformed, match="not a key"):
                spool.keep(name, failing())
        assert spool.keys() == []

    def test_what_can_be_made_again_comes_back_too(self, spool: Spool) -> None:
        spool.put("sum/all/1/0", b"before")
        for payload in (b"", b"x", os.urandom(3 << 20)):
            spool.cache("sum/all/1/0", memoryview(payload))
            assert spool.get("sum/all/1/0") == payload
        assert spool.keys() == ["sum/all/1/0"]
        with pytest.raises(Malformed, match="not a key"):
            spool.cache("sum all", b"")

    def test_it_is_read_into_a_buffer(self, spool: Spool) -> None:
        buffers = Buffers(1 << 20)
        for payload in (b"", b"x", bytes(range(256)) * 5000):
            spool.put("a/b", payload)
            read = spool.read("a/b", buffers)
            assert read == payload == spool.get("a/b")
            assert read.readonly
        with pytest.raises(KeyError):
            spool.read("a/c", buffers)

    def test_absent(self, spool: Spool) -> None:
        with pytest.raises(KeyError):
            spool.get("a/b")
        assert spool.keys() == []
        spool.delete("a/b")

    def test_keys_are_sorted_and_filtered(self, spool: Spool) -> None:
        for key in ("update/b/1", "update/a/2", "sum/x", "update/a/10", "up"):
            spool.put(key, b"")
        assert spool.keys() == ["sum/x", "up", "update/a/10", "update/a/2", "update/b/1"]
        assert spool.keys("update/a/") == ["update/a/10", "update/a/2"]
        assert spool.keys("update/a") == ["update/a/10", "update/a/2"]
        assert spool.keys("none") == []
        assert spool.keys("../") == []
        assert spool.keys("update~a") == []

    @pytest.mark.parametrize("key", BAD)
    def test_what_is_no_key(self, spool: Spool, key: str) -> None:
        calls: list[Callable[[str], object]] = [
            lambda k: spool.put(k, b""),
            spool.get,
            spool.delete,
        ]
        for call in calls:
            with pytest.raises(Malformed):
                call(key)
        assert spool.keys() == []

    def test_the_key_of_the_longest_names_fits(self, spool: Spool) -> None:
        header = BlockHeader(b"", "a" * 63, "founding", "g" * 63, 10**15, 10**9, 1, bytes(32), b"")
        spool.put(header.key, b"x")
        assert spool.keys() == [header.key]

    def test_threads(self, spool: Spool) -> None:
        def write(n: int) -> None:
            for i in range(20):
                spool.put(f"same/{i}", bytes([n]) * 1000)
                spool.put(f"own/{n}/{i}", bytes([n]))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(spool.keys()) == 20 + 80
        assert all(len(set(spool.get(k))) == 1 for k in spool.keys(""))

    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
        max_examples=30,
        deadline=None,
    )
    @given(wanted=st.dictionaries(KEYS, st.binary(max_size=9), max_size=6))
    def test_it_is_a_dictionary(self, spool: Spool, wanted: dict[str, bytes]) -> None:
        for key in spool.keys(""):
            spool.delete(key)
        for key, payload in wanted.items():
            spool.put(key, payload)
        assert spool.keys() == sorted(wanted)
        assert {key: spool.get(key) for key in spool.keys("")} == wanted


class TestMemorySpool(SpoolContract):
    @pytest.fixture
    def spool(self, tmp_path: Path) -> Spool:
        return MemorySpool()

    def test_it_keeps_its_own_copy(self, spool: Spool) -> None:
        payload = bytearray(b"abc")
        spool.put("a", payload)  # type: ignore[arg-type]
        payload[0] = 0
        assert spool.get("a") == b"abc"


class TestDiskSpool(SpoolContract):
    @pytest.fixture
    def spool(self, tmp_path: Path) -> Spool:
        return DiskSpool(tmp_path / "deep" / "spool")

    def test_stale_files_go_and_others_stay(self, tmp_path: Path) -> None:
        DiskSpool(tmp_path).put("a.tmp", b"x")
        (tmp_path / "~7.tmp").write_bytes(b"half")
        spool = DiskSpool(tmp_path)
        assert os.listdir(tmp_path) == ["a.tmp"]
        assert spool.keys() == ["a.tmp"]

    def test_what_can_be_made_again_waits_for_no_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spool, waited = DiskSpool(tmp_path), list[int]()
        monkeypatch.setattr(os, "fsync", waited.append)
        spool.cache("b", b"x")
        assert waited == []
        spool.put("a", b"x")
        assert len(waited) == 2

    def test_a_pipe_in_a_payloads_place_holds_nobody_up_and_goes(self, tmp_path: Path) -> None:
        spool = DiskSpool(tmp_path)
        os.mkfifo(spool.path("a"))
        end = os.open(spool.path("a"), os.O_RDWR)  # else whoever opened it would wait for this
        os.write(end, b"half")
        for read in (lambda: spool.read("a", Buffers(0)), lambda: spool.get("a")):
            with pytest.raises(OSError, match="no plain file"):
                read()
        os.close(end)
        for keep in (spool.cache, spool.put):
            keep("a", b"again")
            assert spool.get("a") == b"again"

    def test_a_root_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(OperatorError):
            DiskSpool(tmp_path / "file")
