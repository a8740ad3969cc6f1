"""What newcomers, citations and CI are told agrees with the package and its Makefile."""

import re
import tomllib
from typing import Any

import yaml

import secureps as ps
from tests.kits.nursery import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_newest_changes_and_the_citation_are_of_this_version() -> None:
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == ps.__version__
    assert read("CITATION.cff")["version"] == ps.__version__
    minor, _, _ = ps.__version__.rpartition(".")
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()
