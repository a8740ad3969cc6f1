"""`secureps check --site`: whether a client of a site would take part, key by key."""

import json
from pathlib import Path

import pytest

from secureps.client.site_policy import script_digest
from secureps.messages.charge import Charge, Fact, Release
from secureps.policy.plan import load_plan
from secureps.privacy.ledger import PersonCharge
from secureps.run.check import check_site, is_accepted
from secureps.store.budget import BudgetLedger, epsilon_of
from tests.kits.command import typed
from tests.kits.ledgers import charge, expose
from tests.kits.nursery import ROOT

PLAN = ROOT / "policies" / "digits.toml"
SCRIPT = ROOT / "clients" / "digits_torch.py"

KEPT = f"""minimum = 5
threshold = 3
budget = 8.0
ledger = "own.db"
plans = ["{load_plan(PLAN).digest}"]
scripts = ["{script_digest(SCRIPT)}"]
evaluation = false
records = 500
updates_per_hour = 1
"""


def verdicts(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "site.toml").write_text(text)
    found = check_site(PLAN, tmp_path / "site.toml")
    assert is_accepted(found) == (not any(each.objection for each in found))
    return {each.key: each.objection for each in found}


def test_a_plan_that_keeps_to_every_key_is_accepted(tmp_path: Path) -> None:
    keys = "minimum threshold budget ledger plans scripts evaluation records updates_per_hour"
    assert verdicts(tmp_path, KEPT) == dict.fromkeys(keys.split(), "")
    assert verdicts(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("line", "changed", "told"),
    [
        ("minimum = 5", "minimum = 6", "by the plan 5 members of all may be a cohort"),
        ("threshold = 3", "threshold = 4", "by the plan 3 of 4 key holders open a sum"),
        (f'plans = ["{load_plan(PLAN).digest}"]', f'plans = ["{"0" * 64}"]', "and none of the 1"),
        (f'scripts = ["{script_digest(SCRIPT)}"]', f'scripts = ["{"0" * 64}"]', "and none of the"),
    ],
)
def test_the_key_that_refuses_it_is_named_alone(
    line: str, changed: str, told: str, tmp_path: Path
) -> None:
    assert line in KEPT
    found = verdicts(tmp_path, KEPT.replace(line, changed))
    assert [key for key, objection in found.items() if objection] == [line.partition(" ")[0]]
    assert told in found[line.partition(" ")[0]]


def test_a_ledger_that_is_spent_refuses_it(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "own.db")
    for version in range(3):
        charge(ledger, bytes(32), Charge("a", "all", version, 0.4, 0.9, 20))
    found = verdicts(tmp_path, KEPT)
    assert [key for key, objection in found.items() if objection] == ["ledger"]
    assert "of 8 is spent: nothing more is sealed at this site" in found["ledger"]


def test_a_budget_below_the_first_update_refuses_it(tmp_path: Path) -> None:
    """The client would join, seal nothing, and leave with status 78."""
    found = verdicts(tmp_path, KEPT.replace("budget = 8.0", "budget = 0.5"))
    assert [key for key, objection in found.items() if objection] == ["budget"]
    assert "one update under this plan would bring epsilon to" in found["budget"]


def test_a_ledger_that_has_no_room_for_an_update_refuses_it(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "own.db")
    charge(ledger, bytes(32), Charge("a", "all", 0, 0.9, 0.2, 20))
    spent = epsilon_of([fact for _, fact in ledger.facts()], 1e-5)
    for more, refused in ((0.01, ["ledger"]), (5.0, [])):
        found = verdicts(tmp_path, KEPT.replace("budget = 8.0", f"budget = {spent + more}"))
        assert [key for key, objection in found.items() if objection] == refused


def test_updates_without_privacy_are_said_and_refuse_nothing(tmp_path: Path) -> None:
    expose(BudgetLedger(tmp_path / "own.db"), bytes(32), range(3))
    (tmp_path / "site.toml").write_text(KEPT)
    (found,) = [v for v in check_site(PLAN, tmp_path / "site.toml") if v.key == "ledger"]
    assert found.own == "0.000 of 8 is spent, and at most 3 updates with no privacy"
    assert found.objection == ""


@pytest.mark.parametrize(
    ("unit", "fact"),
    [
        ("client", Release("a", "all", 0, 1.0, 2.0, 50.0, 1, 0.0)),
        ("person", PersonCharge("a", "all", 0, 4.0, 0.2, 20)),
    ],
)
def test_a_ledger_of_another_unit_refuses_it(unit: str, fact: Fact, tmp_path: Path) -> None:
    charge(BudgetLedger(tmp_path / "own.db"), bytes(32), fact)
    found = verdicts(tmp_path, KEPT)
    assert found["ledger"].startswith(f"it counts by {unit}, and the plan by record: no epsilon")


def test_a_plan_for_persons_is_judged_by_a_ledger_of_persons(tmp_path: Path) -> None:
    charge(BudgetLedger(tmp_path / "own.db"), bytes(32), PersonCharge("a", "all", 0, 4.0, 0.2, 20))
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.read_text().replace("[privacy]  ", '[privacy]\nunit = "person"\n#'))
    for budget, refused in (("8.0", list[str]()), ("0.5", ["budget", "ledger"])):
        (tmp_path / "site.toml").write_text(f'ledger = "own.db"\nbudget = {budget}\n')
        found = check_site(plan, tmp_path / "site.toml")
        assert [each.key for each in found if each.objection] == refused
    (tmp_path / "own.db").unlink()
    (tmp_path / "own.db.height").unlink()
    charge(BudgetLedger(tmp_path / "own.db"), bytes(32), Charge("a", "all", 0, 4.0, 0.2, 20))
    (verdict,) = [v for v in check_site(plan, tmp_path / "site.toml") if v.key == "ledger"]
    assert verdict.objection.startswith("it counts by record, and the plan by person: no epsilon")


def test_the_command_says_it_and_ends_with_its_status(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("minimum = 6")
    told = json.loads(typed("check", PLAN, "--site", site, "--json", status=1).out)
    assert told["digest"] == load_plan(PLAN).digest
    assert told["site"]["accepted"] is False
    (verdict,) = told["site"]["verdicts"]
    assert (verdict["key"], verdict["own"], verdict["plans"]) == ("minimum", "6", "5")


def test_a_script_that_is_not_allowed_is_not_run(tmp_path: Path) -> None:
    script, site = tmp_path / "script.py", tmp_path / "site.toml"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef make(settings): ...\n")
    site.write_text(f'scripts = ["{"0" * 64}"]')
    plan = PLAN.read_text().replace("../clients/digits_torch.py", "script.py")
    (tmp_path / "plan.toml").write_text(plan)
    said = " ".join(typed("check", tmp_path / "plan.toml", "--site", site, status=1).out.split())
    assert "nothing of it was run" in said
    assert said.endswith("a client of this site refuses a run of this plan")
    assert not (tmp_path / "ran").exists()
