"""Plans are refused, with a remedy, whose codec, committee, shards or sparse groups do not fit."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.initial_model import schema_of
from secureps.client.trainer import read_touched_rows
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.envelope import OVERHEAD
from secureps.crypto.sharing import Committee
from secureps.crypto.suite import cipher
from secureps.errors import ConfigError, Malformed, Oversized, PlanRefused, ScriptFailed, WrongShape
from secureps.messages.charge import Release
from secureps.messages.envelope_keys import MOST_KEYS
from secureps.messages.orders import MESSAGE_LIMIT, Open
from secureps.messages.run import Schema, TensorSpec
from secureps.messages.submission import UPDATE, Cohort, Member, Receipt, SubmissionId
from secureps.policy.explain.explanation import committee_cost
from secureps.policy.plan import Plan, order_bytes
from secureps.wire.msgpack import encode
from tests.kits.committee_plans import committee_plan
from tests.kits.federations import small_plan
from tests.kits.privacy_kit import PRIVACY
from tests.kits.shoppers import BLOCK, BUFFERED, ROWS, SYNC, WIDTH, Shopper, shopping, sparse_plan

RULE = {"quorum": 6, "minimum": 3}
STREAM = {"name": "buffered", "buffer": 3, "minimum": 3, "power": 0.0}
SSP = {"name": "ssp", "slack": 1, "minimum": 3}
SUPPORT = {"name": "support", "one_in": 4}
FOLLOWS = {"name": "round", "length": "mean_norm"}


def refused(group: dict[str, Any], **more: Any) -> str:
    with pytest.raises((PlanRefused, ConfigError)) as caught:
        small_plan(**({"group": [{"rule": RULE} | group]} | more))
    return str(caught.value)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"codec": ["rotate", SUPPORT]}, "stages go in the order support, rotate"),
        ({"codec": [SUPPORT, SUPPORT]}, "support is there 2 times"),
        ({"codec": ["rotat"]}, "did you mean rotate? known are support"),
        ({"codec": ["support"]}, "one_in"),
        ({"codec": [{"name": "support", "one_in": 1}]}, "one_in"),
        ({"codec": [SUPPORT | {"every": 3}]}, "every: this key is gone"),
        ({"codec": [SUPPORT], "rule": SSP}, 'take rule "sync" or "buffered"'),
        ({"codec": ["round"], "clip": 1.0}, "add rotate before it"),
        ({"codec": ["rotate", "round"]}, "state clip, about as long as updates are"),
        ({"codec": ["rotate", "round"], "clip": 1.0, "range": 1.0}, "remove one"),
        ({"codec": ["rotate", FOLLOWS], "clip": 1.0, "rule": STREAM}, "of the whole group"),
        ({"codec": ["rotate", FOLLOWS]}, "state clip, about as long as updates are"),
        ({"feedback": True, "rule": STREAM}, "before it knows what became of the last one"),
    ],
)
def test_what_does_not_add_up(group: dict[str, Any], reason: str) -> None:
    assert reason in refused(group)


def test_feedback_is_for_clients_that_take_part_again() -> None:
    assert "would never be sent" in refused({"feedback": True}, versions=1)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"codec": ["rotate", "round"], "clip": 1.0}, "follows from clip, bits and noise"),
        ({"codec": ["rotate", FOLLOWS], "clip": 1.0}, "follows from clip, bits and noise"),
        ({"codec": ["rotate"], "adaptive": {}}, "must be sent as it is"),
        ({"feedback": True, "adaptive": {}}, "a clip that has moved since"),
    ],
)
def test_what_client_level_privacy_does_not_go_with(group: dict[str, Any], reason: str) -> None:
    own = {"weighting": "uniform"} | group
    assert reason in refused(own, privacy=PRIVACY | {"placement": "local"})


def test_what_adds_up_is_taken_and_changes_the_run_only_if_it_is_there() -> None:
    plain = small_plan()
    assert '"codec"' not in plain.text
    assert '"feedback"' not in plain.text
    thin = {"codec": [SUPPORT, "rotate", "round"], "clip": 1.0}
    plan = small_plan(group=[{"rule": RULE, "feedback": True} | thin])
    assert type(plan).from_text(plan.text).section == plan.section
    assert plan.grid("all", 100).range == 3 * (1 / 20)  # of one in 4 of 400 values
    streamed = small_plan(group=[{"rule": STREAM, "clip": 1.0, "codec": ["rotate", "round"]}])
    assert streamed.chain("all").rotates


MOST = (1 << 63) - 1
DIGEST = b"\1" * 32


def longest(committee: Committee, members: int, group: str) -> Open:
    """Builds an order in which every name and number is as long as possible."""
    holders, client = len(committee.holders), "c" * 63
    id = SubmissionId(client, group, MOST)
    receipt = Receipt(
        run=DIGEST,
        id=id,
        purpose=UPDATE,
        version=MOST,
        base=DIGEST,
        blocks=(),
        root=DIGEST,
        envelopes=(bytes(committee.seed_bytes + OVERHEAD),) * holders,
        commitments=(DIGEST,) * len(committee.subsets),
        size=MOST,
        charge=None,
        release=Release(client, group, MOST, 0.1, 0.1, 0.1, MOST, 0.1, MOST),
        unsafe=True,
        step=MOST,
        magnitude=15,
        update=bytes(16),
        beside=DIGEST,
        examples=MOST,
        keys=(MOST_KEYS - 1,) * holders,
        committee=DIGEST,
        signature=bytes(64),
    )
    member = Member(id, MOST, MOST, MOST, bytes(16))
    cohort = Cohort(group, MOST, MOST, MOST, (member,) * members, 0.1, DIGEST)
    return Open(MOST, cohort, (receipt,) * members, ())


@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (3, 2), (4, 3), (7, 5), (11, 6)])
def test_no_order_is_longer_than_is_counted(holders: int, threshold: int) -> None:
    committee = committee_plan(holders, threshold).unnamed_committee
    for members, group in product((1, 20), ("a", "all", "g" * 63)):
        own = len(encode(longest(committee, members, group)))
        assert own <= order_bytes(committee, members, group) < 1.01 * own + 200


def plan(most: int, holders: int = 4, threshold: int = 3) -> Plan:
    return committee_plan(holders, threshold, capacity=4096, most=most)


def test_a_plan_is_refused_whose_cohorts_are_told_in_no_message() -> None:
    with pytest.raises(PlanRefused) as caught:
        plan(4096)
    told = str(caught.value)
    assert "cohorts of all have up to 4096 members, whose envelopes for 4 key holders" in told
    found = re.search(r"let the rule take at most (\d+) \(most, buffer, or cipher.capacity\)", told)
    assert found is not None
    fit = int(found[1])
    assert 3100 < fit < 3200
    committee = plan(fit).unnamed_committee
    with pytest.raises(PlanRefused, match=f"up to {fit + 1} members"):
        plan(fit + 1)
    assert len(encode(longest(committee, fit, "all"))) <= MESSAGE_LIMIT
    with pytest.raises(Oversized):
        encode(longest(committee, fit + 30, "all"))
    assert plan(4096, 1, 1).unnamed_committee.threshold == 1


def test_no_more_copies_than_shards() -> None:
    assert small_plan(shards=3, replicas=3).section.replicas == 3
    with pytest.raises(PlanRefused, match="raise shards to 3 or lower replicas"):
        small_plan(replicas=3)


def test_one_copy_is_no_part_of_the_text() -> None:
    assert small_plan(replicas=1).text == small_plan().text
    assert small_plan(replicas=2).text != small_plan().text


@pytest.mark.parametrize(
    ("scaling", "changes", "text"),
    [
        ({"most_shards": 1}, {}, "begins with shards = 2, and they are to be 1 to 1: lower it"),
        ({"least_shards": 3, "most_shards": 4}, {}, "to be 3 to 4: raise it, or lower scaling.l"),
        ({}, {"replicas": 2}, "least_shards = 1: every block lies on 2 shards"),
    ],
)
def test_what_cannot_be_is_refused(
    scaling: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(PlanRefused, match=text):
        small_plan(scaling=scaling, **changes)


def test_the_most_shards_are_the_plan_s_where_nobody_says() -> None:
    assert small_plan().section.most_shards == 2
    assert small_plan(scaling={}).section.most_shards == 2
    assert small_plan(scaling={"most_shards": 5}).section.most_shards == 5


SCHEMA = schema_of(Shopper(0, [0]).parameters(1))


def narrow(width: int) -> Schema:
    table = TensorSpec("table", (ROWS, width), "float32")
    return Schema((table, TensorSpec("tower", (40,), "float32")))


def test_a_row_block_is_no_smaller_than_its_envelopes() -> None:
    plan = sparse_plan("rlwe", BUFFERED)
    own = committee_cost(plan, plan.layout(SCHEMA).groups)
    assert own is not None
    element = cipher(plan.cipher_parameters).adder().block_bytes(1)
    values = own.degree * own.digits
    enough = -(-own.submission * values // element)  # values of as many bytes as the envelopes
    wide = -(-enough // BLOCK)
    plan.layout(narrow(wide))
    with pytest.raises(PlanRefused, match=rf"envelopes for the key holders take {own.submission}"):
        plan.layout(narrow(wide - 1))
    with pytest.raises(PlanRefused, match=r"sparse.block = 4: .* make it 5 rows or more"):
        plan.layout(narrow(wide - 1))
    sparse_plan("plain", BUFFERED).layout(narrow(1))


def test_the_last_row_block_may_have_what_is_left() -> None:
    plan = sparse_plan("rlwe", BUFFERED)
    group = plan.section.group[0].model_dump() | {"sparse": {"rows": ROWS, "block": 5}}
    data = plan.section.model_dump() | {"group": [group, plan.section.group[1].model_dump()]}
    cut = Plan(parse(PlanSection, data, "test")).layout(SCHEMA)
    assert [g.size for g in cut.groups] == [5 * WIDTH] * 3 + [WIDTH, 40]


def test_row_blocks_are_not_evaluated_together() -> None:
    with pytest.raises(PlanRefused, match="row-blocks of group table do not wait for each other"):
        sparse_plan("plain", SYNC, evaluation={"every": 1, "metrics": {"loss": 4.0}})


@pytest.mark.parametrize(
    ("told", "kind", "says"),
    [
        ([1, 2], WrongShape, "it is a list, and must map"),
        ({"table": [[1]]}, WrongShape, "rows of table are not a vector of integers"),
        ({"table": [0.5]}, WrongShape, "rows of table are not a vector of integers"),
        ({"tabel": [1]}, Malformed, "no tensor 'tabel'"),
        ({"table": [3, ROWS]}, Malformed, f"rows 0 to {ROWS - 1}, and no row {ROWS}"),
        ({"table": [-1, 2]}, Malformed, f"rows 0 to {ROWS - 1}, and no row -1"),
    ],
)
def test_what_no_trainer_touches(
    told: Any, kind: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shopper = Shopper(0, [0])
    monkeypatch.setattr(shopper, "touches", lambda: told)
    with pytest.raises(kind, match=says):
        read_touched_rows(shopper, SCHEMA)
    monkeypatch.setattr(Shopper, "touches", lambda self: told)
    with pytest.raises(ScriptFailed, match=r"touches: .*nothing was sent: mend the script"):
        shopping(sparse_plan("plain", BUFFERED), tmp_path)


def test_rows_become_row_blocks_and_silence_all_of_them() -> None:
    plan = sparse_plan("plain", BUFFERED)
    assert read_touched_rows(Shopper(1, [0, 2]), SCHEMA) == {"table": [1, 11]}
    assert plan.find_touched({"table": [1, 3, 11]}) == ("table.0", "table.2", "tower")
    assert plan.find_touched({"table": []}) == ("tower",)
    assert plan.find_touched({}) == ("table.0", "table.1", "table.2", "table.3", "tower")
    with pytest.raises(Malformed, match=f"no row {ROWS}"):
        plan.find_touched({"table": [ROWS]})


def test_a_client_that_touches_nothing_at_all_cannot_take_part() -> None:
    data = sparse_plan("plain", BUFFERED).section.model_dump()
    table = data["group"][0]
    plan = Plan(parse(PlanSection, data | {"group": [table]}, "test"))
    with pytest.raises(Malformed, match="this client has nothing to train"):
        plan.find_touched({"table": np.array([], np.int64).tolist()})
