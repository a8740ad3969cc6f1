"""What a data holder installs, in bytes: by what is installed here, and as the page tells it."""

import re
from importlib import metadata

from packaging.requirements import Requirement

from tests.kits.nursery import ROOT
from tests.project.test_habits import PROJECT

MB = 1_000_000
MOST = 150 * MB
"""Of an installation without torch, numba and what counts privacy."""

NUMBA = ("numba", "llvmlite")
PRIVACY = ("dp-accounting", "scipy")
OURS = sum(path.stat().st_size for path in (ROOT / "secureps").rglob("*.*") if path.is_file())


def needed(left_out: tuple[str, ...]) -> dict[str, int]:
    found, wanted = dict[str, int](), list[str](PROJECT["project"]["dependencies"])
    while wanted:
        requirement = Requirement(wanted.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        apart = requirement.marker and not requirement.marker.evaluate({"extra": ""})
        if apart or name in found or name in left_out:
            continue
        package = metadata.distribution(name)
        found[name] = sum(file.size or 0 for file in package.files or ())
        wanted += package.requires or []
    return found


def test_without_numba_and_what_counts_privacy_it_is_small() -> None:
    found = needed((*NUMBA, *PRIVACY))
    assert not {"torch", *NUMBA, *PRIVACY} & set(found), "nothing else brings them"
    assert OURS + sum(found.values()) < MOST


def test_numba_is_asked_for_where_it_has_wheels() -> None:
    (line,) = (each for each in PROJECT["project"]["dependencies"] if each.startswith("numba"))
    marker = Requirement(line).marker
    assert marker is not None
    machines = {
        ("linux", "x86_64"): True,
        ("linux", "aarch64"): True,
        ("linux", "riscv64"): False,
        ("darwin", "arm64"): True,
        ("darwin", "x86_64"): False,
        ("win32", "AMD64"): True,
        ("win32", "ARM64"): True,
        ("win32", "x86"): False,
    }
    found = {
        machine: marker.evaluate({"sys_platform": machine[0], "platform_machine": machine[1]})
        for machine in machines
    }
    assert found == machines
