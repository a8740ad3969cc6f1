"""Secrecy: compiled sealing has no division, branch or address that depends on data."""

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps import compiled as compiling
from secureps.compiled import inlined
from secureps.crypto import numpy_kernels, rlwe_kernels
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ntt import companion, constants, scale
from secureps.crypto.ring import ETA, RINGS, Ring, choose
from secureps.crypto.rlwe import PublicPolynomials
from secureps.crypto.rlwe_kernels import binomial, pack_words, seal_elements, transform_small
from tests.kits.rlwe_kit import binomials, edge_words, place, transformed

# Every number that is loaded from memory counts as data, and whatever is computed from it. Loop
# counters, lengths and pointers come as arguments, and no call may pass data on but through memory,
# so that functions can be read one by one. The back end's form of a `select` is not looked at.
_DEFINE = re.compile(r"^define [^\n]*?@(\S+?)\((.*?)^}", re.MULTILINE | re.DOTALL)
_ASSIGN = re.compile(r"^\s*(%[-\w.]+) = (.*)$")
_NAME = re.compile(r"%[-\w.]+")
_LOADS_NUMBER = re.compile(r"load (?:atomic |volatile )*(?!ptr\b|<\d+ x ptr>)")
_CALL = re.compile(r"call [^@]*@([\w.]+)")
DIVISIONS = ("sdiv", "udiv", "srem", "urem", "fdiv", "frem")
HARMLESS = re.compile(r"llvm\.(ctpop|umin|umax|smin|smax|vector|mem|lifetime|assume|experimental)")


def functions(kernel: Any) -> dict[str, list[str]]:
    """Lines of every function of this package that a kernel was compiled to, by LLVM's name.

    Left out are the wrappers, which turn Python's objects into arrays.
    """
    found: dict[str, list[str]] = {}
    for signature in kernel.signatures:
        for name, body in _DEFINE.findall(kernel.inspect_llvm(signature)):
            if name.startswith("_ZN") and not name.startswith("_ZN7cpython"):
                found[name] = body.splitlines()[1:]
    return found


def data(lines: list[str]) -> set[str]:
    """The values that depend on what was loaded."""
    tainted: set[str] = set()
    before = -1
    while before < len(tainted):
        before = len(tainted)
        for line in lines:
            made = _ASSIGN.match(line)
            if made and (
                _LOADS_NUMBER.match(made[2]) or tainted.intersection(_NAME.findall(made[2]))
            ):
                tainted.add(made[1])
    return tainted


def complaints(lines: list[str]) -> Iterator[str]:
    """Divisions by or of anything; branches on data, and addresses and calls that have some."""
    tainted = data(lines)
    for line in lines:
        words = line.split()
        made = _ASSIGN.match(line)
        operation = made[2] if made else line.strip()
        names = tainted.intersection(_NAME.findall(operation))
        if operation.startswith(DIVISIONS):
            yield f"divides: {operation}"
        if words[:1] in (["br"], ["switch"], ["indirectbr"]) and names:
            yield f"branches: {operation}"
        if operation.startswith("getelementptr") and names:
            yield f"looks up: {operation}"
        called = _CALL.search(operation)
        if called and names and not HARMLESS.match(called[1]):
            yield f"calls: {operation}"


of_both = pytest.mark.usefixtures("kernel_kind")
every_ring = pytest.mark.parametrize("ring", RINGS, ids=lambda r: r.name)


def draw(words: NDArray[np.uint32]) -> NDArray[np.int32]:
    out = np.empty(words.shape[1], np.int32)
    binomial(words, out)
    return out


@of_both
def test_binomial_values_are_those_of_the_definition() -> None:
    words = edge_words(2000)
    found = draw(words)
    assert found[:5].tolist() == [0, 0, ETA, -ETA, 0]
    assert found.tolist() == binomials(words)


@of_both
@every_ring
def test_a_key_is_transformed_with_its_companions(ring: Ring) -> None:
    rng = np.random.default_rng(3)
    for most in (ETA, ETA << 16):
        small = rng.integers(-most, most, ring.degree, np.int32, endpoint=True)
        small[:2] = [most, -most]
        out = np.empty((len(ring.primes), 2, ring.degree), np.uint32)
        transform_small(small, constants(ring), out)
        for row, prime in zip(out, ring.primes):
            assert row[0].tolist() == transformed(small.tolist(), prime)
            assert row[1].tolist() == [companion(s, prime) for s in row[0].tolist()]


@pytest.mark.parametrize("reduce", [rlwe_kernels.reduce_accepted, numpy_kernels.reduce_accepted])
def test_words_from_the_limit_on_are_passed_over(reduce: Any) -> None:
    """Else residues would not be equally likely."""
    primes = constants(RINGS[0]).primes
    limits = primes[:, 0] * primes[:, 1]
    words = [(limit, 7, limit - 1, 0xFFFFFFFF, p) for limit, p in zip(limits, primes[:, 0])]
    windows = np.array([words], np.uint32)
    out = np.empty((1, len(primes), 3), np.uint32)
    assert reduce(windows, primes, out)
    assert out[0].tolist() == [[7, p - 1, 0] for p in primes[:, 0].tolist()]
    assert not reduce(windows, primes, np.empty((1, len(primes), 4), np.uint32))


