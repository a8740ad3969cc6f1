"""What every secret of this package has in common: it cannot be shown, copied or pickled.

Subclasses keep their material in attributes of their own and hand it out by one explicit method
alone.
"""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """Base of secret keys and seeds; `repr` and `str` name the class and nothing else.

    Raises:
        TypeError: on pickling and on `copy`, so that no secret leaves by accident.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: hidden>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is secret and is never pickled or copied")
