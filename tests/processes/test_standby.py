"""Real processes: a coordinator that is killed or paused, and the standby that takes over."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from secureps.run import cli
from tests.kits.command import said
from tests.kits.federations import same, unharmed
from tests.kits.processes import Processes

NOTICED = 45.0
"""Seconds on a busy machine; gRPC alone would notice after a minute that nobody answers."""


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in free]


class Followed(Processes):
    """A federation whose coordinator has a standby."""

    def __init__(self, folder: Path, cipher: str = "rlwe") -> None:
        super().__init__(folder, cipher)
        one, two = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.places = f"{one},{two}"
        self.settings["coordinator"] = f'listen = "{one}"\nstandby = "{two}"'
        self._standby = f'listen = "{two}"\ncoordinator = "{one}"'
        self.pace = 0.3

    @property
    def server(self) -> str:
        return self.places

    def start_standby(self) -> None:
        config = self.folder / "standby.toml"
        lines = ['name = "coordinator"', f'kit = "{self.kit("coordinator")}"', 'state = "standby"']
        lines += ['plan = "plan.toml"', 'checkpoints = "checkpoints"', self._standby]
        config.write_text("\n".join(lines) + "\n")
        command = ["-m", "secureps", "serve", "coordinator", "--standby", "--config", str(config)]
        self._running["standby"] = self._begin(command, self.folder / "standby.log")

    def follows(self) -> bool:
        status = self.status()
        return status is not None and any(
            server.name == "standby" and server.live for server in status.servers
        )

    def incarnation(self) -> int:
        status = self.status()
        return 0 if status is None else status.incarnation


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    with Followed(tmp_path) as processes:
        processes.start_all()
        processes.start_standby()
        processes.wait(processes.follows, "a standby that follows")
        yield processes


def test_it_takes_over_from_one_that_is_killed(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(1), "version 1")
    followed.kill("coordinator")
    followed.wait(followed.finished, "the end")
    versions, model = followed.model()
    assert versions == {"all": 4}
    assert same(model, unharmed("plain")[0])
    assert "takes over: all shards" in followed.log("standby")


def test_one_that_was_paused_changes_nothing_and_ends(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(1), "version 1")
    os.kill(followed.pid("coordinator"), signal.SIGSTOP)
    began = time.monotonic()
    followed.wait(lambda: "takes over: all" in followed.log("standby"), "a takeover")
    assert time.monotonic() - began < NOTICED
    followed.wait(lambda: followed.reached(2), "version 2")
    os.kill(followed.pid("coordinator"), signal.SIGCONT)
    followed.wait(lambda: not followed.alive("coordinator"), "the end of the old one")
    assert "another coordinator has taken over this run" in followed.log("coordinator")
    followed.wait(followed.finished, "the end")
    assert same(followed.model()[1], unharmed("plain")[0])


def test_it_takes_over_by_command(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(1), "version 1")
    told = said(cli.app, "takeover", followed.folder / "standby.toml")
    assert told == "the standby takes over\n"
    followed.wait(lambda: not followed.alive("coordinator"), "the end of the old one")
    followed.wait(followed.finished, "the end")
    assert same(followed.model()[1], unharmed("plain")[0])
