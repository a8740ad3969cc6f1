"""Prints requirements for pip: one end of the ranges that pyproject.toml gives.

    python -I tests/kits/ranges.py lowest     the lowest release of each library
    python -I tests/kits/ranges.py newest     the newest, without Flower, which caps others'

`make ranges` installs each end, and plays `tests/ranges.txt` there. Imports nothing but the
standard library.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
EXTRAS = ("torch", "bfv", "report", "flower")
TESTS = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "packaging"),
    *("setuptools", "grpcio-health-checking", "kubernetes-validate"),
)
BESIDE = ("transformers", "monai", "torchvision")
"""Installed beside the newest: what users have beside us, with ranges of its own."""

_REQUIREMENT = re.compile(r"([\w-]+)(\[[\w,]+\])?>=([\d.]+)(,<[\d.]+)?(;.*)?")


def lowest(requirement: str) -> str:
    name, extra, floor, _cap, marker = found(requirement)
    series = floor if "." in floor else f"{floor}.0"
    return f"{name}{extra}=={series}.*{marker}"


def newest(requirement: str) -> str:
    name, extra, _floor, _cap, marker = found(requirement)
    return f"{name}{extra}{marker}"


def found(requirement: str) -> tuple[str, ...]:
    match = _REQUIREMENT.fullmatch(requirement.replace("; ", ";"))
    assert match is not None, f"{requirement} has no floor"
    return tuple(part or "" for part in match.groups())


def lines(end: str) -> list[str]:
    project = PROJECT["project"]
    extras = EXTRAS if end == "lowest" else EXTRAS[:-1]
    asked = [*project["dependencies"]]
    asked += (each for extra in extras for each in project["optional-dependencies"][extra])
    more = (*TESTS, *(BESIDE if end == "newest" else ("click<8.5",)))  # as in `dev`
    return [*map(lowest if end == "lowest" else newest, asked), *more]


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1])))
