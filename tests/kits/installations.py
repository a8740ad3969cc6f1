"""Another installation of the package: a copy of its tree that names another version."""

import re
import shutil
from pathlib import Path

from numba.core.caching import _CacheLocator

from secureps.compiled import ROOMS, kernel_folder
from tests.kits.nursery import ROOT, prepare


def install(folder: Path, version: str) -> Path:
    """Copies the package there, and links to these tests; the folder, also a home of its own."""
    shutil.copytree(ROOT / "secureps", folder / "secureps")  # with what is compiled: times stay
    (folder / "tests").symlink_to(ROOT / "tests")
    kept_kernels(folder / "secureps", folder / ".cache" / "secureps" / "kernels")
    says = folder / "secureps" / "__init__.py"
    text, found = re.subn(r"(?m)^__version__ = .*$", f'__version__ = "{version}"', says.read_text())
    assert found == 1
    says.write_text(text)
    return folder


def kept_kernels(package: Path, top: Path) -> Path:
    """A folder with the kernels of this package that are compiled already, for one elsewhere.

    numba keeps them by the place of their sources, whose times and lengths it looks at; to compile
    them again would take the rest of a minute.

    Args:
        package: a copy of it, whose sources get the times of these, or a link to it.
        top: where the folder is to be; returned.
    """
    prepare("secureps.run.warm")  # whose nursery has compiled them all, once it answers
    kept = kernel_folder()
    folder = top / kept.name
    folder.mkdir(parents=True, mode=0o700)
    top.chmod(0o700)
    place = _CacheLocator.get_suitable_cache_subpath
    for room in ROOMS:
        ours, theirs = ROOT / "secureps" / room, package / room
        for source in ours.glob("*.py"):
            shutil.copystat(source, theirs / source.name)
        if (kept / (here := place(str(ours / "kernel.py")))).is_dir():
            shutil.copytree(kept / here, folder / place(str(theirs / "kernel.py")))
    return top
