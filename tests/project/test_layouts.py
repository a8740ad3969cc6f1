"""Numbers that leave a process have a stated byte order and width, whatever the machine has.

Clients compare digests of what they make: a model of native integers would be another one where
`long` has 32 bits, or the first byte is the highest.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from tests.kits.nursery import ROOT

PACKAGE = ROOT / "secureps"
NATIVE = {
    *("int_", "uint", "intp", "uintp", "intc", "uintc", "long", "ulong", "longlong", "ulonglong"),
    *("short", "ushort", "byte", "ubyte", "half", "single", "double", "longdouble", "float_"),
}
"""NumPy's names for what C's compiler makes of a type."""

ORDERED = re.compile(
    r"""astype\(\s*(["']<|_WORD|_SUM|self\._dtype)|newbyteorder\(["']<["']\)|dtype\(["']<"""
)
LITTLE = re.compile(r"""^(["'][<|]|np\.u?int8$|_WORD$|_SUM$|_COEFFICIENT$|self\._dtype$)""")
"""What says the order of bytes: a string, a type of one byte, or a name for one that does."""

FORMATTED = ("Struct", "pack", "unpack", "unpack_from", "calcsize")
"""Functions of `struct`, whose format begins with the order."""

STAYS = {
    "client/update._hash_integers": "put in order by `ascontiguousarray`",
    "buffers.Buffers._wrap": "memory of this process",
    "client/flower/trainer.from_plain": "bytes as an app gave them",
    "client/torch.fit_key": "a digest that this client alone makes",
    "client/torch_ranks.receive_order": "processes of one client, on machines of one kind",
    "client/worker.ClientWorker.prepare_fit": "words of this client's own seed",
    "client/worker.ClientWorker._name_update": "a name, of random bytes",
    "crypto/bfv_seal.BfvOpener._open": "bytes already",
    "crypto/cipher.Adder.zero": "a total in memory; `total` orders it",
    "crypto/cipher.Opener.open": "sums in memory of this process",
    "crypto/sampling.fill": "whoever asks has its array in a stated order",
    "roles/coordinator/opening.candidates": "sums are compared in one process",
    "run/script/scoring.train_alone": "words of this process's own seed",
    "run/simulate/simulation.Simulation._make": "words of this process's own seed",
    "service/one_wave": "who calls, as the kernel says it",
    "store/checkpoint.Scratch.vector": "memory of this process, which it outlives by no file",
    "store/checkpoint._view": "the order is taken from the file's own type, as little",
}
"""Functions that need no order, and why."""


@cache
def sources() -> dict[Path, ast.Module]:
    """Every module of the package, read when it is first looked at: not by whoever collects."""
    return {
        path.relative_to(PACKAGE): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if "templates" not in path.parts
    }


def functions(path: Path, module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    def inner(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from inner(child, f"{name}.{child.name}")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}.{child.name}", child
            elif not isinstance(child, ast.Import | ast.ImportFrom):
                yield name, child

    return inner(module, path.with_suffix("").as_posix())


def calls(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            yield each.func.attr, each


def unordered(name: str, node: ast.AST) -> Iterator[str]:
    for called, call in calls(node):
        if called not in ("frombuffer", "tobytes", "cast", *FORMATTED):
            continue
        said = [ast.unparse(each) for each in call.args]
        if called == "frombuffer":
            said += [ast.unparse(k.value) for k in call.keywords if k.arg == "dtype"]
            bad = len(said) < 2 or not LITTLE.match(said[1])
        elif called == "tobytes" or (called == "cast" and said == ["'B'"]):
            bad = not ORDERED.search(ast.unparse(node))
        else:
            bad = called in FORMATTED and bool(said) and bool(re.match("['\"][^<>!]", said[0]))
        if bad:
            yield f"{name}: {ast.unparse(call)}"


def test_bytes_are_read_and_written_in_a_stated_order() -> None:
    found = [
        each
        for path, module in sources().items()
        for name, node in functions(path, module)
        if name not in STAYS
        for each in unordered(name, node)
    ]
    assert found == []


def too_native(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value) == "np" and node.attr in NATIVE
    if not isinstance(node, ast.Call):
        return False
    named = [k.value for k in node.keywords if k.arg == "dtype"]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
        named += node.args[:1]
    return any(ast.unparse(each) in ("int", "float") for each in named)


def test_no_number_is_as_wide_as_the_machine_likes() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path, module in sources().items()
        for node in ast.walk(module)
        if too_native(node)
    ]
    assert found == []


def test_what_is_said_of_a_function_is_said_of_one_that_there_is() -> None:
    there = {name for each in sources().items() for name, _ in functions(*each)}
    assert set(STAYS) - there == set()


def test_numbers_of_numpy_and_of_python_have_the_width_that_kernels_count_on() -> None:
    """An index is an int64 in what numba compiles and in NumPy, and a float is IEEE's."""
    assert np.arange(1).dtype == np.int64, "NumPy 2 on a 64-bit system"
    assert np.dtype("<f4").itemsize == 4
    assert np.finfo(np.float64).nmant == 52
    assert np.float32(1).astype("<f4").tobytes() == b"\0\0\x80?"
