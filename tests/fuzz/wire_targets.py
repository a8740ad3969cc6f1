"""What comes over the wire."""

import dataclasses
import io
import json
import struct
from typing import Any

from secureps.crypto.identity import Identity
from secureps.errors import Malformed
from secureps.messages.encoding import canonical, from_plain
from secureps.messages.format import FORMAT
from secureps.messages.requests import Refusal
from secureps.service import one_wave
from secureps.wire.grpc import framing
from secureps.wire.grpc.framing import REQUEST_DOMAIN, read_claim, sign_request
from secureps.wire.msgpack import SENT, decode, encode
from secureps.wire.waves import batch
from tests.fuzz.target import Target
from tests.golden.values import full, kinds
from tests.kits.unset import unset

METHOD = framing.COORDINATOR_TELL
ME = Identity(b"m" * 32)
KNOWN = kinds()


def targets() -> list[Target]:
    sent = [make(kind) for _, kind in sorted(SENT.items()) for make in (full, unset)]
    envelopes = tuple(encode(message) for message in sent)
    bundles = tuple(framing.bundle(envelopes[at : at + 3]) for at in range(0, len(envelopes), 5))
    frames = tuple(framing.frame_head(each, 7) + b"payload" for each in envelopes[:20])
    refusals = tuple(encode(make(Refusal)) for make in (full, unset))
    records = tuple(canonical(make(kind)) for kind in KNOWN.values() for make in (full, unset))
    return [
        Target("message", ("wire.msgpack:decode",), envelopes, lambda d: encode(decode(d))),
        Target("bundle", ("wire.grpc.framing:unbundle",), bundles, _bundle),
        Target("frame", ("wire.grpc.framing:open_frame",), frames, _read_frame),
        Target("refusal", ("wire.grpc.framing:_read_refusal",), refusals, _refusal),
        Target("claim", ("wire.grpc.framing:read_claim",), (_CLAIM,), _claim),
        Target("record", ("messages.encoding:_read",), records, _record),
        Target("batch", ("wire.waves.batch:open_batch",), (_BATCH,), _batch, signed=True),
        Target("batch-entries", ("wire.waves.batch:_entries",), (_BATCH,), _entries),
        Target("batch-framed", ("service.one_wave:_read_frame",), (_framed(0, _BATCH),), _unframed),
    ]


def _bundle(data: bytes) -> bytes:
    framing.read_replies(data, len(envelopes := framing.unbundle(data)), "it")
    return framing.bundle([encode(decode(each)) for each in envelopes])


def _read_frame(data: bytes) -> bytes:
    envelope, length, begin = framing.open_frame(data)
    collected = framing.PartialPayload()
    collected._room = memoryview(bytearray(min(length, 1 << 16)))
    if begin:
        collected.add(begin)
    return struct.pack("<IQ", len(envelope), length) + envelope + begin


def _refusal(data: bytes) -> bytes:
    error = framing._read_refusal(data, "it")
    framing.encode_refusal(error)
    return data


def _signed(data: bytes) -> bytes:
    return ME.sign(batch.WAVE_DOMAIN, data)


_ENTRIES = (
    batch.Entry(batch.Kind.CALL, b"shard-0", b"envelope", b"payload"),
    batch.Entry(batch.Kind.WATCH, envelope=b"envelope"),
    batch.Entry(batch.Kind.ANSWER, b"n" * 32, b"envelope"),
)
_BATCH = batch.seal_batch(
    batch.Batch("hospital-1", "coordinator", b"r" * 32, b"c" * 32, _ENTRIES), _signed
)


def _batch(data: bytes) -> bytes:
    def verify(party: str, said: bytes, signature: bytes) -> None:
        ME.public.verify(batch.WAVE_DOMAIN, said, signature)

    return batch.seal_batch(batch.open_batch(data, 1 << 20, verify), _signed)


def _entries(data: bytes) -> bytes:
    """Whoever signed it."""
    found = batch.open_batch(data, 1 << 20, lambda *_: None)
    return batch.seal_batch(found, lambda _: data[-64:])


def _framed(kind: int, data: bytes) -> bytes:
    return one_wave._HEAD.pack(kind, len(data)) + data


def _unframed(data: bytes) -> bytes:
    line = io.BytesIO(data)
    try:
        kind, found = one_wave._read_frame(line)
    except ConnectionError:
        raise Malformed("cut off") from None
    return _framed(kind, found) + line.read()


def _packed(metadata: Any) -> bytes:
    made = b""
    for key, value in metadata:
        for part in (key.encode(), value.encode() if isinstance(value, str) else value):
            made += len(part).to_bytes(2, "little") + part
    return made


def _unpacked(data: bytes) -> list[tuple[str, Any]]:
    """Metadata as gRPC gives it: text, but for keys that end in -bin."""
    parts, at = [], 0
    while at + 2 <= len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "little")
        parts.append(data[at + 2 : end])
        at = end
    pairs = [(k.decode("latin-1"), v) for k, v in zip(parts[::2], parts[1::2])]
    return [(k, v if k.endswith("-bin") else v.decode("latin-1")) for k, v in pairs]


_CLAIM = _packed(
    sign_request(
        "hospital-1",
        "coordinator",
        lambda said: ME.sign(REQUEST_DOMAIN, said),
        METHOD,
        b"r" * 32,
        b"envelope",
    )
)


def _claim(data: bytes) -> bytes:
    claim = read_claim(_unpacked(data))
    ME.public.verify(REQUEST_DOMAIN, claim.signed(METHOD), claim.signature)
    honest = read_claim(_unpacked(_CLAIM))
    same = dataclasses.replace(claim, format=FORMAT) == honest  # which is not signed
    return data if same else b"another claim under the same signature"


def _record(data: bytes) -> bytes:
    """What is read is read again as it is; JSON has other spellings of it, which are not kept."""
    try:
        name, _, text = data.decode().partition(":")
        kind, plain = KNOWN[name], json.loads(text)
    except (ValueError, KeyError, RecursionError):
        raise Malformed("no record") from None
    record: Any = from_plain(kind, plain)
    made = canonical(record)
    again: Any = from_plain(kind, json.loads(made.decode().partition(":")[2]))
    return data if again == record and canonical(again) == made else made
