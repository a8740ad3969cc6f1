"""Every error that the operator's page explains is one that some test sees."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kits.documented import documented
from tests.kits.nursery import ROOT
from tests.processes import test_errors_rpc, test_errors_terminal, test_stolen_keys

WHOLE = test_errors_rpc.EXPECTED | test_errors_terminal.EXPECTED | test_stolen_keys.EXPECTED
"""Messages that these tests hold word by word."""
FAULT = re.compile(r" \([a-z ',]+ fault\)$")


def phrases(pattern: str) -> Iterator[str]:
    for piece in FAULT.sub("", pattern).split("..."):
        words = piece.split(" ")
        yield from (" ".join(words[i : i + 3]).strip(" :;,.") for i in range(len(words) - 2))


OFTEN = Counter(phrase for pattern in documented() for phrase in set(phrases(pattern)))
CONTRACT = ROOT / "tests" / "kits" / "transport_kit.py"
"""Tests that every transport's test file inherits."""
TESTS = "\n".join(path.read_text() for path in (CONTRACT, *(ROOT / "tests").rglob("test_*.py")))


def test_what_tests_hold_word_by_word_is_documented() -> None:
    assert documented().keys() >= WHOLE


@pytest.mark.parametrize("pattern", [each for each in documented() if each not in WHOLE])
def test_a_test_asserts_words_of_a_documented_message(pattern: str) -> None:
    """Three words at least that next to no other message has."""
    assert any(OFTEN[phrase] <= 2 and phrase in TESTS for phrase in phrases(pattern))


def test_every_message_comes_with_something_to_do() -> None:
    assert all(len(remedy) > 3 for remedy in documented().values())
