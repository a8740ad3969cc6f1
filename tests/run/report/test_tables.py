"""Tables on terminals of every width: no word is cut, no number loses a digit."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable

import numpy as np
import pytest
from rich.console import RenderableType

from secureps.messages.evaluation import EvaluationStatus, Metric, VersionEvaluated
from secureps.messages.requests import MemberStatus
from secureps.run.report.status_tables import (
    TOTALS,
    Summary,
    WordTable,
    describe_total,
    summary_tables,
)
from secureps.run.script.scoring import Baselines
from tests.run.report.test_status_tables import displayed
from tests.run.report.test_terminal import SUMMARY

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
        SUMMARY,
        score=None,
        baselines=Baselines({}, None, ()),
        totals={"ages": ages, "grid": long},
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
