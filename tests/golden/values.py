"""One canonical example, or two, of every record and message, by its class's bare name.

A `full` one has something in every field, a `bare` one says as little as its class allows. The
same classes have the same examples for ever: they follow from names and types of their fields.
`row` and `wire` are what stands in a journal and what gRPC carries.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import pkgutil
import types
import typing
from typing import Any

from secureps import messages
from secureps.errors import Malformed
from secureps.messages.encoding import canonical, digest, field_types, payload_digest, to_plain
from secureps.messages.evaluation import Evaluated, evaluated_bytes, evaluated_digest
from secureps.messages.orders import ShardSums
from secureps.messages.run import RunInfo
from secureps.messages.schema import Schema
from secureps.messages.submission import (
    BlockHeader,
    Cohort,
    Receipt,
    ciphertext_root,
    cohort_digest,
    enveloped_part,
    model_digest,
    receipt_digest,
    sharing_id,
    signing_bytes,
)
from secureps.store.journal_rows import RECORDS
from secureps.wire.grpc.authentication import REQUEST_DOMAIN, Claim
from secureps.wire.protobuf import SIZES, encode
from tests.kits.unset import unset

UNSENT = "is not sent by itself"


def kinds() -> dict[str, type]:
    """Every record and message, by name."""
    modules = [
        importlib.import_module(f"{messages.__name__}.{module.name}")
        for module in pkgutil.iter_modules(messages.__path__)
    ]
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and kind.__module__ == module.__name__
    }


def full(kind: Any, where: str = "") -> Any:
    """A value of a type that differs from those of all other fields."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        named = {
            name: full(hint, f"{where}.{name}" if where else f"{kind.__name__}.{name}")
            for name, hint in field_types(kind).items()
        }
        return kind(**named)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[1:] == (...,):
        return (full(arguments[0], f"{where}[0]"), full(arguments[0], f"{where}[1]"))
    if origin is tuple:
        return tuple(full(each, f"{where}[{i}]") for i, each in enumerate(arguments))
    if origin in (typing.Union, types.UnionType):
        return full(bytes if memoryview in arguments else arguments[0], where)
    seed = digest("golden", where.encode())
    name = where.rpartition(".")[2].partition("[")[0]
    if kind is bool:
        return True
    if kind is int:
        return int.from_bytes(seed[:2], "little")
    if kind is float:
        return int.from_bytes(seed[:3], "little") / 1024
    if kind is str:
        return f"{name}-{seed[:3].hex()}"
    assert kind is bytes, kind
    return (seed * 2)[: SIZES.get(name, 5)]


def wire(message: Any) -> str | None:
    """Its protobuf bytes in base64; None for what is only part of another."""
    try:
        return base64.b64encode(encode(message)).decode()
    except Malformed as error:
        if UNSENT in str(error):
            return None
        raise


def row(record: Any) -> str | None:
    """The text of its row in a journal; None for what is never journalled."""
    if type(record).__name__ not in RECORDS:
        return None
    return json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False)


def example(record: Any) -> dict[str, str]:
    """All forms that it has."""
    forms = {"canonical": canonical(record).decode(), "row": row(record), "wire": wire(record)}
    return {name: form for name, form in forms.items() if form is not None}


def examples() -> dict[str, dict[str, dict[str, str]]]:
    """Of every class."""
    return {
        name: {"full": example(full(kind)), "bare": example(unset(kind))}
        for name, kind in kinds().items()
    }


def digests() -> dict[str, str]:
    """What names, binds and signs the full examples, in hexadecimal."""
    run, receipt, cohort = full(RunInfo), full(Receipt), full(Cohort)
    block, evaluated, claim = full(BlockHeader), full(Evaluated), full(Claim)
    made = {
        "run": run.id,
        "schema": full(Schema).digest,
        "sharing": sharing_id(run.id, receipt.id),
        "cohort": cohort_digest(run.id, cohort),
        "receipt": receipt_digest(receipt),
        "enveloped": enveloped_part(receipt, "holder-0"),
        "root": ciphertext_root(receipt.blocks),
        "model": model_digest("all", 7, receipt.blocks),
        "evaluation": evaluated_digest(receipt.base, evaluated.model),
        "sums": full(ShardSums).rooted.sums[0],
        "payload": payload_digest(b"payload"),
        "receipt signed": b"|".join(signing_bytes(receipt)),
        "block signed": b"|".join(signing_bytes(block)),
        "evaluation signed": b"|".join(evaluated_bytes(evaluated)),
        "claim signed": REQUEST_DOMAIN + b"|" + claim.signed("/secureps.Coordinator/Tell"),
        "block key": block.key.encode(),
    }
    return {name: payload_digest(value).hex() for name, value in made.items()}
