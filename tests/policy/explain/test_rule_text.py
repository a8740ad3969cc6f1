"""`secureps check` describes rules, row-blocks and scaling by the plan's numbers."""

from collections import Counter
from typing import Any

import pytest

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.policy.explain.explanation import (
    RuleText,
    row_block_words,
    rule_words,
    touched_by_few,
)
from secureps.policy.explain.explanation import _scaling_words as scaling_words
from secureps.policy.explain.visibility import sights
from secureps.policy.plan import Plan, load_plan
from secureps.run.check import check, tables
from secureps.run.report.status_tables import WordTable
from tests.kits.federations import small_plan
from tests.kits.nursery import ROOT
from tests.kits.privacy_kit import PRIVACY as CLIENT
from tests.kits.roles_kit import PRIVACY as RECORD
from tests.kits.shoppers import BUFFERED, TASTES, sparse_plan

POLICIES = ROOT / "policies"


def words(rule: dict[str, Any], cipher: str = "rlwe", **changes: Any) -> RuleText:
    group = {"rule": rule} | changes.pop("group", {})
    body = {"name": "demo", "versions": 12, "group": [group]} | changes
    body["cipher"] = {"name": cipher, "capacity": 40}
    (found,) = rule_words(Plan(parse(PlanSection, body, "test")))
    return found


@pytest.mark.parametrize(
    ("rule", "said", "behind"),
    [
        (
            {"name": "sync", "quorum": 6, "start": 8, "most": 9},
            "rounds of up to 9 members, once 8 are live; one closes when all have sent, or after "
            "60 s with 6",
            "none: all train from the newest",
        ),
        (
            {"name": "ssp", "slack": 3},
            "nobody runs more than 3 updates ahead of the slowest live member",
            "up to 7 versions",
        ),
        (
            {"name": "buffered", "buffer": 8, "deadline": 9, "max_staleness": 2},
            "a version of the first 8 updates, whoever sends them; after 9 s 5 suffice",
            "up to 2 versions",
        ),
        (
            {"name": "priority", "buffer": 8, "ageing": 7},
            "the best 8 of 16 waiting updates by freshness; 7 s of waiting",
            "up to 10 versions",
        ),
        (
            {"name": "my.rules:Mine", "most": 9, "max_staleness": 4},
            "my.rules:Mine decides, code that the coordinator alone imports, about cohorts of 5 "
            "to 9",
            "up to 4 versions",
        ),
    ],
)
def test_a_rule_in_words(rule: dict[str, Any], said: str, behind: str) -> None:
    found = words(rule)
    assert said in found.rule
    assert found.behind == behind
    assert found.charged == "nothing: nothing is private"


def test_every_update_is_a_version_in_the_clear() -> None:
    assert words({"name": "async"}, "plain").rule == "every update is a version"


def test_weights_and_what_they_take_of_the_capacity() -> None:
    fedbuff = {"name": "buffered", "buffer": 10}
    alike = {"weighting": "uniform"}
    flat = words(fedbuff | {"power": 0}, group=alike)
    assert flat.weights == "all 1; 10 of the capacity of 40"
    faded = words(fedbuff, group=alike).weights
    assert faded == "1 to 4, less for what is stale; 40 of the capacity of 40"
    small = words(fedbuff | {"buffer": 5}).weights
    assert small.startswith(
        "1 to 4, less for what is stale; 20 of the capacity of 40; cohorts of 5"
    )
    assert "must weigh alike" in small
    private = CLIENT | {"placement": "aggregator"}
    noisy = words(fedbuff | {"power": 0}, privacy=private, group={"weighting": "uniform"})
    assert "10 and 1 of the shards' noise of the capacity of 40" in noisy.weights


