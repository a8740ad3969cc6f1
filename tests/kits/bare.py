"""An installation without some modules: they are there for nobody in a process.

`sitecustomize.py` in a folder of PYTHONPATH is imported by every Python process that is started
with it, those of parties too.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.kits.nursery import ROOT

_HIDE = """
import sys

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden)
"""


def bare(
    folder: Path, *arguments: str, modules: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in `folder`, where `modules` are not installed."""
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "sitecustomize.py").write_text(_HIDE.format(modules=modules))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{hidden}{os.pathsep}{ROOT}", "COLUMNS": "200"},
    )
