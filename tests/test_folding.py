"""Row-blocks of one table are one row that says how far they are and what holds them up."""

from __future__ import annotations

from secureps.messages.requests import GroupStatus
from secureps.run.folding import Row, rows


def block(number: int, version: int, step: str = "collecting", why: str = "waits") -> GroupStatus:
    late = (f"client-{number}",)
    return GroupStatus(f"table.{number}", version, step, why, late)


def test_groups_stay_as_they_are() -> None:
    tower = GroupStatus("tower", 3, "holding", "all have arrived", ("eve", "ada"), 0.25)
    assert rows([tower]) == (Row("tower", "3", "holding", "all have arrived", "ada, eve", "0.25"),)
    assert rows([]) == ()


def test_row_blocks_are_one_row_with_the_slowests_reason() -> None:
    blocks = [block(k, 5 + k % 3, why=f"{k} of 8 updates are here") for k in range(40)]
    blocks[17] = block(17, 2, "opening", "waits for key holders")
    tower = GroupStatus("tower", 9, "waiting", "waits for members", ())
    found = rows([*blocks, tower])
    assert [row.name for row in found] == ["table.0 to 39", "tower"]
    assert found[0].version == "2 to 7"
    assert found[0].step == "39 collecting, 1 opening"
    assert found[0].reason == "table.17: waits for key holders"
    assert found[0].late == "client-0, client-1, client-10, client-11 and 36 more"


def test_what_all_wait_for_is_said_once() -> None:
    (row,) = rows([block(k, 4, why="waits for members: 3 are live") for k in range(3)])
    assert (row.name, row.version, row.step) == ("table.0 to 2", "4", "collecting")
    assert row.reason == "waits for members: 3 are live"


def test_whoever_is_done_holds_nobody_up() -> None:
    (row,) = rows([block(0, 4, "done", "is over"), block(1, 6, why="1 of 5 updates are here")])
    assert row.reason == "table.1: 1 of 5 updates are here"


def test_names_that_only_look_alike_are_rows_of_their_own() -> None:
    names = ["layer.0", "layer.2", "other.3", "other.x", "body"]
    found = rows(GroupStatus(name, 1, "waiting", "waits", ()) for name in names)
    assert [row.name for row in found] == names
