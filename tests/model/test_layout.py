"""The same model always falls into the same groups and blocks, and comes back unchanged."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.config.plan import AdaptiveSection, GroupSection, PlanSection, SparseSection
from secureps.errors import Malformed, NotFinite, PlanRefused, WrongShape
from secureps.messages.run import Schema, TensorSpec
from secureps.model.layout import MOST_SLOTS, GroupLayout, Layout

SCHEMA = Schema(
    (
        TensorSpec("embedding.weight", (5, 3), "float32"),
        TensorSpec("body.weight", (4, 2), "float64"),
        TensorSpec("norm.running", (), "int64"),
        TensorSpec("body.mask", (3,), "bool"),
        TensorSpec("body.half", (2,), "float16"),
        TensorSpec("head.weight", (2,), "float32"),
    )
)
GROUPS = [("words", "embedding.*"), ("rest", "*")]


def laid_out(
    schema: Schema,
    groups: Sequence[tuple[str, str]],
    block_size: int | None,
    local: Sequence[str] = (),
    scaled: Collection[str] = (),
    metrics: Sequence[str] = (),
    sparse: Mapping[str, SparseSection] | None = None,
    frozen: Sequence[str] = (),
    shards: int = 1,
    element: int = 1,
) -> Layout:
    sections = tuple(
        GroupSection.model_construct(
            name=name,
            pattern=pattern,
            adaptive=AdaptiveSection() if name in scaled else None,
            sparse=(sparse or {}).get(name),
        )
        for name, pattern in groups
    )
    specs = tuple(TensorSpec(name, (), "float32") for name in metrics)
    trailing = GroupLayout("metrics", specs, len(specs), len(specs)) if specs else None
    plan = PlanSection.model_construct(
        group=sections,
        block_size=block_size,
        shards=shards,
        local=tuple(local),
        frozen=tuple(frozen),
    )
    return Layout.build(schema, plan, lambda _: element, trailing)


def build(**changes: Any) -> Layout:
    arguments: dict[str, Any] = {
        "schema": SCHEMA,
        "groups": GROUPS,
        "block_size": 4,
        "local": ["head.*"],
    }
    return laid_out(**(arguments | changes))


def tensors(seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "embedding.weight": rng.normal(size=(5, 3)).astype(np.float32),
        "body.weight": rng.normal(size=(4, 2)).astype(np.float32).astype(np.float64),
        "norm.running": np.array(17),
        "body.mask": np.array([True, False, True]),
        "body.half": np.array([0.5, -2.0], dtype=np.float16),
        "head.weight": np.zeros(2, dtype=np.float32),
    }


def spec_group(*specs: TensorSpec) -> GroupLayout:
    return laid_out(Schema(specs), [("all", "*")], 8).group("all")


def test_frozen_tensors_stay_and_their_values_are_in_the_digest() -> None:
    layout = build(frozen=["embedding.*"], groups=GROUPS[1:])
    assert [t.name for t in layout.frozen or ()] == ["embedding.weight"]
    assert [t.name for t in layout.staying] == ["head.weight", "embedding.weight"]
    assert layout.group("rest").size == 14
    told = [
        build(schema=SCHEMA.with_values({"embedding.weight": v}), frozen=["e*"], groups=GROUPS[1:])
        for v in ("a" * 64, "b" * 64)
    ]
    assert len({layout.digest, *(each.digest for each in told)}) == 3
    with pytest.raises(PlanRefused, match="cannot be carried"):
        build(schema=SCHEMA.with_values({"body.weight": "a" * 64}))


def test_a_scale_is_the_last_value_of_its_group_and_no_tensor() -> None:
    plain, scaled = build(), build(scaled=["words"])
    assert plain.digest != scaled.digest == build(scaled=["words"]).digest
    assert plain.digest == build(scaled=[]).digest
    words, rest = scaled.group("words"), scaled.group("rest")
    assert (words.size, words.scaled, rest.scaled) == (16, True, False)
    assert rest == plain.group("rest")
    flat = words.flatten(tensors())
    assert flat[-1] == 1
    np.testing.assert_array_equal(flat[:-1], plain.group("words").flatten(tensors()))
    flat[-1] = 0.5
    assert list(words.unflatten(flat)) == ["embedding.weight"]
    flat[-1] = np.nan
    with pytest.raises(NotFinite):
        words.unflatten(flat)


def test_the_first_matching_group_wins_in_the_order_given() -> None:
    layout = build(groups=[("rest", "body.*"), ("words", "*")])
    assert [t.name for t in layout.group("words").tensors] == ["embedding.weight", "norm.running"]
    assert [g.name for g in layout.groups] == ["rest", "words"]


def test_a_block_has_values_alone_and_the_last_is_shorter() -> None:
    group = build().group("rest")
    assert group.blocks == 4
    assert [group.span(b) for b in range(4)] == [(0, 4), (4, 8), (8, 12), (12, 14)]
    assert [group.slots(b) for b in range(4)] == [4, 4, 4, 2]
    for block in (-1, 4):
        with pytest.raises(Malformed, match="no block"):
            group.span(block)
        with pytest.raises(Malformed, match="no block"):
            group.slots(block)


@given(
    size=st.integers(1, 1 << 27),
    shards=st.integers(1, 9),
    element=st.sampled_from([1, 2048, 6144, 20480]),
)
@example(size=MOST_SLOTS, shards=1, element=20480)  # no whole elements are as many
def test_without_a_size_there_are_as_few_blocks_as_shards_need(
    size: int, shards: int, element: int
) -> None:
    """No element has room but a group's last, and no shard more than a block for 2^22 slots."""
    schema = Schema((TensorSpec("w", (size,), "float32"),))
    made = laid_out(schema, [("all", "*")], None, shards=shards, element=element)
    group = made.group("all")
    sizes = [group.slots(block) for block in range(group.blocks)]
    assert sum(sizes) == size
    assert all(slots == group.full for slots in sizes[:-1])
    assert group.full % element == 0
    assert group.full <= MOST_SLOTS
    assert 1 <= sizes[-1] <= group.full
    each = math.ceil(size / (shards * (MOST_SLOTS // element * element)))
    assert len(sizes) <= shards * each
    assert group.full < math.ceil(size / (shards * each)) + element
    assert group.cipher_slots == min(math.ceil(size / shards), MOST_SLOTS)


def test_a_row_block_and_the_metrics_are_one_block_each() -> None:
    schema = Schema((TensorSpec("table", (10, 4), "float32"), TensorSpec("w", (9,), "float32")))
    layout = laid_out(
        schema,
        [("table", "table"), ("rest", "*")],
        None,
        metrics=("loss", "accuracy"),
        sparse={"table": SparseSection(rows=10, block=4)},
        shards=3,
        element=2,
    )
    assert [group.blocks for group in layout.all_groups] == [1, 1, 1, 1, 3]
    assert {group.cipher_slots for group in layout.all_groups} == {16}
    assert layout.digest != dataclasses.replace(layout, local=schema.tensors[:1]).digest


def test_flatten_and_unflatten_are_inverse() -> None:
    layout, given_tensors = build(), tensors()
    back: dict[str, NDArray[Any]] = {}
    for group in layout.groups:
        flat = group.flatten(given_tensors)
        assert flat.dtype == np.float32
        assert flat.shape == (group.size,)
        again = group.unflatten(flat)
        flat[:] = 0
        back |= again
    assert list(back) == [t.name for g in layout.groups for t in g.tensors]
    for name, tensor in back.items():
        assert tensor.dtype == given_tensors[name].dtype
        np.testing.assert_array_equal(tensor, given_tensors[name])
        assert type(tensor) is np.ndarray


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("int64", [0.5, 1.5, 2.5, -0.5, -1.5], [0, 2, 2, 0, -2]),
        ("uint8", [-3.0, 255.4, 300.0, 1.49, 0.0], [0, 255, 255, 1, 0]),
        ("int64", [1e30, -1e30, 3.0, 0.0, 0.0], [2**63 - 1024, -(2**63), 3, 0, 0]),
        ("uint64", [1e30, -1e30, 3.0, 0.0, 0.0], [2**64 - 2048, 0, 3, 0, 0]),
        ("bool", [0.5, 0.51, 1.0, 0.0, -1.0], [False, True, True, False, False]),
    ],
)
def test_whole_numbers_are_rounded_and_kept_in_range(
    dtype: str, values: list[float], expected: list[int]
) -> None:
    group = spec_group(TensorSpec("n", (5,), dtype))
    out = group.unflatten(np.array(values, dtype=np.float32))["n"]
    assert out.dtype.name == dtype
    assert out.tolist() == expected


def test_wrong_tensors_are_named() -> None:
    group = build().group("words")
    name = "embedding.weight"
    good = tensors()[name]
    with pytest.raises(WrongShape, match=r"'embedding.weight' of group 'words' is missing"):
        group.flatten({})
    for bad in (good.T, good.reshape(-1), good.astype(np.float64)):
        with pytest.raises(WrongShape, match=r"embedding\.weight"):
            group.flatten({name: bad})
    for value in (np.nan, np.inf, -np.inf):
        broken = good.copy()
        broken[4, 2] = value
        with pytest.raises(NotFinite, match=r"embedding\.weight"):
            group.flatten({name: broken})


def test_values_that_do_not_fit_the_carrier_or_the_tensor_are_not_finite() -> None:
    double = spec_group(TensorSpec("d", (1,), "float64"))
    with pytest.raises(NotFinite, match="'d'"):
        double.flatten({"d": np.array([1e39])})
    half = spec_group(TensorSpec("a", (1,), "float32"), TensorSpec("h", (1,), "float16"))
    with pytest.raises(NotFinite, match="'h'"):
        half.unflatten(np.array([0, 1e6], dtype=np.float32))
    with pytest.raises(NotFinite, match="'a'"):
        half.unflatten(np.array([np.nan, 0], dtype=np.float32))
    with pytest.raises(WrongShape, match="has 2 values"):
        half.unflatten(np.zeros(3, dtype=np.float32))


def one(name: str, values: int, dtype: str) -> dict[str, Any]:
    return {"schema": Schema((TensorSpec(name, (values,), dtype),)), "local": []}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": [("words", "embedding.*")]}, r"'body\.weight' matches no group"),
        ({"groups": [*GROUPS, ("late", "body.*")]}, "'late' has no tensors"),
        ({"groups": [("a", "*"), ("a", "x")]}, "group 'a' is there 2 times"),
        ({"local": ["head.*", "embeding.*"]}, r"local: no tensor .* nearest is 'embedding\.weight"),
        ({"frozen": ["embeding.*"]}, r"frozen: no tensor .* nearest is 'embedding\.weight"),
        ({"frozen": ["head.*"]}, r"'head\.weight' is both local and frozen"),
        ({"frozen": ["[!h]*"]}, "nothing is left to train"),
        ({"schema": Schema(SCHEMA.tensors[:1] * 2)}, "tensor 'embedding.weight' is there 2"),
        (one("z", 1, "complex64"), "'complex64'"),
        (one("z", 1, "bfloat16"), "'bfloat16'"),
        (one("z", 0, "float32") | {"groups": [("a", "*")]}, "nothing to train together"),
        ({"local": ["*"]}, "the model has no values, or all are local"),
    ],
)
def test_unsound_plans_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        build(**changes)


