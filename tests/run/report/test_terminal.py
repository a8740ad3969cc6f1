"""What an operator reads while a run goes, and at its end, on terminals of every width."""

import dataclasses
import io
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pytest
from rich.console import Console, RenderableType

from secureps.errors import ConfigError
from secureps.messages.evaluation import EvaluationStatus, Metric, VersionEvaluated
from secureps.messages.requests import GroupStatus, MemberStatus, Move, Status
from secureps.run.report.status_tables import (
    TOTALS,
    Summary,
    WordTable,
    describe_total,
    summary_tables,
)
from secureps.run.report.terminal import (
    QUIET,
    Progress,
    move_text,
    plain_text,
    score_text,
    spent_text,
)
from secureps.run.script.scoring import Baselines, Score
from secureps.wording import size
from tests.run.report.test_status_tables import displayed

GROUP = GroupStatus("all", 7, "collecting", "4 of 6 have arrived; waits for eve", ("eve",))
FACTS = {"time": "1:02", "version": "7 of 15", "epsilon": "5.31 of 8", "clients": "5 of 6"}
MEMBERS = (
    MemberStatus("ada", True, "waits", 3, 3, 1.5, False),
    MemberStatus("eve", False, "gone", 2, 2, 1.25, False),
)
SUMMARY = Summary(
    name="trial",
    finished="all 3 versions are made",
    wall_seconds=12.34,
    versions={"all": 3},
    score=Score("accuracy", 0.9, 0.3, 10),
    baselines=Baselines(
        {"ada": Score("accuracy", 0.4, 2.0, 10), "eve": Score("accuracy", 0.6, 3.0, 10)},
        Score("accuracy", 0.97, 0.1, 10),
        ("something was left out",),
        goal="max",
    ),
    delta=1e-5,
    adjacency="one record added or removed",
    budget=8.0,
    members=MEMBERS,
    bytes_up=5000.0,
    bytes_down=1000.0,
    ratio_up=5.0,
    ratio_down=1.0,
    seconds={"training": 2.5},
    updates={"ada": 3, "eve": 2},
    counted=5,
    unsafe=False,
)


def console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    told = io.StringIO()
    return Console(file=told, width=120, force_terminal=terminal, color_system=None), told


def lines(summary: Summary) -> list[str]:
    return displayed(*summary_tables(summary), width=120).splitlines()


@pytest.mark.parametrize(
    ("scored", "said"),
    [
        ("7", "0.861"),
        ("6", "0.861 (version 6)"),
        ("codes.0-39 0 to 9 / tower 6", "0.861 (an older version)"),
    ],
)
def test_a_score_says_which_older_version_it_is_of(scored: str, said: str) -> None:
    assert score_text(Score("accuracy", 0.8613, 0.4, 359), scored, {"all": 7}) == said


@pytest.mark.parametrize(("epsilon", "said"), [(5.312, "5.31"), (math.inf, "infinite")])
def test_an_epsilon_stands_beside_its_budget(epsilon: float, said: str) -> None:
    told = f"{said} of 8 (delta 1e-05, one record added or removed)"
    assert spent_text(epsilon, 8.0, 1e-5, "one record added or removed") == told


def test_one_line_says_how_it_stands() -> None:
    line = "time 1:02; version 7 of 15; epsilon 5.31 of 8; clients 5 of 6; "
    assert plain_text((GROUP,), FACTS) == f"{line}collecting: 4 of 6 have arrived; waits for eve"


def test_plain_lines_come_with_versions_and_in_long_silence() -> None:
    shown, told = console()
    with Progress(shown, "trial", unsafe=False) as progress:
        for elapsed in (1.0, 2.0, QUIET, 2 + QUIET, 3 + QUIET):
            progress.show(elapsed, (GROUP,), FACTS)
        newer = dataclasses.replace(GROUP, version=8)
        progress.show(4 + QUIET, (newer,), FACTS | {"version": "8 of 15"})
    versions = [line.split("version ")[1][0] for line in told.getvalue().splitlines()]
    assert versions == ["7", "7", "8"]


