"""Figures of the pages that take no run are what the code makes; the others are found in them."""

from dataclasses import replace
from functools import partial

import pytest

from benchmarks.figures import FIGURES, Figure, pages

PAGES = pages()


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.quick], ids=lambda f: f.name)
def test_what_the_pages_tell_is_measured(figure: Figure) -> None:
    assert figure.spread == 0
    assert figure.differs(PAGES) == ""


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_every_figure_is_told_once_and_another_one_is_found_out(figure: Figure) -> None:
    told, rounding = figure.told(PAGES)
    assert told > 0
    for off, says in ((0.9 * rounding, ""), (2.1 * rounding + figure.spread, figure.name)):
        for now in (told - off, told + off):
            other = replace(figure, measure=partial(float, now))
            assert other.differs(PAGES).startswith(says)
            assert bool(other.differs(PAGES)) is bool(says)
