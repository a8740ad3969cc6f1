"""What is read of parties' logs: by `secureps log`, and by `up` of far cuts of clients' updates."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from secureps.errors import ConfigError
from secureps.run.up.folder import Origin, RunFolder, claim_folder
from secureps.run.up.runs import log
from secureps.run.up.up import LOG_PIECE, ClientWarnings
from tests.kits.command import typed

AT = "2026-11-22 10:00:00,000 "
FAR = "update norm 12.3, clip 3: cut to 24 %"
NEAR = "update norm 3.1, clip 3: cut to 97 %"
CUT = "1,200 of the update's 4,000 values are beyond range 0.5: cut to it, 900 of them in head"
BEYOND = f"{CUT}; the largest is 0.92: range = 1 in the plan's [[group]] holds it"
ONCE = " (in its log each time)"


def write(folder: Path, client: str, *lines: str, end: str = "\n") -> None:
    with (folder / f"{client}.log").open("a") as log:
        log.write("".join(f"{AT}{client}: {line}{end}" for line in lines))


def test_who_sends_nothing_is_named_once_with_all_that_say_the_same(tmp_path: Path) -> None:
    one, two, three = names = ("client-00", "client-01", "client-02")
    echo = ClientWarnings(tmp_path, names)
    none = "sends no update from version {} of all: its script trained on 0 examples"
    write(tmp_path, two, none.format(0))
    write(tmp_path, one, none.format(0))
    assert list(echo.news()) == [f"{one} {none.format(0)}; so did {two}"]
    write(tmp_path, one, none.format(1), "sends no evaluation: evaluate raised OSError")
    write(tmp_path, three, none.format(1))
    assert list(echo.news()) == [
        f"{one} sends no evaluation: evaluate raised OSError",
        f"{three} {none.format(1)}",
    ]


def test_a_strong_cut_of_each_kind_is_said_once(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a", "b"))
    write(tmp_path, "a", NEAR, BEYOND)
    write(tmp_path, "b", FAR, BEYOND)
    assert list(echo.news()) == [f"a says: {BEYOND}{ONCE}", f"b says: {FAR}{ONCE}"]
    write(tmp_path, "a", FAR, "x" * 5000 + FAR)
    assert list(echo.news()) == []


def test_a_line_of_both_kinds_is_said_once(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a",))
    both = f"{FAR}; then {BEYOND}; clip = 20 and range = 4 would hold the whole update"
    write(tmp_path, "a", both, FAR)
    assert list(echo.news()) == [f"a says: {both}{ONCE}"]


def test_a_line_is_read_when_it_is_whole_and_a_log_without_any_stops_nobody(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a",))
    write(tmp_path, "a", FAR, end="")
    assert list(echo.news()) == []
    with (tmp_path / "a.log").open("a") as log:
        log.write("\n" + "x" * 2 * LOG_PIECE)
    assert list(echo.news()) == [f"a says: {FAR}{ONCE}"]
    for _ in range(3):
        assert list(echo.news()) == []
    write(tmp_path, "a", "", BEYOND)
    assert len(list(echo.news())) == 1


@pytest.mark.parametrize(
    ("left", "told"),
    [
        *(("nan", 0), ("x", 0), ("", 0), ("1e", 0), ("50.1", 0)),
        *(("50", 1), ("0.12", 1), ("1e-05", 1), ("2.4e+01", 1)),
    ],
)
def test_a_cut_to_half_or_less_is_told_in_whatever_way_it_is_written(
    left: str, told: int, tmp_path: Path
) -> None:
    write(tmp_path, "a", f"update norm 12, clip 3: cut to {left} %")
    assert len(list(ClientWarnings(tmp_path, ("a",)).news())) == told


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