@pytest.mark.parametrize("terminal", [False, True])
def test_an_unsafe_seed_is_in_every_view(terminal: bool) -> None:
    shown, told = console(terminal)
    with Progress(shown, "trial", unsafe=True) as progress:
        progress.show(62.0, (GROUP,), FACTS)
    assert told.getvalue().count("unsafe seed: no privacy") >= 2


def test_a_terminal_gets_a_panel_with_who_is_late() -> None:
    shown, told = console(terminal=True)
    with Progress(shown, "trial", unsafe=False) as progress:
        progress.show(62.0, (GROUP,), FACTS)
        progress.show_activity("trains ada alone")
    text = told.getvalue()
    for part in ("trial", "collecting", "eve", "5.31 of 8", "trains ada alone"):
        assert part in text


@pytest.mark.parametrize("failed", [False, True])
def test_at_the_end_the_view_stays_only_if_there_was_an_error(failed: bool) -> None:
    """A frame that is replaced is wiped line by line before the next one."""
    shown, told = console(terminal=True)
    with suppress(ConfigError), Progress(shown, "trial", unsafe=False) as progress:
        progress.show_activity("trains ada alone")
        if failed:
            raise ConfigError("no data")
    last = told.getvalue().rpartition("\x1b[2K")[2]
    assert ("trains ada alone" in last) == failed


def test_markup_in_a_message_is_text() -> None:
    shown, told = console()
    Progress(shown, "trial", unsafe=False).say("see [red]x[/red]")
    assert told.getvalue() == "see [red]x[/red]\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (3e9, "3.0 GB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def cells(shown: list[str], first: str) -> list[str]:
    (row,) = (line for line in shown if first in line)
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_the_tables_at_the_end() -> None:
    shown = lines(SUMMARY)
    assert cells(shown, "federation")[1:] == ["0.9000", "0.3000"]
    assert cells(shown, "the best")[1:] == ["0.6000", "3.0000"]
    assert cells(shown, "on average")[1:] == ["0.5000", "2.5000"]
    assert cells(shown, "no privacy")[1:] == ["0.9700", "0.1000"]
    assert cells(shown, "ada") == ["ada", "0.4000", "3", "1.500", "8"]
    assert cells(shown, "eve") == ["eve", "0.6000", "2", "1.250", "8"]
    assert cells(shown, "bytes up")[1:] == ["5.0 kB", "1.0 kB", "5.00 x"]
    assert cells(shown, "training")[1:3] == ["2.50 s", "0.500 s"]
    assert "note: something was left out" in shown


def test_a_score_that_is_the_loss_has_one_column() -> None:
    losses = [Score("loss", value, value, 10) for value in (0.3, 2.0, 3.0, 0.1)]
    alone = {"ada": losses[1], "eve": losses[2]}
    baselines = Baselines(alone, losses[3], (), goal="min")
    shown = lines(dataclasses.replace(SUMMARY, score=losses[0], baselines=baselines))
    assert "\n".join(shown).count("held-out") == 1
    assert cells(shown, "federation")[1:] == ["0.3000"]
    assert cells(shown, "the best")[1:] == ["2.0000"]
    assert cells(shown, "on average")[1:] == ["2.5000"]
    assert cells(shown, "no privacy")[1:] == ["0.1000"]


def test_where_nobody_knows_which_is_better_both_ends_are_shown() -> None:
    unknown = dataclasses.replace(SUMMARY.baselines, goal=None)
    shown = lines(dataclasses.replace(SUMMARY, baselines=unknown))
    assert cells(shown, "the lowest")[1:] == ["0.4000", "2.0000"]
    assert cells(shown, "the highest")[1:] == ["0.6000", "3.0000"]
    assert not any("the best" in line for line in shown)


def test_all_metrics_are_shown_and_written() -> None:
    score = Score("accuracy", 0.9, 0.3, 10, {"f1": 0.25, "mae": 1.5})
    summary = dataclasses.replace(SUMMARY, score=score)
    shown = lines(summary)
    for measure in ("accuracy", "f1", "mae", "loss"):
        assert f"held-out {measure}" in "\n".join(shown)
    assert cells(shown, "federation")[1:] == ["0.9000", "0.2500", "1.5000", "0.3000"]
    assert cells(shown, "the best")[1:] == ["0.6000", "-", "-", "3.0000"]
    assert summary.record()["score"]["others"] == {"f1": 0.25, "mae": 1.5}


