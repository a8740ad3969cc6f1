"""Without extras: an environment where nothing else is installed, made without a network.

What pip would install is linked from the running environment. Continuous integration runs the same
check for each extra and for all together, where pip has installed them (`make extra`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from secureps.extras import EXTRAS
from tests.kits.extras_check import MISSED, THERE
from tests.kits.installations import kept_kernels
from tests.kits.nursery import ROOT
from tests.kits.venvs import PROJECT, NotInstalled, made, required, site_of

CHECK = ROOT / "tests" / "kits" / "extras_check.py"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_an_installation_does_what_it_is_for_and_says_what_it_lacks(tmp_path: Path) -> None:
    python = made(tmp_path / "environment", required(()))
    kernels = kept_kernels(site_of(tmp_path / "environment") / "secureps", tmp_path / "kernels")
    done = subprocess.run(
        [python, "-I", CHECK, "base"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "SECUREPS_KERNELS": str(kernels)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "base: ok" in done.stdout
    assert str(python.parent.parent) in done.stdout, "secureps is the environment's own"


def test_every_extra_is_used_somewhere_and_missed_elsewhere() -> None:
    assert THERE.keys() == MISSED.keys() == EXTRAS.keys()


def test_an_environment_has_what_its_requirements_lead_to_and_no_more(tmp_path: Path) -> None:
    chosen = required(())
    assert {"numpy", "scipy", "cffi"} <= chosen.keys(), "requirements of requirements, too"
    assert chosen.keys().isdisjoint({"torch", "pytest", "matplotlib", "packaging", "secureps"})
    assert required(("all",)).keys() > required(("flower",)).keys() > chosen.keys()
    python = made(tmp_path, {"click": distribution("click"), "msgspec": distribution("msgspec")})
    ask = (
        "import sys, importlib.metadata as m; import click, msgspec, secureps;"
        "print(sorted(each.name for each in m.distributions()), sys.version_info[:2])"
    )
    told = subprocess.check_output([python, "-I", "-c", ask], text=True)
    assert told == f"['click', 'msgspec'] {sys.version_info[:2]}\n"


def test_a_requirement_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        PROJECT["optional-dependencies"], "none", ["no-such-thing>=1; python_version < '3'"]
    )
    assert required(("none",)).keys() == required(()).keys(), (
        "its marker says that it is not for us"
    )
    monkeypatch.setitem(PROJECT["optional-dependencies"], "none", ["No_Such.Thing>=1"])
    with pytest.raises(NotInstalled, match="no-such-thing"):
        required(("none",))
