"""Processes that are started, die, come back, and are all gone in the end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from secureps.errors import OperatorError
from secureps.run import supervisor as module
from secureps.run.supervisor import Died, Finished, Program, Supervisor

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]);" + SLEEP


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAY", 0.0)


def program(name: str, code: str, may_finish: bool = False) -> Program:
    return Program(name, (sys.executable, "-S", "-c", code), dict(os.environ), may_finish)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def news(supervisor: Supervisor, kind: type[Finished | Died]) -> list[Finished | Died]:
    found: list[Finished | Died] = []

    def look() -> bool:
        found.extend(each for each in supervisor.poll() if isinstance(each, kind))
        return bool(found)

    until(look)
    return found


def test_a_process_that_dies_is_started_again(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("server", SLEEP))
        until(lambda: supervisor.tail("server") == ("up",))
        first = supervisor.pids()["server"]
        os.kill(first, signal.SIGKILL)
        assert news(supervisor, Died) == [Died("server", "signal SIGKILL", 1, ("up",))]
        until(lambda: supervisor.poll() == () and "server" in supervisor.pids())
        assert supervisor.pids()["server"] != first
        until(lambda: supervisor.tail("server") == ("up", "up"))


def test_after_three_restarts_it_gives_up_and_says_why(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("client", "print('no data'); raise SystemExit(3)"))
        deaths: list[int] = []

        def look_for_ever() -> None:
            while True:
                deaths.extend(e.restarts for e in supervisor.poll() if isinstance(e, Died))
                time.sleep(0.01)

        with pytest.raises(OperatorError, match=r"client died 4 times, .*exit status 3: no data"):
            look_for_ever()
        assert deaths == [1, 2, 3]
        assert supervisor.running() == ()


def test_who_may_finish_finishes_and_others_may_not(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("client", "print('done')", may_finish=True))
        assert news(supervisor, Finished) == [Finished("client", "done")]
        supervisor.start(program("server", "print('bye')"))
        assert news(supervisor, Died) == [Died("server", "exit status 0", 1, ("bye",))]
        supervisor.expect_end()
        assert news(supervisor, Finished) == [Finished("server", "bye")]
        assert supervisor.running() == ()


def test_all_are_stopped_the_deaf_and_grandchildren_too(tmp_path: Path) -> None:
    names = {"good": SLEEP, "deaf": DEAF, "parent": PARENT}
    with Supervisor(tmp_path, grace=0.3) as supervisor:
        for name, code in names.items():
            supervisor.start(program(name, code))
        for name in names:
            until(lambda name=name: "up" in supervisor.tail(name))  # type: ignore[misc]
        parent = psutil.Process(supervisor.pids()["parent"])
        until(lambda: len(parent.children()) == 1)
        everyone = [*supervisor.pids().values(), parent.children()[0].pid]
        assert len(everyone) == 4
    assert supervisor.running() == ()
    until(lambda: all(gone(pid) for pid in everyone))


def test_what_a_dead_process_had_started_ends_with_it(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("parent", PARENT))
        until(lambda: "up" in supervisor.tail("parent"))
        parent = psutil.Process(supervisor.pids()["parent"])
        until(lambda: len(parent.children()) == 1)
        child = parent.children()[0].pid
        parent.kill()
        news(supervisor, Died)
        until(lambda: gone(child))


def test_an_error_stops_them_too(tmp_path: Path) -> None:
    def fail() -> None:
        with Supervisor(tmp_path, grace=0.3) as supervisor:
            supervisor.start(program("good", SLEEP))
            pids.extend(supervisor.pids().values())
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(pids) == 1
    assert all(gone(pid) for pid in pids)


def test_a_second_interrupt_ends_the_grace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(tmp_path, grace=60.0)
    supervisor.start(program("deaf", DEAF))
    until(lambda: "up" in supervisor.tail("deaf"))
    (pid,) = supervisor.pids().values()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            supervisor.stop()
    assert gone(pid)


def test_each_has_a_session_of_its_own(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("server", SLEEP))
        pid = supervisor.pids()["server"]
        assert os.getsid(pid) == pid != os.getsid(0)


def test_what_cannot_be_started(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        missing = Program("server", (str(tmp_path / "nothing"),), {})
        with pytest.raises(OperatorError, match="server cannot be started"):
            supervisor.start(missing)
        with pytest.raises(OperatorError):
            supervisor.poll()


def test_the_tail_of_a_long_log(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        (tmp_path / "server.log").write_text("\n".join(str(n) for n in range(9000)) + "\n\n")
        assert supervisor.tail("server", 2) == ("8998", "8999")
        assert supervisor.tail("nobody") == ()
