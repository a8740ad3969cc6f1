"""A profile replaces options of every command; a typed option overrides it."""

from pathlib import Path
from typing import Any

import pytest

from secureps.client.runner import Joining
from secureps.config.site_files import profile_file, read_profile
from secureps.errors import ConfigError
from secureps.run import preflight, status
from secureps.run.own_script import run as run_script
from tests.kits.command import run

TEXT = """
[profile.trial]
server = "ps.example:7600"
kit = "kits/trial"
name = "hospital-1"

[profile.watch]
server = "ps.example:7600"
kit = "/srv/kit"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    made = profile_file()
    made.parent.mkdir(parents=True)
    made.write_text(TEXT)
    return made


def test_what_a_profile_says(file: Path) -> None:
    assert read_profile("trial") == {
        "server": "ps.example:7600",
        "kit": str(file.parent / "kits" / "trial"),
        "name": "hospital-1",
    }
    assert read_profile("watch") == {"server": "ps.example:7600", "kit": "/srv/kit"}


def test_a_file_or_a_profile_that_is_not_right(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no \[profile.trail\]; did you mean trial\?"):
        read_profile("trail")
    file.write_text(TEXT.replace("server", "sever", 1))
    with pytest.raises(ConfigError, match=r"profile\.trial\.sever: .*server.* \(line 3\)"):
        read_profile("trial")
    assert read_profile("watch") == {"server": "ps.example:7600", "kit": "/srv/kit"}, "it is sound"
    file.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        read_profile("trial")


def test_a_user_without_a_home_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(ConfigError, match="this user has no home folder to keep profiles in"):
        read_profile("trial")


def test_commands_take_it_and_options_beat_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def looked(whom: Any) -> tuple[()]:
        asked.append(whom)
        return ()

    monkeypatch.setattr(status, "look", lambda target, *rest: asked.append(target))
    monkeypatch.setattr(preflight, "preflight", looked)
    assert run(monkeypatch, "--profile", "trial", "status") == 0
    assert run(monkeypatch, "--profile", "trial", "status", "--name", "observer") == 0
    assert run(monkeypatch, "--profile", "watch", "preflight", "--name", "me") == 0
    kit = file.parent / "kits" / "trial"
    assert [(each.server, each.kit, each.name) for each in asked] == [
        ("ps.example:7600", kit, "hospital-1"),
        ("ps.example:7600", kit, "observer"),
        ("ps.example:7600", Path("/srv/kit"), "me"),
    ]
    assert run(monkeypatch, "status", "--profile", "trial") == 2
    assert "`secureps --profile trial status`" in capsys.readouterr().err
    assert run(monkeypatch, "status", "--profile=trial", "--json") == 2
    assert "before the command" in capsys.readouterr().err
    assert run(monkeypatch, "--profile", "trail", "status") == 1
    assert "did you mean trial?" in capsys.readouterr().err


def test_a_script_takes_it_too(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joined: list[Joining] = []

    def build(joining: Joining, settings: Any) -> Any:
        joined.append(joining)
        raise ConfigError("far enough")

    for words in ([], ["--name", "hospital-2", "--budget", "3"]):
        with pytest.raises(SystemExit):
            run_script(build, ["--profile", "trial", *words])
    kit = file.parent / "kits" / "trial"
    assert [(each.server, each.kit, each.name) for each in joined] == [
        ("ps.example:7600", kit, "hospital-1"),
        ("ps.example:7600", kit, "hospital-2"),
    ]
    with pytest.raises(SystemExit) as ended:
        run_script(build, ["--profile", "trail"])
    assert ended.value.code == 78
    assert "did you mean trial?" in capsys.readouterr().err
