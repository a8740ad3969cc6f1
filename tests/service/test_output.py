"""A process whose stdout and stderr take nothing goes on, and ends as it would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.nursery import ROOT

CODE = """
import logging, os, sys
from secureps.service.logs import ignore_output_errors
ignore_output_errors()
logging.basicConfig(stream=sys.stderr)
for number in range(1000):
    print("a line", number, "\\u2713")
    logging.warning("another")
sys.stdout.flush()
with open("/dev/null") as file:
    assert file.fileno() > 2, "a file that is opened later would be written to by print"
sys.exit(7)
"""


@pytest.mark.parametrize(
    "output", [">/dev/full 2>/dev/full", ">&- 2>&- <&-", "2>&1 | true", ">/dev/null 2>&1"]
)
def test_nothing_that_is_told_ends_it(output: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -c '{CODE}'; echo $? >{tmp_path}/status"
    done = subprocess.run(
        f"({command}) {output}",
        shell=True,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert ((tmp_path / "status").read_text(), done.stdout, done.stderr) == ("7\n", "", "")


def test_what_can_be_told_is_told_as_ever() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 7
    assert len(done.stdout.splitlines()) == len(done.stderr.splitlines()) == 1000