def test_digest_covers_everything() -> None:
    base, (first, *rest) = build(), SCHEMA.tensors
    schemas = [
        (*SCHEMA.tensors[:3], SCHEMA.tensors[4], SCHEMA.tensors[3], SCHEMA.tensors[5]),
        (dataclasses.replace(first, shape=(3, 5)), *rest),
        (dataclasses.replace(first, dtype="float64"), *rest),
    ]
    others = [
        build(block_size=5),
        build(local=[], groups=[("words", "embedding.*"), ("rest", "*")]),
        build(groups=[("word", "embedding.*"), ("rest", "*")]),
        build(groups=[("rest", "body.*"), ("words", "*")]),
        *(build(schema=Schema(tensors)) for tensors in schemas),
    ]
    assert len(base.digest) == 32
    assert base.digest == build().digest
    assert len({base.digest, *(o.digest for o in others)}) == 1 + len(others)


def test_unknown_groups_are_malformed() -> None:
    with pytest.raises(Malformed, match="'nobody'"):
        build().group("nobody")


def test_row_blocks_are_groups_that_hold_every_row_once() -> None:
    schema = Schema(
        (
            TensorSpec("deep.weight", (3, 2), "float32"),
            TensorSpec("table.bias", (10,), "float32"),
            TensorSpec("table.weight", (10, 4), "float32"),
        )
    )
    patterns = (("table", "table.*"), ("rest", "*"))
    layout = laid_out(schema, patterns, 9, sparse={"table": SparseSection(rows=10, block=4)})
    assert [group.name for group in layout.groups] == ["table.0", "table.1", "table.2", "rest"]
    assert [group.rows for group in layout.groups] == [(0, 4), (4, 8), (8, 10), None]
    assert [group.size for group in layout.groups] == [20, 20, 10, 6]
    rng = np.random.default_rng(3)
    tensors = {t.name: rng.normal(size=t.shape).astype(np.float32) for t in schema.tensors}
    flat = {group.name: group.flatten(tensors) for group in layout.groups}
    assert np.array_equal(flat["table.1"][:4], tensors["table.bias"][4:8])
    bias, weight = layout.group("table.2").parts()
    assert (bias, weight) == (("table.bias", slice(0, 2)), ("table.weight", slice(2, 10)))
    again = layout.assemble(lambda group: [flat[group.name][:3], flat[group.name][3:]])
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)
    assert layout.digest != laid_out(schema, patterns, 9).digest


def test_a_sparse_tensor_has_the_plans_rows() -> None:
    schema = Schema((TensorSpec("table", (9, 4), "float32"),))
    with pytest.raises(PlanRefused, match=r"rows = 10, but tensor 'table' has the shape \[9, 4\]"):
        laid_out(schema, (("table", "*"),), 9, sparse={"table": SparseSection(rows=10, block=4)})
