"""What is run on every kind of machine: the workflow names what exists, and asks for no more."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kits.nursery import ROOT

LISTED = (ROOT / "tests" / "portable.txt").read_text("utf-8").split()
FILES = [
    path
    for each in LISTED
    for path in (
        sorted((ROOT / each).glob("test_*.py")) if (ROOT / each).is_dir() else [ROOT / each]
    )
]
"""What GitHub calls its machines, https://docs.github.com/actions/reference/runners."""

BROUGHT = {"blake3", "click", "cryptography", "numpy", "safetensors", "secureps", "tests"}
"""By the package alone."""
BESIDE = {"hypothesis", "pytest"}
"""What the workflow installs besides."""


def clients() -> dict[str, object]:
    text = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    job: dict[str, object] = yaml.safe_load(text)["jobs"]["clients"]
    return job


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_listed_test_imports_only_what_is_installed_there(path: Path) -> None:
    """At its beginning; a single test skips itself where a library is missing."""
    for name in imported(path):
        first = name.partition(".")[0]
        assert first in BROUGHT | BESIDE or first in sys.stdlib_module_names, name
        assert first not in ("fcntl", "grp", "pwd", "resource", "termios"), name
        own = ROOT / f"{name.replace('.', '/')}.py"
        if first == "tests" and own.is_file() and own != path:
            test_a_listed_test_imports_only_what_is_installed_there(own)


def imported(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text("utf-8")).body:
        match statement:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                if module.startswith("tests."):
                    yield from (f"{module}.{each.name}" for each in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_listed_test_reads_text_in_one_encoding(path: Path) -> None:
    """Windows would read it in that of the user's language."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            least = {"read_text": 1, "write_text": 2}.get(node.func.attr, 0)
            named = any(each.arg == "encoding" for each in node.keywords)
            assert named or len(node.args) >= least, f"{path.name}:{node.lineno}"
