"""What the operating system refuses ends a process with a word about it."""

from __future__ import annotations

import errno
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import ConfigError, InternalError, OperatorError
from secureps.service import process
from secureps.service.clock import RealLoop
from secureps.service.limits import demand_descriptors, exhaustion


def no_thread(self: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_work_that_no_thread_can_do_is_no_work_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = RealLoop()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.offload(lambda: None, 0.0)
    loop.stop()
    assert not loop.offload(lambda: None, 0.0).done()


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


def test_a_process_that_is_refused_something_ends_with_an_operators_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starved(*args: Any) -> None:
        raise InternalError("a failed at Tick") from RuntimeError("can't start new thread")

    monkeypatch.setattr(process, "_run", starved)
    party = process.Party("a", None, None, tmp_path / "state")  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match=r"no new thread can be started .*start it again"):
        process.run_process(party, {}, lambda *_: None)  # type: ignore[arg-type]


def test_room_is_made_for_everybody_or_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"limit": (256, 1024)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: known["limit"])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: known.update(limit=limit))
    demand_descriptors(64)
    assert known["limit"] == (256, 1024)
    demand_descriptors(400)
    assert known["limit"] == (928, 1024)
    with pytest.raises(ConfigError, match=r"1000 parties take 2128 .* may have 1024: .*-n 2128"):
        demand_descriptors(1000)
    known["limit"] = (256, resource.RLIM_INFINITY)
    demand_descriptors(1000)
    assert known["limit"] == (2128, resource.RLIM_INFINITY)
