"""`secureps log`: all parties in the order of time, one of them, the end, and what comes."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from secureps.errors import ConfigError
from secureps.run.up.folder import Origin, RunFolder, claim_folder
from secureps.run.up.runs import log
from tests.kits.command import typed

SHARD = """2026-11-23 03:49:43,338 shard-0: listens on 127.0.0.1:45225
2026-11-23 03:49:44,116 shard-0: version 0 is committed
Traceback (most recent call last):
  File "x.py", line 1
2026-11-23 03:49:51,076 shard-0: version 1 is committed
"""
CLIENT = """warning: before any time
2026-11-23 03:49:44,002 client-00: the run is ec8be08ad97810ab
2026-11-23 03:49:47,976 client-00: version 1: 240 records, 13.6 kB to send
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of two parties, which nobody plays."""
    folder = RunFolder(tmp_path / "run")
    folder.logs.mkdir(parents=True)
    Origin(folder.plan, tmp_path, None, 1.0).write(folder)
    (folder.logs / "shard-0.log").write_text(SHARD)
    (folder.logs / "client-00.log").write_text(CLIENT)
    return folder


def test_all_parties_are_in_the_order_of_time_and_every_line_says_whose_it_is(
    folder: RunFolder,
) -> None:
    shard, client = SHARD.splitlines(), CLIENT.splitlines()
    assert list(log(folder.root)) == [
        "client-00: warning: before any time",
        shard[0],
        client[1],
        shard[1],
        "shard-0: Traceback (most recent call last):",
        'shard-0:   File "x.py", line 1',
        client[2],
        shard[4],
    ]


@pytest.mark.parametrize(("tail", "lines"), [(0, 0), (2, 2), (99, 5), (None, 5)])
def test_the_end_is_the_last_lines(folder: RunFolder, tail: int | None, lines: int) -> None:
    found = list(log(folder.root, "shard-0", tail))
    assert found == SHARD.splitlines()[5 - lines :]


def test_what_comes_is_followed_until_nobody_plays_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, late = folder.logs / "shard-0.log", folder.logs / "holder-0.log"

    def append(to: Path, text: str) -> Callable[[], object]:
        return lambda: to.write_text((to.read_text() if to.exists() else "") + text)

    play = ExitStack()
    play.enter_context(claim_folder(folder.root))
    steps: list[Callable[[], object]] = [
        append(path, "2026-11-23 03:50:00,000 shard-0: half a "),
        append(path, "line\n"),
        append(late, "2026-11-23 03:50:01,000 holder-0: comes late\n"),
        append(path, "the last words, without an end"),
        play.close,
    ]

    def pause(seconds: float) -> None:
        steps.pop(0)()

    monkeypatch.setattr("secureps.run.up.runs.time", SimpleNamespace(sleep=pause))
    seen = list(log(folder.root, tail=1, follow=True))
    assert seen == [
        SHARD.splitlines()[-1],
        "2026-11-23 03:50:00,000 shard-0: half a line",
        "2026-11-23 03:50:01,000 holder-0: comes late",
        "shard-0: the last words, without an end",
    ]
    assert steps == []


def test_bytes_that_are_no_text_are_shown_as_such(folder: RunFolder) -> None:
    (folder.logs / "shard-0.log").write_bytes(b"\xff\n")
    assert list(log(folder.root, "shard-0")) == ["�"]


def test_a_party_that_is_none_names_those_that_there_are(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"no log of 'shard-9'; did you mean shard-0\? known are"):
        list(log(folder.root, "shard-9"))
    for path in folder.logs.iterdir():
        path.unlink()
    assert list(log(folder.root)) == []
    with pytest.raises(ConfigError, match="no log of 'shard-0'; no party has been started yet"):
        list(log(folder.root, "shard-0"))


@pytest.mark.slow
def test_the_command(folder: RunFolder) -> None:
    told = typed("log", folder.root, "client-00", "--tail", "1", "-f").out
    assert told == CLIENT.splitlines()[-1] + "\n"
    told = typed("log", folder.root, "nobody", status=1).err
    assert "known are client-00, shard-0 (this side's fault)" in told
