"""Files that are whole whenever they are read, and private folders."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.store import atomic_file
from secureps.store.atomic_file import replace_text, write_durably


def test_the_old_text_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "state.json", list[tuple[str, str]]()
    path.write_text("old")
    replace = os.replace

    def watched(fresh: Path, target: Path) -> None:
        seen.append((fresh.read_text(), target.read_text()))
        replace(fresh, target)

    monkeypatch.setattr(os, "replace", watched)
    replace_text(path, "new")
    assert seen == [("new", "old")]
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_what_the_pieces_raise_comes_through_and_leaves_the_old_file_alone(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyError("the next")

    path = tmp_path / "payload"
    path.write_bytes(b"old")
    with pytest.raises(KeyError, match="the next"):
        write_durably(path, pieces())
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["payload"]


# --- whose a folder is ----------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("others", [0o055, 0o050, 0o005], ids=oct)
def test_one_that_others_could_read_is_closed(others: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "spool").mkdir(parents=True)
    (state / "spool" / "payload").write_bytes(b"x")
    for path, open_to in (
        (state, 0o700 | others),
        (state / "spool", 0o700 | others),
        (state / "spool/payload", 0o600 | others & 0o044),
    ):
        path.chmod(open_to)
    atomic_file.secure_folder(state)
    assert [mode(p) for p in (state, state / "spool", state / "spool/payload")] == [
        0o700,
        0o700,
        0o600,
    ]
    atomic_file.secure_folder(state)


@pytest.mark.parametrize("others", [0o022, 0o020, 0o002], ids=oct)
@pytest.mark.parametrize("what", ["", "spool", "spool/payload"])
def test_one_that_others_could_change_is_refused(what: str, others: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "spool").mkdir(parents=True, mode=0o700)
    (state / "spool" / "payload").write_bytes(b"x")
    for path in (state, state / "spool"):
        path.chmod(0o700)
    (state / what).chmod(0o700 | others)
    with pytest.raises(ConfigError, match=f"can be written to by others.*chmod -R go-rwx {state}"):
        atomic_file.secure_folder(state)
    assert mode(state / what) == 0o700 | others


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_file.secure_folder(tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1000)
    with pytest.raises(ConfigError, match=rf"chown -R {os.getuid() + 1000} {tmp_path}/state"):
        atomic_file.secure_folder(tmp_path / "state")


def test_root_takes_a_volume_of_its_maker_and_nothing_of_third_parties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    atomic_file.secure_folder(state)
    (state / "file").write_bytes(b"")
    found = list(atomic_file._walk(state))

    def owned(folder: int, file: int) -> None:
        def known(path: Path) -> list[tuple[Path, os.stat_result]]:
            return [
                (p, os.stat_result((*s[:4], folder if p == state else file, *s[5:])))
                for p, s in found
            ]

        with monkeypatch.context() as other:
            other.setattr(os, "geteuid", lambda: 0)
            other.setattr(atomic_file, "_walk", known)
            real = Path.stat
            status = os.stat_result((*real(state)[:4], folder, *real(state)[5:]))
            other.setattr(Path, "stat", lambda self, **kw: status if self == state else real(self))
            other.setattr(Path, "mkdir", lambda *args, **kw: None)
            atomic_file.secure_folder(state)

    owned(folder=1000, file=1000)
    owned(folder=1000, file=0)
    with pytest.raises(ConfigError, match="belongs to user 1001, and this process runs as 0"):
        owned(folder=1000, file=1001)


def test_links_are_let_be(tmp_path: Path) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    atomic_file.secure_folder(state)
    other.write_bytes(b"")
    other.chmod(0o644)
    (state / "link").symlink_to(other)
    atomic_file.secure_folder(state)
    assert mode(other) == 0o644
