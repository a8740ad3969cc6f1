"""Reads compiled kernels: what LLVM's optimised code does with data that it has loaded.

Every number that is loaded from memory counts as data, and whatever is computed from it. Loop
counters, lengths and pointers come as arguments, and no call may pass data on but through memory,
so that functions can be read one by one. What the processor's back end makes of a
`select` is not looked at.
"""

import re
from collections.abc import Iterator
from typing import Any

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
