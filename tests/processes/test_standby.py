"""Real coordinators that are killed, paused or hang are taken over from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.errors import OperatorError, Refused
from secureps.messages.records import REIGN
from secureps.messages.run import STANDBY
from secureps.run import cli
from secureps.store.checkpoint import write_state
from tests.kits.command import invoked, said
from tests.kits.federations import Walker, same, unharmed
from tests.kits.processes import PLAN, Processes
from tests.kits.relay import free_port


class Followed(Processes):
    def __init__(self, folder: Path, cipher: str = "rlwe", plan: str = PLAN) -> None:
        super().__init__(folder, cipher, plan=plan)
        one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.places = f"{one},{two}"
        self.settings["coordinator"] = f'listen = "{one}"\nstandby = "{two}"'
        self.settings[STANDBY] = f'listen = "{two}"\ncoordinator = "{one}"'

    @property
    def server(self) -> str:
        return self.places

    def follows(self) -> bool:
        return self.live(STANDBY)

    def incarnation(self) -> int:
        status = self.status()
        return 0 if status is None else status.incarnation


def take_over(followed: Followed) -> None:
    told = said(cli.app, "takeover", followed.folder / "standby.toml")
    assert told.startswith("the standby takes over")


def test_a_standby_that_does_not_run_is_named_and_not_its_coordinator(tmp_path: Path) -> None:
    with Followed(tmp_path, "plain") as processes:
        processes.start("coordinator")
        processes.start(STANDBY)
        processes.wait((tmp_path / STANDBY / "address").is_file, "the standby")
        processes.stop(STANDBY)
        config = tmp_path / "standby.toml"
        told = invoked(cli.app, "takeover", config)
        assert isinstance(told.exception, OperatorError)
        assert str(told.exception).startswith(f"the standby of {config} does not run here: ")


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    with Followed(tmp_path) as processes:
        processes.pace = 2.0
        processes.start_all()
        processes.start(STANDBY)
        processes.wait(processes.follows, "a standby that follows")
        yield processes


def test_it_takes_over_from_one_that_is_there_and_is_taken_over_from(followed: Followed) -> None:
    followed.wait(lambda: followed.reached(0), "version 0")
    take_over(followed)
    followed.wait(lambda: "is its standby now" in followed.log("coordinator"), "the other's rule")
    followed.wait(lambda: followed.incarnation() // REIGN == 1 and followed.follows(), "a follower")
    followed.kill("coordinator")  # what a folder has come to be, it stays
    followed.start("coordinator")
    followed.wait(lambda: followed.log("coordinator").count("listens on") == 3, "its next start")
    followed.wait(followed.follows, "a follower")
    followed.kill("standby")
    said(cli.app, "takeover", followed.folder / "coordinator.toml")
    followed.wait(lambda: followed.incarnation() // REIGN == 2, "a takeover back")
    followed.wait(followed.finished, "the end")
    assert same(followed.model()[1], unharmed("plain")[0])


def test_a_standby_without_a_run_says_why_it_takes_nothing_over(tmp_path: Path) -> None:
    with Followed(tmp_path) as followed:
        followed.start("coordinator")
        followed.start(STANDBY)
        followed.wait(lambda: "has all that the coordinator has" in followed.log(STANDBY), "it")
        with pytest.raises(Refused, match="no run is founded yet, and so there is nothing to take"):
            take_over(followed)


def test_version_0_lies_elsewhere_on_the_standby_s_machine(tmp_path: Path) -> None:
    initial = tmp_path / "first.safetensors"
    write_state(initial, Walker(0).parameters(7), {})
    plan = f'initial = "first.safetensors"\n{PLAN}'
    with Followed(tmp_path, "plain", plan) as followed:
        followed.pace = 0.3
        followed.start_all()
        followed.wait(lambda: followed.reached(0), "version 0")
        (tmp_path / "elsewhere").mkdir()
        other = tmp_path / "elsewhere" / "v0.safetensors"
        initial.rename(other)
        own = followed.settings[STANDBY]
        followed.start(STANDBY)
        followed.wait(lambda: not followed.alive(STANDBY), "the end of the standby")
        assert f"initial: no file {initial}" in followed.log(STANDBY)
        followed.settings[STANDBY] = f'{own}\ninitial = "elsewhere/v0.safetensors"'
        right = other.read_bytes()
        write_state(other, Walker(0).parameters(8), {})
        followed.start(STANDBY)
        followed.wait(lambda: not followed.alive(STANDBY), "the end of the standby")
        assert f"{other} is another file than the coordinator's" in followed.log(STANDBY)
        other.write_bytes(right)
        followed.start(STANDBY)
        followed.wait(followed.follows, "a standby that follows")
        followed.kill("coordinator")
        take_over(followed)
        followed.wait(followed.finished, "the end")


def test_one_that_knows_no_other_address_ends(tmp_path: Path) -> None:
    with Followed(tmp_path, "plain") as processes:
        processes.settings["coordinator"] = processes.settings["coordinator"].splitlines()[0]
        processes.start_all()
        processes.start(STANDBY)
        processes.wait(processes.follows, "a standby that follows")
        take_over(processes)
        processes.wait(lambda: not processes.alive("coordinator"), "the end of the old one")
        assert 'name the other one in its file, standby = "HOST:PORT"' in processes.log(
            "coordinator"
        )
