"""The apps of examples/flower, each in a folder: as they are, or made private by their diff."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.kits.nursery import ROOT

EXAMPLES = ROOT / "examples" / "flower"


def copied(name: str, folder: Path) -> Path:
    """An app, as its user has it."""
    app = folder / "app"
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    return app


def private(name: str, folder: Path, **more: object) -> Path:
    """The same with its diff applied.

    Args:
        more: said to SecureFedAvg besides.
    """
    app = copied(name, folder)
    subprocess.run(["git", "apply", "private.diff"], cwd=app, check=True, capture_output=True)
    server = app / f"{name}example" / "server_app.py"
    said = "".join(f", {key}={value!r}" for key, value in more.items())
    text = server.read_text()
    assert '"plan.toml"' in text
    server.write_text(text.replace('"plan.toml"', f'"plan.toml"{said}'))
    return app
