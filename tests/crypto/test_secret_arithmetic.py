"""Sharing divides no secret, and its operations do not depend on a secret's value."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from secureps.crypto import sharing
from secureps.crypto.sampling import Stream
from secureps.crypto.sharing import (
    Committee,
    HolderShare,
    Vector,
    combination,
    reduce,
    share,
    vector_bytes,
    weighted_sum,
)

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


US = Committee(("a", "b", "c", "d"), 3)
ARITHMETIC = {"add", "subtract", "multiply", "bitwise_and", "right_shift", "minimum"}
REJECTION = {"not_equal", "[secret]", "numpy.concatenate"}
"""Words equal to P are left out; they are independent of the words that stay."""
BOUND = {".min", ".max", "minimum.reduce", "maximum.reduce", "int"}
"""A key beyond its bound is refused; sealing never makes one."""


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every word of a stream is a secret."""

    class Secretive(Stream):
        def words(self, count: int) -> Vector:
            made: Vector = secret(super().words(count))
            return made

    monkeypatch.setattr(sharing, "Stream", Secretive)
    Watched.seen.clear()
    yield
    Watched.seen.clear()


def test_a_client_shares_its_key_by_arithmetic_alone() -> None:
    key = np.random.default_rng(1).integers(-41, 42, 2048).astype(np.int32)
    shared = share(b"id", secret(key), US)
    assert isinstance(shared.correction, Watched)
    assert set(Watched.seen) == {*ARITHMETIC - {"multiply"}, *REJECTION, *BOUND}
    assert Watched.seen["[secret]"] == Watched.seen["not_equal"]


def test_a_holder_derives_and_adds_its_shares_by_arithmetic_alone() -> None:
    shared = share(b"id", np.zeros(2048, np.int32), US)
    mine = HolderShare(US, 1, b"id", shared.seeds_of(1))
    Watched.seen.clear()
    derived = mine.share(2048)
    assert isinstance(derived, Watched)
    assert set(Watched.seen) == ARITHMETIC | REJECTION
    Watched.seen.clear()
    answer = weighted_sum([derived, derived], [1, 4])
    assert isinstance(answer, Watched)
    assert vector_bytes(answer) == combination([5], [bare(derived)]).tobytes()
    assert set(Watched.seen) == ARITHMETIC


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (lambda x: x % np.uint64(7), "remainder"),
        (lambda x: x // np.uint64(7), "floor_divide"),
        (lambda x: np.mod(x, 7), "remainder"),
        (lambda x: np.divmod(x, 7)[0], "divmod"),
        (lambda x: x.__ifloordiv__(np.uint64(7)), "floor_divide"),
        (lambda x: np.where(x > 7, x, 7), "numpy.where"),
        (lambda x: x[x], "[secret]"),
        (lambda x: x.sort(), ".sort"),
        (lambda x: x.nonzero(), ".nonzero"),
        (lambda x: bool(x[0]), "bool"),
        (lambda x: reduce(x) % np.uint32(7), "remainder"),
    ],
)
def test_whatever_else_is_asked_of_a_secret_is_seen(bad: Callable[[Any], Any], name: str) -> None:
    bad(secret(np.arange(5, dtype=np.uint64)))
    assert name in Watched.seen
