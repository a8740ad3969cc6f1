"""`secureps roster`, through its own command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.crypto.roster import Roster
from secureps.errors import KitError
from secureps.run.keys import keys, roster
from secureps.store.keyring import load_public
from tests.kits.command import said

PLAN = """
name = "trial"
versions = 1
[cipher]
name = "plain"
capacity = 8
[[group]]
rule = { quorum = 5 }
"""
NOW = 1_800_000_000.25


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW)
    (tmp_path / "plan.toml").write_text(PLAN)
    said(keys, "init", tmp_path / "kit", "--plan", tmp_path / "plan.toml")
    return tmp_path / "kit"


def now(kit: Path) -> Roster:
    return load_public(kit).roster


def test_who_comes_and_goes_makes_the_next_roster(kit: Path, tmp_path: Path) -> None:
    own, first = tmp_path / "own", now(kit)
    said(keys, "request", own, "--role", "client", "--name", "hospital-9")
    added = said(roster, "add", kit, own / "requests" / "hospital-9.json")
    assert "hospital-9: approved" in added
    second = now(kit)
    said(roster, "revoke", kit, "hospital-9")
    assert (first.number, second.number, now(kit).number) == (0, 1, 2)
    assert now(kit).number_of(second.digest) == 1
    assert second.enrolment("hospital-9").at == int(NOW)
    assert "hospital-9" not in now(kit)


def test_a_roster_is_signed_anew(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = now(kit)
    assert first.expires == int(NOW + 86_400)
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW + 80_000)
    assert "roster 0, which holds until 2027-01-17" in said(roster, "renew", kit)
    assert (now(kit).digest, now(kit).expires) == (first.digest, int(NOW + 166_400))
    said(roster, "renew", kit, "--hours", "1000")
    said(keys, "issue", kit, "--role", "client", "--name", "a")  # it does not hold for less then
    assert now(kit).expires == int(NOW + 80_000 + 3_600_000)
    with pytest.raises(KitError, match="is signed already, which holds until"):
        said(roster, "renew", kit, "--hours", "1")
    said(roster, "renew", kit, "--hours", "0")
    said(keys, "issue", kit, "--role", "client", "--name", "b")
    assert now(kit).expires == 0
    assert "holds for ever" in said(keys, "show", kit)


def test_a_key_holder_is_not_revoked_without_a_word(kit: Path) -> None:
    for role in ("holder", "client"):
        said(keys, "issue", kit, "--role", role, "--name", f"a-{role}")
    assert "founded" not in said(roster, "revoke", kit, "a-client")
    assert "a-holder: a run goes on with the others" in said(roster, "revoke", kit, "a-holder")


def test_a_kit_whose_rosters_hold_for_ever(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    said(keys, "init", tmp_path / "kit", "--plan", tmp_path / "plan.toml", "--hours", "0")
    said(keys, "issue", tmp_path / "kit", "--role", "client", "--name", "a")
    assert now(tmp_path / "kit").expires == 0


def test_every_roster_holds_as_long_as_its_kit_was_told(
    tmp_path: Path, kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that follow the first one; a kit of before it said so has its 24 hours."""
    brief = tmp_path / "brief"
    said(keys, "init", brief, "--plan", tmp_path / "plan.toml", "--hours", "0.5")
    assert now(brief).expires == int(NOW) + 1800
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW + 600)
    said(keys, "issue", brief, "--role", "client", "--name", "a")
    assert now(brief).expires == int(NOW) + 2400
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW + 900)
    said(roster, "renew", brief)
    assert now(brief).expires == int(NOW) + 2700
    with pytest.raises(KitError, match="can be made to hold longer alone"):
        said(roster, "renew", brief, "--hours", "0.25")
    (kit / "ca" / "holds.json").unlink()
    said(keys, "issue", kit, "--role", "client", "--name", "a")
    assert now(kit).expires == int(NOW) + 900 + 86_400
    (brief / "ca" / "holds.json").write_text("[]")
    with pytest.raises(KitError, match=r"holds\.json is damaged"):
        said(roster, "renew", brief)


def test_the_holder_of_bfv_is_replaced_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace('"plain"', '"bfv"'))
    plan, kit, own = ("--plan", tmp_path / "plan.toml"), tmp_path / "kit", tmp_path / "own"
    said(keys, "init", kit, *plan)
    said(keys, "issue", kit, "--role", "holder", "--name", "holder-0")
    said(keys, "request", own, "--role", "holder", "--name", "holder-9", *plan)
    asked = own / "requests" / "holder-9.json"
    with pytest.raises(KitError, match="begin a new run, from its last model"):
        said(roster, "replace-holder", kit, "holder-0", asked)
    assert "holder-0" in now(kit)
    assert "holder-9" not in now(kit)
