"""The base of all secrets of this package, which cannot be shown, copied or pickled."""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """Base of secret keys and seeds; `repr` and `str` show only the class, pickling is a TypeError.

    Subclasses keep their material in private attributes and return it from one explicit method.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: hidden>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is secret and is never pickled or copied")
