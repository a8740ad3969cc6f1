"""Pictures show what lines say: right numbers on labelled axes, and whether there is privacy."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from secureps.run.report.plots import SHOWN, Sheet, draw_curves, draw_study, draw_waiting
from secureps.run.report.version_metrics import Line, Wait

OF = "one record added or removed"
SHEET = Sheet("trial", "time", unsafe=False, budget=8.0, delta=1e-5, adjacency=OF)
UNSAFE = Sheet("trial", "virtual time", unsafe=True)


def at(version: int, group: str = "all", **changes: Any) -> Line:
    """A minute and a half per version."""
    facts: dict[str, Any] = {
        "group": group,
        "version": version,
        "elapsed": 90.0 * (version + 1),
        "epsilon": float(version),
        "unsafe": False,
        "scores": {"accuracy": 0.1 * version, "f1": 0.2, "loss": 2.0 - version},
        "figures": {"bytes_up": 3e6, "bytes_down": 1e6} if version else {},
        "waits": {},
    }
    return Line(**facts | changes)


LINES = [at(version) for version in range(4)]


def waiting(version: int, group: str = "all", /, **seconds: float) -> Line:
    """Negative seconds were waited in vain."""
    waits = {client: Wait(abs(s), s >= 0) for client, s in seconds.items()}
    return at(version, group, waits=waits)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Draws with one of the functions; returns the figure in place of writing a file."""

    def drawing(function: Callable[..., None], *given: Any) -> Any:
        figures: list[Any] = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        function(*given, Path("nowhere.png"))
        (figure,) = figures
        return figure

    return drawing


def panels(figure: Any) -> dict[str, Any]:
    return {axes.get_title("left"): axes for axes in figure.axes}


def xy(line: Any) -> tuple[list[float], list[float]]:
    return list(line.get_xdata()), [round(float(y), 6) for y in line.get_ydata()]


def labels(axes: Any) -> list[str]:
    legend = axes.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def test_scores_over_time_epsilon_over_versions_bytes_added_up(drawn: Any) -> None:
    found = panels(drawn(draw_curves, LINES, SHEET))
    minutes = [1.5, 3.0, 4.5, 6.0]
    accuracy, loss = found["held-out accuracy"], found["held-out loss"]
    assert xy(accuracy.lines[0]) == (minutes, [0.0, 0.1, 0.2, 0.3])
    assert xy(loss.lines[0]) == (minutes, [2.0, 1.0, 0.0, -1.0])
    assert accuracy.get_title("right") == "0.300 at version 3"
    spent = found["privacy spent"]
    assert xy(spent.lines[0]) == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])
    assert list(spent.lines[1].get_ydata()) == [8.0, 8.0]
    assert labels(spent) == [f"budget: 8, of {OF}"]
    sent = found["payload of all clients"]
    assert [xy(line) for line in sent.lines] == [
        (minutes, [0.0, 3.0, 6.0, 9.0]),
        (minutes, [0.0, 1.0, 2.0, 3.0]),
    ]
    assert labels(sent) == ["up: updates, 9.0 MB", "down: models, 3.0 MB"]
    axes = {name: (a.get_xlabel(), a.get_ylabel()) for name, a in found.items()}
    assert axes == {
        "held-out accuracy": ("time, min", "accuracy"),
        "held-out loss": ("time, min", "loss"),
        "privacy spent": ("version", "epsilon (delta 1e-05)"),
        "payload of all clients": ("time, min", "MB"),
    }


def test_baselines_are_lines_on_their_own_measure(drawn: Any) -> None:
    references = {"all data at one party": 0.97, "one holder alone, the best": 0.6}
    sheet = dataclasses.replace(SHEET, measure="accuracy", references=references)
    found = panels(drawn(draw_curves, LINES, sheet))
    assert labels(found["held-out accuracy"]) == [
        "all data at one party: 0.970",
        "one holder alone, the best: 0.600",
    ]
    assert [list(x.get_ydata()) for x in found["held-out accuracy"].lines[1:]] == [
        [0.97, 0.97],
        [0.6, 0.6],
    ]
    assert labels(found["held-out loss"]) == []


@pytest.mark.parametrize(
    ("sheet", "text"),
    [
        (UNSAFE, "trial: what it learned, spent and sent\nunsafe seed: no privacy"),
        (
            Sheet("trial", "time", unsafe=False),
            "trial: what it learned, spent and sent\nthe plan has no privacy",
        ),
    ],
)
def test_without_privacy_the_title_says_so_and_nothing_is_spent(
    sheet: Sheet, text: str, drawn: Any
) -> None:
    lines = [dataclasses.replace(line, epsilon=math.inf) for line in LINES]
    figure = drawn(draw_curves, lines, sheet)
    assert figure.get_suptitle() == text
    assert "privacy spent" not in panels(figure)


def test_versions_whose_epsilon_was_not_seen_are_left_out(drawn: Any) -> None:
    lines = [*LINES[:2], dataclasses.replace(LINES[2], epsilon=None), LINES[3]]
    spent = panels(drawn(draw_curves, lines, SHEET))["privacy spent"]
    assert xy(spent.lines[0]) == ([0, 1, 3], [0.0, 1.0, 3.0])


def test_versions_of_several_groups_are_drawn_in_the_order_of_time(drawn: Any) -> None:
    lines = [at(1, "body", elapsed=90.0), at(1, "head", elapsed=30.0)]
    found = panels(drawn(draw_curves, lines, SHEET))
    for name in ("held-out accuracy", "payload of all clients"):
        assert xy(found[name].lines[0])[0] == [30.0, 90.0]


