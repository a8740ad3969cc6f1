"""The page of errors explains messages that some test sees, and has every class of the tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from secureps.errors import ERRORS
from tests.kits.documented import PAGE, documented
from tests.kits.nursery import ROOT

FAULT = re.compile(r" \([a-z ',]+ fault\)$")


def phrases(pattern: str) -> Iterator[str]:
    for piece in FAULT.sub("", pattern).split("..."):
        words = piece.split(" ")
        yield from (" ".join(words[i : i + 3]).strip(" :;,.") for i in range(len(words) - 2))


OFTEN = Counter(phrase for pattern in documented() for phrase in set(phrases(pattern)))
CONTRACT = ROOT / "tests" / "kits" / "transport_kit.py"
"""Tests that every transport's test file inherits."""
TESTS = "\n".join(path.read_text() for path in (CONTRACT, *(ROOT / "tests").rglob("test_*.py")))


@pytest.mark.parametrize("pattern", documented())
def test_a_test_asserts_words_of_a_documented_message(pattern: str) -> None:
    """Three words at least that next to no other message has."""
    assert any(OFTEN[phrase] <= 2 and phrase in TESTS for phrase in phrases(pattern))


def test_the_table_of_classes_is_made_from_the_code() -> None:
    _, _, table = PAGE.read_text().partition("\n## Classes\n")
    rows = re.findall(r"^\| (.+) \| (`.+`) \|$", table, re.MULTILINE)
    told = [(fault, name) for fault, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(told) == sorted((kind.fault, name) for name, kind in ERRORS.items())
