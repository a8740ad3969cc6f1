"""The CA's fingerprint that a party was told: every party's kit is held against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.client import runner
from secureps.client.runner import run_client
from secureps.crypto.cipher import CipherParameters
from secureps.errors import ConfigError, KitError
from secureps.roles.machine import Halt
from secureps.run.serve import serve
from secureps.store.issuing import create_kit, issue
from secureps.store.keyring import load_public
from tests.kits.command import run
from tests.kits.nursery import ROOT
from tests.kits.walker_client import make

PLAIN = CipherParameters("plain", 8, 14)
SCRIPT = ROOT / "tests" / "kits" / "walker_client.py"
MALFORMED = ("", "0" * 63, "0" * 65, "g" + "0" * 63, "0x" + "0" * 62)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    create_kit(tmp_path / "kit", PLAIN)
    issue(tmp_path / "kit", "coordinator", "coordinator")
    issue(tmp_path / "kit", "shard", "shard-0")
    issue(tmp_path / "kit", "client", "one")
    issue(tmp_path / "kit", "holder", "holder-0")
    return tmp_path / "kit"


@pytest.fixture
def right(kit: Path) -> str:
    return load_public(kit).ca.fingerprint


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    return create_kit(tmp_path / "other", PLAIN).fingerprint


def test_spaces_and_capitals_do_not_matter(kit: Path, right: str) -> None:
    groups = " ".join(right[i : i + 4] for i in range(0, 64, 4))
    assert load_public(kit, f" {groups.upper()}\n").ca.fingerprint == right


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_fingerprint(kit: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="a CA's fingerprint has 64 hexadecimal digits, got "):
        load_public(kit, text)


ROLES = {"coordinator": "coordinator", "shard": "shard-0", "keyholder": "holder-0"}


def serve_pinned(folder: Path, role: str, pin: str) -> None:
    """Ends with an error in any case: after the kit, for the file names what is not there."""
    config = folder / f"{role}.toml"
    config.write_text(
        f'name = "{ROLES[role]}"\nkit = "kit"\nca_fingerprint = "{pin}"\nstate = "state"\n'
        'coordinator = "127.0.0.1:9"\nplan = "nothing.toml"\nlisten = "nowhere"\n'
    )
    serve(role, config)


@pytest.mark.parametrize("role", ROLES)
def test_a_server_takes_a_kit_of_the_pinned_ca_alone(
    role: str, kit: Path, right: str, wrong: str
) -> None:
    with pytest.raises(KitError, match=f"signed by another CA: .* {right} and .* one {wrong}"):
        serve_pinned(kit.parent, role, wrong)
    with pytest.raises(ConfigError, match=rf"{role}\.toml: ca_fingerprint: a CA's fingerprint has"):
        serve_pinned(kit.parent, role, "0123")
    after = {"coordinator": r"nothing\.toml", "shard": "is not HOST:PORT", "keyholder": "no cipher"}
    with pytest.raises((KitError, ConfigError), match=after[role]):
        serve_pinned(kit.parent, role, right)
    assert not (kit.parent / "state").exists()


@pytest.mark.parametrize("command", ["join", "script"])
def test_a_client_takes_a_kit_of_the_pinned_ca_alone(
    command: str,
    kit: Path,
    right: str,
    wrong: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runner, "run_process", lambda *_: Halt("took part"))

    def ends(pin: str) -> int:
        state = str(kit.parent / "state")
        given = ["--server", "127.0.0.1:9", "--kit", str(kit), "--name", "one", "--state", state]
        given += ["--set", "partition=0", "--ca-fingerprint", pin]
        if command == "join":
            return run(monkeypatch, "join", SCRIPT, *given)
        if pin == right:
            run_client(make, given)
            return 0
        with pytest.raises(SystemExit) as ended:
            run_client(make, given)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    assert ends(right) == 0
    assert capsys.readouterr().out == "took part\n"
    assert ends(wrong) == 78
    assert "is signed by another CA: its fingerprint is " in capsys.readouterr().err
    assert ends("0123") == 78
    assert "a CA's fingerprint has 64 hexadecimal digits, got '0123'" in capsys.readouterr().err
