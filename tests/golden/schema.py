"""What a format is, in words: fields of all that is sent, journalled or folded, and of files.

`python -m tests.golden.schema` says its fingerprint.
"""

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Iterable
from typing import Any

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.roster import Certificate
from secureps.messages.encoding import digest, field_types
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.holder.holder import HolderFold
from secureps.roles.member.member import MemberState
from secureps.roles.shard.state import ShardFold
from secureps.store.checkpoint import Manifest, ShardFile, Tally
from secureps.store.journal_rows import RECORDS, SCHEMA
from secureps.wire.msgpack import SENT
from tests.golden.values import kinds

FILES = (Manifest, ShardFile, Tally, CipherParameters, Certificate)
"""Records that lie in files of their own."""


FOLDS = (CoordinatorState, HolderFold, MemberState, ShardFold)
"""What compacted journals begin with."""


def schema() -> dict[str, Any]:
    return {
        "classes": classes((*kinds().values(), *FILES, *FOLDS)),
        "sent": sorted(SENT),
        "journalled": sorted(RECORDS),
        "journal": SCHEMA.split(),
    }


def fingerprint() -> str:
    """Of `schema`, 16 hexadecimal digits."""
    return digest("format", json.dumps(schema(), sort_keys=True).encode()).hex()[:16]


def classes(kinds: Iterable[type]) -> dict[str, list[str]]:
    """By name, the fields of these classes and of all that is in them; the words of an enum."""
    found: dict[str, tuple[type, list[str]]] = {}

    def look(hint: Any) -> None:
        for each in typing.get_args(hint):
            look(each)
        if not isinstance(hint, type):
            return
        name = hint.__name__
        assert found.get(name, (hint,))[0] is hint, f"two classes are named {name}"
        if name in found:
            return
        if hasattr(hint, "packed"):
            found[name] = hint, ["packed"]
        elif issubclass(hint, enum.Enum):
            found[name] = hint, [str(each.value) for each in hint]
        elif dataclasses.is_dataclass(hint):
            found[name] = hint, _fields(hint)
            for each in field_types(hint).values():
                look(each)

    for kind in kinds:
        look(kind)
    return {name: told for name, (_, told) in sorted(found.items())}


def _fields(kind: type) -> list[str]:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    return [
        f"{name}: {_named(hint)}{' = None' if defaults[name] is None else ''}"
        for name, hint in field_types(kind).items()
    ]


def _named(hint: Any) -> str:
    arguments = [_named(each) for each in typing.get_args(hint) if each is not ...]
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(arguments)
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name} of ({', '.join(arguments)})" if arguments else name


if __name__ == "__main__":
    print(fingerprint())
