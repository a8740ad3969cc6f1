"""What a format is, in words: fields of messages, records and the proto, tables of a journal.

`python -m tests.golden.schema` says its fingerprint.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.roster import Certificate
from secureps.messages.encoding import digest, field_types
from secureps.roles.coordinator.receipts import OpenFold
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.timeline import TimelineFold
from secureps.roles.fold import shape
from secureps.roles.holder.fold import HolderFold
from secureps.roles.member.state import MemberState
from secureps.roles.shard.state import ShardFold
from secureps.store import journal
from secureps.store.checkpoint import Manifest, ShardFile, Tally
from secureps.store.journal_rows import RECORDS
from secureps.wire import secureps_pb2
from tests.golden.values import kinds

FILES = (Manifest, ShardFile, Tally, CipherParameters, Certificate)
"""Records that lie in files of their own."""


FOLDS = (CoordinatorState, OpenFold, TimelineFold, HolderFold, MemberState, ShardFold)
"""What compacted journals begin with."""


def schema() -> dict[str, Any]:
    """Of today's code."""
    known = kinds() | {kind.__name__: kind for kind in FILES}
    return {
        "records": {name: _record(kind) for name, kind in sorted(known.items())},
        "journalled": sorted(RECORDS),
        "journal": journal._SCHEMA.split(),
        "folds": {kind.__name__: shape(kind) for kind in FOLDS},
        "proto": _proto(),
    }


def fingerprint() -> str:
    """Of `schema`, 16 hexadecimal digits."""
    return digest("format", json.dumps(schema(), sort_keys=True).encode()).hex()[:16]


def _record(kind: type) -> list[str]:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    return [
        f"{name}: {_hint(hint)}{' = None' if defaults[name] is None else ''}"
        for name, hint in field_types(kind).items()
    ]


def _hint(hint: Any) -> str:
    arguments = [_hint(each) for each in typing.get_args(hint) if each is not ...]
    if typing.get_origin(hint) is tuple:
        return f"tuple of {', '.join(arguments)}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(arguments)
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _proto() -> dict[str, list[str]]:
    """Fields of all messages, with their numbers and types."""
    names = {
        value: name.removeprefix("TYPE_").lower()
        for name, value in vars(FieldDescriptor).items()
        if name.startswith("TYPE_")
    }

    def told(field: Any) -> str:
        kind = field.message_type.name if field.message_type else names[field.type]
        alone = "optional " if field.has_presence and not field.message_type else ""
        many = "repeated " if field.is_repeated else alone
        return f"{field.number}: {many}{kind} {field.name}"

    tables = secureps_pb2.DESCRIPTOR.message_types_by_name
    return {name: [told(field) for field in tables[name].fields] for name in sorted(tables)}


if __name__ == "__main__":
    print(fingerprint())
