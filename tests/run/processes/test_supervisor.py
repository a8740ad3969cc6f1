"""Processes that are started, die, come back, and are all gone in the end."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from secureps.errors import (
    MISCONFIGURED,
    ConfigError,
    InternalError,
    OperatorError,
    RuleFailed,
    ScriptFailed,
    SecurepsError,
)
from secureps.run.processes import supervisor as module
from secureps.run.processes.launcher import Program
from secureps.run.processes.supervisor import Died, Finished, Supervisor
from tests.kits.polling import until

SLEEP = "import time; print('up\\n', end='', flush=True); time.sleep(60)"  # in one write
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]);" + SLEEP


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAY", 0.0)


def program(name: str, code: str, may_finish: bool = False) -> Program:
    return Program(name, (sys.executable, "-S", "-c", code), dict(os.environ), may_finish)


def alive(supervisor: Supervisor) -> dict[str, int]:
    """Process ids of those that run at this moment."""
    known = [(name, each.process) for name, each in supervisor._running.items()]
    return {
        name: process.pid
        for name, process in known
        if process is not None and process.poll() is None and process.pid is not None
    }


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def news(supervisor: Supervisor, kind: type[Finished | Died]) -> list[Finished | Died]:
    found: list[Finished | Died] = []

    def look() -> bool:
        found.extend(each for each in supervisor.poll() if isinstance(each, kind))
        return bool(found)

    until(look)
    return found


@pytest.mark.slow
def test_who_is_killed_is_started_again(tmp_path: Path) -> None:
    """By the kernel, or somebody: that its last words were the same says nothing."""
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("server", SLEEP))
        for restart in (1, 2):
            until(lambda: supervisor.tail("server") == ("up",))
            killed = alive(supervisor)["server"]
            os.kill(killed, signal.SIGKILL)
            assert news(supervisor, Died) == [Died("server", "signal SIGKILL", restart, "up")]
            until(lambda: supervisor.poll() == () and "server" in alive(supervisor))
            assert alive(supervisor)["server"] != killed
        until(lambda: supervisor.tail("server") == ("up",))
        assert (tmp_path / "server.log").read_text() == 3 * "up\n"


@pytest.mark.slow
def test_after_three_restarts_it_gives_up_and_says_why(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        code = "import os; print('no data', os.getpid()); raise SystemExit(3)"
        supervisor.start(program("client", code))
        deaths: list[int] = []

        def look_for_ever() -> None:
            while True:
                deaths.extend(e.restarts for e in supervisor.poll() if isinstance(e, Died))
                time.sleep(0.01)

        with pytest.raises(
            OperatorError, match=r"client died 4 times, .*exit status 3: no data \d"
        ):
            look_for_ever()
        assert deaths == [1, 2, 3]
        assert supervisor.running() == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("print('no data'); raise SystemExit(3)", "exit status 3"),
        ("import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
         "print('no data', flush=True); os.abort()", "signal SIGABRT"),
    ],
)  # fmt: skip
def test_who_fails_twice_in_the_same_way_is_not_started_again(
    code: str, how: str, tmp_path: Path
) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("client", code, may_finish=True))
        assert news(supervisor, Died) == [Died("client", how, 1, "no data")]
        with pytest.raises(
            OperatorError, match=f"^client died twice in the same way, with {how}, .*: no data; "
        ):
            until(lambda: bool(supervisor.poll()))
        assert supervisor.running() == ()


@pytest.mark.slow
def test_the_line_of_a_native_crash_is_told(tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text(
        "import faulthandler, os, resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "faulthandler.enable()\n"
        "def fit(): os.abort()\n"
        "fit()\n"
    )
    crashing = Program("client", (sys.executable, "-S", str(script)), dict(os.environ), True)
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(replace(crashing, may_fail=True))
        (died,) = news(supervisor, Died)
        assert isinstance(died, Died)
        assert died.how == "signal SIGABRT in holder.py:4 in fit"
        said = r"with signal SIGABRT in holder.py:4 in fit, .*: Fatal Python error: Aborted; see "
        until(lambda: supervisor.poll() == () and bool(supervisor.failed))
        assert re.search(said, str(supervisor.failed["client"]))
        assert type(supervisor.failed["client"]) is ScriptFailed


ENDED = """
import os, resource, signal, sys, time
from pathlib import Path
from secureps.run.processes.launcher import Program
from secureps.run.processes.supervisor import Supervisor

