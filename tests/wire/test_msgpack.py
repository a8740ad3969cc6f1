"""The wire form: exhaustive, exact in both directions, and strict."""

import dataclasses
import itertools
import resource
import types
import typing
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.errors import Malformed, Oversized
from secureps.messages import (
    coordinator_records,
    holder_records,
    member_records,
    records,
    shard_records,
)
from secureps.messages.charge import Charge
from secureps.messages.encoding import field_types
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.messages.requests import (
    Figure,
    GetBlock,
    Heartbeat,
    MemberStatus,
    Noted,
    Payload,
    Refusal,
    Status,
    Stored,
    Submit,
    Telemetry,
)
from secureps.messages.submission import Receipt, SubmissionId
from secureps.wire import msgpack
from tests.golden.values import kinds
from tests.kits.nursery import ROOT


def values(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Makes any value of a field's type, with digests and signatures of the right length."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        hints = {n: t for n, t in field_types(kind).items() if n != msgpack.PAYLOAD}
        return st.builds(kind, **{n: values(t, n) for n, t in hints.items()})
    origin = typing.get_origin(kind)
    if origin is tuple:
        return st.lists(values(typing.get_args(kind)[0], name), max_size=3).map(tuple)
    if origin in (types.UnionType, typing.Union):
        return st.none() | values(typing.get_args(kind)[0], name)
    if kind is bytes:
        if name in msgpack.SIZES:
            size = msgpack.SIZES[name]
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
    return st.sampled_from(sorted(msgpack.SENT)).flatmap(lambda name: values(msgpack.SENT[name]))


def test_the_protocols_page_shows_the_bytes_of_a_message() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert f"`{msgpack.encode(Noted()).hex(' ')}`" in page


def test_known_bytes() -> None:
    """A number of two bytes, an empty digest, True, None, and a separate payload."""
    ask = GetBlock(b"", "all", 3, 300, state=True)
    assert msgpack.encode(ask) == (
        b"\x92\xa8GetBlock\x87\xa3run\xc4\x00\xa5group\xa3all\xa7version\x03\xa5block\xcd\x01\x2c"
        b"\xa6offset\x00\xa4base\xc4\x00\xa5state\xc3"
    )
    stored = b"\x92\xa6Stored\x82\xa6digest\xc4\x20" + b"d" * 32 + b"\xa4have\xc0"
    assert msgpack.encode(Stored(b"d" * 32)) == stored
    given = b"\x92\xa7Payload\x82\xa6digest\xc4\x00\xa7payload\xc4\x00"
    assert msgpack.encode(Payload(b"", b"values")) == given


def test_no_record_of_the_journal_is_sent() -> None:
    modules = coordinator_records, holder_records, member_records, records, shard_records
    own = {
        n for m in modules for n, k in vars(m).items() if getattr(k, "__module__", "") == m.__name__
    }
    assert not own & set(msgpack.SENT)


@pytest.mark.slow
@given(messages())
@settings(max_examples=150)
def test_what_is_encoded_comes_back(message: Any) -> None:
    data = msgpack.encode(message)
    assert msgpack.decode(data) == message
    assert msgpack.encode(msgpack.decode(data)) == data


def packed(name: str, *fields: tuple[str, Any]) -> bytes:
    """Encodes a message as another program may."""
    made = b"\x92" + msgspec.msgpack.encode(name) + bytes([0x80 + len(fields)])
    return made + b"".join(map(msgspec.msgpack.encode, itertools.chain(*fields)))


PARTY = ("party", "a")
FIGURES = (PARTY, ("group", "all"), ("version", 1))
NAN = {"name": "x", "value": float("nan")}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "these bytes are no secureps message"),
        (packed("Heartbeat", PARTY) + b"\0", "these bytes are no secureps message"),
        (packed("Heartbeat", PARTY)[:-1], "these bytes are no secureps message"),
        (packed("Heartbeat", PARTY) * 2, "these bytes are no secureps message"),
        (b"\x93" + packed("Heartbeat", PARTY)[1:] + b"\0", "these bytes are no secureps message"),
        (b"\xdd\xff\xff\xff\xff", "these bytes are no secureps message"),
        (packed("Cohort"), "'Cohort' is no message of this version of secureps"),
        (packed("Heartbeat"), "Heartbeat: Object missing required field `party`"),
        (packed("Subscribe", PARTY, ("unsettled", [])), "Subscribe: unknown, repeated or missing"),
        (packed("Heartbeat", PARTY, ("more", 1)), "Heartbeat: unknown, repeated or missing fields"),
        (packed("Heartbeat", ("more", 1), PARTY), "Heartbeat: unknown, repeated or missing"),
        (packed("Heartbeat", PARTY, PARTY), "Heartbeat: unknown, repeated or missing fields"),
        (packed("Heartbeat", ("party", 1)), "Heartbeat.party: Expected `str`, got `int`"),
        (packed("Heartbeat", ("party", b"a")), "Heartbeat.party: Expected `str`, got `bytes`"),
        (packed("Heartbeat", ("party", msgspec.msgpack.Ext(1, b"a"))), "Heartbeat.party: Expected"),
        (packed("Heartbeat", ("party", None)), "Heartbeat.party: Expected `str`, got `None`"),
        (b"\x92\xa9Heartbeat\x81\xa5party\xd9\x01a", "Heartbeat: .*another spelling"),
        (b"\x92\xa9Heartbeat\x81\xa5party\xa3\xed\xa0\x80", "Heartbeat: .*(?i:utf-8)"),
        (packed("Retire", PARTY, ("reason", ""), ("returns", 1)), "Retire.returns: Expected"),
        (packed("Follow", ("standby", b""), ("seq", 1.0)), "Follow.seq: Expected `int`"),
        (packed("Follow", ("standby", b""), ("seq", True)), "Follow.seq: Expected `int`"),
        (packed("Follow", ("standby", b""), ("seq", 2**63), ("chain", b"")), "Follow.seq: a wrong"),
        (packed("Follow", ("standby", b""), ("seq", 1), ("chain", b"c")), "Follow.chain: a wrong"),
        (
            packed("Telemetry", *FIGURES, ("figures", [{"name": "x", "value": 1}]), ("step", 0)),
            "Telemetry: .*another spelling",
        ),
        (packed("Telemetry", *FIGURES, ("figures", [{}])), r"Telemetry.figures\[0\]: Object"),
        (packed("Telemetry", *FIGURES, ("figures", [NAN])), "Figure.value: .*no finite number"),
        (packed("Payload", ("digest", b""), ("payload", b"x")), "Payload.payload: a wrong length"),
        (
            packed("Heartbeat", PARTY, ("more", 1))[:-1] + b"\x91" * 100_000,
            "these bytes are no secureps message",
        ),
    ],
)
def test_every_other_form_is_refused_by_message_and_field(data: bytes, error: str) -> None:
    with pytest.raises(Malformed, match=error):
        msgpack.decode(data)


