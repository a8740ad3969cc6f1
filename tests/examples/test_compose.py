"""examples/compose: what its containers run is a federation that makes a model.

Its commands run here as processes, in folders that stand for its volumes. `make clusters` plays it
in containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from tests.kits.nursery import ROOT, Child, spawn
from tests.kits.relay import free_port
from tests.project.test_docs import parses

FOLDER = ROOT / "examples" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = [name for name in SERVICES if name.startswith("hospital-")]
SERVERS = ["coordinator", "shard-0", "shard-1"]
PATIENCE = 240.0


def mounts(service: str) -> dict[str, tuple[str, bool]]:
    """By the place in the container: the file or volume that is there, and whether for reading."""
    found = (each.split(":") for each in SERVICES[service]["volumes"])
    return {place: (source, "ro" in mode) for source, place, *mode in found}


def test_there_are_one_aggregator_and_five_sites() -> None:
    assert [*SERVICES] == ["keys", *SERVERS, *SITES]
    assert len(SITES) == 5


def test_every_party_runs_a_command_of_ours_without_rights() -> None:
    for name in (*SERVERS, *SITES):
        service = SERVICES[name]
        parses(service["command"])
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["pull_policy"] == "never", "no registry's image of this name"
        assert "user" not in service, "the image's own"
    for name in SERVERS:
        parses(SERVICES[name]["healthcheck"]["test"][2:])


def test_no_party_sees_the_keys_of_another() -> None:
    private = {name: {at for at, (_, only) in mounts(name).items() if not only} for name in SITES}
    assert set(map(frozenset, private.values())) == {frozenset({"/srv/data"})}
    for name in (*SERVERS, *SITES):
        sources = {source for source, only in mounts(name).values() if not only}
        assert sources - {"checkpoints"} == {name}
    assert "checkpoints" not in {source for name in SITES for source, _ in mounts(name).values()}


def test_a_site_reaches_the_aggregator_alone() -> None:
    assert all(each == {"internal": True} for each in COMPOSE["networks"].values())
    for name in SITES:
        (network,) = SERVICES[name]["networks"]
        there = {each for each in SERVICES if network in SERVICES[each].get("networks", ())}
        assert there == {*SERVERS, name}
    assert SERVICES["keys"]["network_mode"] == "none"


def test_files_and_volumes_that_it_names_are_there() -> None:
    named = {source for name in SERVICES for source, _ in mounts(name).values()}
    files = {each for each in named if each.startswith(".")}
    assert named - files == set(COMPOSE["volumes"])
    assert all((FOLDER / each).is_file() for each in files)
    build = SERVICES["keys"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == ROOT / "Containerfile"


class Played:
    """The services as processes of this machine, where `tmp_path`/VOLUME is a volume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.study = folder / "study"
        self.study.mkdir()
        self.port = free_port()
        for name in SERVICES:
            for place, (source, _) in mounts(name).items():
                if source.startswith("."):
                    text = (FOLDER / source).read_text()
                    (self.study / Path(place).name).write_text(self.here(text))
                else:
                    (folder / source).mkdir(exist_ok=True)

    def here(self, text: str, service: str = "") -> str:
        """A text of the example, with ports and folders of this machine."""
        for name in SERVERS:
            if f'name = "{name}"' in text:  # its own file
                service = name
                port = self.port if name == "coordinator" else 0
                text = text.replace("0.0.0.0:7600", f"127.0.0.1:{port}")
                text = text.replace(f'advertise = "{name}:7600"\n', "")
        places = {
            "coordinator:7600": f"127.0.0.1:{self.port}",
            "/srv/data": str(self.folder / service),
            "/srv/kits": str(self.folder),
            "/srv/study": str(self.study),
            "/srv/checkpoints": str(self.folder / "checkpoints"),
            "\nchown ": "\n: ",  # here all parties are one user, who may be no root
        }
        for place, ours in places.items():
            text = text.replace(place, ours)
        return text

    def environment(self) -> dict[str, str]:
        ours = self.folder / "bin" / "secureps"
        if not ours.exists():
            ours.parent.mkdir()
            ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m secureps "$@"\n')
            ours.chmod(0o755)
        path = f"{ours.parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}

    def start(self, name: str) -> Child:
        command = [self.here(word, name) for word in SERVICES[name]["command"]]
        log = self.folder / f"{name}.log"
        return spawn(["-m", "secureps", *command], self.folder, log, self.environment())


@contextmanager
def ended(started: dict[str, Child]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in started.values():
            each.send_signal(signal.SIGTERM)
        for each in started.values():
            each.wait(30)


@pytest.mark.slow
def test_five_sites_make_a_model_and_each_has_it(tmp_path: Path) -> None:
    played = Played(tmp_path)
    for _ in range(2):  # a second start of `keys` keeps what there is
        done = subprocess.run(
            ["sh", "study/keys.sh"],
            cwd=tmp_path,
            env=played.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    parts = [*(tmp_path / "hospital-1" / "kit" / "private").iterdir()]
    assert {each.name for each in parts} == {"hospital-1", "hospital-1-holder"}
    started = {name: played.start(name) for name in (*SERVERS, *SITES)}
    with ended(started):
        until = time.monotonic() + PATIENCE
        for name in SITES:
            log = tmp_path / f"{name}.log"
            status = started[name].wait(max(1.0, until - time.monotonic()))
            assert status == 0, log.read_text()[-3000:]
        assert all(started[name].poll() is None for name in SERVERS), "they answer until SIGTERM"
    models = [load_file(tmp_path / name / "model.safetensors") for name in SITES]
    first = models[0]
    assert any(values.any() for values in first.values())
    assert all((each[key] == first[key]).all() for each in models for key in first)
