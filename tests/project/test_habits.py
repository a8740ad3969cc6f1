"""What newcomers, citations and CI are told agrees with the package and its Makefile."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

import secureps as ps
from secureps.extras import EXTRAS
from tests.kits.nursery import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(name: str) -> Any:
    """A file in YAML."""
    return yaml.safe_load((ROOT / name).read_text())


def recipe(target: str) -> list[str]:
    """The commands that `make` runs for a target, from the repository's root."""
    text = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    found = re.search(rf"^{target}:.*\n((?:\t.+\n)+)", text, re.MULTILINE)
    assert found is not None
    return [line.strip() for line in found[1].splitlines()]


def test_the_version_is_written_once() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "secureps.__version__"}


def test_the_newest_changes_and_the_citation_are_of_this_version() -> None:
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == ps.__version__
    assert read("CITATION.cff")["version"] == ps.__version__
    minor, _, _ = ps.__version__.rpartition(".")
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()


def test_a_commit_is_checked_by_what_make_check_runs() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    # pre-commit names the files that changed, make the folder of all
    assert entries == [command.removesuffix(" .") for command in recipe("check")]


def test_continuous_integration_runs_targets_of_make_on_every_python() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    steps = {name: [s["run"] for s in job["steps"] if "run" in s] for name, job in jobs.items()}
    assert steps == {
        "all": ["make check", "make docs", "make test"],
        "newer": ["make test PYTHON=python"],
        "extras": ["make extra EXTRA=${{ matrix.extra }}"],
        "clients": [
            "python -m pip install .",
            "python -I tests/kits/client_check.py",
            "python -m pip install hypothesis pytest pytest-timeout",
            "python -m pytest @tests/portable.txt",
        ],
    }
    assert [line.replace(".venv/bin/", "") for line in recipe("clients")] == [
        each.removesuffix(" .") for each in steps["clients"] if "pip" not in each
    ], "where there is no make, it is what make runs"
    pythons = jobs["newer"]["strategy"]["matrix"]["python-version"]
    assert pythons == ["3.12", "3.13"]
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    for job in ("all", "extras"):
        assert jobs[job]["steps"][1]["with"]["python-version"] == least
    assert jobs["extras"]["strategy"]["matrix"]["extra"] == ["base", *EXTRAS, "all"]
