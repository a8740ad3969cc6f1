"""What is installed is all that a user needs: wheel, extras, and their size in bytes."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Collection, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import secureps as ps
from secureps.extras import EXTRAS
from secureps.run.new import TEMPLATES
from tests.kits import ranges
from tests.kits.extras_check import MISSED, THERE
from tests.kits.installations import kept_kernels
from tests.kits.nursery import ROOT
from tests.kits.wheel import bill, build

# --- environments with what pip would install, made without a network -----------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

File = tuple[Path, list[str]]
"""Of a distribution: the folder it is installed in, and the parts of a path in there."""


def required(left_out: Collection[str] = ()) -> dict[str, Distribution]:
    """What `pip install secureps` needs besides secureps, by normal name.

    Args:
        left_out: is not there, nor what it alone would bring.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in PROJECT["dependencies"]]
    while waiting:
        wanted, asked_by = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": asked_by}):
            continue
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in left_out:
            continue
        found[name] = installed = distribution(name)
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


# --- the wheel --------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Ours, in which no path leads to the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def told(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


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
def test_a_wheel_has_the_same_bytes_wherever_it_is_built(tmp_path: Path) -> None:
    """Another folder, times, modes, and junk beside the sources change nothing."""
    other = tmp_path / "elsewhere" / "clone"
    other.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, other / name)
    shutil.copytree(ROOT / "secureps", other / "secureps", copy_function=shutil.copyfile)
    for path in (other / "secureps").rglob("*"):
        path.chmod(0o700)
    wheels = build(tmp_path / "here"), build(tmp_path / "there", other)
    here, there = (wheel.read_bytes() for wheel in wheels)
    assert here == there


def test_a_bill_of_materials_names_the_wheel_and_all_that_pip_installs(tmp_path: Path) -> None:
    wheel = tmp_path / "secureps-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    reported: list[dict[str, Any]] = [
        {
            "metadata": {"name": name, "version": "1.0", "requires_dist": needs, **license},
            "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
        }
        for name, needs, license, digest in (
            ("a_library", [], {"license_expression": "MIT"}, "aa"),
            ("secureps", ["A.Library>=1; python_version > '3'", "absent>=2"], {}, "of a copy"),
        )
    ]
    found = bill(wheel, reported)
    own = found["metadata"]["component"]
    assert own["hashes"] == [{"alg": "SHA-256", "content": sha256(b"wheel").hexdigest()}]
    (library,) = found["components"]
    assert library["licenses"] == [{"expression": "MIT"}]
    assert library["purl"] == "pkg:pypi/a-library@1.0"
    assert library["hashes"] == [{"alg": "SHA-256", "content": "aa"}]
    graph = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert graph == {own["bom-ref"]: [library["bom-ref"]], library["bom-ref"]: []}
    assert bill(wheel, reported) == found, "nothing of it is drawn"


@pytest.mark.slow
def test_a_new_project_runs_from_an_installed_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = build(tmp_path)
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


@pytest.mark.parametrize(
    ("page", "command"),
    [
        # the wheel of a clone, and one that somebody sent
        ("README.md", 'pip wheel --no-deps -w dist . && pip install "$(ls dist/*.whl)[torch]" '),
        (
            "docs/guide/data-holder.md",
            f"pip install 'secureps-{ps.__version__}-py3-none-any.whl[torch]' ",
        ),
    ],
)
def test_the_first_command_of_a_page_installs_the_wheel(page: str, command: str) -> None:
    (first, *_) = re.findall(r"^```sh\n(.*)", (ROOT / page).read_text(), re.MULTILINE)
    assert first.startswith(command)


# --- ranges, and who builds ---------------------------------------------------------


@pytest.mark.parametrize("end", ["lowest", "newest"])
def test_each_end_of_the_ranges_is_what_users_may_have(end: str) -> None:
    wanted = {each.name: each for each in map(Requirement, ranges.lines(end))}
    asked = [*PROJECT["dependencies"]]
    extras = PROJECT["optional-dependencies"]
    asked += (each for extra in ranges.EXTRAS for each in extras[extra])
    for each in map(Requirement, asked):
        if end == "newest" and each.name == "flwr":
            continue
        (floor,) = (part for part in each.specifier if part.operator == ">=")
        lowest = [f"=={floor.version if '.' in floor.version else f'{floor.version}.0'}.*"]
        assert str(wanted[each.name].specifier) == ("".join(lowest) if end == "lowest" else "")
        assert str(wanted[each.name].marker) == str(each.marker)
    for path in (ROOT / "tests" / "ranges.txt").read_text().split():
        assert (ROOT / path).exists()


def test_no_range_of_what_users_install_has_a_cap() -> None:
    """Another package's range would then stop ours, for a release that nobody has tried."""
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    capped = {
        each.name
        for each in map(Requirement, asked)
        if any(part.operator != ">=" for part in each.specifier)
    }
    assert capped == {"sqlalchemy"}, "MLflow's own cap"


def test_workflows_run_only_actions_of_a_known_digest() -> None:
    """A tag can be moved to other code, which would run with the repository's rights."""
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").iterdir()]
    used = [each for text in texts for each in re.findall(r"uses: *(.*)", text)]
    assert len(used) > 10
    assert [
        each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)
    ] == []


# --- without extras ---------------------------------------------------------------


CHECK = ROOT / "tests" / "kits" / "extras_check.py"


def test_an_installation_does_what_it_is_for_and_says_what_it_lacks(tmp_path: Path) -> None:
    python = made(tmp_path / "environment", required())
    kernels = kept_kernels(site_of(tmp_path / "environment") / "secureps", tmp_path / "kernels")
    done = subprocess.run(
        [python, "-I", CHECK, "base"],
        capture_output=True,
        text=True,
        env={**environment(), "SECUREPS_KERNELS": str(kernels)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "base: ok" in done.stdout
    assert str(python.parent.parent) in done.stdout, "secureps is the environment's own"


def test_every_extra_is_used_somewhere_and_missed_elsewhere() -> None:
    assert THERE.keys() == MISSED.keys() == EXTRAS.keys()


# --- in bytes ---------------------------------------------------------------------


MB = 1_000_000
MOST = 150 * MB
"""Of an installation without torch, numba and what counts privacy."""

NUMBA = ("numba", "llvmlite")
PRIVACY = ("dp-accounting", "scipy")
OURS = sum(path.stat().st_size for path in (ROOT / "secureps").rglob("*.*") if path.is_file())


def test_without_numba_and_what_counts_privacy_it_is_small() -> None:
    found = required(left_out=(*NUMBA, *PRIVACY))
    assert not {"torch", *NUMBA, *PRIVACY} & set(found), "nothing else brings them"
    files = (file for each in found.values() for file in each.files or ())
    assert OURS + sum(file.size or 0 for file in files) < MOST


def test_numba_is_asked_for_where_it_has_wheels() -> None:
    (line,) = (each for each in PROJECT["dependencies"] if each.startswith("numba"))
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