def test_every_group_spends_at_its_own_versions(drawn: Any) -> None:
    lines = [at(v, group) for v in range(2) for group in ("body", "head")]
    spent = panels(drawn(draw_curves, lines, SHEET))["privacy spent"]
    assert labels(spent) == ["at body's versions", "at head's versions", f"budget: 8, of {OF}"]


@pytest.mark.parametrize(
    ("scores", "names"),
    [
        ({"loss": 1.0, "f1": 0.5, "auc": 0.5}, {"held-out auc", "held-out loss"}),
        ({"loss": 1.0}, {"held-out loss"}),
        ({}, {"held-out loss"}),
    ],
)
def test_what_the_script_measures_is_drawn(
    scores: dict[str, float], names: set[str], drawn: Any
) -> None:
    found = panels(drawn(draw_curves, [at(0, scores=scores)], UNSAFE))
    assert found.keys() == names | {"payload of all clients"}
    texts = [text.get_text() for text in found["held-out loss"].texts]
    assert texts == ([] if scores else ["nobody could judge this model"])


def test_slowest_first_and_in_vain_is_marked(drawn: Any) -> None:
    lines = [
        at(0),
        waiting(1, ada=2.0, bob=4.0, eve=9.0),
        waiting(2, ada=3.0, bob=5.0, eve=-12.0),
        waiting(3, ada=4.0, bob=6.0),
    ]
    figure = drawn(draw_waiting, lines, SHEET)
    strip, versions = panels(figure)["every client"], panels(figure)["every version"]
    assert [text.get_text() for text in strip.get_yticklabels()] == ["eve", "bob", "ada"]
    assert strip.get_ylim() == (2.5, -0.5), "the first is on top"
    came, missed, medians = map(xy, strip.lines)
    assert sorted(zip(*came)) == [(2, 2), (3, 2), (4, 1), (4, 2), (5, 1), (6, 1), (9, 0)]
    assert missed == ([12.0], [0])
    assert medians == ([10.5, 5.0, 3.0], [0, 1, 2])
    (image,) = versions.images
    shown = np.ma.filled(image.get_array(), np.nan)
    np.testing.assert_array_equal(shown, [[9.0, np.nan, np.nan], [4, 5, 6], [2, 3, 4]])
    assert xy(versions.lines[0]) == ([2], [0.0])
    assert image.get_extent() == [0.5, 3.5, 2.5, -0.5]
    assert strip.get_xlabel() == "waited since the version began, s"
    assert versions.get_xlabel() == "version"
    assert figure.get_suptitle() == "trial: for whom versions waited"


def test_row_blocks_of_a_table_are_one_panel_of_the_longest_waits(drawn: Any) -> None:
    """In the plan's order, whichever block came first, and though nobody touched one of them."""
    lines = [
        waiting(1, "table.10", ada=3.0),
        waiting(1, "table.9", ada=1.0, bob=-5.0),
        waiting(2, "table.9", ada=7.0),
        waiting(1, "tower", ada=2.0, bob=2.0),
    ]
    blocks = tuple(f"table.{k}" for k in range(12))
    figure = drawn(draw_waiting, lines, dataclasses.replace(SHEET, groups=(*blocks, "tower")))
    table, tower = (a for a in figure.axes if a.get_title("left") == "every version")
    assert [a.get_title("right") for a in (table, tower)] == ["of table.0-11", "of tower"]
    shown = np.ma.filled(table.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(shown, [[np.nan, np.nan], [3.0, 7.0]])
    assert xy(table.lines[0]) == ([1], [0.0]), "bob was waited for in vain"


def test_only_the_slowest_of_a_crowd_are_shown(drawn: Any) -> None:
    crowd = {f"c{i:03d}": float(i) for i in range(SHOWN + 50)}
    figure = drawn(draw_waiting, [waiting(1, **crowd)], SHEET)
    names = [text.get_text() for text in panels(figure)["every client"].get_yticklabels()]
    assert (len(names), names[0], names[-1]) == (SHOWN, "c149", "c050")
    assert "(the 100 slowest of 150 clients)" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("seconds", "logarithmic"),
    [
        ([1.0, 1.2, 3.0], False),
        ([1.0, 1.2, 300.0], True),
        ([0.0, 1.0, 300.0], False),
        ([0.0], False),
    ],
)
def test_one_that_is_very_late_does_not_hide_the_others(
    seconds: list[float], logarithmic: bool, drawn: Any
) -> None:
    clients = {f"c{i}": value for i, value in enumerate(seconds)}
    found = panels(drawn(draw_waiting, [waiting(1, **clients)], SHEET))
    assert isinstance(found["every version"].images[0].norm, LogNorm) is logarithmic
    assert found["every client"].get_xscale() == ("log" if logarithmic else "linear")


def test_a_run_that_waited_for_nobody_says_so(drawn: Any) -> None:
    (axes,) = drawn(draw_waiting, [at(0)], SHEET).axes
    assert [text.get_text() for text in axes.texts] == ["no version was measured"]


def test_a_study_has_a_line_for_every_seed_and_one_name_for_each_rule(drawn: Any) -> None:
    ran = [(5.0, 0.1), (10.0, 0.95)]
    curves = {"sync": [ran, ran[:1]], "async": [ran]}
    figure = drawn(draw_study, curves, "few", "accuracy", 0.9)
    (axes,) = figure.axes
    assert labels(axes) == ["sync", "async", "target: 0.9"]
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert [xy(line) for line in lines] == [
        ([5, 10], [0.1, 0.95]),
        ([5], [0.1]),
        ([5, 10], [0.1, 0.95]),
    ]
    assert list(axes.lines[-1].get_ydata()) == [0.9, 0.9]
    assert "unsafe seed: no privacy" in figure.get_suptitle()
