"""Parcels as Flower's records, and records that are none."""

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from secureps.errors import Malformed, Oversized
from secureps.flower.post import (
    BATCH,
    MARKER,
    PAYLOADS,
    Parcel,
    pack,
    read_parcel,
    wrap_bytes,
)

DIGEST = b"d" * 32
MOST = 1000


def test_the_same_payload_is_one_array_for_all() -> None:
    known: dict[bytes, Array] = {}
    parcel = Parcel({}, b"batch", {DIGEST: b"payload"})
    one, two = pack(parcel, known), pack(parcel, known)
    name = DIGEST.hex()
    assert one.array_records[PAYLOADS][name] is two.array_records[PAYLOADS][name]


def test_nobody_takes_ours_for_a_model() -> None:
    with pytest.raises(TypeError):
        wrap_bytes(b"sealed").numpy()


def content(**records: ArrayRecord) -> RecordDict:
    made = RecordDict({MARKER: ConfigRecord({})})
    for name, each in records.items():
        made[{"batch": BATCH, "payloads": PAYLOADS}[name]] = each
    return made


def test_records_that_are_none() -> None:
    plain = Array("uint8", (1,), "numpy.ndarray", b"x")
    for wrong in (
        content(batch=ArrayRecord({"other": wrap_bytes(b"x")})),
        content(batch=ArrayRecord({"batch": plain})),
        content(payloads=ArrayRecord({"short": wrap_bytes(b"x")})),
        content(payloads=ArrayRecord({"Z" * 64: wrap_bytes(b"x")})),
        content(payloads=ArrayRecord({"abc": wrap_bytes(b"x")})),
        content(payloads=ArrayRecord({"ab" * 33: wrap_bytes(b"x")})),
        RecordDict({MARKER: ConfigRecord({"a": 1.5})}),
    ):
        with pytest.raises(Malformed):
            read_parcel(wrong, MOST)


def test_lengths_are_looked_at_first() -> None:
    for records in (
        content(batch=ArrayRecord({"batch": wrap_bytes(bytes(MOST + 1))})),
        content(payloads=ArrayRecord({DIGEST.hex(): wrap_bytes(bytes(MOST + 1))})),
    ):
        with pytest.raises(Oversized, match="at most 1000"):
            read_parcel(records, MOST)
