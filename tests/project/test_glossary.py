"""The glossary explains every module, defines each word once, and its words are the ones in use."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.kits.nursery import ROOT

PACKAGE = ROOT / "secureps"
PAGE = ROOT / "docs" / "glossary.md"


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of a section's tables, without their heads."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    return [row for row in rows if row[0] not in ("term", "word", "say", "module")]


def modules() -> set[str]:
    """All, as they are written in the page; templates are other people's modules."""
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "_pb2" not in path.name and "templates" not in path.parts and path.name[0] != "_"
    }


def explained() -> list[str]:
    return [row[0].strip("`") for row in table("Modules")]


def test_every_module_is_explained() -> None:
    assert modules() - set(explained()) == set()


def test_nothing_else_is_explained() -> None:
    assert set(explained()) - modules() == set()


def test_nothing_is_defined_twice() -> None:
    words = [row[0].strip("*").casefold() for row in table("Terms") + table("How things end")]
    assert [word for word, times in Counter(words + explained()).items() if times > 1] == []


@pytest.mark.parametrize("row", table("Terms"), ids=lambda row: str(row[0].strip("*")))
def test_a_term_lives_where_the_page_says(row: list[str]) -> None:
    places = re.findall(r"`([^`]+)`", row[2])
    assert places
    for place in places:
        assert (PACKAGE / place).exists() or (ROOT / place).exists(), place


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Pages, docstrings, and the texts of errors and progress; where they stand."""
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if page != PAGE:
            yield page.name, page.read_text()
    for name in sorted(modules()):
        for node in ast.walk(ast.parse((PACKAGE / name).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value


def found(word: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(word)}s?\b", text, re.IGNORECASE) is not None


@pytest.mark.parametrize("row", table("Say it so"), ids=lambda row: str(row[0]))
def test_one_word_is_used_for_one_thing(row: list[str]) -> None:
    say, others = row
    for word in others.split(", "):
        places = [place for place, text in texts() if found(word, text)]
        assert places == [], f"say {say!r}, not {word!r}"


def test_a_forbidden_word_is_found() -> None:
    assert found("leader", "two\nLeaders met")
    assert not found("lag", "a flag")