how, logs, deaf, parent = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with Supervisor(Path(logs), grace=0.3) as group:
    for name, code in (("deaf", deaf), ("parent", parent)):
        group.start(Program(name, (sys.executable, "-S", "-c", code), dict(os.environ)))
    while not all("up" in group.tail(name) for name in ("deaf", "parent")):
        time.sleep(0.01)
    if how == "forked" and os.fork() == 0:
        time.sleep(600)  # keeps the connection to the launcher open
    group.poll()
    print(*(running.process.pid for running in group._running.values()), flush=True)
    sys.stdin.readline()
    os.abort() if how != "killed" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["aborted", "killed", "forked"])
def test_nothing_is_left_of_a_supervisor_that_ends_without_a_word(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDED, how, str(tmp_path), DEAF, PARENT]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    supervisor = subprocess.Popen(command, text=True, **pipes)
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    started = [int(pid) for pid in supervisor.stdout.readline().split()]
    assert len(started) == 2
    until(lambda: len(psutil.Process(started[1]).children()) == 1)
    known = psutil.Process(supervisor.pid).children(recursive=True)
    assert {process.pid for process in known} > set(started)
    kept = [process for process in known if process.cmdline() == command]  # what it forked
    assert len(kept) == (how == "forked")
    supervisor.stdin.write("\n")
    supervisor.stdin.close()
    supervisor.wait()
    rest = [process.pid for process in known if process not in kept]
    assert len(rest) == 4, "two, a grandchild and the launcher"
    until(lambda: all(gone(pid) for pid in rest))
    for process in kept:
        process.kill()
    supervisor.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("the script's", ScriptFailed),
        ("the rule's", RuleFailed),
        ("this side's", OperatorError),
        ("the sender's", OperatorError),
        ("our own", InternalError),
        ("the moon's", None),
    ],
)
@pytest.mark.parametrize("status", [1, MISCONFIGURED])
def test_the_end_of_a_process_has_one_blame(
    status: int, fault: str, kind: type[SecurepsError] | None, tmp_path: Path
) -> None:
    """Its last line says whose fault it was; who tells of it says the same, and once.

    No restart mends what its settings make wrong.
    """
    line = f"error: make raised KeyError: 'rows' (a.py:3) ({fault} fault)"
    with Supervisor(tmp_path, restarts=3 if status == MISCONFIGURED else 0) as supervisor:
        supervisor.start(program("client", f'print("{line}"); raise SystemExit({status})', True))
        with pytest.raises(SecurepsError) as raised:
            until(lambda: bool(supervisor.poll()))
    mend = ConfigError if status == MISCONFIGURED else OperatorError
    assert type(raised.value) is (mend if kind in (None, OperatorError) else kind)
    assert str(raised.value).count(" fault)") == (kind is None)
    assert "KeyError: 'rows' (a.py:3)" in str(raised.value)


def test_the_others_go_on_without_one_that_may_fail(tmp_path: Path) -> None:
    """A script's error has other addresses and times each time, and is the same all the same."""
    code = """import os, sys
print(f"error: fit raised KeyError: <x at {hex(os.getpid())}> (a.py:3 in fit) (the script's fault)")
sys.exit(1)"""
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(replace(program("client", code, may_finish=True), may_fail=True))
        supervisor.start(program("server", SLEEP))
        assert news(supervisor, Died)[0].name == "client"
        until(lambda: supervisor.poll() == () and "client" in supervisor.failed)
        failed = supervisor.failed["client"]
        assert type(failed) is ScriptFailed
        assert re.match(
            r"client died twice in the same way, .*: fit raised KeyError: <x at 0x", str(failed)
        )
        assert supervisor.running() == ("server",)


@pytest.mark.slow
def test_who_may_finish_finishes_and_others_may_not(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("client", "print('done')", may_finish=True))
        assert news(supervisor, Finished) == [Finished("client", "done")]
        supervisor.start(program("server", "print('bye')"))
        assert news(supervisor, Died) == [Died("server", "exit status 0", 1, "bye")]
        supervisor.expect_end()
        assert news(supervisor, Finished) == [Finished("server", "bye")]
        assert supervisor.running() == ()


