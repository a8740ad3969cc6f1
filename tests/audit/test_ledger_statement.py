"""A signed statement of a ledger: what all runs spent; no change goes unnoticed."""

import json
from pathlib import Path

import pytest

from secureps.audit.ledger_statement import party_of, read_verified, sign_statement, summarize
from secureps.crypto.identity import Identity
from secureps.errors import ConfigError, DamagedStore, KitError
from secureps.messages.charge import Charge
from secureps.privacy.accountant import epsilon
from secureps.privacy.ledger import OWN_DELTA
from secureps.run.cli import app
from secureps.store.budget import BudgetLedger
from secureps.store.issuing import create_kit, issue
from tests.kits.command import said
from tests.kits.ledgers import charge, expose
from tests.run.test_status import PLAIN

ONE, TWO = bytes([1]) * 32, bytes([2]) * 32
ME = Identity.generate()
FACTS = [(ONE, 0), (ONE, 1), (TWO, 0)]


def fact(version: int) -> Charge:
    return Charge("one", "all", version, 1.1, 0.05, 20)


def filled(path: Path) -> BudgetLedger:
    days = iter(range(100))
    ledger = BudgetLedger(path, updates_per_hour=9, clock=lambda: 1e9 + 86400.0 * next(days))
    for run, version in FACTS:
        charge(ledger, run, fact(version))
    ledger.begin_training(TWO)
    return BudgetLedger(path, clock=lambda: 2e9)


def test_it_says_what_each_run_spent_and_when(tmp_path: Path) -> None:
    told = json.loads(sign_statement(filled(tmp_path / "own.db"), "one", ME))
    assert told["party"] == "one"
    assert told["epsilon"] == round(epsilon([fact(v) for _, v in FACTS], OWN_DELTA), 3)
    assert told["delta"] == OWN_DELTA
    assert told["date"] == "2033-05-18T03:33:20Z"
    assert told["rows"] == 4
    assert [(run["run"], run["updates"]) for run in told["runs"]] == [
        (ONE.hex(), 2),
        (TWO.hex(), 1),
    ]
    assert [(run["first"][:10], run["last"][:10]) for run in told["runs"]] == [
        ("2001-09-09", "2001-09-10"),
        ("2001-09-11", "2001-09-13"),  # a beginning looks at the clock twice
    ]


def test_it_counts_what_left_without_privacy(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "own.db")
    before = json.loads(sign_statement(ledger, "one", ME))
    assert (before["without_privacy"], summarize(before)[-5:]) == (0, " says")
    days = iter(range(10))
    clock = lambda: 1.5e9 + 86400.0 * next(days)  # noqa: E731
    for version in range(2):
        expose(BudgetLedger(ledger.path, clock=clock), b"\3" * 32, [version])
    told = json.loads(sign_statement(ledger, "one", ME))
    assert (told["epsilon"], told["without_privacy"]) == (before["epsilon"], 2)
    assert told["runs"][:2] == before["runs"]
    assert told["runs"][2] == {
        "run": "03" * 32,
        "first": "2017-07-14T02:40:00Z",
        "last": "2017-07-15T02:40:00Z",
        "updates": 2,
        "epsilon": None,
        "without_privacy": 2,
    }
    assert summarize(told).endswith(" says, and at most 2 updates with no privacy")
    expose(BudgetLedger(ledger.path, clock=clock), b"\4" * 32, [0])
    told = json.loads(sign_statement(ledger, "one", ME))
    assert [run["without_privacy"] for run in told["runs"]] == [0, 0, 2, 1]
    assert told["without_privacy"] == 3
    del before["without_privacy"]  # as 0.1.0 wrote it
    assert summarize(before).endswith(" says")


def test_whoever_changes_it_is_found(tmp_path: Path) -> None:
    data = sign_statement(filled(tmp_path / "own.db"), "one", ME)
    assert party_of(data) == "one"
    assert read_verified(data, ME.public)["party"] == "one"
    with pytest.raises(DamagedStore, match="was changed, or somebody else made it"):
        read_verified(data, Identity.generate().public)
    for old, new in ((b'"updates": 2', b'"updates": 1'), (b'"one"', b'"two"'), (b"2033", b"2032")):
        assert old in data
        with pytest.raises(DamagedStore):
            read_verified(data.replace(old, new), ME.public)
    with pytest.raises(DamagedStore, match="not the bytes"):
        read_verified(data.replace(b'{\n "party"', b'{\n "party": "two",\n "party"'), ME.public)
    signature = json.loads(data)["signature"].encode()
    with pytest.raises(DamagedStore, match="not the bytes"):
        read_verified(data.replace(signature, signature.upper()), ME.public)
    for nothing in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000):
        with pytest.raises(DamagedStore):
            party_of(nothing)


def test_the_commands(tmp_path: Path) -> None:
    create_kit(tmp_path / "kit", PLAIN)
    issue(tmp_path / "kit", "client", "one")
    filled(tmp_path / "own.db")
    kit, out = ("--kit", tmp_path / "kit"), tmp_path / "spent.json"
    export = ("budget", "export", tmp_path / "own.db", *kit, "--out", out)
    line = said(app, *export, "--name", "one")
    assert line.startswith(f"wrote {out}: one on ")
    assert out.stat().st_mode & 0o777 == 0o600
    assert said(app, "budget", "verify", out, *kit) == line.removeprefix(f"wrote {out}: ")
    out.write_bytes(out.read_bytes().replace(b'"updates": 2', b'"updates": 1'))
    with pytest.raises(DamagedStore, match=r"spent.json: this statement was changed"):
        said(app, "budget", "verify", out, *kit)
    with pytest.raises(KitError):
        said(app, *export, "--name", "two")
    issue(tmp_path / "kit", "client", "two")
    before = out.read_bytes()
    with pytest.raises(ConfigError, match=r"own.db is the ledger of one, and has no update of two"):
        said(app, *export, "--name", "two")
    assert out.read_bytes() == before
    with pytest.raises(ConfigError, match="no ledger"):
        said(app, "budget", "export", tmp_path / "none.db", *kit, "--out", out, "--name", "one")
