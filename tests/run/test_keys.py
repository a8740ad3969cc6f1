"""`secureps keys`, through its own command line."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.errors import KitError
from secureps.store.keyring import load_holder_secret, load_private, load_public

with warnings.catch_warnings():  # typer 0.20 imports names that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from secureps.run.keys import keys

PLAN = """
name = "trial"
versions = 1

[cipher]
name = "bfv"
capacity = 8

[[group]]
bits = 12
rule = { quorum = 5 }
"""


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(keys, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_init_issue_show(tmp_path: Path) -> None:
    plan, kit = tmp_path / "plan.toml", tmp_path / "kit"
    plan.write_text(PLAN)
    made = run("init", kit, "--plan", plan)
    assert load_public(kit).ca.fingerprint in made
    issued = run("issue", kit, "--role", "client", "--name", "hospital-1")
    assert str(kit / "private" / "hospital-1") in issued
    run("issue", kit, "--role", "holder", "--name", "keys")
    assert load_private(kit, "hospital-1")
    assert load_holder_secret(kit, "keys")
    shown = run("show", kit)
    assert load_public(kit).roster.digest.hex() in shown
    lines = shown.splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["client", "hospital-1"], ["holder", "keys"]]
    assert ["cipher key" in line for line in lines] == [False, True]


def test_a_committees_kit(tmp_path: Path) -> None:
    plan, kit = tmp_path / "plan.toml", tmp_path / "kit"
    plan.write_text(PLAN.replace('"bfv"', '"rlwe"'))
    run("init", kit, "--plan", plan)
    for i in range(4):
        made = run("issue", kit, "--role", "holder", "--name", f"keys-{i}")
        assert str(kit / "private" / f"keys-{i}") in made
        assert isinstance(load_holder_secret(kit, f"keys-{i}"), EnvelopeKey)
    lines = run("show", kit).splitlines()[2:]
    assert all("with a cipher key" in line for line in lines)
    assert len(lines) == len(load_public(kit).holder_keys) == 4


def test_mistakes(tmp_path: Path) -> None:
    done = CliRunner().invoke(keys, ["issue", str(tmp_path), "--role", "boss", "--name", "a"])
    assert done.exit_code == 2
    with pytest.raises(KitError, match="is no start-up kit"):
        run("show", tmp_path)
