"""Object stores in memory, files and S3: no object is overwritten, and no text has a password."""

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.errors import ConfigError, DamagedStore, DiskFailed, OperatorError
from secureps.files import objects
from secureps.files.objects import ObjectStore, is_url, redact
from secureps.run.export import export
from tests.kits.object_stores import STORES, content, empty_place, s3_bucket

PASSWORD = "s3cr3t/with+slash"


@pytest.fixture(params=STORES)
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    with empty_place(request.param, tmp_path, monkeypatch) as place:
        yield place


def test_an_object_is_written_once_and_the_same_again_is_harmless(url: str) -> None:
    store = ObjectStore(url)
    assert store.sizes() == {}
    store.create("000001/a", b"one")
    store.create("000001/a", b"one")
    with pytest.raises(ConfigError, match="000001/a is there, and is another"):
        store.create("000001/a", b"two")
    store.create("000002/b", b"")
    assert content(store, "000001/a") == b"one"
    assert store.sizes() == {"000001/a": 3, "000002/b": 0}
    assert store.sizes("000001") == {"a": 3}
    with pytest.raises(DamagedStore, match="000003/c: absent"):
        content(store, "000003/c")


def test_a_bucket_that_is_not_there_is_not_an_empty_one(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ObjectStore(url).demand_bucket()
    with pytest.raises(OperatorError, match="no checkpoint here"):
        export(url, tmp_path / "model.safetensors")
    if url.startswith("s3:"):
        nowhere = f"s3://nowhere-{uuid.uuid4()}"
        with pytest.raises(
            DiskFailed, match=r": no bucket nowhere-.*, or these keys may not read it"
        ):
            export(f"{nowhere}/run", tmp_path / "model.safetensors")


def test_half_an_object_is_written_whole(url: str) -> None:
    """Some stores show the half of an object that was cut off."""
    store = ObjectStore(url)
    store.create("a", b"the first ha")
    store.create("a", b"the first half and the second")
    assert content(store, "a") == b"the first half and the second"
    with pytest.raises(ConfigError, match="is another"):
        store.create("a", b"the first")


def test_of_two_writers_one_wins_and_the_other_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_bucket(monkeypatch) as bucket:
        ended: dict[bytes, str] = {}
        begun = threading.Barrier(4)

        def write(data: bytes) -> None:
            store = ObjectStore(f"{bucket}/race")
            begun.wait()
            try:
                store.create("a", data)
                ended[data] = "written"
            except ConfigError:
                ended[data] = "refused"

        writers = [threading.Thread(target=write, args=(bytes([i]) * 1000,)) for i in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        (won,) = [data for data, how in ended.items() if how == "written"]
        assert sorted(ended.values()) == ["refused"] * 3 + ["written"]
        assert content(ObjectStore(f"{bucket}/race"), "a") == won


def test_a_store_that_cannot_be_reached_is_told_and_may_work_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with s3_bucket(monkeypatch) as bucket:
        store = ObjectStore(f"{bucket}-is-not-there/run")
        with pytest.raises(DiskFailed, match=r"is-not-there/run/a: .*: "):
            store.create("a", b"1")
        assert store.sizes() == {}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"ftp://me:{PASSWORD}@host/run", "ftp://***@host/run"),
        ("https://host/run?sig=abc", "https://host/run?***"),
        ("s3://bucket/run", "s3://bucket/run"),
        ("s3://key@bucket/a@b", "s3://***@b"),
        ("s3://me:pass?word@bucket/run", "s3://***"),
        ("https://host/run?sig=ab@cd", "https://***"),
    ],
)
def test_a_url_is_shown_without_what_opens_it(url: str, said: str) -> None:
    assert redact(url) == said


def test_no_error_has_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(url: str) -> tuple[object, str]:
        raise OSError(f"{PASSWORD}, abcd, s3cr3t%2Fwith%2Bslash: refused at {url}")

    monkeypatch.setattr(objects, "_open", opened)
    with pytest.raises(ConfigError) as failed:
        ObjectStore("ftp://me:s3cr3t%2Fwith%2Bslash@host/run?token=abcd")
    assert "ftp://***@host/run?***: OSError: ***, " in str(failed.value)
    for secret in (PASSWORD, "s3cr3t", "token=abcd"):
        assert secret not in str(failed.value)


def test_what_is_no_url_or_of_no_known_store_is_refused() -> None:
    assert not is_url("runs/demo")
    assert not is_url("/tmp/a:b")
    with pytest.raises(ConfigError, match="runs/demo: no URL of an object store"):
        ObjectStore("runs/demo")
    with pytest.raises(ConfigError, match=r"nowhere://x: ValueError: .*nowhere"):
        ObjectStore("nowhere://x")
