"""Which tests `make quick` leaves out: `slow.txt` names those that take long or start processes.

As a plugin (`pytest -p tests.kits.slow`) it measures the tests that run, and mends their part of
the file. Tests are known by their names alone, so that a file may move.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")

SECONDS = 0.4
"""What takes longer, with all that it needs made, is slow."""

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn"})
"""What Python's audit hooks call the start of a process."""

STARTERS = frozenset({"Popen", "spawn", "subprocess"})
"""A test that uses one of these is slow before anybody has measured it, and so is one of ROOM."""

ROOM = Path(__file__).parents[1] / "processes"

_measured: dict[str, bool] = {}
_started = 0


def listed() -> frozenset[str]:
    """The names of slow tests, with their parameters."""
    return frozenset(LIST.read_text("utf-8").splitlines())


def is_slow(item: pytest.Item, names: frozenset[str]) -> bool:
    """Whether a test is listed, starts processes in its own lines, or lies where all do."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    starts = bool(STARTERS & set(code.co_names if code else ()))
    return starts or item.name in names or item.path.is_relative_to(ROOM)


def pytest_configure() -> None:
    sys.addaudithook(_count)


def _count(event: str, _: object) -> None:
    global _started
    _started += event in STARTS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before, started = time.monotonic(), _started
    result = yield
    slow = time.monotonic() - before > SECONDS or _started > started
    _measured[item.name] = _measured.get(item.name, False) or slow
    return result


def pytest_sessionfinish() -> None:
    slow = (listed() - _measured.keys()) | {name for name, it_is in _measured.items() if it_is}
    LIST.write_text("".join(f"{name}\n" for name in sorted(slow)), "utf-8")
