"""The wire form: exhaustive, exact in both directions, and deaf to garbage."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.errors import Malformed, Oversized, SecurepsError
from secureps.messages import (
    acts,
    coordinator_records,
    envelope_keys,
    evaluation,
    following,
    holder_records,
    member_records,
    moves,
    orders,
    records,
    requests,
    shard_records,
    steps,
)
from secureps.messages.charge import Charge
from secureps.messages.encoding import field_types
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.messages.requests import (
    AskStatus,
    Figure,
    GetBlock,
    Heartbeat,
    MemberStatus,
    Payload,
    PutBlock,
    Refusal,
    Status,
    Submit,
    Telemetry,
)
from secureps.messages.submission import BlockHeader, Receipt, SubmissionId
from secureps.wire import protobuf, secureps_pb2

SCALARS = {
    str: FieldDescriptor.TYPE_STRING,
    bytes: FieldDescriptor.TYPE_BYTES,
    int: FieldDescriptor.TYPE_INT64,
    float: FieldDescriptor.TYPE_DOUBLE,
    bool: FieldDescriptor.TYPE_BOOL,
}

NESTED = {
    *("Figure", "MemberStatus", "GroupStatus", "Holding", "MemberBlocks", "ShardSums"),
    "GroupVersion",
    "KeyCommittee",
    "CohortSteps",
    "EvaluationStatus",
    "CopyPart",
    "JournalRow",
    "ServerStatus",
    "Metric",
    "Move",
    "EvaluationSkipped",
    "VersionEvaluated",
}
"""Classes of requests.py and orders.py that are only ever parts of another message."""


def values(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Any value of a field's type, with digests and signatures of their lengths."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        hints = {n: t for n, t in field_types(kind).items() if n != protobuf.PAYLOAD}
        return st.builds(kind, **{n: values(t, n) for n, t in hints.items()})
    origin = typing.get_origin(kind)
    if origin is tuple:
        return st.lists(values(typing.get_args(kind)[0], name), max_size=3).map(tuple)
    if origin in (types.UnionType, typing.Union):
        return st.none() | values(typing.get_args(kind)[0], name)
    if kind is bytes:
        if name in protobuf.SIZES:
            size = protobuf.SIZES[name]
            return st.just(b"") | st.binary(min_size=size, max_size=size)
        return st.binary(max_size=40)
    table: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=20),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
    }
    return table[kind]


def messages() -> st.SearchStrategy[Any]:
    return st.sampled_from(sorted(protobuf._BODY)).flatmap(
        lambda name: values(protobuf.KINDS[name])
    )


def test_every_dataclass_has_its_message_with_the_same_fields() -> None:
    described = dict(secureps_pb2.DESCRIPTOR.message_types_by_name)
    del described["Envelope"]
    assert set(described) == set(protobuf.KINDS)
    for name, kind in protobuf.KINDS.items():
        hints = {n: t for n, t in field_types(kind).items() if n != protobuf.PAYLOAD}
        fields = described[name].fields_by_name
        assert list(fields) == list(hints), name
        for field_name, hint in hints.items():
            origin, leaf = typing.get_origin(hint), hint
            many = origin is tuple
            optional = origin in (types.UnionType, typing.Union)
            if many or optional:
                leaf = typing.get_args(hint)[0]
            field = fields[field_name]
            where = f"{name}.{field_name}"
            assert field.is_repeated == many, where
            if dataclasses.is_dataclass(leaf):
                assert isinstance(leaf, type)
                assert field.message_type.name == leaf.__name__, where
            else:
                assert field.type == SCALARS[leaf], where
                assert field.has_presence == optional, where


def test_no_record_of_the_journal_is_on_the_wire() -> None:
    modules = coordinator_records, holder_records, member_records, records, shard_records
    own = {
        n for m in modules for n, k in vars(m).items() if getattr(k, "__module__", "") == m.__name__
    }
    assert not own & set(protobuf.KINDS)


def test_the_envelope_holds_whatever_is_sent_by_itself() -> None:
    sent = {
        name
        for module in (requests, orders, evaluation, envelope_keys, acts, moves, steps, following)
        for name, kind in vars(module).items()
        if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    }
    assert set(protobuf._BODY) == sent - NESTED


@given(messages())
@settings(max_examples=400)
def test_what_is_encoded_comes_back(message: Any) -> None:
    data = protobuf.encode(message)
    assert protobuf.decode(data) == message
    assert protobuf.encode(protobuf.decode(data)) == data


def test_payloads_stay_outside() -> None:
    header = BlockHeader(b"r" * 32, "a", "update", "all", 1, 0, 3, b"d" * 32)
    assert protobuf.decode(protobuf.encode(PutBlock(header, b"abc"))) == PutBlock(header)
    assert protobuf.decode(protobuf.encode(Payload(b"d" * 32, b"abc"))) == Payload(b"d" * 32)


def survives(data: bytes) -> None:
    try:
        message = protobuf.decode(data)
    except SecurepsError:
        return
    assert protobuf.encode(message) == data


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_worse(data: bytes) -> None:
    survives(data)


@given(messages(), st.data())
@settings(max_examples=200)
def test_a_truncated_encoding_is_never_the_same_message(message: Any, data: st.DataObject) -> None:
    whole = protobuf.encode(message)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    survives(cut)


@given(messages(), st.data())
@settings(max_examples=300)
def test_flipped_bytes_do_no_harm(message: Any, data: st.DataObject) -> None:
    damaged = bytearray(protobuf.encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    survives(bytes(damaged))


@given(messages())
def test_an_unknown_field_is_refused(message: Any) -> None:
    with pytest.raises(Malformed):
        protobuf.decode(protobuf.encode(message) + b"\xf8\x07\x01")  # field 127, varint 1


def test_an_unknown_field_deep_inside_is_refused() -> None:
    inner = b"\x0a\x01x" + b"\xf8\x07\x01"
    with pytest.raises(Malformed, match="unknown or repeated"):
        protobuf.decode(b"\x22" + bytes([len(inner)]) + inner)  # field 4 of Envelope: heartbeat


def test_two_messages_in_one_envelope_are_refused() -> None:
    with pytest.raises(Malformed, match="unknown or repeated"):
        protobuf.decode(protobuf.encode(AskStatus()) + protobuf.encode(Heartbeat("a")))


@pytest.mark.parametrize("data", [b"", b"\xf8\x07\x01"])
def test_an_envelope_without_a_body_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed, match="without a message"):
        protobuf.decode(data)


def test_a_missing_part_is_refused() -> None:
    envelope = secureps_pb2.Envelope()
    envelope.submit.SetInParent()
    with pytest.raises(Malformed, match="Submit lacks its receipt"):
        protobuf.decode(envelope.SerializeToString())


def receipt(**changes: Any) -> Receipt:
    charge = Charge("a", "all", 0, 1.0, 0.1, 5)
    made = Receipt(
        b"r" * 32,
        SubmissionId("a", "all", 1),
        "update",
        0,
        b"b" * 32,
        (b"d" * 32,),
        b"t" * 32,
        (),
        (),
        9,
        charge,
        None,
        True,
        b"s" * 64,
    )
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": b"r" * 31},
        {"base": b"b" * 33},
        {"blocks": (b"d" * 32, b"d" * 16)},
        {"root": b"t" * 31},
        {"signature": b"s" * 63},
        {"charge": Charge("a", "all", 0, float("nan"), 0.1, 5)},
        {"charge": Charge("a", "all", 0, float("inf"), 0.1, 5)},
    ],
)
def test_wrong_lengths_and_numbers_are_refused(changes: dict[str, Any]) -> None:
    good = protobuf.encode(Submit(receipt()))
    assert protobuf.decode(good) == Submit(receipt())
    with pytest.raises(Malformed, match="wrong length, or is no finite number"):
        protobuf.encode(Submit(receipt(**changes)))
    envelope = secureps_pb2.Envelope.FromString(good)
    bad = envelope.submit.receipt
    for name, value in changes.items():
        if name == "charge":
            bad.charge.noise_multiplier = value.noise_multiplier
        elif name == "blocks":
            del bad.blocks[:]
            bad.blocks.extend(value)
        else:
            setattr(bad, name, value)
    with pytest.raises(Malformed, match="wrong length, or no finite number"):
        protobuf.decode(envelope.SerializeToString(deterministic=True))


def test_reports_may_say_infinity_but_not_nan() -> None:
    told = Telemetry("a", "all", 1, (Figure("epsilon", float("inf")),))
    assert protobuf.decode(protobuf.encode(told)) == told
    ada = MemberStatus("ada", True, "waits", 1, 1, float("inf"), True)
    status = Status(b"r" * 32, 1, "", (), (ada,), (), ())
    assert protobuf.decode(protobuf.encode(status)) == status
    with pytest.raises(Malformed):
        protobuf.decode(protobuf.encode(Telemetry("a", "all", 1, (Figure("x", float("nan")),))))


@pytest.mark.parametrize(
    "message",
    [
        GetBlock(b"", "all", 2**63, 0),
        GetBlock(b"", "all", "1", 0),  # type: ignore[arg-type]
        Heartbeat("\ud800"),
        Heartbeat(None),  # type: ignore[arg-type]
        Submit(None),  # type: ignore[arg-type]
        Submit("receipt"),  # type: ignore[arg-type]
        Refusal("x", "y", "z"),  # type: ignore[arg-type]
        Telemetry("a", "all", 1, (1,)),  # type: ignore[arg-type]
        Figure("x", 1.0),
        SubmissionId("a", "all", 1),
        object(),
        7,
    ],
)
def test_what_does_not_fit_is_not_encoded(message: Any) -> None:
    with pytest.raises(Malformed):
        protobuf.encode(message)


def test_an_impostor_of_the_same_name_is_not_encoded() -> None:
    impostor = dataclasses.make_dataclass("Heartbeat", ["party"])
    with pytest.raises(Malformed):
        protobuf.encode(impostor("a"))


def test_limits() -> None:
    with pytest.raises(Oversized):
        protobuf.encode(Heartbeat("x" * MESSAGE_LIMIT))
    with pytest.raises(Oversized):
        protobuf.decode(bytes(MESSAGE_LIMIT + 1))


def test_reporting_messages_exist() -> None:
    assert set(protobuf.INFINITE) <= {MemberStatus.__name__, Figure.__name__}
    fields = {n for kind in protobuf.KINDS.values() for n in field_types(kind)}
    assert set(protobuf.SIZES) <= fields