@of_both
@every_ring
def test_companions_are_exact_for_every_kind_of_value(ring: Ring) -> None:
    """Constant polynomials transform to themselves: values at every edge, both extremes."""
    for prime in ring.primes:
        edges = [0, 1, -1, 2, -2, *range(3, 5000, 7), prime // 2, -(prime // 2)]
        for value in edges[:: 1 if ring is RINGS[0] else 50]:
            small = np.zeros(ring.degree, np.int32)
            small[0] = value
            out = np.empty((len(ring.primes), 2, ring.degree), np.uint32)
            transform_small(small, constants(ring), out)
            for row, p in zip(out, ring.primes):
                assert set(row[0].tolist()) == {value % p}
                assert set(row[1].tolist()) == {companion(value % p, p)}


@pytest.mark.slow
@of_both
@pytest.mark.parametrize(("capacity", "levels"), [(32, 65_534), (1, 1), (1, (1 << 32) - 1), (2, 1)])
def test_the_greatest_digits_are_encoded_exactly(capacity: int, levels: int) -> None:
    """Many digits or large ones, under a zero key and zero noise, give Delta m alone."""
    enc = choose(CipherParameters("rlwe", capacity, levels))
    ring, n = enc.ring, enc.ring.degree
    values = np.full((1, enc.digits, n), levels, np.uint32)
    values[0, :, ::2] = np.random.default_rng(4).integers(0, levels, (enc.digits, n // 2))
    public = PublicPolynomials(ring, place(enc.values)).derive(0, 1)
    out = np.empty((1, len(ring.words), n), np.uint64)
    seal_elements(
        values,
        public,
        np.zeros((1, 3, n), np.uint32),
        np.zeros((len(ring.primes), 2, n), np.uint32),
        scale(enc).digits,
        constants(ring),
        out,
    )
    columns = values[0].T.tolist()
    messages = [enc.delta * sum(u * enc.base**k for k, u in enumerate(c)) for c in columns]
    for w, (low, high) in enumerate(ring.words):
        for prime in (low, high):
            expected = transformed(messages, prime)
            assert [int(word) % prime for word in out[0, w]] == expected


# --- what the compiler made of it ---------------------------------------------------


SECRETIVE = {
    "_binomial": rlwe_kernels._binomial,
    "transform_small": cast(Any, transform_small).__wrapped__,
    "seal_elements": cast(Any, seal_elements).__wrapped__,
    "pack_words": cast(Any, pack_words).__wrapped__,
}
"""Kernels that work on secrets, or on ciphertexts before they are sent."""


def compiled_anew() -> dict[str, dict[str, list[str]]]:
    """Returns their LLVM code, in a process that takes no kernel from the cache folder."""
    compiling.load_kernels = Path
    enc = choose(CipherParameters("rlwe", 32, 65_534))
    test_the_greatest_digits_are_encoded_exactly(32, 65_534)
    test_a_key_is_transformed_with_its_companions(enc.ring)
    draw(np.zeros((3, 8), np.uint32))
    pack_words(np.zeros(64, np.uint64), np.zeros(53, np.uint64))
    return {name: functions(each) for name, each in SECRETIVE.items()}


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, list[str]]]:
    pytest.importorskip("numba")
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(compiled_anew).result()


@pytest.mark.slow
@pytest.mark.parametrize("name", SECRETIVE)
def test_no_division_branch_or_look_up_depends_on_data(
    name: str, compiled: dict[str, dict[str, list[str]]]
) -> None:
    found = compiled[name]
    assert any(name in function for function in found)
    if name in ("transform_small", "seal_elements"):
        assert any("forward" in function for function in found)
    for function, lines in found.items():
        assert not list(complaints(lines)), function


# Not kernels, which a second run of the tests would take from the folder, without LLVM's text.


@inlined
def _divides(x: NDArray[np.uint64], y: NDArray[np.uint64]) -> None:
    for k in range(x.size):
        y[k] = x[k] // np.uint64(94887937 + x.size)


@inlined
def _branches(x: NDArray[np.uint64], y: NDArray[np.uint64]) -> None:
    for k in range(x.size):
        if x[k] > np.uint64(7):
            for j in range(y.size):
                y[j] += x[k] + np.uint64(j)


@inlined
def _counts(x: NDArray[np.uint64], y: NDArray[np.uint64]) -> None:
    for k in range(x.size):
        for j in range(x[k]):
            y[k] = y[k] * y[k] + np.uint64(j)


@inlined
def _looks_up(x: NDArray[np.uint64], y: NDArray[np.uint64]) -> None:
    for k in range(x.size):
        y[k] = y[x[k]]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (_divides, "divides"),
        (_branches, "branches"),
        (_counts, "branches"),
        (_looks_up, "looks up"),
    ],
)
def test_the_reader_of_kernels_sees_what_it_looks_for(bad: object, complaint: str) -> None:
    bad(np.zeros(8, np.uint64), np.zeros(8, np.uint64))  # type: ignore[operator]
    said = [c for lines in functions(bad).values() for c in complaints(lines)]
    assert any(c.startswith(complaint) for c in said), said
