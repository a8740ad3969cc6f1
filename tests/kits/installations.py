"""Another installation of the package: a copy of its tree that names another version or format."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.kits.nursery import ROOT


def install(folder: Path, version: str = "", format: int = 0) -> Path:
    """Copies the package there, and links to these tests; the folder.

    Args:
        version, format: what it says of itself; "" and 0 leave what it is.
    """
    shutil.copytree(ROOT / "secureps", folder / "secureps")  # with what is compiled: times stay
    (folder / "tests").symlink_to(ROOT / "tests")
    if version:
        _say(folder / "secureps" / "__init__.py", "__version__", f'"{version}"')
    if format:
        _say(folder / "secureps" / "messages" / "format.py", "FORMAT: Final", str(format))
    return folder


def _say(file: Path, name: str, value: str) -> None:
    text, found = re.subn(rf"(?m)^{re.escape(name)} = .*$", f"{name} = {value}", file.read_text())
    assert found == 1
    file.write_text(text)
