"""The wheel is all that a user needs: a project that it makes runs where no repository is."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import secureps as ps
from secureps.run.new import TEMPLATES
from tests.kits.installations import kept_kernels
from tests.kits.nursery import ROOT
from tests.kits.venvs import site_of


def environment() -> dict[str, str]:
    """Ours, in which no path leads to the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def told(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def built(folder: Path) -> Path:
    """A wheel of the package, built without a network and without a trace in the repository."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "secureps", source / "secureps", ignore=shutil.ignore_patterns("__pycache__")
    )
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet")
    told(source, sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ".")
    (wheel,) = folder.glob(f"secureps-{ps.__version__}-*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """The commands of an environment with the wheel, and all that ours has but the repository."""
    venv.create(folder, with_pip=False)
    commands = folder / "bin"
    own = site_of(folder)
    # paths that a .pth names are not searched for others: an editable secureps is not found there
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "others.pth").write_text("\n".join(others))
    options = ("--no-deps", "--no-index", "--quiet")
    pip = (sys.executable, "-m", "pip", "--python", commands / "python")
    told(folder, *pip, "install", *options, wheel)
    where = told(folder, commands / "python", "-c", "import secureps; print(secureps.__file__)")
    assert Path(where.strip()).is_relative_to(own)
    return commands


@pytest.mark.slow
def test_a_new_project_runs_from_an_installed_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = built(tmp_path)
    templates = {str(path.relative_to(ROOT)) for path in TEMPLATES.glob("*/*") if path.is_file()}
    assert templates <= set(zipfile.ZipFile(wheel).namelist())
    commands = installed(wheel, tmp_path / "environment")
    package = site_of(tmp_path / "environment") / "secureps"
    monkeypatch.setenv("SECUREPS_KERNELS", str(kept_kernels(package, tmp_path / "kernels")))
    assert told(tmp_path, commands / "secureps", "new", "tumours").startswith("made tumours: ")
    project = tmp_path / "tumours"
    assert "2 passed" in told(
        project, commands / "python", "-m", "pytest", "-p", "no:cacheprovider"
    )
    plan = (project / "plan.toml").read_text().replace("versions = 10", "versions = 2")
    (project / "plan.toml").write_text(f"{plan}baselines = false\n")
    said = told(project, commands / "secureps", "up", "plan.toml", "--out", "run")
    assert (project / "run" / "model.safetensors").exists()
    assert ": all 2 versions are made" in said
