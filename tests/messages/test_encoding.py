"""The canonical form of every record: exact round trips, strict reading, no collisions."""

import dataclasses
import functools
import importlib
import json
import math
import pkgutil
import types
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps import messages
from secureps.errors import Malformed
from secureps.messages.charge import Charge
from secureps.messages.encoding import (
    DIGEST_BYTES,
    canonical,
    digest,
    field_types,
    file_digest,
    from_plain,
    payload_digest,
    payload_hasher,
    signed_part,
    to_plain,
)
from secureps.messages.requests import Heartbeat, Register
from secureps.messages.run import Schema, TensorSpec
from secureps.messages.submission import BlockHeader, Cohort, SubmissionId
from tests.kits.nursery import ROOT
from tests.kits.unset import unset

MODULES = [
    importlib.import_module(f"secureps.messages.{module.name}")
    for module in pkgutil.iter_modules(messages.__path__)
]
KINDS: dict[str, Any] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type)
    and dataclasses.is_dataclass(kind)
    and kind.__module__ == module.__name__
}
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    bool: st.booleans(),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    float: st.floats(allow_nan=False, allow_infinity=False),
}


@functools.cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Draws any value of a field's type, or any record of a class."""
    if kind in LEAVES:
        return LEAVES[kind]
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return st.builds(kind, **{n: values(t) for n, t in field_types(kind).items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(a) for a in arguments))
    assert origin in (typing.Union, types.UnionType), kind
    return st.one_of(*(st.none() if a is type(None) else values(a) for a in arguments))


def test_there_are_all_records() -> None:
    assert len(KINDS) > 60
    assert {"requests.Submit", "orders.Hold", "run.RunInfo"} <= set(KINDS)
    names = [name.partition(".")[2] for name in KINDS]
    assert len(set(names)) == len(names), "canonical forms begin with the class's bare name"


@pytest.mark.parametrize("name", KINDS)
def test_every_record_is_frozen_and_comes_back_as_itself(name: str) -> None:
    kind = KINDS[name]
    assert kind.__dataclass_params__.frozen

    @settings(max_examples=15, deadline=None)
    @given(values(kind))
    def check(record: Any) -> None:
        plain = json.loads(json.dumps(to_plain(record)))
        again = from_plain(kind, plain)
        assert again == record
        assert type(again) is kind
        assert canonical(again) == canonical(record)
        assert hash(again) == hash(record)

    check()


@pytest.mark.parametrize("name", KINDS)
def test_unknown_and_missing_fields_are_refused(name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=3, deadline=None)
    @given(values(kind), st.data())
    def check(record: Any, data: st.DataObject) -> None:
        plain = to_plain(record)
        with pytest.raises(Malformed, match="expected exactly the fields"):
            from_plain(kind, {**plain, "more": 1})
        needed = {f.name for f in dataclasses.fields(kind) if f.default is not None}
        if needed:
            del plain[data.draw(st.sampled_from(sorted(needed)))]
            with pytest.raises(Malformed, match="expected exactly the fields"):
                from_plain(kind, plain)
        others: tuple[Any, ...] = ([], "x", None, 3)
        for other in others:
            with pytest.raises(Malformed, match="expected exactly the fields"):
                from_plain(kind, other)

    check()


def test_what_is_none_by_default_leaves_no_trace_in_the_bytes() -> None:
    """A record without the field has the digest that it had before the field existed."""
    cohort = Cohort("all", 7, 3, 1, ())
    assert to_plain(cohort) == {
        "group": "all",
        "number": 7,
        "version": 3,
        "epoch": 1,
        "members": [],
    }
    assert from_plain(Cohort, to_plain(cohort)) == cohort
    scaled = dataclasses.replace(cohort, scale=1.0)
    assert from_plain(Cohort, to_plain(scaled)) == scaled
    assert canonical(scaled) != canonical(cohort)
    with pytest.raises(Malformed, match="expected exactly the fields"):
        from_plain(Cohort, {**to_plain(cohort), "scale": None})