def test_what_members_count_by_besides_the_rules_weight() -> None:
    rule = {"name": "sync", "quorum": 6}
    told = {None: "", 32: "; besides, each counts by its number of records, which is public then"}
    for most, more in told.items():
        found = words(rule, group={} if most is None else {"most_examples": most}).weights
        assert found == f"all 1; 40 of the capacity of 40{more}"
    private = words(rule, privacy=RECORD, training={"local_steps": 1}).weights
    assert private.endswith("; besides, each counts by a public number, its own or privacy.records")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"name": "sync", "quorum": 6}, "its steps for each of up to 12 updates, summed or not"),
        ({"name": "ssp", "slack": 3}, "up to 15 updates, 3 of them ahead of the others, summed"),
        ({"name": "my.rules:Mine"}, "its steps for every update that the rule asks of it, until"),
    ],
)
def test_what_a_client_is_charged(rule: dict[str, Any], said: str) -> None:
    found = words(rule, privacy=RECORD, training={"local_steps": 1})
    assert said in found.charged
    if "my" not in rule["name"]:
        assert found.charged.endswith("that only some of all clients are summed makes none cheaper")


def test_what_is_seen_of_a_client() -> None:
    assert words({"name": "sync", "quorum": 6}).seen == "how long it takes for each update"
    largest = {"name": "priority", "buffer": 8, "score": "magnitude"}
    assert words(largest).seen == (
        "how large each update is, in 16 classes of half an octave; how long it takes for each "
        "update"
    )
    rows = words({"name": "sync", "quorum": 6}, group={"sparse": {"rows": 100, "block": 30}})
    assert rows.seen == (
        "which of 4 row-blocks of 30 rows it touches, and the shards see it too; how long it takes "
        "for each update"
    )


def test_who_sees_the_access_pattern() -> None:
    sparse, dense = (load_plan(POLICIES / f"{name}.toml") for name in ("ctr", "digits"))
    seeing = {s.role for s in sights(sparse) if "who touches which row-blocks" in s.sees}
    assert seeing == {"coordinator", "shard", "key holder, each of 4"}
    assert not any("row-blocks" in sight.sees for sight in sights(dense))


@pytest.mark.slow
def test_many_row_blocks_fit_a_page() -> None:
    explanation = check(POLICIES.parent / "simulations" / "ctr.toml")
    assert [rule.group for rule in explanation.rules] == ["embedding", "tower"]
    assert len(explanation.groups) > 4
    found = {table.heading: table for table in tables(explanation) if isinstance(table, WordTable)}
    last = explanation.groups[-2].name
    heads = ("group", f"embedding.0 to {last}, each", "tower")
    assert found["what it costs"].heads == heads
    about_blocks = [remark for remark in explanation.remarks if "embedding." in remark]
    assert all("embedding.0" in remark for remark in about_blocks)


def test_row_blocks_that_too_few_touch_are_counted() -> None:
    plan = sparse_plan("plain", BUFFERED)
    touching = Counter(f"table.{block}" for tastes in TASTES for block in tastes)
    few = touched_by_few(plan, touching)
    assert few == {"table.3"}
    (said,) = row_block_words(plan, few)
    assert said.startswith("1 of 4 row-blocks of table are touched by fewer than 3 clients")
    del touching["table.1"]
    assert touched_by_few(plan, touching) == {"table.1", "table.3"}, "none touches it"


@pytest.mark.parametrize(
    ("scaling", "blocks", "said"),
    [
        (None, 1, []),
        ({}, 8, ["scaling by fixed, at most once in 60 s: row-blocks move"]),
        (
            {"policy": "fitted", "every": 5.0, "most_shards": 4, "least_deadline": 0.5},
            8,
            ["in 5 s: 1 to 4 shards, deadlines of 0.5 to 1 times, row-blocks move"],
        ),
        (
            {"policy": "rule", "least_buffer": 0.25},
            8,
            ["once in 60 s: 1 to 2 shards, buffers of 0.25 to 1 times, row-blocks move"],
        ),
        ({"policy": "rule", "most_shards": 4}, 3, ["scaling by rule", "3 blocks"]),
        ({"policy": "rule", "most_shards": 4}, 1, ["scaling by rule", "no more than 1 shard can"]),
    ],
)
def test_what_may_follow_the_load_is_said(
    scaling: dict[str, Any] | None, blocks: int, said: list[str]
) -> None:
    found = scaling_words(small_plan(scaling=scaling).section, blocks)
    assert all(text in words for text, words in zip(said, found, strict=True))
