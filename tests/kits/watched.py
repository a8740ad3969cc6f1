"""Secret arrays that write down what numpy is asked to do with them and with what comes of them.

One thing is not seen: a plain array that is indexed by a secret.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

QUIET = frozenset(
    ("dtype", "shape", "size", "ndim", "flags", "data", "astype", "tobytes", "view", "reshape")
)
"""Attributes that look at no value, or copy them all; any other is written down."""


class Watched(np.ndarray[Any, Any]):
    """A secret. All that is computed from one is another.

    `seen` counts operations by name: a ufunc's ("add", "minimum.reduce"), "numpy.NAME" of a
    function, ".NAME" of a method or attribute, "[secret]" of an index that is one.
    """

    seen: ClassVar[Counter[str]] = Counter()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **named: Any) -> Any:
        Watched.seen[ufunc.__name__ + ("" if method == "__call__" else f".{method}")] += 1
        if "out" in named:
            named["out"] = tuple(bare(out) for out in named["out"])
            getattr(ufunc, method)(*map(bare, given), **named)
            return self
        return secret(getattr(ufunc, method)(*map(bare, given), **named))

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, given: Any, named: Any
    ) -> Any:
        Watched.seen[f"numpy.{function.__name__}"] += 1
        return secret(function(*(_all_bare(each) for each in given), **named))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, Watched):
            Watched.seen["[secret]"] += 1
        return secret(bare(self)[bare(at)])

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in QUIET:
            Watched.seen[f".{name}"] += 1
        return super().__getattribute__(name)

    def __int__(self) -> int:
        Watched.seen["int"] += 1
        return int(bare(self))

    def __bool__(self) -> bool:
        Watched.seen["bool"] += 1
        return bool(bare(self))


def bare(value: Any) -> Any:
    """The same for numpy alone."""
    return np.ndarray.view(value, np.ndarray) if isinstance(value, Watched) else value


def _all_bare(value: Any) -> Any:
    return [bare(each) for each in value] if isinstance(value, list | tuple) else bare(value)


def secret(value: Any) -> Any:
    return np.asarray(value).view(Watched)
