"""Without extras: an environment where nothing else is installed, made without a network.

What pip would install is linked from the running environment. Continuous integration runs the same
check for each extra and for all together, where pip has installed them (`make extra`).
"""

import os
import subprocess
from pathlib import Path

from secureps.extras import EXTRAS
from tests.kits.extras_check import MISSED, THERE
from tests.kits.installations import kept_kernels
from tests.kits.nursery import ROOT
from tests.kits.venvs import made, required, site_of

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
