"""The fork server's side of `run.processes.fork_server`: what it imports, and how a fork begins.

`multiprocessing`'s fork server can only be told to import a module, which is this one. It imports
the modules that an environment variable names, and leaves nothing that a fork should not inherit:
a second thread, an open file or the terminal. Imported anywhere else it does nothing.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import pkgutil
import runpy
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from multiprocessing import forkserver, process, resource_tracker
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

VARIABLE = "SECUREPS_PRELOADS"
"""Names modules, and functions as MODULE:FUNCTION; set for a fork server alone."""
_TASKS = Path("/proc/self/task")


def preload(names: list[str]) -> None:
    """Imports what is named; ends the process if that started a thread.

    Another thread may hold a lock, and would be missing in a fork.
    """
    os.setsid()  # a signal of the terminal is for whoever started the run
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
    for name in names:
        with suppress(Exception):  # whoever needs it fails at it, and says so
            found = pkgutil.resolve_name(name)
            if ":" in name:
                found()
    logging.getLogger().handlers.clear()  # opacus sets a format of its own, which is no fork's
    if len(list(_TASKS.iterdir())) > 1:
        os._exit(1)
    gc.collect()
    gc.freeze()  # forks share what is not touched


@dataclass(frozen=True)
class Branch:
    """A fork server that a fork is to become, with further modules; `key`: of Python 3.14's."""

    modules: tuple[str, ...]
    key: bytes

    def _bootstrap(self, parent_sentinel: int) -> None:
        """Serves until nobody is left who could ask."""
        inherited = forkserver.get_inherited_fds()
        assert inherited is not None
        os.close(parent_sentinel)
        _leave_server()
        preload(list(self.modules))
        serve: Any = forkserver.main
        own: dict[str, int] = {}
        if "authkey_r" in signature(serve).parameters:
            own["authkey_r"], line = os.pipe()
            os.write(line, self.key)
            os.close(line)
        serve(*inherited, [], **own)


@dataclass(frozen=True)
class Order:
    """A program that a fork is to run; `multiprocessing` calls its `_bootstrap` there.

    Args:
        arguments: the module's name, and the module's arguments.
        environment, folder: of the process.
        inherits: the number of a file that it inherits beside stdout and stderr; None: of none.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    inherits: int | None

    def _bootstrap(self, parent_sentinel: int) -> int:
        """Becomes a process like any other, runs the program, and returns its exit status."""
        os.setsid()
        inherited = forkserver.get_inherited_fds()
        assert inherited is not None
        log, begins, *files = inherited
        with socket.socket(fileno=begins) as line:
            line.send(b"\n")
            if not line.recv(1):  # whoever asked for it has ended
                return 1
        os.dup2(log, 1)
        os.dup2(log, 2)
        for file in (log, parent_sentinel, sys.stdin.fileno()):
            os.close(file)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  it stays open
        _leave_server()
        for file in files:
            assert self.inherits is not None
            os.dup2(file, self.inherits)
            if file != self.inherits:
                os.close(file)
        os.chdir(self.folder)
        setproctitle(" ".join((sys.executable, "-P", "-m", *self.arguments)))  # which needs environ
        os.environ.clear()
        os.environ.update(self.environment)
        if "numpy.random" in sys.modules:  # Python's own generator sees to this by itself
            import numpy as np

            np.random.seed()
        return _run(*self.arguments)


def _leave_server() -> None:
    """Gives pools of the program a fork server, a resource tracker and a key of their own."""
    alive: int = forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]
    for file in (alive, resource_tracker.getfd()):
        assert file is not None
        os.close(file)
    importlib.reload(resource_tracker)
    importlib.reload(forkserver)
    process.current_process().authkey = os.urandom(32)


def _run(module: str, *arguments: str) -> int:
    """Runs a module as `python -m` would, with what the interpreter does at its end."""
    sys.argv = [module, *arguments]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


if (_named := os.environ.pop(VARIABLE, None)) is not None:
    preload(_named.split())
