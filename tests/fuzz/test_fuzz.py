"""Hostile input: a million mutated inputs cause no traceback (`make fuzz` plays all of them)."""

import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.attempt import number_of
from tests.fuzz.servers import SERVERS, besiege
from tests.fuzz.table import TRUSTED, parsers, targets
from tests.fuzz.target import Target

pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number:UserWarning")
EXAMPLES = 30
PARTS = 8
some_targets = pytest.mark.parametrize("part", range(PARTS))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return targets(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
def test_whatever_parses_is_tried_or_trusted_with_a_reason(known: dict[str, Target]) -> None:
    """A new decoder without a row fails here: name it in a target of tests/fuzz."""
    named = {each for target in known.values() for each in target.of}
    trusted = {each for functions in TRUSTED.values() for each in functions}
    assert parsers() - named - trusted == set()
    assert trusted - parsers() == set(), "these are gone"
    assert named & trusted == set()


@some_targets
def test_the_honest_are_accepted(known: dict[str, Target], part: int) -> None:
    for target in list(known.values())[part::PARTS]:
        assert target.corpus
        for data in target.corpus:
            assert (target.name, target.complaint(data)) == (target.name, None)
            assert target.accepts(data), target.name


@some_targets
def test_what_is_nearly_right_is_refused_or_means_what_it_says(
    known: dict[str, Target], part: int
) -> None:
    for target in list(known.values())[part::PARTS]:
        attack(target)


def attack(target: Target) -> None:
    @given(seed=st.integers(0, 2**32), raw=st.binary(max_size=200))
    @settings(
        max_examples=max(3, round(EXAMPLES / target.cost**0.5)),
        suppress_health_check=list(HealthCheck),
    )
    def tried(seed: int, raw: bytes) -> None:
        for data in (target.draw(Random(seed)), raw):
            assert (target.name, target.complaint(data)) == (target.name, None)

    tried()


def made(take: Any, **changes: Any) -> Target:
    return dataclasses.replace(Target("x", ("x:y",), (b'{"a": 1}',), take), **changes)


def raises(error: BaseException) -> Any:
    def take(data: bytes) -> bytes:
        raise error

    return take


@pytest.mark.parametrize("error", [KeyError("a"), RecursionError(), MemoryError(), SystemExit(1)])
def test_an_error_that_is_none_of_ours_is_a_finding(error: BaseException) -> None:
    assert "Traceback" in str(made(raises(error)).complaint(b"x"))


def test_what_is_read_as_something_else_or_is_not_signed_is_a_finding() -> None:
    assert "is read as" in str(made(lambda data: data.upper()).complaint(b"abc"))
    signed = made(lambda data: data, signed=True)
    assert "nobody signed it" in str(signed.complaint(b"abc"))
    assert signed.complaint(signed.corpus[0]) is None


def test_make_fuzz_tries_a_million(known: dict[str, Target]) -> None:
    from tests.fuzz.__main__ import INPUTS

    numbers = [number_of(each, INPUTS, known) for each in known.values()]
    assert sum(numbers) + sum(SERVERS.values()) >= 1_000_000
    assert min(numbers) >= 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_running_servers_go_on(name: str, tmp_path: Path) -> None:
    found = besiege(name, tmp_path, 1, 400)
    assert found.findings == ()
    assert found.inputs >= 400


@pytest.mark.slow
def test_what_a_server_prints_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import servers

    def step(self: Any, random: Random) -> tuple[int, int, str | None]:
        import os

        os.write(2, b"x" * 400 + b"Traceback (most recent call last)")
        return 400, 0, None

    monkeypatch.setattr(servers.Ports, "step", step)
    (finding,) = besiege("metrics-port", tmp_path, 1, 400).findings
    assert "Traceback" in finding[1]
