"""Owners and modes count where there are any, and say nothing where there are none."""

import os
import threading
from pathlib import Path

import pytest

from secureps import file_access
from secureps.errors import KitError
from secureps.store import durability
from secureps.store.atomic_file import secure_folder
from secureps.store.kit_files import make_folder, read, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"said")
    path.chmod(0o646)
    return path


def test_a_mode_is_read_where_users_have_numbers(file: Path) -> None:
    found = file.stat()
    assert file_access.user() == os.geteuid()
    assert not file_access.owned_by_others(found)
    assert file_access.open_to_others(found, 0o022) == 0o002
    assert file_access.open_to_others(found, 0o077) == 0o046


def test_an_open_file_is_given_a_mode(file: Path) -> None:
    with file.open("rb") as opened:
        file_access.set_mode(opened.fileno(), 0o600)
    assert file_access.open_to_others(file.stat(), 0o777) == 0o600


def test_what_is_no_file_is_not_opened_and_holds_nobody_up(file: Path, tmp_path: Path) -> None:
    with open(file, "rb", opener=durability.open_plain) as opened:
        assert opened.read() == b"said"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(os.devnull)
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match="no plain file"):
            durability.open_plain(tmp_path / name, os.O_RDONLY)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_read_that_does_not_end_counts_as_a_wait_for_the_disk(buffered: bool, file: Path) -> None:
    reader, writer = os.pipe()
    with durability.open_to_read(file, buffered, lambda path, how: reader) as opened:
        read = threading.Thread(target=opened.read, args=(1,), daemon=True)
        assert durability.oldest_wait() == 0
        read.start()
        while not (before := durability.oldest_wait()):
            assert read.is_alive()
        assert durability.oldest_wait() > before
        os.write(writer, b"x")
        os.close(writer)
        read.join(10)
        assert not read.is_alive()
        assert durability.oldest_wait() == 0


def test_elsewhere_nothing_is_open_to_others(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows every file says 0666, and what protects it is no mode."""
    with pytest.raises(KitError, match="is open to others: chmod 600"):
        read(file, "", 0o077)
    for name in ("geteuid", "fchmod"):
        monkeypatch.delattr(os, name)
    found = file.stat()
    assert file_access.user() is None
    assert not file_access.owned_by_others(found)
    assert file_access.open_to_others(found, 0o777) == 0
    assert read(file, "", 0o077) == b"said"
    write(file, b"again", 0o600)
    folder = tmp_path / "open"
    folder.mkdir(0o777)
    folder.chmod(0o777)
    make_folder(folder, 0o700)
    secure_folder(folder)
    secure_folder(tmp_path / "state")
    assert (tmp_path / "state").is_dir()