def test_holders_alone_without_the_plans_noise_say_so_in_their_lines() -> None:
    quiet = dataclasses.replace(SUMMARY.baselines, noiseless=True)
    told = "\n".join(lines(dataclasses.replace(SUMMARY, baselines=quiet)))
    assert "one holder alone, without noise, the best " in told
    assert "one holder alone, without noise, on average " in told
    assert "without noise" not in "\n".join(lines(SUMMARY))


def test_what_was_not_measured_is_not_shown() -> None:
    bare = dataclasses.replace(
        SUMMARY,
        score=None,
        baselines=Baselines({}, None, ()),
        delta=None,
        adjacency="",
        budget=None,
        ratio_up=None,
        ratio_down=None,
        updates={},
        counted=0,
    )
    shown = lines(bare)
    assert not any("federation" in line for line in shown)  # without a score, no table of scores
    assert not any("epsilon" in line or "alone," in line or "no privacy" in line for line in shown)
    assert cells(shown, "bytes up")[3] == "-"


def test_a_summary_says_what_its_epsilons_are_of() -> None:
    title = "data holders; epsilon (delta 1e-05) is of one record added or removed"
    assert title in lines(SUMMARY)
    assert SUMMARY.record()["adjacency"] == "one record added or removed"


def test_an_unsafe_summary_says_so_first_and_last_and_in_json() -> None:
    unsafe = dataclasses.replace(SUMMARY, unsafe=True)
    shown = lines(unsafe)
    assert shown[0] == shown[-1] == "unsafe seed: no privacy"
    assert unsafe.record()["privacy"] == "unsafe seed: no privacy"
    assert "privacy" not in SUMMARY.record()
    assert json.loads(json.dumps(SUMMARY.record()))["members"][0]["name"] == "ada"


def test_a_client_of_an_unsafe_seed_has_no_epsilon_anywhere() -> None:
    marked = dataclasses.replace(MEMBERS[0], epsilon=math.inf, unsafe=True)
    summary = dataclasses.replace(SUMMARY, members=(marked, MEMBERS[1]))
    shown = lines(summary)
    assert cells(shown, "ada") == ["ada", "0.4000", "3", "unsafe seed: no privacy", "8"]
    assert cells(shown, "eve") == ["eve", "0.6000", "2", "1.250", "8"]
    record = json.loads(json.dumps(summary.record(), allow_nan=False))
    told = [(m["name"], m["epsilon"], m["unsafe"]) for m in record["members"]]
    assert told == [("ada", None, True), ("eve", 1.25, False)]
    standings = displayed(Status(b"\x01" * 32, 1, "", (), summary.members, (), ())).splitlines()
    assert cells(standings, "ada")[-1] == "unsafe seed: no privacy"
    assert cells(standings, "eve")[-1] == "1.250"


PART = Move("drain-shard", "shard-1", 3, 12, 900_000, 3_100_000)
WAITING = Move("add-shard", "shard-2", 0, 4, 0, 1024, "waits for\x1b[2J shard-0")


def test_a_move_is_told_in_a_line() -> None:
    assert move_text(PART) == "drain-shard shard-1: 3 of 12 blocks, 900.0 kB of 3.1 MB"
    lost = move_text(Move("", "", 1, 2, 256, 512))
    assert lost == "copies that were lost: 1 of 2 blocks, 256 B of 512 B"
    assert move_text(WAITING) == (
        "add-shard shard-2: 0 of 4 blocks, 0 B of 1.0 kB; waits for?[2J shard-0"
    )


MANY = tuple(Metric(f"accuracy_of_site_{k}", k + 0.123456) for k in range(12))
NEWEST = VersionEvaluated(3, MANY)
LONG = dataclasses.replace(
    SUMMARY,
    members=tuple(
        MemberStatus(f"hospital-of-a-long-name-{k:03d}", True, "waits", 3, 3, 1.5, False)
        for k in range(3)
    ),
    bytes_up=123.4e9,
    seconds={"encrypting and packing": 123456.78, "training": 98765.43},
    evaluation=EvaluationStatus("done", "", (), (NEWEST,), 3, ()),
)


