"""Every error that the operator's page explains is one that some test sees."""

from __future__ import annotations

import pytest

from tests.kits.asserted_elsewhere import ELSEWHERE
from tests.kits.documented import documented, says
from tests.kits.nursery import ROOT
from tests.processes import test_errors_rpc, test_errors_terminal, test_stolen_keys


def test_every_documented_message_is_asserted() -> None:
    expected = test_errors_rpc.EXPECTED | test_errors_terminal.EXPECTED | test_stolen_keys.EXPECTED
    assert set(documented()) == expected | set(ELSEWHERE)


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_elsewhere_it_is(pattern: str) -> None:
    file, part = ELSEWHERE[pattern]
    assert part in pattern
    assert part in (ROOT / "tests" / file).read_text()


def test_every_message_comes_with_something_to_do() -> None:
    assert all(len(remedy) > 3 for remedy in documented().values())


def test_a_pattern_is_a_whole_line() -> None:
    assert says("no ... in ...", "no tea in China")
    assert not says("no ... in ...", "no tea in China today".replace("in", "at"))
    assert not says("no tea", "no tea at all")
    assert not says("... (x)", "(x)")
