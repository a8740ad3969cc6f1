"""Builds the wheel, the same bytes wherever it is built, and says what pip installs with it.

    .venv-wheel/bin/python -I tests/kits/wheel.py FOLDER EXTRA     EXTRA: "base" for none

`make wheel` runs it in an empty environment, and installs the wheel there. Imports nothing but the
standard library.

The bytes follow from the sources and from `TOOL` alone. An archive has its files' times, modes and
compression in it: times are those of SOURCE_DATE_EPOCH or else `EPOCH`, modes are the same for all
files, and nothing is compressed, because zlib's output differs between its versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[2]
TOOL = "setuptools==84.2.1"
EPOCH = "315532800"
"""1980, where time begins in zip archives."""

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def build(folder: Path, root: Path = ROOT) -> Path:
    """Builds the wheel of the sources in `root` with this environment's setuptools.

    Needs no network, and writes nothing into `root`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        source = Path(own, "source")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / "secureps", source / "secureps", ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(root / name, source)
        for path in source.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        environment = {"SOURCE_DATE_EPOCH": EPOCH, **os.environ}
        environment.pop("PYTHONPATH", None)
        options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet")
        stored = "--config-settings=--build-option=--compression=stored"
        command = (*PIP, "wheel", *options, stored, "--wheel-dir", own, str(source))
        subprocess.run(command, check=True, env=environment, cwd=own)
        (wheel,) = Path(own).glob("secureps-*.whl")
        return Path(shutil.copy(wheel, folder))


def install(wheel: Path, extra: str) -> list[dict[str, Any]]:
    """Installs the wheel here; returns pip's report of all that it installed."""
    with tempfile.TemporaryDirectory() as own:
        report = Path(own, "report.json")
        wanted = str(wheel) if extra == "base" else f"{wheel}[{extra}]"
        subprocess.run((*PIP, "install", "--quiet", "--report", report, wanted), check=True)
        installed: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return sorted(installed, key=lambda each: normal(each["metadata"]["name"]))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def bill(wheel: Path, installed: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the bill of materials (CycloneDX 1.5) of a wheel and of what pip installed with it.

    Args:
        installed: of pip's report, the wheel itself among them.
    """
    components = {normal(each["metadata"]["name"]): component(each) for each in installed}
    own = components.pop("secureps")
    own["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    needs = {
        name: {normal(each) for each in re.findall(r"^[\w.-]+", "\n".join(lines), re.MULTILINE)}
        for name, lines in (
            (normal(each["metadata"]["name"]), each["metadata"].get("requires_dist", ()))
            for each in installed
        )
    }
    refs = {**components, "secureps": own}
    tool, _, release = TOOL.partition("==")
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": own,
            "tools": {"components": [{"type": "library", "name": tool, "version": release}]},
        },
        "components": list(components.values()),
        "dependencies": [
            {
                "ref": refs[name]["bom-ref"],
                "dependsOn": sorted(refs[each]["bom-ref"] for each in found & refs.keys()),
            }
            for name, found in sorted(needs.items())
        ],
    }
    bom["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(bom))}"
    return bom


def component(installed: dict[str, Any]) -> dict[str, Any]:
    about = installed["metadata"]
    purl = f"pkg:pypi/{normal(about['name'])}@{about['version']}"
    found = {
        "type": "library",
        "bom-ref": purl,
        "name": about["name"],
        "version": about["version"],
        "purl": purl,
    }
    digest = installed["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is not None:
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if named := about.get("license_expression"):
        found["licenses"] = [{"expression": named}]
    elif (named := about.get("license")) and "\n" not in named:
        found["licenses"] = [{"license": {"name": named}}]
    return found


if __name__ == "__main__":
    folder, extra = Path(sys.argv[1]), sys.argv[2]
    subprocess.run((*PIP, "install", "--quiet", TOOL), check=True)
    wheel = build(folder)
    bom = folder / f"{wheel.stem}.cdx.json"
    bom.write_text(json.dumps(bill(wheel, install(wheel, extra)), indent=2) + "\n")
    command = Path(sys.executable).with_name("secureps")
    subprocess.run((command, "--version"), check=True)
    print(f"{wheel}\n{bom}\nsha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}")
