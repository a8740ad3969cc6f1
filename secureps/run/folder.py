"""The folder of a run that one machine plays alone: kit, configuration files, and what is where.

    RUN/plan.toml            a copy of the plan, for the record
    RUN/kit/                 the CA and every party's keys
    RUN/config/NAME.toml     what `secureps serve` reads
    RUN/state/NAME/          a party's journal and payloads
    RUN/logs/NAME.log        its stdout and stderr
    RUN/checkpoints/         written by coordinator and shards
    RUN/report/              metrics.jsonl and summary.json

What must not live here: processes (`run.up`).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secureps.errors import ConfigError, OperatorError
from secureps.policy.plan import Plan
from secureps.roles.machine import COORDINATOR
from secureps.run.names import client_names, holder_names, shard_names
from secureps.store.keyring import create_kit, issue

LISTEN = "127.0.0.1:0"
"""Loopback, any free port: all parties are on this machine."""


@dataclass(frozen=True)
class RunFolder:
    """Where everything of a run lies; all paths are absolute."""

    root: Path

    @property
    def kit(self) -> Path:
        return self.root / "kit"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    def state(self, name: str) -> Path:
        return self.root / "state" / name

    def config(self, name: str) -> Path:
        return self.root / "config" / f"{name}.toml"

    def address(self, name: str) -> str | None:
        """Where a server listens; None until it does."""
        try:
            return (self.state(name) / "address").read_text().strip() or None
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class Cast:
    """Who plays, by name."""

    shards: tuple[str, ...]
    holders: tuple[str, ...]
    clients: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, clients: int) -> Cast:
        return cls(
            shard_names(plan.section.shards), holder_names(plan.holders), client_names(clients)
        )


def default_root(plan: Plan) -> Path:
    """runs/NAME-YYYYMMDD-HHMMSS under the working directory."""
    return Path("runs") / f"{plan.section.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def make_folder(root: Path, plan_file: Path, plan: Plan, cast: Cast) -> RunFolder:
    """Makes the folder, with a kit for everybody.

    Raises:
        ConfigError: the folder is not empty.
        KitError, OperatorError: the disk refuses.
    """
    folder = RunFolder(root.resolve())
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        if any(folder.root.iterdir()):
            raise ConfigError(f"{root} is not empty: a run needs a folder of its own")
        shutil.copyfile(plan_file, folder.root / "plan.toml")
        folder.report.mkdir()
    except OSError as error:
        raise OperatorError(f"{root}: cannot make the run's folder: {error}") from None
    create_kit(folder.kit, plan.cipher_parameters)
    issue(folder.kit, "coordinator", COORDINATOR)
    for shard in cast.shards:
        issue(folder.kit, "shard", shard)
    for holder in cast.holders:
        issue(folder.kit, "holder", holder)
    for client in cast.clients:
        issue(folder.kit, "client", client)
    return folder


def write_coordinator(folder: RunFolder, plan_file: Path) -> None:
    """The coordinator's configuration."""
    paths = {"plan": str(plan_file.resolve()), "checkpoints": str(folder.checkpoints)}
    _write(folder, COORDINATOR, {"listen": LISTEN, **paths})


def write_servers(
    folder: RunFolder, plan: Plan, cast: Cast, coordinator: str, unsafe_seed: int | None
) -> None:
    """The configuration of shards and key holders, who dial the coordinator at HOST:PORT."""
    minimum = min(plan.rule(group).minimum for group in plan.groups)
    for shard in cast.shards:
        own = {"listen": LISTEN, "coordinator": coordinator, "checkpoints": str(folder.checkpoints)}
        _write(folder, shard, own if unsafe_seed is None else {**own, "unsafe_seed": unsafe_seed})
    for holder in cast.holders:
        _write(folder, holder, {"coordinator": coordinator, "minimum": minimum})


def _write(folder: RunFolder, name: str, own: Mapping[str, str | int]) -> None:
    values = {"name": name, "kit": str(folder.kit), "state": str(folder.state(name)), **own}
    # a TOML basic string is a JSON string, as long as no character is escaped by surrogates
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    try:
        folder.config(name).parent.mkdir(exist_ok=True)
        folder.config(name).write_text("".join(lines))
    except OSError as error:
        raise OperatorError(f"{folder.config(name)}: cannot write: {error}") from None
