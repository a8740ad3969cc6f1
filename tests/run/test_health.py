"""A probe in a server's own pod: what it hears before, while and after the server can work."""

from functools import partial
from pathlib import Path

import pytest

from secureps.errors import OperatorError, Unreachable
from secureps.run.cli import app
from secureps.run.preflight import health
from tests.kits.command import invoked
from tests.kits.processes import Processes


def probe(processes: Processes, name: str, *options: str) -> int:
    """The exit status of the command that a probe runs."""
    config = processes.folder / f"{name}.toml"
    return invoked(app, "health", config, *options).exit_code


def lives(processes: Processes, name: str) -> bool:
    return probe(processes, name, "--alive") == 0


def test_a_probe_hears_whether_a_server_lives_and_whether_it_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy"):  # meant for others: a probe dials its own machine
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Processes(tmp_path, "rlwe", clients=1, metrics=True) as processes:
        first = (*processes.shards, processes.holders[0])
        processes.start("coordinator")
        processes.wait((tmp_path / "coordinator" / "address").is_file, "the coordinator")
        for name in first:
            processes.start(name)
        for name in first:
            processes.wait(partial(lives, processes, name), f"{name} to live")
            assert probe(processes, name) != 0, "no run is founded"
        processes.wait(partial(health, tmp_path / "coordinator.toml"), "the coordinator's journal")
        for name in (*processes.holders[1:], *processes.clients):
            processes.start(name)
        for name in first:
            processes.wait(partial(health, tmp_path / f"{name}.toml"), f"{name} to be ready")
            assert probe(processes, name) == 0
        for name in first:
            processes.kill(name)
            text = f"({name} does not answer|no connection to {name}) at 127.0.0.1:"
            with pytest.raises((OperatorError, Unreachable), match=text):
                health(tmp_path / f"{name}.toml")
            assert probe(processes, name, "--alive") != 0


@pytest.mark.parametrize(
    ("point", "why"),
    [("journals", "it has been at one event for more"), ("reads", "a read or write of its disk")],
)
def test_a_server_that_hangs_is_named_and_cannot_work_until_it_goes_on(
    point: str, why: str, tmp_path: Path
) -> None:
    """It answers its connections all the while: gRPC has threads of its own."""
    with Processes(tmp_path, "plain", versions=3) as processes:
        processes.start_all(shard_0=f"{point}@2")

        def trouble() -> str:
            status = processes.status()
            found = () if status is None else status.servers
            return next((each.trouble for each in found if each.name == "shard-0"), "")

        processes.wait(lambda: trouble().startswith("hangs: "), "the status to name it")
        assert f"; shard-0 hangs: {why}" in processes.seen.groups[0].reason
        assert not health(tmp_path / "shard-0.toml")
        assert f"shard-0: hangs: {why}" in processes.log("shard-0")
        (tmp_path / "go").touch()
        processes.wait(partial(health, tmp_path / "shard-0.toml"), "it to go on")
        processes.wait(processes.finished, "the end")
        processes.wait(lambda: not trouble(), "the status to forget it")


def test_a_client_that_hangs_is_named_as_what_is_waited_for(tmp_path: Path) -> None:
    with Processes(tmp_path, "plain", versions=3) as processes:
        own = processes.clients[0]
        processes.start_all(client_00="reads@2")
        text = "hangs: a read or write of its disk has not ended in 1 s"

        def says() -> bool:
            status = processes.status()
            if status is None or f"; {own} hangs" not in status.groups[0].reason:
                return False
            return any(m.name == own and m.state == "trains: hangs" for m in status.members)

        processes.wait(says, "the status to name it")
        assert text in processes.log(own)
        (tmp_path / "go").touch()
        processes.wait(processes.finished, "the end")


def test_what_cannot_be_asked_says_why(tmp_path: Path) -> None:
    with Processes(tmp_path, "rlwe", clients=0) as processes:
        for name, reason in (
            ("shard-0", "its server has not begun"),
            ("holder-0", "give it metrics on loopback"),
        ):
            config = tmp_path / f"{name}.toml"
            lines = [f'name = "{name}"', f'kit = "{processes.kit(name)}"', f'state = "{name}"']
            config.write_text("\n".join(lines))
            with pytest.raises(OperatorError, match=reason):
                health(config)