def test_an_announced_length_takes_no_memory() -> None:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind in (b"\xdd", b"\xdf", b"\xc6", b"\xdb"):
        begin = packed("Subscribe", PARTY, ("unsettled", 0))[:-1]
        with pytest.raises(Malformed, match="no secureps message"):
            msgpack.decode(begin + kind + b"\xff\xff\xff\xff")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 50_000


def test_a_number_of_another_class_is_sent_as_its_field_says() -> None:
    given = Telemetry("a", "all", 1, (Figure("x", 2), Figure("y", numpy.float64(0.5))))
    found = msgpack.decode(msgpack.encode(given))
    assert [type(figure.value) for figure in found.figures] == [float, float]
    assert found == given


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
    ("changes", "field"),
    [
        ({"run": b"r" * 31}, "Receipt.run"),
        ({"base": b"b" * 33}, "Receipt.base"),
        ({"blocks": (b"d" * 32, b"d" * 16)}, "Receipt.blocks"),
        ({"root": b"t" * 31}, "Receipt.root"),
        ({"signature": b"s" * 63}, "Receipt.signature"),
        ({"size": 2**63}, "Receipt.size"),
        ({"charge": Charge("a", "all", 0, float("nan"), 0.1, 5)}, "Charge.noise_multiplier"),
        ({"charge": Charge("a", "all", 0, float("inf"), 0.1, 5)}, "Charge.noise_multiplier"),
    ],
)
def test_wrong_lengths_and_numbers_are_refused(changes: dict[str, Any], field: str) -> None:
    good = Submit(receipt())
    assert msgpack.decode(msgpack.encode(good)) == good
    bad = Submit(receipt(**changes))
    with pytest.raises(Malformed, match=f"{field}: a wrong length, or no finite number of 64 bits"):
        msgpack.encode(bad)
    with pytest.raises(Malformed, match=f"{field}: a wrong length, or no finite number of 64 bits"):
        msgpack.decode(msgspec.msgpack.encode(("Submit", bad)))


def test_reports_may_say_infinity_but_not_nan() -> None:
    told = Telemetry("a", "all", 1, (Figure("epsilon", float("inf")),))
    assert msgpack.decode(msgpack.encode(told)) == told
    ada = MemberStatus("ada", True, "waits", 1, 1, float("inf"), True)
    status = Status(b"r" * 32, 1, "", (), (ada,), (), ())
    assert msgpack.decode(msgpack.encode(status)) == status
    with pytest.raises(Malformed):
        msgpack.decode(msgpack.encode(Telemetry("a", "all", 1, (Figure("x", float("nan")),))))


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
        msgpack.encode(message)


def test_an_impostor_of_the_same_name_is_not_encoded() -> None:
    impostor = dataclasses.make_dataclass("Heartbeat", ["party"])
    with pytest.raises(Malformed):
        msgpack.encode(impostor("a"))


def test_reporting_messages_exist() -> None:
    assert {MemberStatus.__name__, Figure.__name__} == msgpack.INFINITE
    fields = {n for kind in kinds().values() for n in field_types(kind)}
    assert set(msgpack.SIZES) <= fields


def test_a_message_has_a_limit_both_ways() -> None:
    with pytest.raises(Oversized):
        msgpack.encode(Heartbeat("x" * MESSAGE_LIMIT))
    with pytest.raises(Oversized):
        msgpack.decode(bytes(MESSAGE_LIMIT + 1))
