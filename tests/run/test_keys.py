"""`secureps keys` and `secureps roster`, through their own command lines."""

from functools import partial
from pathlib import Path

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, KitError
from secureps.run.cli import keys, roster
from secureps.store.keyring import load_holder_secret, load_private, load_public
from tests.kits.command import invoked, said
from tests.kits.party_kits import give

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


run = partial(said, keys)


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


def test_everybody_makes_its_own_keys(tmp_path: Path) -> None:
    plan, issuer = tmp_path / "plan.toml", tmp_path / "issuer"
    plan.write_text(PLAN.replace('"bfv"', '"rlwe"'))
    run("init", issuer, "--plan", plan)
    asked = {
        name: run("request", tmp_path / name, "--role", role, "--name", name, "--plan", plan)
        for role, name in (("keyholder", "keys-0"), ("client", "hospital-1"))
    }
    files = [tmp_path / name / "requests" / f"{name}.json" for name in asked]
    told = [said.split("fingerprint ")[1].split()[0] for said in asked.values()]
    assert all(str(file) in said for file, said in zip(files, asked.values()))
    given = [word for each in told for word in ("--fingerprint", each.upper())]
    with pytest.raises(KitError, match="which nobody told you"):
        run("approve", issuer, *files, *given[:2])
    with pytest.raises(ConfigError, match="a request's fingerprint has 64 hexadecimal digits"):
        run("approve", issuer, *files, "--fingerprint", "12")
    assert not load_public(issuer).roster.certificates
    said = run("approve", issuer, *files, *given)
    assert f"holder keys-0: approved; fingerprint {told[0]}" in said
    assert "client hospital-1: has these keys already" in run("approve", issuer, files[1])
    for name in asked:
        give(issuer, tmp_path / name)
        assert load_private(tmp_path / name, name)
    assert isinstance(load_holder_secret(tmp_path / "keys-0", "keys-0"), EnvelopeKey)


def test_a_site_has_its_key_holders_keys_made_with_its_own(tmp_path: Path) -> None:
    plan, issuer, own = tmp_path / "plan.toml", tmp_path / "issuer", tmp_path / "own"
    plan.write_text(PLAN.replace('"bfv"', '"rlwe"'))
    run("init", issuer, "--plan", plan)
    words = ("--role", "client", "--name", "hospital-1", "--hold")
    with pytest.raises(ConfigError, match="made for the plan's cipher: add --plan FILE"):
        run("request", own, *words)
    asked = run("request", own, *words, "--plan", plan)
    told = [line.split()[1] for line in asked.splitlines() if line.startswith("fingerprint ")]
    names = ("hospital-1", "hospital-1-holder")
    files = [own / "requests" / f"{name}.json" for name in names]
    run("approve", issuer, *files, *(w for each in told for w in ("--fingerprint", each)))
    give(issuer, own)
    assert load_private(own, names[0])
    assert isinstance(load_holder_secret(own, names[1]), EnvelopeKey)
    issued = run("issue", issuer, "--role", "client", "--name", "hospital-2", "--hold")
    assert str(issuer / "private" / "hospital-2-holder") in issued
    assert load_public(issuer).roster.names("holder") == {names[1], "hospital-2-holder"}
    with pytest.raises(ConfigError, match="beside which a key holder runs, not a shard"):
        run("issue", issuer, "--role", "shard", "--name", "shard-0", "--hold")


def test_mistakes(tmp_path: Path) -> None:
    done = invoked(keys, "issue", tmp_path, "--role", "boss", "--name", "a")
    assert done.exit_code == 2
    with pytest.raises(KitError, match="is no start-up kit"):
        run("show", tmp_path)


NOW = 1_800_000_000.25


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW)
    (tmp_path / "plan.toml").write_text(PLAN.replace('"bfv"', '"plain"'))
    said(keys, "init", tmp_path / "kit", "--plan", tmp_path / "plan.toml")
    return tmp_path / "kit"


def now(kit: Path) -> Roster:
    return load_public(kit).roster


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


@pytest.mark.usefixtures("kit")
def test_every_roster_holds_as_long_as_its_kit_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that follow the first one."""
    brief = tmp_path / "brief"
    said(keys, "init", brief, "--plan", tmp_path / "plan.toml", "--hours", "0.5")
    assert now(brief).expires == int(NOW) + 1800
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW + 600)
    said(keys, "issue", brief, "--role", "client", "--name", "a")
    assert now(brief).expires == int(NOW) + 2400
    monkeypatch.setattr("secureps.store.issuing.time.time", lambda: NOW + 900)
    said(roster, "renew", brief)
    assert now(brief).expires == int(NOW) + 2700
    with pytest.raises(KitError, match="a new one can only hold for longer"):
        said(roster, "renew", brief, "--hours", "0.25")
    (brief / "ca" / "holds.json").write_text("[]")
    with pytest.raises(KitError, match=r"holds\.json is damaged"):
        said(roster, "renew", brief)


def test_the_holder_of_bfv_is_replaced_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    plan, kit, own = ("--plan", tmp_path / "plan.toml"), tmp_path / "kit", tmp_path / "own"
    said(keys, "init", kit, *plan)
    said(keys, "issue", kit, "--role", "holder", "--name", "holder-0")
    said(keys, "request", own, "--role", "holder", "--name", "holder-9", *plan)
    asked = own / "requests" / "holder-9.json"
    with pytest.raises(KitError, match="begin a new run, from its last model"):
        said(roster, "replace-holder", kit, "holder-0", asked)
    assert "holder-0" in now(kit)
    assert "holder-9" not in now(kit)
