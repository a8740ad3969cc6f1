"""Starts single processes, each of which waits until somebody watches over it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

ONCE_KNOWN = ("/bin/sh", "-c", 'read -r known && exec "$@" </dev/null', "sh")
"""Before a command: it runs when a line comes, and never if this process has ended before."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command of a process. One that `may_finish` ends by itself, with exit status 0, or
    `UNFINISHED`, and so does one whose log has the words `done`, if there are such.

    Without an environment it has this process's own. One that is `preloaded` starts when all that
    it is likely to import is there, if anything imports for it. The others go on without one that
    `may_fail`: it runs a data holder's script. An open file that it `inherits` keeps its number.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] | None
    may_finish: bool = False
    preloaded: bool = False
    done: str = ""
    may_fail: bool = False
    inherits: int | None = None


class Process(Protocol):
    """A process of this machine, the first of a session and of a process group of its own."""

    @property
    def pid(self) -> int:
        """The number of the process and of its group."""

    def begin(self) -> None:
        """Lets it run: from here on somebody knows that it is there."""

    def poll(self) -> int | None:
        """The exit status, below 0 by a signal; None while it runs."""

    def wait(self) -> int:
        """The exit status, once it has ended."""


class Spawner(Protocol):
    """Starts processes."""

    def ready(self, program: Program) -> bool:
        """Whether `spawn` would start it at once."""

    def spawn(self, program: Program, log: IO[bytes]) -> Process:
        """Starts a process that waits for `begin`; stdout and stderr go to an open file.

        Raises:
            OSError: it cannot be started.
        """


class Subprocess:
    """A process that this one has started itself."""

    def __init__(self, program: Program, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            (*ONCE_KNOWN, *program.arguments),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if program.environment is None else dict(program.environment),
            start_new_session=True,
            pass_fds=() if program.inherits is None else (program.inherits,),
        )
        self.pid = self._process.pid

    def begin(self) -> None:
        """Writes the line for which the shell waits, unless that has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), b"known\n")
        self._process.stdin.close()

    def poll(self) -> int | None:
        """As `subprocess.Popen.poll`."""
        return self._process.poll()

    def wait(self) -> int:
        """As `subprocess.Popen.wait`."""
        return self._process.wait()


class Subprocesses:
    """Starts each process from its beginning."""

    def ready(self, program: Program) -> bool:
        """Always."""
        return True

    def spawn(self, program: Program, log: IO[bytes]) -> Process:
        """As `Spawner.spawn`."""
        return Subprocess(program, log)