def changed(kind: type, **fields: Any) -> tuple[type, dict[str, Any]]:
    return kind, to_plain(unset(kind)) | fields


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (changed(SubmissionId, sequence="1"), "sequence: expected int"),
        (changed(SubmissionId, sequence=1.0), "expected int, got float"),
        (changed(SubmissionId, sequence=True), "expected int, got bool"),
        (changed(SubmissionId, client=1), "client: expected str"),
        (changed(Schema, tensors={}), "tensors: expected a list"),
        (changed(Schema, tensors=["x"]), r"tensors\[0\]: expected exactly"),
        (changed(Register, weight="1"), "expected float"),
        (changed(Register, weight=True), "expected float"),
        (changed(Heartbeat, party="\ud800"), "half of a character"),
        *(
            (changed(BlockHeader, digest=wrong), r"BlockHeader\.digest: expected hexadecimal text")
            for wrong in ("xyz", "abc", 3, None, "AB", "a b", " ab", "ab\n")
        ),
        *(
            (changed(Charge, sample_rate=wrong), "finite")
            for wrong in (10**400, -(10**400), math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_values_that_no_record_writes(of: tuple[type, dict[str, Any]], text: str) -> None:
    with pytest.raises(Malformed, match=text):
        from_plain(*of)


def test_what_has_no_place_in_a_record() -> None:
    for value in (object(), 1j):
        with pytest.raises(Malformed, match="has no place in a record"):
            to_plain(value)
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(Charge("a", "g", 0, math.nan, 0.1, 1))


def test_tuples_of_fixed_length() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair:
        both: tuple[int, str]

    field_types.cache_clear()
    Pair.__annotations__["both"] = tuple[int, str]
    assert from_plain(Pair, {"both": [1, "a"]}) == Pair((1, "a"))
    for wrong in ([1], [1, "a", 2], "ab"):
        with pytest.raises(Malformed, match="expected"):
            from_plain(Pair, {"both": wrong})


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_see_where_parts_begin(one: list[bytes], two: list[bytes]) -> None:
    assert (digest("d", *one) == digest("d", *two)) == (one == two)
    assert digest("d", *one) != digest("e", *one)
    assert len(digest("d", *one)) == DIGEST_BYTES


def test_what_is_signed_is_what_version_0_2_signed() -> None:
    header = BlockHeader(b"\1" * 32, "clinic-ä", "update", "all", 7, 0, 3, b"\2" * 32, b"\3" * 64)
    assert signed_part(header) == (
        b'BlockHeader:{"author":"clinic-\\u00e4","block":0,"digest":"' + b"02" * 32 + b'","group":'
        b'"all","length":3,"purpose":"update","run":"' + b"01" * 32 + b'","sequence":7,'
        b'"signature":""}'
    )


def test_the_canonical_form_is_the_one_that_the_protocols_page_shows() -> None:
    shown = canonical(SubmissionId("hospital-12", "all", 7)).decode()
    assert f"\n    {shown}\n" in (ROOT / "docs" / "protocol.md").read_text()


def test_a_payloads_digest() -> None:
    assert payload_digest(b"abc") == payload_digest(memoryview(b"abc"))
    known = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    assert payload_digest(b"abc").hex() == known  # of the test vectors of BLAKE3's C code
    pieces = payload_hasher()
    for piece in (b"a", memoryview(b""), memoryview(b"bc")):
        pieces.update(piece)
    assert pieces.digest().hex() == known


def test_a_files_digest_is_one_that_python_alone_can_tell() -> None:
    known = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"
    assert file_digest(b"abc").hex() == known


def test_schemas_differ_by_order() -> None:
    a, b = TensorSpec("a", (2,), "float32"), TensorSpec("b", (2,), "float32")
    assert Schema((a, b)).digest != Schema((b, a)).digest
