"""Errors that come of a limit of the operating system are told from all others."""

from __future__ import annotations

import errno
import resource

import pytest

from secureps import exhaustion as limits
from secureps.errors import InternalError
from secureps.exhaustion import exhaustion, most_files


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("can't start new thread"), "no new thread can be started (ulimit -u: "),
        (MemoryError(), "memory is used up (ulimit -v: "),
        (OSError(errno.EMFILE, "Too many open files"), "descriptors are used up (ulimit -n: "),
        (OSError(errno.ENOSPC, "No space left on device"), ""),
        (RuntimeError("something else"), ""),
    ],
)
def test_what_was_refused_is_named_also_as_a_cause(error: Exception, said: str) -> None:
    assert said in exhaustion(error)
    assert bool(exhaustion(error)) == bool(said)
    outer = InternalError("coordinator failed at Tick")
    outer.__cause__ = error
    assert exhaustion(outer) == exhaustion(error)


def test_where_limits_have_no_names_they_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows, where a process has as many files and threads as there is memory for."""
    assert most_files() in (resource.getrlimit(resource.RLIMIT_NOFILE)[0], None)
    monkeypatch.setattr(limits, "resource", None)
    assert most_files() is None
    assert "memory is used up (the system's own limit)" in exhaustion(MemoryError())
