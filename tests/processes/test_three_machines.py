"""The example of three machines works command by command."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.kits.namespaces import Switch, possible
from tests.kits.nursery import ROOT

PAGE = ROOT / "docs" / "operate" / "three-machines.md"
MACHINES = {"ps": "10.77.0.1", "north": "10.77.0.2", "south": "10.77.0.3"}
PATIENCE = 120.0

SCRIPT = """
import numpy as np
from secureps.client.trainer import EvaluateResult, FitResult

class Steps:
    def __init__(self, number):
        self.number = number
    def parameters(self, seed):
        return {"weight": np.zeros((30, 7), np.float32)}
    def fit(self, parameters, config):
        return FitResult({"weight": parameters["weight"] + np.float32(0.25)}, 10, {}, 1)
    def evaluate(self, parameters):
        return EvaluateResult(0.0, 10, {})

def make(settings):
    return Steps(int(settings["partition"]))
"""

SCP = """#!/bin/sh
# Copies to another machine's folder: SOURCES... NAME.example:FOLDER
for last; do :; done
machine=${last%%.example:*} folder=${last#*:}
mkdir -p "$MACHINES/$machine/$folder"
while [ $# -gt 1 ]; do
  case $1 in -*) ;; *) cp -r "$1" "$MACHINES/$machine/$folder/" ;; esac
  shift
done
"""
SSH = """#!/bin/sh
machine=${1%%.example}; shift
cd "$MACHINES/$machine" && exec "$@"
"""


class Machines(Switch):
    """Machines on one switch, each with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._spaces: dict[str, str] = {}
        for tool, text in (("scp", SCP), ("ssh", SSH)):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / tool).write_text(text)
            (folder / "bin" / tool).chmod(0o755)

    def join(self) -> None:
        """Puts all machines on the switch, where each knows the others by their names."""
        names = [f"{where} {each}.example" for each, where in MACHINES.items()]
        for machine, address in MACHINES.items():
            space = self._spaces[machine] = self.add(machine, address)
            hosts = Path("/etc/netns") / space / "hosts"
            hosts.write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
            (self.folder / machine).mkdir()

    def run(self, machine: str, commands: str, **variables: str) -> str:
        """Commands as they stand on the page, in the machine's own folder; what they printed."""
        log = self.folder / f"{machine}-{len(list(self.folder.glob('*.log')))}.log"
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        around = {**os.environ, "PATH": path, "MACHINES": str(self.folder), "PYTHONPATH": str(ROOT)}
        with log.open("w") as out:
            ended = subprocess.run(
                ["ip", "netns", "exec", self._spaces[machine], "bash", "-ec", commands],
                cwd=self.folder / machine,
                env={**around, "OMP_NUM_THREADS": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
                check=False,
            )
        assert ended.returncode == 0, log.read_text()
        return log.read_text()

    def logs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in self.folder.glob("*.log"))


def blocks() -> Iterator[tuple[list[str], str]]:
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        where = re.match(r"# on ([a-z ]+):", block)
        assert where is not None, block
        yield where.group(1).split(" and "), block


@pytest.mark.timeout(600)
def test_three_machines_from_empty_hosts_to_a_model_and_on_from_it(tmp_path: Path) -> None:
    if reason := possible():
        pytest.skip(reason)
    *starting, (_, export), (_, again), (_, first), (_, other), (_, moving) = blocks()
    fingerprint = ""
    with Machines(tmp_path) as machines:
        machines.join()
        for site in ("north", "south"):
            (tmp_path / site / "digits.py").write_text(SCRIPT)
        for where, commands in starting:
            for machine in where:
                said = machines.run(machine, commands, SITE=machine, FINGERPRINT=fingerprint)
                fingerprint = fingerprint or re.findall(r"^CA ([0-9a-f]{64})$", said, re.M)[0]
        all_say(machines, "all 3 versions are made")
        model = exported(machines, export)
        assert abs(model - 0.75).max() < 0.01, "three steps of a quarter"
        machines.run("ps", again)
        for site in ("north", "south"):
            machines.run(site, first, SITE=site, FINGERPRINT=fingerprint)
        founded(machines, tmp_path / "ps" / "second" / "checkpoints")
        moved = machines.run("ps", moving)  # two of four clients are here: it cannot go on yet
        assert int(re.findall(r"moved: (\d+) rows", moved)[0]) > 0
        for site in ("north", "south"):
            machines.run(site, other, SITE=site, FINGERPRINT=fingerprint)
        all_say(machines, "all 2 versions are made")
        model = exported(machines, "secureps export second --out second.safetensors", "second")
        assert abs(model - 1.25).max() < 0.01, "two steps more, from where the first run ended"
    assert model.shape == (30, 7)
    parties = {
        machine: sorted(os.listdir(tmp_path / machine / "kit/private")) for machine in MACHINES
    }
    assert parties["ps"] == ["coordinator", "observer", "shard-0"]
    assert parties["south"] == ["south-0", "south-0-holder", "south-1"]
    assert not (tmp_path / "north" / "issuer" / "private").exists()
    assert "listens on 0.0.0.0:7602" in machines.logs()


def all_say(machines: Machines, last: str) -> None:
    end = time.monotonic() + PATIENCE
    while machines.logs().splitlines().count(last) < 4:
        assert time.monotonic() < end, machines.logs()
        assert "error:" not in machines.logs(), machines.logs()
        time.sleep(0.2)


def founded(machines: Machines, checkpoints: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not (checkpoints / "000000" / "manifest.json").is_file():
        assert time.monotonic() < end, machines.logs()
        time.sleep(0.1)


def exported(machines: Machines, command: str, name: str = "model") -> Any:
    machines.run("ps", command)
    return load_file(machines.folder / "ps" / f"{name}.safetensors")["weight"]
