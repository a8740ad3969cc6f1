"""Signatures, envelopes and digests of a submission cover all of it."""

import dataclasses
import json
from typing import Any

import pytest

from secureps.messages import encoding
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import canonical, digest, from_plain, to_plain
from secureps.messages.evaluation import evaluated_digest
from secureps.messages.member_records import SubmissionSettled
from secureps.messages.orders import Settled
from secureps.messages.submission import (
    RECEIPT_DOMAIN,
    BlockHeader,
    Outcome,
    Receipt,
    SubmissionId,
    ciphertext_root,
    enveloped_part,
    model_digest,
    sharing_id,
    shorten,
    signing_bytes,
)
from secureps.wire.msgpack import decode, encode

ID = SubmissionId("c0", "all", 7)
RECEIPT = Receipt(
    run=bytes(32),
    id=ID,
    purpose="update",
    version=3,
    base=b"base",
    blocks=(b"one", b"two"),
    root=b"root",
    envelopes=(b"first", b"second"),
    commitments=(b"x", b"y"),
    size=10,
    charge=None,
    release=None,
    unsafe=False,
    correction=b"1234",
    magnitude=4,
    update=bytes(16),
    beside=b"beside",
)
OTHER: dict[str, Any] = {
    "run": bytes([1]) * 32,
    "id": SubmissionId("c0", "all", 8),
    "purpose": "founding",
    "version": 4,
    "base": b"other",
    "root": b"other",
    "envelopes": (b"second", b"first"),
    "commitments": (b"x", b"z"),
    "size": 11,
    "charge": Charge("c0", "all", 3, 1.0, 0.1, 4),
    "release": Release("c0", "all", 3, 1.0, 1.0, 50.0, 1, 0.0),
    "unsafe": True,
    "step": 1,
    "magnitude": None,
    "update": bytes([1]) * 16,
    "beside": b"",
    "examples": 30,
    "keys": (0, 1),
    "committee": bytes([1]) * 32,
}


def test_every_field_is_looked_at_here() -> None:
    fields = {field.name for field in dataclasses.fields(Receipt)}
    assert fields == OTHER.keys() | {"blocks", "correction", "signature"}


@pytest.mark.parametrize("name", OTHER)
def test_a_signature_and_each_envelope_are_of_all_that_a_receipt_says(name: str) -> None:
    """Envelopes are bound to all other fields: in another receipt they do not open."""
    changed = dataclasses.replace(RECEIPT, **{name: OTHER[name]})
    assert signing_bytes(changed) != signing_bytes(RECEIPT)
    bound = enveloped_part(RECEIPT, "keys-0")
    assert (enveloped_part(changed, "keys-0") != bound) is (name != "envelopes")
    assert enveloped_part(RECEIPT, "keys-1") != bound


def test_the_root_stands_for_the_blocks_and_the_correction() -> None:
    assert (shorten(RECEIPT).blocks, shorten(RECEIPT).correction) == ((), None)
    assert signing_bytes(shorten(RECEIPT)) == signing_bytes(RECEIPT)
    assert enveloped_part(shorten(RECEIPT), "keys-0") == enveloped_part(RECEIPT, "keys-0")
    names = [("one", "two"), ("two", "one"), ("one",), ("onetwo",), ("onet", "wo"), ()]
    roots = [tuple(bytes(32) + name.encode() for name in each) for each in names]
    corrections = [None, b"", b"1234", b"1235"]
    made = {ciphertext_root(blocks, each) for blocks in roots for each in corrections}
    assert len(made) == len(roots) * len(corrections)


def test_a_header_is_signed_with_all_that_it_says() -> None:
    header = BlockHeader(bytes(32), "c0", "update", "all", 7, 0, 10, b"digest")
    others: dict[str, Any] = {"run": b"", "author": "c1", "purpose": "founding", "group": "b"}
    others |= {"sequence": 8, "block": 1, "length": 11, "digest": b"other"}
    made = {signing_bytes(dataclasses.replace(header, **{n: v})) for n, v in others.items()}
    assert len(made | {signing_bytes(header)}) == len(others) + 1
    assert others.keys() | {"signature"} == {f.name for f in dataclasses.fields(BlockHeader)}
    assert signing_bytes(header)[0] != signing_bytes(RECEIPT)[0], "one is never the other"


def test_a_key_is_shared_under_the_name_of_its_run_and_submission() -> None:
    """The same seeds give another key in another run, or for another submission."""
    ids = [ID, SubmissionId("c1", "all", 7), SubmissionId("c0", "b", 7), OTHER["id"]]
    made = {sharing_id(run, id) for run in (bytes(32), OTHER["run"]) for id in ids}
    assert len(made) == 2 * len(ids)


def test_a_model_is_a_group_a_version_and_its_blocks() -> None:
    made = {
        model_digest("all", 3, (b"one", b"two")),
        model_digest("b", 3, (b"one", b"two")),
        model_digest("all", 4, (b"one", b"two")),
        model_digest("all", 3, (b"two", b"one")),
        model_digest("all", 3, (b"one",)),
    }
    assert len(made) == 5
    evaluated = [evaluated_digest(b"a", (b"b",)), evaluated_digest(b"x", (b"b",))]
    evaluated += [evaluated_digest(b"a", (b"x",)), evaluated_digest(b"a", (b"b", b""))]
    assert len({*evaluated, *made}) == 9


@pytest.mark.parametrize("change", [{}, OTHER, {"magnitude": None}])
def test_every_form_of_a_receipt_is_the_canonical_one_from_one_reading(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = dataclasses.replace(RECEIPT, signature=b"signed", **change)
    bare = dataclasses.replace(receipt, blocks=(), correction=None)
    unsigned = dataclasses.replace(bare, signature=b"")
    signed, enveloped = canonical(unsigned), canonical(dataclasses.replace(unsigned, envelopes=()))
    enveloped = b"keys-0\n" + enveloped
    named, read = digest("secureps-receipt", canonical(bare)), list[Any]()
    plain = encoding.to_plain

    def to_plain(value: Any) -> Any:
        read.append(value)
        return plain(value)

    monkeypatch.setattr(encoding, "to_plain", to_plain)
    assert signing_bytes(receipt) == (RECEIPT_DOMAIN, signed)
    assert (enveloped_part(receipt, "keys-0"), receipt.digest) == (enveloped, named)
    assert [value for value in read if isinstance(value, Receipt)] == [bare]


SETTLED = SubmissionId("c0", "all", 0)


def test_the_words_stay_as_they_were_journalled() -> None:
    assert [str(each) for each in Outcome] == ["included", "durable", "dropped", "lost"]


def test_an_outcome_has_the_bytes_of_its_string() -> None:
    for each in Outcome:
        record, plain = SubmissionSettled(SETTLED, each), SubmissionSettled(SETTLED, each.value)
        assert canonical(record) == canonical(plain)
        assert from_plain(SubmissionSettled, json.loads(json.dumps(to_plain(record)))) == record
        sent = encode(Settled(1, SETTLED, each, 2, "why"))
        assert sent == encode(Settled(1, SETTLED, each.value, 2, "why"))
        assert decode(sent).outcome == each
