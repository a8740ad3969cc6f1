"""Lays out and makes the folder of a run of `up`: kit, configuration files, logs and results.

RUN/plan.toml            a copy of the plan: what the coordinator reads
RUN/origin.json          where the plan came from, and what else the run was started with
RUN/lock                 held by whoever plays the run
RUN/kit/                 the CA and every party's keys
RUN/config/NAME.toml     what `secureps serve` reads
RUN/state/NAME/          a party's journal and payloads
RUN/logs/NAME.log        its stdout and stderr; script.log has those of the script that is asked
                         for the model, scores and baselines, and up.log why a play failed
RUN/checkpoints/         written by coordinator and shards
RUN/report/              metrics.jsonl, summary.json at the end, sofar.json until then
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secureps.errors import ConfigError, OperatorError
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.run.party_names import (
    OBSERVER,
    client_names,
    holder_names,
    shard_names,
    site_holder,
)
from secureps.run.run_lock import ORIGIN, new_folder
from secureps.store.atomic_file import replace_text
from secureps.wording import named

if TYPE_CHECKING:
    from secureps.crypto.identity import Role
    from secureps.policy.plan import Plan

RESERVED = frozenset({COORDINATOR, STANDBY, OBSERVER})
"""Names that mean one party in every run of `up`."""
LISTEN = "127.0.0.1:0"
"""Address to listen on: loopback, any free port, since all parties are on this machine."""


class RunFolder:
    """The paths of a run's files; all are absolute.

    `summary` exists once the run is over; `failed` has the error that ended the last play of the
    run, until it is played again; `model` is the last one, and `best` the best version by the
    federation's own evaluation, if the plan says what is best.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kit, self.logs = root / "kit", root / "logs"
        self.checkpoints, self.report = root / "checkpoints", root / "report"
        self.plan = root / "plan.toml"
        self.summary, self.failed = self.report / "summary.json", self.report / "failed.txt"
        self.model, self.best = root / "model.safetensors", root / "best.safetensors"

    def state(self, name: str) -> Path:
        return self.root / "state" / name

    def config(self, name: str) -> Path:
        return self.root / "config" / f"{name}.toml"

    def address(self, name: str) -> str | None:
        """The address at which a server listens; None until it does."""
        try:
            return (self.state(name) / "address").read_text().strip() or None
        except FileNotFoundError:
            return None

    def further(self, cast: Cast, known: Iterable[str] = ()) -> tuple[str, ...]:
        """Finds shards added while the run trained: the CA and a file name them, the plan does not.

        Those that are `known` are left out; KitError if the kit does not say who is a shard.
        """
        others = {*RESERVED, *cast.shards, *cast.holders, *known}
        names = {file.stem for file in (self.root / "config").glob("*.toml")} - others
        if not names:
            return ()
        from secureps.store.keyring import load_public

        return tuple(sorted(names & load_public(self.kit).roster.names("shard")))

    @property
    def server(self) -> str:
        """The coordinator's address, and after a comma its standby's; empty if neither listens."""
        return ",".join(filter(None, map(self.address, (COORDINATOR, STANDBY))))

    @property
    def rulers(self) -> tuple[Path, ...]:
        """The state folders of the coordinator and of its standby, if it has one."""
        standby = self.state(STANDBY)
        return (self.state(COORDINATOR), *((standby,) if standby.is_dir() else ()))


