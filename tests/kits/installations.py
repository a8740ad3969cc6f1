"""Another installation of the package: a copy of its tree that names another version or format."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from numba.core.caching import _CacheLocator

from secureps.compiled import ROOMS, kernel_folder
from tests.kits.nursery import ROOT, prepare


def install(folder: Path, version: str = "", format: int = 0) -> Path:
    """Copies the package there, and links to these tests; the folder, also a home of its own.

    Args:
        version, format: what it says of itself; "" and 0 leave what it is.
    """
    shutil.copytree(ROOT / "secureps", folder / "secureps")  # with what is compiled: times stay
    (folder / "tests").symlink_to(ROOT / "tests")
    _keep_kernels(folder)
    if version:
        _say(folder / "secureps" / "__init__.py", "__version__", f'"{version}"')
    if format:
        _say(folder / "secureps" / "messages" / "format.py", "FORMAT: Final", str(format))
    return folder


def _keep_kernels(folder: Path) -> None:
    """Kernels that are compiled already, in the home folder there: numba keeps them by path.

    Their sources are the same, to the second; to compile them would take the rest of a minute.
    """
    prepare("secureps.run.warm")  # whose nursery has compiled them all, once it answers
    kept = kernel_folder()
    home = folder / ".cache" / "secureps" / "kernels" / kept.name
    home.mkdir(parents=True, mode=0o700)
    home.parent.chmod(0o700)
    place = _CacheLocator.get_suitable_cache_subpath
    for room in ROOMS:
        here, there = (
            place(str(root / "secureps" / room / "kernel.py")) for root in (ROOT, folder)
        )
        if (kept / here).is_dir():
            shutil.copytree(kept / here, home / there)


def _say(file: Path, name: str, value: str) -> None:
    text, found = re.subn(rf"(?m)^{re.escape(name)} = .*$", f"{name} = {value}", file.read_text())
    assert found == 1
    file.write_text(text)
