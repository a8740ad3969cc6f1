"""What the operating system refuses ends a process with a word about it."""

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from secureps import exhaustion as limits
from secureps.errors import ConfigError, DiskFailed, InternalError, OperatorError
from secureps.exhaustion import (
    Starved,
    demand_descriptors,
    disable_core_dumps,
    is_disk_fault,
    most_files,
    name_limit,
    probe,
    unstarted_threads,
)
from secureps.messages.requests import Heartbeat, PutBlock
from secureps.roles.machine import Step, Work
from secureps.service import process
from secureps.service.loop import RealLoop
from secureps.service.shutdown import Shutdown
from tests.kits.executor_kit import TASK, Stage
from tests.kits.nursery import spawn
from tests.kits.processes import PATIENCE, Processes
from tests.service.test_executor import HEADER


def no_thread(*args: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_a_process_with_keys_is_not_dumped() -> None:
    """Its limit is 0 and Linux dumps it in no other way; what may be raised again stays so."""

    seen = "(*resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    program = (
        "import ctypes, resource",
        "from secureps.exhaustion import disable_core_dumps",
        "disable_core_dumps()",
        f"print({seen})",
    )
    command = [sys.executable, "-c", "\n".join(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    assert done.stdout.strip() == repr((0, hard, 0))


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


def test_a_process_that_is_refused_something_ends_with_an_operators_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starved(*args: Any) -> None:
        raise InternalError("a failed at Tick") from RuntimeError("can't start new thread")

    monkeypatch.setattr(process, "_run", starved)
    party = process.Party("a", None, None, None, tmp_path / "state", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match=r"no new thread can be started .*start it again"):
        process.run_process(party, {}, lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["threads", "descriptors"])
def test_want_is_noticed_although_all_who_meet_it_are_silent(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's own threads swallow it: two looks in succession end the process."""

    def refuse(*args: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    probing, looks = process.Probing(), 0

    def look() -> None:
        nonlocal looks
        looks += 1
        probing.look()

    want = (limits, "start_new_thread", no_thread) if what == "threads" else (os, "open", refuse)
    with monkeypatch.context() as full:
        full.setattr(*want)
        probing.look()
    probing.look()
    monkeypatch.setattr(*want)
    with Shutdown() as bell, pytest.raises((RuntimeError, OSError)) as caught:
        bell.wait(0.001, look)
    assert looks == 2
    assert name_limit(caught.value)


class Stillborn(threading.Thread):
    """As one that finds no memory for its first steps."""

    def _bootstrap(self) -> None:
        pass


def test_a_thread_that_was_started_and_never_ran_ends_the_process() -> None:
    """Whoever started it waits for it, for ever, and no call ends that it was to begin."""
    still = Stillborn(name="spin", daemon=True)
    starter = threading.Thread(target=still.start)
    starter.start()
    try:
        probing = process.Probing()
        while not unstarted_threads():
            time.sleep(0.001)
        probing.look()
        probing.look()  # it may have been a slow one
        with pytest.raises(Starved, match="thread spin was started, and never ran") as caught:
            probing.look()
        assert "there was no memory or thread (ulimit -v: " in name_limit(caught.value)
    finally:
        still._started.set()  # type: ignore[attr-defined]
        starter.join()
        threading._limbo.pop(still)  # type: ignore[attr-defined]


def test_a_probe_waits_for_no_thread_that_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started by the thread that is to end the process, and by nothing else."""
    monkeypatch.setattr(limits, "start_new_thread", lambda *_: 1)
    with pytest.raises(Starved, match="a thread was started, and never ran") as caught:
        probe(birth=0.0)
    assert "there was no memory or thread" in name_limit(caught.value)


def test_calls_that_do_not_end_end_the_process() -> None:
    said = ["", "a call", "", "a call", "a call"]
    probing = process.Probing(lambda: said.pop(0))
    for _ in range(4):
        probing.look()
    with pytest.raises(Starved, match="a call"):
        probing.look()


CLOSES_NEVER = """
import sys, threading, time
from secureps.service.shutdown import Shutdown
with Shutdown() as shutdown:
    shutdown.end_within(0.2, 3)
    if sys.argv[1] == "closing":
        time.sleep(60)
print("closed", flush=True)
time.sleep(0.4)
print("a script's own", flush=True)
if sys.argv[1] == "threads":
    threading.Thread(target=time.sleep, args=(60,)).start()
"""


@pytest.mark.parametrize("where", ["closing", "threads", "nothing"])
def test_a_process_that_cannot_be_closed_ends_all_the_same(where: str) -> None:
    """And a script that is through with it has all the time that it wants."""
    command = [sys.executable, "-c", CLOSES_NEVER, where]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == (0 if where == "nothing" else 3), done.stderr
    assert ("a script's own" in done.stdout) == (where != "closing")


@pytest.mark.parametrize("where", ["payload", "work"])
def test_descriptors_that_are_used_up_are_no_full_disk(where: str) -> None:
    """A full disk is waited for; this is not, wherever it is met."""
    want = OSError(errno.EMFILE, "Too many open files")
    disk = DiskFailed("spool: cannot write: Too many open files")
    disk.__cause__ = want
    for error in (want, disk):
        assert not is_disk_fault(error)
        stage = Stage(lambda s, e: Step([], [Work(TASK)] if s == "a" else []))
        stage.worker.result = error

        def keep(request: Any, payload: bytes | memoryview, digest: bytes) -> None:
            raise error  # noqa: B023

        stage.worker.keep = keep  # type: ignore[method-assign]
        if where == "payload":
            stage.executor.request("a", PutBlock(HEADER, b"abc"))
        else:
            stage.executor.request("a", Heartbeat("a"))
        stage.play()
        assert name_limit(stage.executor.halted.exception())


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


STARVED = """
import _thread, sys, threading
from secureps import exhaustion
from secureps.service import process
from secureps.run.cli import main
process.PROBE_SECONDS = 0.2
most, start = int(sys.argv.pop(1)), _thread.start_new_thread
def starved(*args):
    if 1 + _thread._count() > most:
        raise RuntimeError("can't start new thread")
    return start(*args)
threading._start_new_thread = exhaustion.start_new_thread = starved
main()
"""

UNPOLLED = """
import threading
from secureps.run.cli import main
start = threading.Thread.start
def starved(thread):
    if "_poll_wrapper" in thread.name:
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = starved
main()
"""
"""Where gRPC's servers get no thread that polls for them."""


@pytest.mark.timeout(240)
def test_no_server_lives_on_without_threads_or_descriptors(tmp_path: Path) -> None:
    """Wherever it meets the limit it ends, and says which one it was; with enough it serves."""
    script = tmp_path / "starved.py"
    script.write_text(STARVED)
    ended = list[int]()
    with Processes(tmp_path / "run", "plain") as processes:
        serve = processes._server("coordinator")[2:]
        address = tmp_path / "run" / "coordinator" / "address"
        (unpolled := tmp_path / "unpolled.py").write_text(UNPOLLED)
        child = spawn([str(unpolled), *serve], tmp_path, log := tmp_path / "unpolled.log")
        assert child.wait(PATIENCE) == 1, "and not by a segmentation fault"
        assert "no new thread can be started (ulimit -u: " in log.read_text()
        for most in (0, 1, 2, 3, 4, 32):
            log = tmp_path / f"{most}.log"
            address.unlink(missing_ok=True)
            child = spawn([str(script), str(most), *serve], tmp_path, log)
            try:
                processes.wait(lambda: child.poll() is not None or address.is_file(), "its end")  # noqa: B023
                if child.poll() is not None:
                    assert child.wait() == 1, log.read_text()
                    assert "no new thread can be started (ulimit -u: " in log.read_text()
                    ended.append(most)
                    continue
                resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (3, 3))
                ended_by, said = child.wait(PATIENCE), log.read_text()
                # What lacks threads or descriptors may never be closed: the last resort ends it.
                assert ended_by == 1, said
                assert "are used up (ulimit -n: " in said or "can be started (ulimit -u: " in said
            finally:
                child.kill()
    assert ended[:4] == [0, 1, 2, 3]
    assert "file descriptors are used up (ulimit -n: " in (tmp_path / "32.log").read_text()


# --- which limit caused an error ------------------------------------------------------


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
    assert said in name_limit(error)
    assert bool(name_limit(error)) == bool(said)
    outer = InternalError("coordinator failed at Tick")
    outer.__cause__ = error
    assert name_limit(outer) == name_limit(error)


def test_where_limits_have_no_names_none_is_raised_and_they_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows, where a process has as many files and threads as there is memory for."""
    assert most_files() in (resource.getrlimit(resource.RLIMIT_NOFILE)[0], None)
    monkeypatch.setattr(limits, "resource", None)
    assert most_files() is None
    disable_core_dumps()
    demand_descriptors(1 << 20)
    assert "memory is used up (the system's own limit)" in name_limit(MemoryError())
