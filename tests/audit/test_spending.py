"""Epsilon of an audit log: each client's own facts, once each, at the plan's delta."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from secureps.audit.entries import Entry, Spent, epsilons
from secureps.errors import DamagedStore
from secureps.messages.encoding import to_plain
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import Fact, fact, spent
from tests.kits.audited import PLAN
from tests.kits.roles_kit import make_plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return load_plan(path)


def facts(plan: Plan, client: str, *versions: int) -> list[Fact]:
    found = [fact(plan, client, "all", 77, version) for version in versions]
    return [each for each in found if each is not None]


def entry(row: int, spent: Fact) -> Entry:
    return Entry(row, b"", 0.0, None, "privacy spent", {"release": to_plain(spent)})


def test_each_client_by_its_own_facts_and_none_twice(plan: Plan) -> None:
    made = {"a": facts(plan, "a", 0), "b": facts(plan, "b", 0, 1), "c": facts(plan, "c", 2, 5)}
    rows = [each for name in "bac" for each in made[name]] + made["b"]
    found = epsilons(plan, [entry(row, each) for row, each in enumerate(rows)])
    assert found is not None
    assert found == tuple(Spent(name, round(spent(plan, made[name]), 3)) for name in "abc")
    assert found[0].epsilon != found[1].epsilon == found[2].epsilon


def test_without_privacy_there_is_none(plan: Plan) -> None:
    assert epsilons(make_plan(), []) is None
    assert epsilons(plan, []) == ()


def test_a_log_of_0_2_0_counts_every_update_of_a_version(plan: Plan) -> None:
    """It said `attempt` where a log says `step` now."""
    (one,) = facts(plan, "a", 0)
    rows = [entry(row, one) for row in range(3)]
    for attempt, each in enumerate(rows):
        told = each.facts["release"]
        assert isinstance(told, dict)
        del told["step"]
        told["attempt"] = attempt
    steps = [replace(one, step=step) for step in range(3)]
    assert epsilons(plan, rows) == (Spent("a", round(spent(plan, steps), 3)),)
    both = entry(4, one)
    both.facts["release"] = {**to_plain(one), "attempt": 1}
    with pytest.raises(DamagedStore, match="row 4, privacy spent: Release: expected exactly"):
        epsilons(plan, [both])


def test_facts_that_cannot_be(plan: Plan) -> None:
    (one,) = facts(plan, "a", 0)
    bad = entry(7, one)
    bad.facts["release"] = {"party": "a"}
    with pytest.raises(DamagedStore, match="row 7, privacy spent: Release: expected exactly"):
        epsilons(plan, [bad])
    other = Entry(8, b"", 0.0, None, "privacy spent", {"release": to_plain(one) | {"l2": -1.0}})
    with pytest.raises(DamagedStore, match="row 8, privacy spent: "):
        epsilons(plan, [other])