@pytest.mark.parametrize(
    ("code", "finished"),
    [("print('holds nothing')", True), ("print('holds nothing'); exit(1)", False), ("", False)],
)
def test_who_says_that_it_is_done_has_not_died(code: str, finished: bool, tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(replace(program("shard", code), done="holds nothing"))
        news(supervisor, Finished if finished else Died)
        assert (supervisor.running() == ()) is finished


@pytest.mark.slow
def test_all_are_stopped_the_deaf_and_grandchildren_too(tmp_path: Path) -> None:
    names = {"good": SLEEP, "deaf": DEAF, "parent": PARENT}
    with Supervisor(tmp_path, grace=0.3) as supervisor:
        for name, code in names.items():
            supervisor.start(program(name, code))
        for name in names:
            until(lambda: "up" in supervisor.tail(name))  # noqa: B023
        parent = psutil.Process(alive(supervisor)["parent"])
        until(lambda: len(parent.children()) == 1)
        everyone = [*alive(supervisor).values(), parent.children()[0].pid]
        assert len(everyone) == 4
    assert supervisor.running() == ()
    until(lambda: all(gone(pid) for pid in everyone))


@pytest.mark.slow
def test_what_a_dead_process_had_started_ends_with_it(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(program("parent", PARENT))
        until(lambda: "up" in supervisor.tail("parent"))
        parent = psutil.Process(alive(supervisor)["parent"])
        until(lambda: len(parent.children()) == 1)
        child = parent.children()[0].pid
        parent.kill()
        news(supervisor, Died)
        until(lambda: gone(child))


@pytest.mark.slow
def test_a_second_interrupt_ends_the_grace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    sleep = time.sleep

    def interrupt(seconds: float) -> None:
        signal.raise_signal(signal.SIGINT)
        sleep(seconds)

    def leave() -> None:
        with Supervisor(tmp_path, grace=60.0) as supervisor:
            supervisor.start(program("deaf", DEAF))
            until(lambda: "up" in supervisor.tail("deaf"))
            pids.extend(alive(supervisor).values())
            monkeypatch.setattr(time, "sleep", interrupt)

    began = time.monotonic()
    with monkeypatch.context(), pytest.raises(KeyboardInterrupt):
        leave()
    assert time.monotonic() - began < 30
    assert len(pids) == 1
    assert gone(pids[0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


EVERYWHERE = """
import os, signal, sys
from pathlib import Path
from secureps.run.processes import launcher, supervisor

number, logs, mark = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
files = {module.__file__ for module in (launcher, supervisor)}

def play(moment):
    def trace(frame, event, argument):
        nonlocal moment
        if frame.f_code.co_filename not in files:
            return None
        if event in ("call", "line"):
            moment -= 1
            if moment == 0:
                signal.raise_signal(number)
        return trace

    def end(number, frame):
        raise SystemExit(3)

    signal.signal(number, end)
    sys.settrace(trace)
    with supervisor.Supervisor(logs) as group:
        sleep = ("/bin/sleep", f"600.{mark}{moment}")
        group.start(launcher.Program("sleep", sleep, {}))
        group.poll()
    sys.settrace(None)
    sys.exit(3 if moment <= 0 else 4)

codes = {}
while 4 not in codes.values():
    children = {}
    for moment in range(len(codes) + 1, len(codes) + 9):
        if not (child := os.fork()):
            play(moment)
        children[child] = moment
    for child, moment in children.items():
        codes[moment] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert set(codes.values()) == {3, 4}, codes
print(len(codes))
"""


def test_a_signal_at_any_line_leaves_nothing_over(tmp_path: Path) -> None:
    """At every line of the supervisor and of what asks the launcher."""
    number, mark = str(int(signal.SIGTERM)), str(os.getpid())
    command = [sys.executable, "-c", EVERYWHERE, number, str(tmp_path), mark]
    played = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert played.returncode == 0, played.stderr
    assert int(played.stdout) > 50

    def asleep() -> list[list[str]]:
        lines = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
        return [line for line in lines if line and f"600.{mark}" in line[-1]]

    until(lambda: not asleep())


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


@pytest.mark.slow
def test_what_a_process_said_before_its_last_start_is_told_once(tmp_path: Path) -> None:
    once = f"pathlib.Path({str(tmp_path / 'once')!r})"
    said = f"import pathlib; {once}.exists() or print('no data'); {once}.touch()"
    said += "; raise SystemExit(1)"
    with Supervisor(tmp_path, restarts=2) as supervisor:
        supervisor.start(program("shard", said))
        (first,), (second,) = news(supervisor, Died), news(supervisor, Died)
    how = "exit status 1"
    assert (first, second) == (Died("shard", how, 1, "no data"), Died("shard", how, 2, ""))
