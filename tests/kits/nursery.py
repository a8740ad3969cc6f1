"""Processes that begin where importing is done: forked from one that has imported the project.

Importing takes a party longer than all it does in a test. Here one process imports, and every
party is a fork of it: a process of its own, with its own memory, files, signals and end, that runs
a command line as the interpreter would. Not for tests of how a program starts, nor of anything
that differs by `PYTHONHASHSEED`: it is one for all.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from secureps.run.processes.launcher import Program

ROOT = Path(__file__).parent.parent.parent

IMPORTED = (
    *("secureps.run.cli", "secureps.run.commands", "secureps.run.join", "secureps.run.serve"),
    "secureps.client.runner",
    *("secureps.crypto.bfv_seal", "secureps.crypto.rlwe", "tests.kits.walker_client"),
    *("grpc.experimental", "grpc._channel"),
    "secureps.privacy.accountant",  # for plans with privacy: dearer than all that a client does
)


class Child:
    """A process of the nursery, as `subprocess.Popen` shows one."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._status: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit status, below 0 by a signal; None while it runs."""
        if self._status is None:
            self._status = self._nursery.ask(self.pid)
        return self._status

    def wait(self, seconds: float | None = None) -> int:
        """Its exit status; subprocess.TimeoutExpired if it still runs."""
        end = None if seconds is None else time.monotonic() + seconds
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds or 0.0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # until it is asked for its status its number is nobody else's
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def signal(self, number: int) -> bool:
        """Signals its group; tells whether it still ran."""
        if self.poll() is None:
            os.killpg(self.pid, number)
        return self._status is None


class Nursery:
    """The process that imported; it ends with this one, and is asked by one thread at a time.

    Args:
        root: what it imports from: this project, or a copy of it.
        home: its home folder; None: this process's.
    """

    def __init__(self, root: Path = ROOT, home: Path | None = None) -> None:
        own = {} if home is None else {"HOME": str(home)}
        self._files, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.kits.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **own},
        )
        theirs.close()

    def hand(self, file: int) -> None:
        """Hands over an open file, for the process that is asked for next."""
        socket.send_fds(self._files, [b"-"], [file])

    def ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "it has ended, and has said why on stderr"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()
        self._files.close()


@cache
def nursery() -> Nursery:
    made = Nursery()
    atexit.register(made.close)
    return made


def prepare(module: str) -> None:
    nursery().ask(module)


def spawn(
    arguments: Sequence[str],
    folder: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    of: Nursery | None = None,
    inherits: int | None = None,
) -> Child:
    """Starts what `python ARGUMENTS` runs, in a folder; what it says is appended to a file.

    Args:
        arguments: "-m" and a module, or a script's path, and what it is given.
        environment: its own, with a process group of its own; the nursery's if None.
        of: another nursery than this process's own.
        inherits: an open file that it has by the same number.
    """
    log.touch()
    own = None if environment is None else dict(environment)
    begun = nursery() if of is None else of
    if inherits is not None:
        begun.hand(inherits)
    return Child(begun, begun.ask([list(arguments), str(folder), str(log), own, inherits]))


def supervise_children(patch: pytest.MonkeyPatch, *modules: str) -> None:
    """What `run.processes.supervisor` starts next is spawned, with these modules imported too."""
    for module in modules:
        prepare(module)

    class Spawner:
        """Stands in for a `Launcher`."""

        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Spawner:
            return self

        def __exit__(self, *_: object) -> None: ...

        def start(self, program: Program, log: IO[bytes]) -> Child:
            own = dict(program.environment)
            words = [word for word in program.arguments[1:] if word != "-P"]
            return spawn(words, Path.cwd(), Path(log.name), own, inherits=program.inherits)

    patch.setattr("secureps.run.processes.supervisor.Launcher", Spawner)
    patch.setattr("secureps.run.up.programs.Launcher", Spawner)


def _serve(files: socket.socket) -> list[str]:
    """Forks on demand; returns, in a fork alone, what it is to run. Ends with its parent."""
    for line in sys.stdin:
        match json.loads(line):
            case int(pid):
                _, status = found if (found := os.waitpid(pid, os.WNOHANG))[0] else (0, None)
                answer: Any = None if status is None else os.waitstatus_to_exitcode(status)
            case str(module):
                answer = bool(importlib.import_module(module))
            case arguments, folder, log, environment, inherits:
                handed = [] if inherits is None else socket.recv_fds(files, 1, 1)[1]
                if not (answer := os.fork()):
                    _settle(folder, log, environment)
                    files.close()
                    for file in handed:
                        os.dup2(file, inherits)
                        if file != inherits:
                            os.close(file)
                    return list(arguments)
                for file in handed:
                    os.close(file)
                if environment is not None:  # here too: whoever is answered may signal the group
                    os.setpgid(answer, answer)
        print(json.dumps(answer), flush=True)
    sys.exit()


def _settle(folder: str, log: str, environment: dict[str, str] | None) -> None:
    os.chdir(folder)
    if environment is not None:
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(environment)
    nothing, said = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, file in enumerate((nothing, said, said)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(said)
    logging.getLogger().handlers.clear()  # of a module that was prepared: a program has none yet


def _run(arguments: list[str]) -> None:
    """As the interpreter does it."""
    if arguments[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(arguments[0]).parent)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    for module in IMPORTED:
        importlib.import_module(module)
    importlib.import_module("secureps.run.warm").warm()
    os.fsync = os.fdatasync = lambda fd: None  # as in `conftest`
    importlib.import_module("secureps.store.journal").SYNCHRONOUS = "OFF"  # type: ignore[attr-defined]
    importlib.import_module("secureps.service.process").KitWatch.LOOK = 0.5  # tests wait for it
    gc.freeze()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
