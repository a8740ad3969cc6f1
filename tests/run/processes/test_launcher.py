"""Processes of a launcher: forks and new interpreters, which are alike and outlive nobody."""

import ctypes
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from secureps.errors import OperatorError
from secureps.run.processes.launcher import MODULE, Launcher, Process, Program, can_fork
from secureps.run.processes.supervisor import Died, Finished, Supervisor
from tests.kits.nursery import ROOT
from tests.kits.polling import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are of Linux alone")


TELLS = """
import json, logging, os, random, secrets, signal, sys
import numpy as np
facts = {
    "arguments": sys.argv, "name": __name__, "folder": os.getcwd(), "own": os.environ.get("OWN"),
    "everybodys": os.environ.get("EVERYBODYS"), "session": os.getsid(0) == os.getpid(),
    "preloaded": "heavy" in sys.modules, "files": len(os.listdir("/proc/self/fd")),
    "handlers": [signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, signal.set_wakeup_fd(-1)],
    "root": len(logging.root.handlers), "stdin": os.readlink("/proc/self/fd/0"),
    "drawn": [random.getrandbits(60), secrets.randbits(60), int(np.random.randint(1 << 60)),
              os.urandom(8).hex()],
}
print(json.dumps(facts), flush=True)
print("to stderr", file=sys.stderr)
"""
ENDS = """
import os, signal, sys, time
match sys.argv[1]:
    case "exit": sys.exit(int(sys.argv[2]))
    case "raise": raise KeyError("rows")
    case "kill": os.kill(os.getpid(), signal.SIGKILL)
    case "stay": print("up", flush=True); time.sleep(600)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With modules that only these tests have."""
    for name, code in {
        "tells": TELLS,
        "ends": ENDS,
        "heavy": "import logging, numpy.random; logging.basicConfig(datefmt='%m/%d/%Y')",
        "broken": "raise OSError('no such library')",
        "held": f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): "
        "time.sleep(0.005)",
        "threads": "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": path, "EVERYBODYS": "1", "OMP_NUM_THREADS": "1"}


def program(environment: dict[str, str], *arguments: str) -> Program:
    return Program(arguments[0], (*MODULE, *arguments), environment, True)


def started(launcher: Launcher, given: Program, log: Path) -> Process:
    with log.open("ab") as file:
        process = launcher.start(given, file)
    until(lambda: process.poll() is not None or process.pid is not None)
    return process


def ended(launcher: Launcher, environment: dict[str, str], log: Path, *arguments: str) -> int:
    process = started(launcher, program(environment, *arguments), log)
    until(lambda: process.poll() is not None)
    assert process.code is not None
    return process.code


def facts(log: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log.read_text().splitlines()[0])
    return found


