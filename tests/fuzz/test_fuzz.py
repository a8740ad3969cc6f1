"""A slice of `make fuzz`: every target, a few inputs; and that it would find what it looks for."""

from __future__ import annotations

import dataclasses
import mmap
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secureps.errors import InternalError, Malformed
from tests.fuzz import attempt as attempts
from tests.fuzz.attempt import attempt, drawn, number_of
from tests.fuzz.mutate import LONGEST, mutated
from tests.fuzz.servers import SERVERS, besiege
from tests.fuzz.table import TRUSTED, parsers, targets
from tests.fuzz.target import Target

pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number:UserWarning")
EXAMPLES = 60
NAMES = (
    *("message", "bundle", "frame", "refusal", "claim", "record"),
    *("batch", "batch-entries", "batch-framed"),
    *("roster", "roster-followed", "key-request", "certificate", "authority", "tls-public-key"),
    *("tls-key", "envelope", "passphrase", "seeds", "envelope-key", "envelope-secret", "bfv-key"),
    *("bfv-secret", "journal-row", "journal", "journal-opened", "backup", "height", "manifest"),
    *(
        "state",
        "state-digested",
        "state-mapped",
        "served-runs",
        "revoked",
        "roster-seconds",
        "cipher-parameters",
        "spool-key",
    ),
    *("audit-log", "ledger-statement", "plan", "plan-told", "serve", "site", "scenario"),
    *("setting", "plain-block"),
    *("plain-total", "bfv-block", "bfv-total", "rlwe-block", "rlwe-total", "rlwe-keys"),
    *("rlwe-wide-block", "rlwe-wide-total", "rlwe-wide-keys", "vector", "initial", "served"),
    *("local-tensors", "feedback", "differences-whole", "differences-part", "flower-state"),
    "model-form",
    *("script", "script-cut-off"),
    *("act", "follow", "take-over", "copy-part"),
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return targets(tmp_path_factory.mktemp("fuzz"))


def test_all_targets_are_tried_here(known: dict[str, Target]) -> None:
    assert tuple(known) == NAMES


def test_whatever_parses_is_tried_or_trusted_with_a_reason(known: dict[str, Target]) -> None:
    """A new decoder without a row fails here: name it in a target of tests/fuzz."""
    named = {each for target in known.values() for each in target.of}
    trusted = {each for functions in TRUSTED.values() for each in functions}
    assert parsers() - named - trusted == set()
    assert trusted - parsers() == set(), "these are gone"
    assert named & trusted == set()


@pytest.mark.parametrize("name", NAMES)
def test_the_honest_are_accepted(known: dict[str, Target], name: str) -> None:
    target = known[name]
    assert target.corpus
    for data in target.corpus:
        assert target.complaint(data) is None
        assert target.accepts(data)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_nearly_right_is_refused_or_means_what_it_says(
    known: dict[str, Target], name: str
) -> None:
    target = known[name]

    @given(seed=st.integers(0, 2**32), raw=st.binary(max_size=200))
    @settings(
        max_examples=max(3, round(EXAMPLES / target.cost**0.5)),
        suppress_health_check=list(HealthCheck),
    )
    def tried(seed: int, raw: bytes) -> None:
        assert target.complaint(target.draw(Random(seed))) is None
        assert target.complaint(raw) is None

    tried()


# --- a fault would be found ---------------------------------------------------------


def made(take: Any, **changes: Any) -> Target:
    return dataclasses.replace(Target("x", ("x:y",), (b'{"a": 1}',), take), **changes)


def raises(error: BaseException) -> Any:
    def take(data: bytes) -> bytes:
        raise error

    return take


@pytest.mark.parametrize("error", [KeyError("a"), RecursionError(), MemoryError(), SystemExit(1)])
def test_an_error_that_is_none_of_ours_is_a_finding(error: BaseException) -> None:
    assert "Traceback" in str(made(raises(error)).complaint(b"x"))


def test_a_refusal_is_none_but_it_can_be_written_and_is_no_fault_of_our_own() -> None:
    assert made(raises(Malformed("no"))).complaint(b"x") is None
    assert "InternalError" in str(made(raises(InternalError("no"))).complaint(b"x"))
    assert "cannot be written" in str(made(raises(Malformed("\ud800"))).complaint(b"x"))
    assert "characters" in str(made(raises(Malformed("x" * 30_000))).complaint(b"x"))


def test_what_is_read_as_something_else_or_is_not_signed_is_a_finding() -> None:
    assert "is read as" in str(made(lambda data: data.upper()).complaint(b"abc"))
    signed = made(lambda data: data, signed=True)
    assert "nobody signed it" in str(signed.complaint(b"abc"))
    assert signed.complaint(signed.corpus[0]) is None


def test_growth_and_what_hangs_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[mmap.mmap] = []

    def keeps(data: bytes) -> bytes:
        kept.append(mmap.mmap(-1, 1 << 20))  # not of the heap, which may have room from before
        kept[-1].write(b"x" * (1 << 20))
        return data

    monkeypatch.setattr(attempts, "GROWTH", 8 << 20)
    grown = attempt(made(keeps), 0, 0, 50)
    assert grown.complaint is not None
    assert "grew by" in grown.complaint
    assert attempt(made(lambda data: data), 0, 0, 50).complaint is None
    monkeypatch.setattr(attempts, "LONGEST", 0.05)

    def hangs(data: bytes) -> bytes:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pass
        return data

    monkeypatch.setattr(attempts, "FINDINGS", 1)
    (finding,) = attempt(made(hangs), 0, 0, 50).findings
    assert "seconds of a processor" in finding[1]


def test_an_announced_length_is_not_taken_at_its_word() -> None:
    (finding, *_) = attempt(made(lambda data: bytes(1 << 40)), 0, 0, 1).findings
    assert "MemoryError" in finding[1]


def test_inputs_are_the_same_under_a_seed_and_unlike_each_other(known: dict[str, Target]) -> None:
    target = known["roster"]
    inputs = [drawn(target, 3, number) for number in range(200)]
    assert inputs == [drawn(target, 3, number) for number in range(200)]
    assert inputs != [drawn(target, 4, number) for number in range(200)]
    assert len(set(inputs)) > 190


@pytest.mark.parametrize("corpus", [(b"",), (b"{}",), (b"[1]\n[2]\n",), (b"\xff" * 3,)])
def test_anything_can_be_changed(corpus: tuple[bytes, ...]) -> None:
    random = Random(0)
    assert all(len(mutated(random, corpus)) <= LONGEST for _ in range(2000))


def test_make_fuzz_tries_a_million(known: dict[str, Target]) -> None:
    from tests.fuzz.__main__ import INPUTS

    numbers = [number_of(each, INPUTS, known) for each in known.values()]
    assert sum(numbers) + sum(SERVERS.values()) >= 1_000_000
    assert min(numbers) >= 1000


# --- running servers ------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_running_servers_go_on(name: str, tmp_path: Path) -> None:
    found = besiege(name, tmp_path, 1, 400)
    assert found.findings == ()
    assert found.inputs >= 400


def test_what_a_server_prints_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import servers

    def step(self: Any, random: Random) -> tuple[int, int, str | None]:
        import os

        os.write(2, b"x" * 400 + b"Traceback (most recent call last)")
        return 400, 0, None

    monkeypatch.setattr(servers.Ports, "step", step)
    (finding,) = besiege("metrics-port", tmp_path, 1, 400).findings
    assert "Traceback" in finding[1]
