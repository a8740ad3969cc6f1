"""Real processes: a coordinator that is killed or paused, and the standby that takes over."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from secureps.messages.records import REIGN
from secureps.messages.run import STANDBY
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
        self.settings[STANDBY] = f'listen = "{two}"\ncoordinator = "{one}"'

    @property
    def server(self) -> str:
        return self.places

    def follows(self) -> bool:
        status = self.status()
        return status is not None and any(
            server.name == "standby" and server.live for server in status.servers
        )

    def incarnation(self) -> int:
        status = self.status()
        return 0 if status is None else status.incarnation


@pytest.fixture(params=[0.3])
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Followed]:
    with Followed(tmp_path) as processes:
        processes.pace = request.param
        processes.start_all()
        processes.start(STANDBY)
        processes.wait(processes.follows, "a standby that follows")
        yield processes


def test_a_machine_is_lost_for_good_and_the_model_is_the_same(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(1), "version 1")
    followed.kill("coordinator")
    shutil.rmtree(followed.folder / "coordinator")
    assert said(cli.app, "takeover", followed.folder / "standby.toml") == "the standby takes over\n"
    followed.wait(followed.finished, "the end")
    versions, model = followed.model()
    assert versions == {"all": 4}
    assert same(model, unharmed("plain")[0])


def test_it_takes_over_from_one_that_is_killed(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(1), "version 1")
    followed.kill("coordinator")
    followed.wait(followed.finished, "the end")
    versions, model = followed.model()
    assert versions == {"all": 4}
    assert same(model, unharmed("plain")[0])
    assert "takes over: shards and enough key holders" in followed.log("standby")


def test_one_that_was_paused_changes_nothing_and_follows_the_other(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(1), "version 1")
    os.kill(followed.pid("coordinator"), signal.SIGSTOP)
    began = time.monotonic()
    followed.wait(lambda: "takes over: shards" in followed.log("standby"), "a takeover")
    assert time.monotonic() - began < NOTICED
    followed.wait(lambda: followed.reached(2), "version 2")
    os.kill(followed.pid("coordinator"), signal.SIGCONT)
    followed.wait(lambda: "is its standby now" in followed.log("coordinator"), "the other's rule")
    assert (followed.folder / "coordinator" / "superseded-1" / "journal.db").is_file()
    followed.wait(followed.follows, "the old one, which follows")
    followed.wait(followed.finished, "the end")
    assert same(followed.model()[1], unharmed("plain")[0])


@pytest.mark.parametrize("followed", [2.0], indirect=True)
def test_it_takes_over_by_command_and_is_taken_over_from(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(0), "version 0")
    told = said(cli.app, "takeover", followed.folder / "standby.toml")
    assert told == "the standby takes over\n"
    followed.wait(lambda: "is its standby now" in followed.log("coordinator"), "the other's rule")
    followed.wait(lambda: followed.incarnation() // REIGN == 1 and followed.follows(), "a follower")
    followed.kill("coordinator")  # what a folder has come to be, it stays
    followed.start("coordinator")
    followed.wait(lambda: followed.log("coordinator").count("listens on") == 3, "its next start")
    followed.wait(followed.follows, "a follower")
    followed.kill("standby")
    followed.wait(lambda: followed.incarnation() // REIGN == 2, "a takeover back")
    followed.wait(followed.finished, "the end")
    assert same(followed.model()[1], unharmed("plain")[0])


def test_one_that_knows_no_other_address_ends(tmp_path: Path) -> None:
    with Followed(tmp_path) as processes:
        processes.settings["coordinator"] = processes.settings["coordinator"].splitlines()[0]
        processes.start_all()
        processes.start(STANDBY)
        processes.wait(processes.follows, "a standby that follows")
        said(cli.app, "takeover", processes.folder / "standby.toml")
        processes.wait(lambda: not processes.alive("coordinator"), "the end of the old one")
        assert 'name the other one in its file, standby = "HOST:PORT"' in processes.log(
            "coordinator"
        )
