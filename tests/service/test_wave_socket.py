"""The local socket of waves: batches there and back, errors in words, nobody there."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from secureps.errors import NotReady, OperatorError, Unreachable, Unsigned
from secureps.service import wave_socket
from secureps.service.wave_socket import answering, asked


def doubled(batch: bytes) -> bytes:
    if batch == b"stranger":
        raise Unsigned("these are not the coordinator's bytes")
    return batch * 2


def test_batches_go_there_and_back(tmp_path: Path) -> None:
    path, long = tmp_path / "waves", bytes(3 << 20)
    with answering("holder-0", path, doubled, test=True):
        assert asked(path, b"one") == b"oneone"
        assert asked(path, long) == long * 2
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()


def test_an_error_comes_back_in_words(tmp_path: Path) -> None:
    path = tmp_path / "waves"
    with answering("holder-0", path, doubled, test=True):
        with pytest.raises(NotReady, match="not the coordinator's bytes"):
            asked(path, b"stranger")
        assert asked(path, b"x") == b"xx"


def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="is the key holder up"):
        asked(tmp_path / "waves", b"x")


def test_a_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "waves"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with answering("holder-0", path, doubled, test=True):
        assert asked(path, b"x") == b"xx"


def test_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "waves").write_text("mine")
    with (
        pytest.raises(OperatorError, match="cannot listen"),
        answering("h", tmp_path / "waves", doubled, test=True),
    ):
        pass
    assert (tmp_path / "waves").read_text() == "mine"


def test_lengths_are_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wave_socket, "MOST", 100)
    path = tmp_path / "waves"
    with answering("holder-0", path, doubled, test=True):
        with pytest.raises(NotReady, match="at most 100"):
            asked(path, bytes(101))
        with socket.socket(socket.AF_UNIX) as line:  # who goes away in the middle
            line.connect(str(path))
            line.sendall(b"\0")
        assert asked(path, b"x") == b"xx"
