"""`secureps act`: what is said to which coordinator, by whose key, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.errors import Malformed, Refused, SecurepsError
from secureps.messages.acts import OF_A_CLIENT, Act, Deed
from secureps.run.act import SAID, told
from secureps.run.run_lock import ORIGIN, claimed
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import RunFolder
from tests.kits.command import run

ORIGIN_TEXT = '{"plan": "plan.toml", "directory": ".", "unsafe_seed": null, "began": 0.0}'


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Whom a client was made for, and what it said."""
    found: list[tuple[Any, ...]] = []

    def made(self: StatusClient, kit: Path, name: str | None, server: str, *more: Any) -> None:
        found.append((kit.name, name, server))

    monkeypatch.setattr(StatusClient, "__init__", made)
    monkeypatch.setattr(StatusClient, "act", lambda self, act: found.append((act,)))
    monkeypatch.setattr(StatusClient, "close", lambda self: None)
    return found


def test_every_act_is_told_in_a_line() -> None:
    assert SAID.keys() == set(Deed)
    assert told(Act("leave-out", "client-00")) == "client-00 takes no part until it is taken back"
    assert {deed for deed in Deed if "{client}" in SAID[deed]} == OF_A_CLIENT


def test_an_act_is_said_by_the_coordinators_own_key(
    said: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    where = ("--server", "127.0.0.1:9", "--kit", tmp_path / "kit", "--insecure")
    more = ("--client", "client-00", "--reason", "its data is broken")
    assert run(monkeypatch, "act", "leave-out", *where, *more) == 0
    assert said == [
        ("kit", "coordinator", "127.0.0.1:9"),
        (Act("leave-out", "client-00", "its data is broken"),),
    ]
    assert capsys.readouterr().out == "client-00 takes no part until it is taken back\n"


def test_what_is_refused_is_one_line(
    said: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    answers: list[SecurepsError] = [Refused("the run is over: all is made")]

    def refuses(self: StatusClient, act: Act) -> None:
        raise answers[0]

    monkeypatch.setattr(StatusClient, "act", refuses)
    where = ("--server", "127.0.0.1:9", "--kit", tmp_path)
    assert run(monkeypatch, "act", "pause", *where) == 1
    told = capsys.readouterr().err
    assert told == "error: the run is over: all is made (the operator's fault)\n"
    for error in (Malformed("leave-out is of a client: name one"), Refused("no [scaling]")):
        answers[0] = error
        assert run(monkeypatch, "act", "leave-out", *where) == 1
        assert capsys.readouterr().err == f"error: {error} (the operator's fault)\n"
    assert run(monkeypatch, "act", "stop", *where) == 2
    assert run(monkeypatch, "act", "pause") == 1
    assert "give --server and --kit, or RUN" in capsys.readouterr().err


def test_of_a_run_of_up_its_folder_is_enough_while_it_is_played(
    said: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ORIGIN).write_text(ORIGIN_TEXT)
    assert run(monkeypatch, "act", "pause", folder.root) == 1
    assert said == [], "nobody plays it"
    assert f"error: nobody plays {folder.root} now: stopped; sec" in capsys.readouterr().err
    with claimed(folder.root):
        assert run(monkeypatch, "act", "pause", folder.root) == 1
        assert "its coordinator is being started" in capsys.readouterr().err
        monkeypatch.setattr(RunFolder, "address", lambda self, party: "127.0.0.1:9")
        assert run(monkeypatch, "act", "pause", folder.root) == 0
    assert said[-1] == (Act("pause"),)
