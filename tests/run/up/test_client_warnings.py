"""What `up` repeats of its clients' own logs: the first far cut of each kind, and nothing else."""

from pathlib import Path

import pytest

from secureps.run.up.watch import PIECE, ClientWarnings

AT = "2026-11-22 10:00:00,000 "
FAR = "update norm 12.3, clip 3: cut to 24 %"
NEAR = "update norm 3.1, clip 3: cut to 97 %"
CUT = "1,200 of the update's 4,000 values are beyond range 0.5: cut to it, 900 of them in head"
BEYOND = f"{CUT}; the largest is 0.92: range = 1 in the plan's [[group]] holds it"
FURTHER = f"{CUT}; the largest is 1.2e+03: range = 2000 in the plan's [[group]] holds it"
ONCE = " (its log has every such line, this is said once)"


def write(folder: Path, client: str, *lines: str, end: str = "\n") -> None:
    with (folder / f"{client}.log").open("a") as log:
        log.write("".join(f"{AT}{client}: {line}{end}" for line in lines))


def test_who_sends_nothing_is_named_once_with_all_that_say_the_same(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a", "b", "c"))
    none = "sends no update from version {} of all: its script trained on 0 examples"
    write(tmp_path, "b", none.format(0))
    assert list(echo.news()) == [], "others may be about to say so"
    write(tmp_path, "a", none.format(0))
    assert list(echo.news()) == []
    assert list(echo.news()) == [f"{none.format(0)} (a, b)"]
    write(tmp_path, "a", none.format(1), "sends no evaluation: evaluate raised OSError")
    write(tmp_path, "c", none.format(1))
    assert list(echo.news()) == []
    assert list(echo.flush()) == [
        "sends no evaluation: evaluate raised OSError (a)",
        f"{none.format(1)} (c)",
    ], "at the end nobody waits for others"
    assert list(echo.flush()) == []


def test_at_the_end_it_is_said_how_often_and_how_far(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a", "b"))
    assert echo.notes() == ()
    write(tmp_path, "a", BEYOND, NEAR, FURTHER, BEYOND)
    write(tmp_path, "b", "update norm 30, clip 3: cut to 10 %", FAR)
    assert len(list(echo.news())) == 2
    write(tmp_path, "b", BEYOND, "x" * 5000 + FAR)
    assert list(echo.news()) == []
    assert echo.notes() == (
        "clip cut 2 updates of 1 client to half or less, range cut 4 updates of 2 clients in "
        "single values; the furthest: b says: update norm 30, clip 3: cut to 10 %; a says: "
        f"{FURTHER}",
    )


def test_a_line_of_both_kinds_is_said_once(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a",))
    both = f"{FAR}; then {BEYOND}; clip = 20 and range = 4 would hold the whole update"
    write(tmp_path, "a", both, FAR)
    assert list(echo.news()) == [f"a says: {both}{ONCE}"]
    assert echo.notes() == (
        "clip cut 2 updates of 1 client to half or less, range cut 1 update of 1 client in single "
        f"values; the furthest: a says: {both}",
    )


def test_a_line_is_read_when_it_is_whole_and_a_log_without_any_stops_nobody(tmp_path: Path) -> None:
    echo = ClientWarnings(tmp_path, ("a",))
    write(tmp_path, "a", FAR, end="")
    assert list(echo.news()) == []
    with (tmp_path / "a.log").open("a") as log:
        log.write("\n" + "x" * 2 * PIECE)
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
