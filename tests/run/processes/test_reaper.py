"""Which process groups are ended when a supervisor is gone."""

import os
import select
import signal
from collections.abc import Iterator

import pytest

from secureps.run.processes import reaper


def test_the_groups_that_are_left_are_ended_however_their_lines_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: Iterator[bytes] = iter([b"+12\n+3", b"4\n+56\n-1", b"2\n+78\n", b""])
    ended: list[tuple[set[int], float]] = []
    monkeypatch.setattr(select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(os, "read", lambda *_: next(pieces))
    monkeypatch.setattr(reaper, "_end", lambda *left: ended.append(left))
    reaper.watch(1, 3.0)
    assert ended == [({34, 56, 78}, 3.0)]


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_who_cannot_be_told_keeps_no_other_alive(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number may belong to somebody else by now."""
    told: list[tuple[int, int]] = []

    def killpg(group: int, number: int) -> None:
        if group == 12:
            raise error
        told.append((group, number))

    monkeypatch.setattr(os, "killpg", killpg)
    reaper._end({12, 34}, 0.0)
    assert told == [(34, signal.SIGTERM), (34, signal.SIGKILL)]
