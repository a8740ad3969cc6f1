"""A federation of processes whose parties made their own keys, some under a passphrase."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.kits.nursery import ROOT, Child, spawn
from tests.kits.party_kits import descriptor, give
from tests.kits.processes import PATIENCE, Processes

WORDS = "correct-horse-battery-staple-7"


def told(*arguments: str | Path, words: str | None = None, status: int = 0) -> str:
    """What `secureps ...` says, which ends with this status: a fork of the nursery.

    Args:
        words: a passphrase that it is given; None: it has no terminal to ask for one.
    """
    command = ["-m", "secureps", *map(str, arguments)]
    number = None if words is None else descriptor(words)
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as log:
        if number is not None:
            command += ["--passphrase-fd", str(number)]
        begun = spawn(command, Path.cwd(), Path(log.name), inherits=number)
        if number is not None:
            os.close(number)
        ended = begun.wait(PATIENCE)
        said = log.read()
    assert ended == status, said
    return said


class OwnKeys(Processes):
    """Each party has a folder of its own, and an issuer one that nobody else sees."""

    locked: tuple[str, ...] = ()
    """Those whose keys are under a passphrase."""

    @property
    def environment(self) -> dict[str, str]:
        """Of all processes."""
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    def kit(self, name: str) -> Path:
        return self.folder / "homes" / name

    @property
    def issuer(self) -> Path:
        return self.folder / "issuer"

    def _make_kit(self) -> None:
        plan = self.folder / "plan.toml"
        told("keys", "init", self.issuer, "--plan", plan)
        prints = {name: self.request(name) for name in self.parties()}
        requests = [self.kit(name) / "requests" / f"{name}.json" for name in prints]
        given = [word for each in prints.values() for word in ("--fingerprint", each)]
        told("keys", "approve", self.issuer, *requests, *given)
        for name in prints:
            give(self.issuer, self.kit(name))

    def parties(self) -> Iterator[str]:
        yield from ("coordinator", "observer", *self.shards, *self.holders, *self.clients)

    def request(self, name: str) -> str:
        """A party makes its keys; returns its request's fingerprint."""
        plan = self.folder / "plan.toml"
        role = name.partition("-")[0]
        more = ("--plan", plan) if role == "holder" else ()
        own = ("keys", "request", self.kit(name), "--role", role, "--name", name, *more)
        said = told(*own, words=WORDS if name in self.locked else None)
        return said.split("fingerprint ")[1].split()[0]

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        if log.stem not in self.locked:
            return spawn(command, self.folder, log, self.environment)
        number = descriptor(WORDS)
        whole = [sys.executable, *command, "--passphrase-fd", str(number)]
        with log.open("a") as said:
            try:
                return subprocess.Popen(
                    whole,
                    cwd=self.folder,
                    env=self.environment,
                    umask=0,
                    stdout=said,
                    stderr=said,
                    pass_fds=(number,),
                )
            finally:
                os.close(number)
