"""Messages whose every field is as empty as its type lets it be, but for those that are named."""

import dataclasses
import typing
from typing import Any

from secureps.messages.encoding import field_types


def unset(kind: type, **others: Any) -> Any:
    return kind(**{name: empty(hint) for name, hint in field_types(kind).items()} | others)


def empty(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return ()
    if origin is not None:  # an optional field, or one of several types
        first, *_, last = typing.get_args(hint)
        return None if last is type(None) else first()
    kind: type = hint
    return unset(kind) if dataclasses.is_dataclass(kind) else kind()
