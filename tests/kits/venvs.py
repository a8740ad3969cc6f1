"""Virtual environments with what pip would install for an extra, made without a network.

What a requirement of pyproject.toml leads to is read from what the running environment has
installed, and linked: every file that a distribution's RECORD names, and no other.
"""

import re
import sysconfig
import tomllib
import venv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.kits.nursery import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

File = tuple[Path, list[str]]
"""Of a distribution: the folder it is installed in, and the parts of a path in there."""


class NotInstalled(Exception):
    """The running environment lacks a distribution that a requirement names."""


def required(extras: Iterable[str]) -> dict[str, Distribution]:
    """What `pip install secureps[EXTRAS]` needs besides secureps, by normal name.

    Raises:
        NotInstalled: names what is not there.
    """
    optional = PROJECT["optional-dependencies"]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in optional[extra])]
    waiting = [(Requirement(text), "") for text in texts]
    while waiting:
        wanted, asked_by = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": asked_by}):
            continue
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name == PROJECT["name"]:
            own = [text for each in wanted.extras for text in optional[each]]
            waiting += ((Requirement(text), "") for text in own)
            continue
        try:
            found[name] = installed = distribution(name)
        except PackageNotFoundError:
            raise NotInstalled(name) from None
        for extra in {"", *wanted.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            waiting += ((Requirement(text), extra) for text in installed.requires or ())
    return found


@cache
def _records() -> dict[str, list[File]]:
    """Every file that a distribution has brought, as (root, parts), by the distribution's name."""
    found: dict[str, list[File]] = {}
    for each in distributions():
        root = Path(str(each.locate_file("")))
        lines = (each.read_text("RECORD") or "").splitlines()
        files = [(root, line.rsplit(",", 2)[0].strip('"').split("/")) for line in lines]
        # not the commands, nor what Python writes by itself
        kept = [file for file in files if not {"..", "__pycache__"} & set(file[1])]
        found.setdefault(each.metadata["Name"], kept)
    return found


def site_of(folder: Path) -> Path:
    bases = {"base": str(folder), "platbase": str(folder)}
    return Path(sysconfig.get_path("purelib", "venv", bases))


def made(folder: Path, chosen: Mapping[str, Distribution]) -> Path:
    """Makes an environment with these distributions and secureps; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = site_of(folder)
    (site / "secureps").symlink_to(ROOT / "secureps")
    names = {each.metadata["Name"] for each in chosen.values()}
    others = [file for name, files in _records().items() if name not in names for file in files]
    _link(site, [file for name in names for file in _records()[name]], others, 1)
    return folder / "bin" / "python"


def _link(site: Path, ours: list[File], others: list[File], depth: int) -> None:
    """Links files, or a folder in their place where all of it is ours, and lies in one place."""
    shared, first = {tuple(parts[:depth]) for _, parts in others}, dict[tuple[str, ...], Path]()
    shared |= {
        own for root, parts in ours if first.setdefault(own := tuple(parts[:depth]), root) != root
    }
    deeper = []
    for root, parts in ours:
        link = site.joinpath(*parts[:depth])
        if tuple(parts[:depth]) in shared and len(parts) > depth:
            link.mkdir(exist_ok=True)
            deeper.append((root, parts))
        elif not link.is_symlink():
            link.symlink_to(root.joinpath(*parts[:depth]))
    if deeper:
        _link(site, deeper, [file for file in others if len(file[1]) > depth], depth + 1)
