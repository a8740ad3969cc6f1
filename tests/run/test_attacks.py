"""`secureps audit`: a page of what attacks show beside what a plan claims."""

import json
from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.policy.plan import load_plan
from secureps.run.attacks import audit
from tests.kits.canary_plans import halve_noise
from tests.kits.command import typed
from tests.kits.nursery import ROOT

RULE = 'rule = { name = "sync", quorum = 5, minimum = 5 }\n'
PLAN = f"""
name = "clinics"
versions = 2
[cipher]
name = "plain"
capacity = 8
[[group]]
clip = 0.5
bits = 16
weighting = "uniform"
{RULE}[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 0.1
budget = 10.0
[training]
lr = 0.1
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def test_a_page_has_claims_bounds_and_power_and_a_sound_plan_is_not_refuted(plan: Path) -> None:
    told = typed("audit", plan, "--seconds", "2", "--values", "40", "--seed", "3")
    page = json.loads(Path("runs/plan-audit/audit.json").read_text())
    assert (page["violated"], page["seed"], page["accuracy"]) == (False, 3, None)
    assert page["digest"] == load_plan(plan).digest
    (row,) = page["releases"]
    assert 0 <= row["shown"] < row["claimed"] < row["most"]
    assert row["ratio"] == row["shown"] / row["claimed"]
    assert row["bounds"].keys() == row["trials"].keys() == {"alone", "many at once"}
    assert row["shown"] == max(row["bounds"].values())
    assert page["noise_to_signal"]["all"] > 0
    assert Path("runs/plan-audit/audit.png").read_bytes().startswith(b"\x89PNG")
    for line in page["verdict"]:
        assert " ".join(line.split()) in " ".join(told.out.split())
    assert typed("audit", plan, "--seconds", "0", status=1).err.count("is not empty") == 1


def test_a_violation_ends_with_status_1_and_says_so(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halve_noise(monkeypatch, by=8)
    told = typed("audit", plan, "--seconds", "2", "--json", "--out", "found", status=1)
    page = json.loads(told.out)
    assert page["violated"]
    assert page["verdict"][0].startswith("VIOLATED: a sum of")
    assert page["releases"][0]["shown"] > page["releases"][0]["claimed"]


def test_both_deltas_are_tried_where_the_plans_is_small(plan: Path) -> None:
    plan.write_text(PLAN.replace("delta = 0.1", "delta = 1e-5"))
    page = audit(plan, None, None, 0.1, 0)
    assert [row["delta"] for row in page["releases"]] == [1e-5, 0.01]
    claimed = [row["claimed"] for row in page["releases"]]
    assert claimed[0] > claimed[1] > 0
    assert page["verdict"][1].startswith("Half the noise would not have shown in a sum of")


def test_a_plan_without_privacy_claims_nothing(plan: Path) -> None:
    plan.write_text(PLAN.partition("[privacy]")[0])
    with pytest.raises(ConfigError, match=r"has no \[privacy\], so it claims no epsilon"):
        audit(plan, None, None, 0.0, 0)


def test_a_script_gives_the_models_size_and_an_update_to_compare_with(plan: Path) -> None:
    """Also where the plan names none."""
    page = audit(plan, ROOT / "clients" / "digits_torch.py", None, 0.0, 0)
    assert page["noise_to_signal"]["all"] > 1
    assert page["signal"]["all"].startswith("an update that was tried")