def shown(parts: Iterable[RenderableType], width: int) -> str:
    return displayed(*parts, width=width)


def words(text: str) -> set[str]:
    return {word.strip(":") for word in re.findall(r"[^\s┏┳┓┃┡╇┩│└┴┘├┼┤━─]+", text)}


@pytest.mark.parametrize("width", range(36, 140, 4))
@pytest.mark.parametrize("summary", [SUMMARY, LONG], ids=["usual", "long"])
def test_the_end_of_a_run_is_whole_at_every_width(summary: Summary, width: int) -> None:
    text = shown(summary_tables(summary), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert words(shown(summary_tables(summary), 1000)) <= words(text)


@pytest.mark.parametrize(
    ("judge", "whose"), [("", "the mean of what its clients found"), ("lab", "what lab found")]
)
def test_two_scores_of_one_model_are_told_apart(judge: str, whose: str) -> None:
    evaluated = EvaluationStatus("done", "", (), (VersionEvaluated(3, MANY, judge),), 3, ())
    own = dataclasses.replace(SUMMARY, evaluation=evaluated)
    assert f"the federation's own is {whose}" in shown(summary_tables(own), 400)
    text = shown(summary_tables(dataclasses.replace(own, score=None)), 400)
    assert "two scores" not in text


def test_a_run_that_only_adds_up_shows_its_totals_and_no_table_of_dashes() -> None:
    ages = describe_total(np.array([12, 0, 2**24]), clients=5)
    long = describe_total(np.arange(1000.0).reshape(10, 100) / 3)
    own = dataclasses.replace(
        SUMMARY, score=None, baselines=Baselines({}, None, ()), totals={"ages": ages, "grid": long}
    )
    text = shown(summary_tables(own), 200)
    assert text.startswith("trial: all 3 versions are made (version 3)\n")
    assert "totals with the plan's noise, of the newest version\n" in text
    assert "│ ages   │ 3        │ 5            │ 12 0 16,777,216 " in text
    assert "│ grid   │ 10 x 100 │ unknown      │ 0 0.3333333333 " in text
    exact = shown(summary_tables(dataclasses.replace(own, delta=None, adjacency="")), 200)
    assert "exact totals, of the newest version\n" in exact
    assert f" and {1000 - TOTALS} more values, all in model.safetensors" in text.replace(" │", "")
    assert "alone" not in text
    assert words(text) <= words(shown(summary_tables(own), 60))
    assert json.loads(json.dumps(own.record()))["totals"]["ages"]["values"] == [12, 0, 2**24]


def test_a_table_that_fits_is_as_wide_as_its_cells() -> None:
    wide, fits = (shown([WordTable("title", ("a", "b"), [("x y", "1")])], n) for n in (100, 16))
    assert wide == fits
    assert fits.splitlines()[1] == "┏━━━━━┳━━━┓"


def test_words_that_fit_are_beside_each_other_and_others_below() -> None:
    rows = [("one two three", "1.2345"), ("four", "9.8765")]
    table = WordTable("title", ("name", "value"), rows)
    assert "│ one   │ 1.2345 │" in shown([table], 18).splitlines()
    assert [line.rstrip() for line in shown([table], 15).splitlines()] == [
        "title",
        "name: one two",
        "three",
        "  value: 1.2345",
        "name: four",
        "  value: 9.8765",
    ]
    assert "│ one   │ 1.2345 │" in shown([table], 18).splitlines(), "at another width again"


def test_a_list_leaves_empty_cells_out_and_markup_of_a_text_is_text() -> None:
    row = ("[red]newest[/red]", "", "abcdefghijklmnop")
    table = WordTable("title", ("", "first", "second"), [row])
    assert shown([table], 30).splitlines() == [
        "title",
        "[red]newest[/red]",
        "  second: abcdefghijklmnop",
    ]
