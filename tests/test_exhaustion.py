"""Errors that come of a limit of the operating system are told from all others."""

from __future__ import annotations

import errno

import pytest

from secureps.errors import InternalError
from secureps.exhaustion import exhaustion


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