def test_a_fork_is_as_a_process_that_began_anew(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what is imported already, and for random numbers, which nobody shares."""
    monkeypatch.chdir(tmp_path)
    own = {**environment, "OWN": "2"}
    del own["EVERYBODYS"]
    with Launcher(("heavy",), environment) as forks, Launcher() as anew:
        for number, launcher in enumerate((forks, forks, anew)):
            log = tmp_path / f"{number}.log"
            assert ended(launcher, own, log, "tells", "a b", "--c") == 0
            assert log.read_text().splitlines()[1] == "to stderr"
    one, other, expected = (facts(tmp_path / f"{number}.log") for number in range(3))
    drawn = [each.pop("drawn") for each in (one, other, expected)]
    assert len({number for each in drawn for number in each}) == 12
    assert [each.pop("preloaded") for each in (one, other, expected)] == [True, True, False]
    assert one == other == expected
    assert expected["arguments"][1:] == ["a b", "--c"]
    assert expected["folder"] == str(tmp_path)


@pytest.mark.parametrize("modules", [(), ("heavy",)])
def test_it_is_known_how_a_process_ended(
    modules: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    with Launcher(modules, environment) as launcher:
        for arguments, status in (
            (("exit", "0"), 0),
            (("exit", "78"), 78),
            (("raise",), 1),
            (("kill",), -signal.SIGKILL),
        ):
            log = tmp_path / arguments[0]
            assert ended(launcher, environment, log, "ends", *arguments) == status
        assert "KeyError: 'rows'" in (tmp_path / "raise").read_text()


def test_a_command_line_shows_which_fork_it_is(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Launcher(("heavy",), environment) as launcher:
        process = started(launcher, program(environment, "ends", "stay"), log)
        until(log.read_text)
        shown = " ".join(psutil.Process(process.pid).cmdline()).split()
        assert shown[1:] == ["-P", "-m", "ends", "stay"]
        assert process.signal(signal.SIGTERM)
        until(lambda: process.poll() == -signal.SIGTERM)
        assert not process.signal(0)


def test_scripts_wait_for_what_they_import_and_servers_do_not(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """What cannot be imported is left to the program."""
    with (
        Launcher(("json",), environment) as first,
        Launcher(("broken", "held", "heavy"), environment) as second,
        (tmp_path / "late").open("ab") as log,
    ):
        late = second.start(program(environment, "tells"), log)
        assert ended(first, environment, tmp_path / "early", "tells") == 0
        assert late.poll() is late.pid is None
        (tmp_path / "go").touch()
        until(lambda: late.poll() == 0)
    assert not facts(tmp_path / "early")["preloaded"]
    assert facts(tmp_path / "late")["preloaded"]


def test_nothing_is_forked_beside_a_thread(environment: dict[str, str], tmp_path: Path) -> None:
    """A fork could wait for ever for a lock that the thread holds."""
    with Launcher(("heavy", "threads"), environment) as launcher:
        assert ended(launcher, environment, tmp_path / "log", "tells") == 0
        assert not facts(tmp_path / "log")["preloaded"]


def test_where_the_launcher_is_killed_the_supervisor_ends_its_processes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with Launcher(("heavy",), environment) as launcher:
        with Supervisor(tmp_path) as supervisor:
            supervisor.start(replace(program(environment, "ends", "stay"), launcher=launcher))
            until(lambda: supervisor.poll() == () and supervisor.tail("ends") == ("up",))
            (process,) = (each.process for each in supervisor._running.values())
            assert process is not None
            psutil.Process(process.pid).parent().kill()
            with pytest.raises(OperatorError, match="starts all others was ended"):
                until(lambda: bool(supervisor.poll()))
        until(lambda: not psutil.pid_exists(process.pid))


def test_where_nobody_reaps_orphans_the_supervisor_ends_all_the_same(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """As in a container whose first process is the supervisor's own."""
    prctl, subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(subreaper, 1, 0, 0, 0) == 0
    try:
        with Supervisor(tmp_path, grace=0.3) as supervisor:
            supervisor.start(program(environment, "ends", "stay"))
            until(lambda: supervisor.poll() == () and supervisor.tail("ends") == ("up",))
            (process,) = (each.process for each in supervisor._running.values())
            assert process is not None
            assert process.pid is not None
            psutil.Process(process.pid).parent().kill()
        assert os.waitpid(process.pid, 0)[1] == signal.SIGTERM
    finally:
        prctl(subreaper, 0, 0, 0, 0)


def test_a_supervisor_restarts_forks_and_leaves_none(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.run.processes.supervisor.RESTART_DELAY", 0.0)
    with Launcher(("heavy",), environment) as launcher:
        given = replace(program(environment, "ends", "stay"), launcher=launcher)
        with Supervisor(tmp_path) as supervisor:
            supervisor.start(given)
            until(lambda: supervisor.poll() == () and supervisor.tail("ends") == ("up",))
            (first,) = (each.process for each in supervisor._running.values())
            assert first is not None
            first.signal(signal.SIGKILL)
            news: list[Died | Finished] = []
            while not news:
                news += supervisor.poll()
            assert news == [Died("ends", "signal SIGKILL", 1, "up")]
            until(lambda: supervisor.poll() == () and supervisor.tail("ends") == ("up",))
            (second,) = (each.process for each in supervisor._running.values())
            assert second is not None
            host = psutil.Process(second.pid).parent()
        assert not psutil.pid_exists(second.pid)
    assert not host.is_running()


@pytest.mark.parametrize(("changed", "can"), [({}, True), ({"OMP_NUM_THREADS": "4"}, False)])
def test_where_libraries_have_threads_nothing_is_forked(
    changed: dict[str, str], can: bool, environment: dict[str, str]
) -> None:
    assert can_fork({**environment, **changed}) is can
    assert not can_fork({})
