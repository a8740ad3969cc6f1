"""The commands of a run's processes."""

from __future__ import annotations

from pathlib import Path

from secureps.policy.plan import load_plan
from secureps.run.up.folder import Cast, RunFolder
from secureps.run.up.programs import Order, Programs
from tests.kits.nursery import ROOT

PLAN = """
name = "sites"
versions = 2
group = [{{ rule = {{ quorum = 5 }} }}]
[federation]
script = "{script}"
clients = 5
"""


def test_all_data_holders_have_the_policy_that_the_plan_names(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(script=ROOT / "clients" / "breast_cancer.py"))
    plan = load_plan(path)
    federation = plan.section.federation
    assert federation is not None

    def words(site: str | None) -> tuple[str, ...]:
        own = federation.model_copy(update={"site": site})
        order = Order(path, None, None, {})
        programs = Programs(order, RunFolder(tmp_path / "run"), plan, own, Cast.of(plan, 5))
        return programs._client("client-00", "x", 0).arguments

    given = words("own/site.toml")
    assert given[given.index("--site") + 1] == str(tmp_path / "own" / "site.toml")
    assert "--site" not in words(None)
