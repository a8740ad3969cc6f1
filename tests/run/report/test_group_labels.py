"""Row-blocks of one table are one row that says how far they are and what holds them up."""

from __future__ import annotations

from dataclasses import replace

from secureps.messages.requests import GroupStatus
from secureps.run.report.terminal import fold_rows, fold_versions, reason_line, table


def block(number: int, version: int, step: str = "collecting", why: str = "waits") -> GroupStatus:
    late = (f"client-{number}",)
    return GroupStatus(f"table.{number}", version, step, why, late)


def test_row_blocks_are_one_row_with_the_slowests_reason() -> None:
    blocks = [block(k, 5 + k % 3, why=f"{k} of 8 updates are here") for k in range(40)]
    blocks[17] = block(17, 2, "opening", "waits for key holders")
    tower = GroupStatus("tower", 9, "waiting", "waits for members", ())
    found = fold_rows([*blocks, tower])
    assert [row["group"] for row in found] == ["table.0-39", "tower"]
    assert found[0]["version"] == "2 to 7"
    assert found[0]["step"] == "39 collecting, 1 opening"
    assert found[0]["why"] == "table.17: waits for key holders"
    assert found[0]["waits for"] == "client-0, client-1, client-10, client-11 and 36 more"


def test_whoever_is_done_holds_nobody_up() -> None:
    (row,) = fold_rows([block(0, 4, "done", "is over"), block(1, 6, why="1 of 5 updates are here")])
    assert row["why"] == "table.1: 1 of 5 updates are here"


def test_names_that_only_look_alike_are_rows_of_their_own() -> None:
    names = ["layer.0", "layer.2", "other.3", "other.x", "body"]
    found = fold_rows(GroupStatus(name, 1, "waiting", "waits", ()) for name in names)
    assert [row["group"] for row in found] == names


def test_an_only_group_is_not_named() -> None:
    only = GroupStatus("all", 3, "collecting", "4 of 6 have arrived; waits for eve", ("eve",))
    assert reason_line([only]) == "collecting: 4 of 6 have arrived; waits for eve"
    heads, cells = table([only])
    assert heads == ("version", "step", "why", "waits for")
    assert cells == [("3", "collecting", "4 of 6 have arrived; waits for eve", "eve")]
    assert (fold_versions({"all": 3}), fold_versions({"all": 3}, {"all": 15})) == ("3", "3 of 15")


def test_several_are_named_and_stand_side_by_side() -> None:
    blocks = [block(0, 5, "holding", "all are here"), block(1, 3, why="2 of 5 are here")]
    tower = GroupStatus("tower", 2, "waiting", "waits for members", (), 0.123456)
    assert reason_line([*blocks, tower]) == (
        "table.0-1 1 holding, 1 collecting: table.1: 2 of 5 are here / tower waiting: waits for "
        "members"
    )
    heads, cells = table([*blocks, tower])
    assert (heads[0], heads[-1]) == ("group", "clip")
    assert [(row[0], row[1], row[-1]) for row in cells] == [
        ("table.0-1", "3 to 5", "-"),
        ("tower", "2", "0.1235"),
    ]


def test_a_line_of_several_has_what_goes_on_and_no_clients() -> None:
    why = "2 of 8 have arrived; waits for client-03, client-04, client-05 and 3 more"
    tower = GroupStatus("tower", 14, "done", "all 14 versions are made", ())
    assert reason_line([*(block(k, 3, why=why) for k in range(40)), tower]) == (
        "table.0-39 collecting: 2 of 8 have arrived"
    )
    assert reason_line([tower, replace(tower, name="body")]).count("all 14 versions are made") == 2


def test_of_row_blocks_it_says_how_many_are_done() -> None:
    versions = {f"table.{k}": 12 if k < 12 else k % 3 for k in range(40)}
    wanted = dict.fromkeys([*versions, "tower"], 12)
    assert fold_versions(versions, wanted) == "12 of 40 row-blocks done"
    beside = fold_versions(versions | {"tower": 4}, wanted)
    assert beside == "table: 12 of 40 row-blocks done / tower 4 of 12"
    assert fold_versions(versions) == "0 to 12"


def test_unlike_numbers_of_versions_are_told_for_each() -> None:
    versions = {"table.0": 8, "table.1": 8, "tower": 6}
    wanted = {"table.0": 8, "table.1": 8, "tower": 6}
    assert fold_versions(versions, wanted) == "table.0-1 8 of 8 / tower 6 of 6"
    assert fold_versions(versions | {"table.1": -1}) == "table.0-1 none to 8 / tower 6"


def test_what_is_not_founded_says_once_what_it_waits_for() -> None:
    why = "not founded: waits for shard-1 and a first client"
    blocks = [block(k, -1, "founding", why) for k in range(3)]
    tower = GroupStatus("tower", -1, "founding", why, ())
    assert reason_line([*blocks, tower]) == why
    assert [row[1] for row in table([*blocks, tower])[1]] == ["none", "none"]
