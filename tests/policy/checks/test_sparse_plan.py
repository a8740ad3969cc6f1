"""Which sparse plans are refused, and how a trainer declares the rows that it touches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.initial_model import schema_of
from secureps.client.trainer import read_touched_rows
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.suite import cipher
from secureps.errors import Malformed, PlanRefused, ScriptFailed, WrongShape
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.explain.explanation import committee_cost
from secureps.policy.plan import Plan
from tests.kits.shoppers import BLOCK, BUFFERED, ROWS, SYNC, WIDTH, Shopper, shopping, sparse_plan

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
