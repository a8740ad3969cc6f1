"""The glossary defines each word once, and names the file where it lives."""

import re
from collections import Counter

import pytest

from tests.kits.nursery import ROOT

PACKAGE = ROOT / "secureps"
PAGE = ROOT / "docs" / "glossary.md"


def table(heading: str) -> list[list[str]]:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    return [row for row in rows if row[0] not in ("term", "word")]


def test_nothing_is_defined_twice() -> None:
    words = [row[0].strip("*").casefold() for row in table("Terms") + table("How things end")]
    assert [word for word, times in Counter(words).items() if times > 1] == []


@pytest.mark.parametrize("row", table("Terms"), ids=lambda row: str(row[0].strip("*")))
def test_a_term_lives_where_the_page_says(row: list[str]) -> None:
    places = re.findall(r"`([^`]+)`", row[2])
    assert places
    for place in places:
        assert (PACKAGE / place).exists() or (ROOT / place).exists(), place