@dataclass(frozen=True)
class Origin:
    """The settings with which a run was started, besides its copy of the plan.

    Args:
        plan: the file; paths in it are relative to its folder.
        directory: of work; paths in a script's settings are relative to it.
        began: seconds since 1970.
        copies, standby, pin: as in `Order`.
    """

    plan: Path
    directory: Path
    unsafe_seed: int | None
    began: float
    copies: str | None = None
    standby: bool = False
    pin: str = "off"

    def write(self, folder: RunFolder) -> None:
        record = asdict(self) | {"plan": str(self.plan), "directory": str(self.directory)}
        replace_text(folder.root / ORIGIN, json.dumps(record, indent=1) + "\n")

    @classmethod
    def read(cls, folder: RunFolder) -> Origin:
        """Reads the file; ConfigError if `up` has not finished making the folder."""
        path = folder.root / ORIGIN
        try:
            record = json.loads(path.read_text())
            plan, directory = Path(record["plan"]), Path(record["directory"])
            seed, began = record["unsafe_seed"], float(record["began"])
            more = (record.get("copies"), bool(record.get("standby", False)))
            return cls(plan, directory, seed, began, *more, str(record.get("pin", "off")))
        except FileNotFoundError:
            other = f"no origin.json; {_runs(folder.root)}"
            if folder.checkpoints.is_dir():
                other = (
                    "it has checkpoints and no origin.json, as one inside Flower's engine has, or "
                    "one of servers: how it goes `flwr log` says, or `secureps status --server "
                    f"HOST:PORT --kit KIT`; `secureps export {folder.root}` writes its model"
                )
            raise ConfigError(f"{folder.root}: no run of `secureps up`: {other}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None


def _runs(meant: Path) -> str:
    """Names the runs beside a folder that is not a run, and in runs/, the newest first."""
    found = {*meant.parent.glob(f"*/{ORIGIN}"), *Path("runs").resolve().glob(f"*/{ORIGIN}")}
    newest = sorted(found, key=lambda path: (path.stat().st_mtime, path), reverse=True)
    runs = [os.path.relpath(path.parent) for path in newest]
    return f"there are {named(runs)}" if runs else "there is none beside it, and none in runs"


@dataclass(frozen=True)
class Cast:
    """The names of a run's parties."""

    shards: tuple[str, ...]
    holders: tuple[str, ...]
    clients: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, clients: int, kit: Path | None = None) -> Cast:
        """Names all parties; key holders as those of the clients' sites, if there are as many.

        Args:
            kit: of a run that began before; it knows how its key holders are called.
        """
        names = client_names(clients)
        sites = tuple(map(site_holder, names))
        known = kit is None or all((kit / "private" / name).is_dir() for name in sites)
        own = sites if known and plan.holders == clients else holder_names(plan.holders)
        return cls(shard_names(plan.section.most_shards), own, names)


def make_folder(root: Path, plan_file: Path, plan: Plan, cast: Cast) -> RunFolder:
    """Makes the folder of a run, with a kit for all; raises ConfigError if it holds something."""
    folder = RunFolder(root.resolve())
    new_folder(root)
    try:
        shutil.copyfile(plan_file, folder.plan)
        folder.report.mkdir()
    except OSError as error:
        raise OperatorError(f"{root}: cannot make the run's folder: {error}") from None
    from secureps.store.issuing import create_kit, issue_all

    create_kit(folder.kit, plan.cipher_parameters, hours=0)
    parties: dict[Role, tuple[str, ...]] = {
        "coordinator": (COORDINATOR,),
        "observer": (OBSERVER,),
        "shard": cast.shards,
        "holder": cast.holders,
        "client": cast.clients,
    }
    issue_all(folder.kit, [(role, name) for role, names in parties.items() for name in names])
    return folder


def write_coordinator(
    folder: RunFolder, base: Path, copies: str | None, name: str = COORDINATOR, **own: str
) -> None:
    """Writes the coordinator's configuration; the plan's own paths are relative to `base`."""
    paths = {"plan": str(folder.plan), "plan_base": str(base.resolve())}
    values = {"listen": LISTEN, **paths, "checkpoint_copies": copies, **own}
    checkpoints = str(folder.checkpoints)
    write_config(folder, name, {**values, "checkpoints": checkpoints, "name": COORDINATOR})


def write_servers(
    folder: RunFolder,
    plan: Plan,
    cast: Cast,
    coordinator: str,
    unsafe_seed: int | None,
    copies: str | None = None,
    pin: str = "off",
) -> None:
    """The configuration of shards and key holders, who dial the coordinator at HOST:PORT."""
    for shard in cast.shards:
        own: dict[str, object] = {
            "listen": LISTEN,
            "coordinator": coordinator,
            "checkpoints": str(folder.checkpoints),
            "checkpoint_copies": copies,
            "unsafe_seed": unsafe_seed,
            "insecure_for_tests": unsafe_seed is not None,  # whoever gave the seed has said so
            "pin": pin,
        }
        write_config(folder, shard, {**own, **plan.section.shard_memory})
    write_holders(folder, plan, cast.holders, coordinator, folder.kit)


def write_holders(
    folder: RunFolder, plan: Plan, holders: tuple[str, ...], coordinator: str, kit: Path
) -> None:
    """The configuration of key holders, who dial the coordinator at HOST:PORT."""
    minimum = min(plan.bounds(group).minimum for group in plan.all_groups)
    for holder in holders:
        own: Mapping[str, str | int] = {"coordinator": coordinator, "minimum": minimum}
        write_config(folder, holder, {**own, "kit": str(kit)})


def write_config(folder: RunFolder, name: str, own: Mapping[str, object]) -> None:
    """Writes a server's configuration, without what is None; OperatorError if the disk refuses."""
    from secureps.config.sections import toml_tables

    values = {"name": name, "kit": str(folder.kit), "state": str(folder.state(name)), **own}
    try:
        folder.config(name).parent.mkdir(exist_ok=True)
        replace_text(folder.config(name), toml_tables(values))  # whole: it may be waited for
    except OSError as error:
        raise OperatorError(f"{folder.config(name)}: cannot write: {error}") from None
