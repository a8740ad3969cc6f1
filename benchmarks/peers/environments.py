"""Virtual environments of peers, each made once, under `.peers/` of the project's folder."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.outcome import PeerError
from tests.kits.nursery import ROOT

FOLDER = ROOT / ".peers"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "flower": ("flwr==1.41.*", "numpy"),
    "flare": ("nvflare[HE]==2.9.*", "numpy"),
    "tenseal": ("tenseal==0.3.*", "numpy"),
}
"""What is asked for; the first is the peer's own."""
PATIENCE = 900


def own_name(requirement: str) -> str:
    """The name of a package of which a version or extras are asked for."""
    return requirement.partition("[")[0].partition("=")[0]


def python(name: str, folder: Path = FOLDER) -> str:
    """The interpreter of an environment, which is made if it is not there; "" has this one.

    Raises:
        PeerError: a package cannot be had.
    """
    if not name:
        return sys.executable
    where = folder / name
    program = str(where / "bin" / "python")
    stamp = where / "installed.json"
    wanted = json.dumps(PACKAGES[name])
    if stamp.is_file() and stamp.read_text() == wanted:
        return program
    print(f"installing {' '.join(PACKAGES[name])} into {where} ...", file=sys.stderr, flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(where)],
        [program, "-m", "pip", "install", "--quiet", *PACKAGES[name]],
    ):
        run(command)
    stamp.write_text(wanted)
    return program


def run(command: Sequence[str]) -> str:
    """What a command prints.

    Raises:
        PeerError: it fails, or takes too long; with its last line.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in said if line.startswith("ERROR")]
        raise PeerError((errors or said or [f"{command[0]} failed"])[-1])
    return done.stdout


def versions(name: str, packages: Sequence[str], folder: Path = FOLDER) -> str:
    """Names and versions of packages in an environment, as a line."""
    if not name:
        return ", ".join(f"{each} {importlib.metadata.version(each)}" for each in packages)
    code = "import importlib.metadata as m, sys; print(*(m.version(p) for p in sys.argv[1:]))"
    found = run([python(name, folder), "-c", code, *packages]).split()
    return ", ".join(f"{each} {version}" for each, version in zip(packages, found, strict=True))
