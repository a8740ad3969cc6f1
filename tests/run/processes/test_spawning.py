"""Forks of a process that has imported: programs like any other, whatever becomes of it."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from secureps.run.processes.spawning import (
    MODULE,
    Fork,
    ForkServers,
    Process,
    Program,
    Subprocess,
    can_fork,
)
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


@pytest.fixture
def server(environment: dict[str, str]) -> Iterator[ForkServers]:
    with ForkServers(("heavy",), (), environment) as made:
        yield made


def program(environment: dict[str, str], *arguments: str, preloaded: bool = False) -> Program:
    return Program(arguments[0], (*MODULE, *arguments), environment, True, preloaded)


def spawned(server: ForkServers, given: Program, log: Path) -> Process:
    until(lambda: server.ready(given))
    with log.open("ab") as file:
        return server.spawn(given, file)


def ended(server: ForkServers, environment: dict[str, str], log: Path, *arguments: str) -> int:
    process = spawned(server, program(environment, *arguments), log)
    assert isinstance(process, Fork)
    process.begin()
    return process.wait()


def test_a_fork_is_as_a_process_that_began_anew(
    server: ForkServers,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for what is imported already, and for random numbers, which nobody shares."""
    monkeypatch.chdir(tmp_path)
    own = {**environment, "OWN": "2"}
    del own["EVERYBODYS"]
    forks = []
    for number in range(2):
        log = tmp_path / f"{number}.log"
        assert ended(server, own, log, "tells", "a b", "--c") == 0
        said, complaint = log.read_text().splitlines()
        assert complaint == "to stderr"
        forks.append(json.loads(said))
    with (tmp_path / "anew.log").open("ab") as file:
        anew = Subprocess(program(own, "tells", "a b", "--c"), file)
        anew.begin()
        assert anew.wait() == 0
    expected = json.loads((tmp_path / "anew.log").read_text().splitlines()[0])
    drawn = [each.pop("drawn") for each in (*forks, expected)]
    assert len({number for each in drawn for number in each}) == 12
    assert [each.pop("preloaded") for each in (*forks, expected)] == [True, True, False]
    assert forks == [expected, expected]
    assert expected["arguments"][1:] == ["a b", "--c"]
    assert expected["folder"] == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("exit", "0"), 0), (("exit", "78"), 78), (("raise",), 1), (("kill",), -signal.SIGKILL)],
)
def test_it_is_known_how_a_fork_ended(
    arguments: tuple[str, ...],
    status: int,
    server: ForkServers,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    assert ended(server, environment, log, "ends", *arguments) == status
    assert ("KeyError: 'rows'" in log.read_text()) == (arguments == ("raise",))


def test_a_fork_runs_when_somebody_knows_of_it(
    server: ForkServers, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    waiting = spawned(server, program(environment, "ends", "stay"), log)
    assert isinstance(waiting, Fork)
    assert waiting.poll() is None
    assert os.getpgid(waiting.pid) == waiting.pid
    waiting._line.shutdown(socket.SHUT_WR)  # as where whoever asked for it has been killed
    assert waiting.wait() == 1
    assert log.read_text() == ""


def test_a_command_line_shows_which_fork_it_is(
    server: ForkServers, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = spawned(server, program(environment, "ends", "stay"), log)
    process.begin()
    until(log.read_text)
    assert " ".join(psutil.Process(process.pid).cmdline()).split()[1:] == [
        "-P",
        "-m",
        "ends",
        "stay",
    ]
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_what_is_no_module_begins_anew(
    server: ForkServers, environment: dict[str, str], tmp_path: Path
) -> None:
    for arguments, own in (
        ((sys.executable, "-c", "print('here')"), environment),
        ((*MODULE, "ends", "exit", "0"), None),  # of an environment that nobody compared
    ):
        process = spawned(server, Program("one", arguments, own), tmp_path / "log")
        assert isinstance(process, Subprocess)
        process.begin()
        process.wait()
    assert "here" in (tmp_path / "log").read_text()


def test_who_is_preloaded_waits_for_it_and_others_do_not(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """What cannot be imported is left to the program."""
    with ForkServers((), ("broken", "held", "heavy"), environment) as server:
        early, late = program(environment, "tells"), program(environment, "tells", preloaded=True)
        until(lambda: server.ready(early))
        assert not server.ready(late)
        (tmp_path / "go").touch()
        for given, log in ((early, "early"), (late, "late")):
            process = spawned(server, given, tmp_path / log)
            process.begin()
            assert process.wait() == 0
        told = {
            e: json.loads((tmp_path / e).read_text().splitlines()[0]) for e in ("early", "late")
        }
        assert [each["preloaded"] for each in told.values()] == [False, True]


@pytest.mark.parametrize(
    ("preloads", "end"), [((), signal.SIGKILL), (("threads",), signal.SIGTERM)]
)
def test_programs_begin_anew_once_it_is_lost(
    preloads: tuple[str, ...], end: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    """It is killed, or has a second thread; forks could hang then. Those that are there go on."""
    with ForkServers((), preloads, environment) as server:
        before = spawned(server, program(environment, "ends", "stay"), tmp_path / "before")
        before.begin()
        until((tmp_path / "before").read_text)
        if not preloads:
            psutil.Process(before.pid).parent().kill()
        given = program(environment, "ends", "exit", "7", preloaded=bool(preloads))
        after = spawned(server, given, tmp_path / "after")
        assert isinstance(after, Subprocess)
        after.begin()
        assert after.wait() == 7
        assert before.poll() is None
        assert psutil.pid_exists(before.pid)
        os.kill(before.pid, signal.SIGTERM)
        assert before.wait() == -end, "of one whose server is lost nobody knows how"


def test_a_supervisor_restarts_forks_and_leaves_none(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.run.processes.supervisor.RESTART_DELAY", 0.0)
    with ForkServers((), ("heavy",), environment) as server:
        with Supervisor(tmp_path, spawner=server) as supervisor:
            supervisor.start(program(environment, "ends", "stay", preloaded=True))
            assert supervisor.is_starting()
            assert supervisor.describe_end("ends") is None
            until(lambda: supervisor.poll() == () and not supervisor.is_starting())
            until(lambda: supervisor.tail("ends") == ("up",))
            (first,) = (each.process for each in supervisor._running.values())
            assert isinstance(first, Fork)
            os.kill(first.pid, signal.SIGKILL)
            news: list[Died | Finished] = []
            while not news:
                news += supervisor.poll()
            assert news == [Died("ends", "signal SIGKILL", 1, ("up",))]
            until(lambda: supervisor.poll() == () and supervisor._running["ends"].process)
            (second,) = (each.process for each in supervisor._running.values())
            assert isinstance(second, Fork)
            host = psutil.Process(second.pid).parent()
            assert host is not None
        assert not psutil.pid_exists(second.pid)
    until(lambda: not host.is_running())


@pytest.mark.parametrize(("changed", "can"), [({}, True), ({"OMP_NUM_THREADS": "4"}, False)])
def test_where_libraries_have_threads_nothing_is_forked(
    changed: dict[str, str], can: bool, environment: dict[str, str]
) -> None:
    assert can_fork({**environment, **changed}) is can
    assert not can_fork({})
