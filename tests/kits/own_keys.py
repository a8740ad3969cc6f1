"""A federation of processes whose parties made their own keys, some under a passphrase."""

from __future__ import annotations

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
LOCKED = ("shard-1", "holder-1", "client-02", "observer")


def secureps(*arguments: str | Path, words: str | None = None) -> subprocess.CompletedProcess[str]:
    """`secureps ...` in a process of its own, which is given a passphrase on stdin."""
    more = () if words is None else ("--passphrase-fd", "0")
    return subprocess.run(
        [sys.executable, "-m", "secureps", *map(str, (*arguments, *more))],
        input=None if words is None else f"{words}\n",
        stdin=subprocess.DEVNULL if words is None else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def told(*arguments: str | Path) -> str:
    """What `secureps ...` says that ends well, forked from the nursery: in a fifth of the time."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as log:
        command = ["-m", "secureps", *map(str, arguments)]
        status = spawn(command, Path.cwd(), Path(log.name)).wait(PATIENCE)
        said = log.read()
    assert status == 0, said
    return said


class OwnKeys(Processes):
    """Each party has a folder of its own, and an issuer one that nobody else sees."""

    umask = -1
    """Of those under a passphrase; -1: as here."""

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
        if name in LOCKED:
            done = secureps(*own, words=WORDS)
            assert done.returncode == 0, done.stderr
            said = done.stdout
        else:
            said = told(*own)
        return said.split("fingerprint ")[1].split()[0]

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        if log.stem not in LOCKED:
            return spawn(command, self.folder, log, self.environment)
        number = descriptor(WORDS)
        whole = [sys.executable, *command, "--passphrase-fd", str(number)]
        with log.open("a") as said:
            try:
                return subprocess.Popen(
                    whole,
                    cwd=self.folder,
                    env=self.environment,
                    umask=self.umask,
                    stdout=said,
                    stderr=said,
                    pass_fds=(number,),
                )
            finally:
                os.close(number)
