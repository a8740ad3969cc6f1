"""`vectors/verify.py` agrees with the vectors, refuses each tampered run, and shares no code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vectors.files import RUN, of_run, on_disk
from tests.vectors.recording import VECTORS
from tests.vectors.tampering import TAMPERED

VERIFIER = VECTORS / "verify.py"
SAID = {
    "a value": "run, version 2: model's bytes",
    "a weight": "run, receipts: signatures at client-00/all/1",
    "a client left out": "run, version 1: answers",
    "a signature": "run, receipts: signatures at client-01/all/0",
    "a row removed": "run, roster and rows: rows in chains at coordinator row 33",
    "rows swapped": "run, roster and rows: rows in chains at coordinator row 22",
    "a share": "run, version 1: key sum",
    "another plan": "run, receipts: roots at client-00/all/0",
    "a stale model": "run, version 2: model's bytes",
    "a doubled update": "run, rounds: members are in one cohort",
}
"""The first disagreement in each tampered run."""


def verified(folder: Path) -> tuple[int, list[str]]:
    """The exit status, and the lines that tell of disagreements."""
    command = [sys.executable, "-I", str(VERIFIER), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, [x for x in done.stdout.splitlines() if x.startswith("DISAGREES ")]


@pytest.mark.slow
def test_it_agrees() -> None:
    assert verified(VECTORS) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_run_is_refused(name: str, tmp_path: Path) -> None:
    found = on_disk()
    tampered = {RUN + file: data for file, data in TAMPERED[name](of_run(found)).items()}
    for file, data in (found | tampered).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(data)
    status, disagreements = verified(tmp_path)
    assert status == 1
    assert disagreements[0] == f"DISAGREES {SAID[name]}"
    assert all(line.startswith("DISAGREES run, ") for line in disagreements)


def test_it_imports_nothing_of_the_project() -> None:
    source = VERIFIER.read_text()
    imported = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(f"{'.' * node.level}{node.module}")
    assert "numpy" in imported
    assert imported - {"numpy"} <= sys.stdlib_module_names - {"importlib", "runpy"}
    assert "__import__" not in source
