"""Lays out, makes and locks the folder of a run of `up`.

RUN/plan.toml            a copy of the plan, which the coordinator reads
RUN/origin.json          the plan's original path and the options of `up`
RUN/lock                 held by the process that plays the run
RUN/kit/                 the CA and every party's keys
RUN/config/NAME.toml     the configuration of `secureps serve`
RUN/state/NAME/          a party's journal and payloads
RUN/logs/NAME.log        a party's stdout and stderr; script.log is that of the script which is
                         asked for the model, scores and baselines; up.log says why a play failed
RUN/checkpoints/         written by coordinator and shards
RUN/report/              metrics.jsonl, summary.json at the end, sofar.json until then

One process plays a run at a time, after all processes of an earlier play have ended.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from secureps.errors import ConfigError, OperatorError
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.store import atomic_file
from secureps.store.atomic_file import replace_text

if TYPE_CHECKING:
    from secureps.crypto.identity import Role
    from secureps.policy.plan import Plan


# --- run lock ----------------------------------------------------------------------

ORIGIN, METRICS = "origin.json", "metrics.jsonl"

PATIENCE = 1.0
"""Seconds to wait for the lock, which other commands hold for an instant to check it."""


def new_folder(root: Path) -> None:
    """Makes a folder for a run, a report or a study; ConfigError if it is not empty."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        empty = not any(root.iterdir())
    except FileExistsError:
        raise ConfigError(f"{root} is a file: name a folder by --out") from None
    except OSError as error:
        raise OperatorError(f"{root}: cannot make the folder: {error}") from None
    if not empty:
        raise ConfigError(
            f"{root} is not empty: name a folder of its own by --out, or remove this one; a run of "
            "`secureps up` goes on by `secureps resume`"
        )


@contextmanager
def named_folder(out: Path | None, plan: str) -> Iterator[Path]:
    """Yields `out`, or makes runs/PLAN-DATE-TIME, which no run of the same second gets too.

    If nothing is in the folder at the end, because no run began, it is removed.
    """
    if out is not None:
        yield out
        return
    name = time.strftime(f"{plan}-%Y%m%d-%H%M%S")
    for other in count(1):
        root = Path("runs") / (name if other == 1 else f"{name}-{other}")
        try:
            root.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OperatorError(f"{root}: cannot make the folder: {error}") from None
        try:
            yield root
        finally:
            with suppress(OSError):
                root.rmdir()
        return


@contextmanager
def claim_folder(root: Path) -> Iterator[None]:
    """Locks a run's folder while the `with` lasts, because two plays would corrupt the journals.

    Raises OperatorError if the run is played, an earlier party still runs, or the disk has no
    locks.
    """
    with lock_folder(root, "this run is being played now"):
        refuse_running(root, {path.name: path for path in sorted(root.glob("state/*"))})
        yield


@contextmanager
def lock_folder(root: Path, taken: str) -> Iterator[None]:
    """Locks a folder while the `with` lasts; OperatorError with text `taken` if it is locked."""
    handle = atomic_file.open_lock(root / "lock")
    try:
        until = time.monotonic() + PATIENCE
        while not _ask_lock(root, atomic_file.lock_file, handle):
            if time.monotonic() > until:
                raise OperatorError(f"{root}: {taken}")
            time.sleep(0.02)
        atomic_file.write_holder(handle, str(os.getpid()))
        yield
    finally:
        os.close(handle)


def refuse_running(where: Path, states: Mapping[str, Path], patience: float = 0.0) -> None:
    """Raises OperatorError if a party of an earlier start still runs.

    Args:
        where: the folder that the error names.
        states: the parties' state folders, by name.
        patience: seconds to wait for their end.
    """
    until = time.monotonic() + patience
    for name, state in states.items():
        lock = state / "journal.db.lock"
        while lock.exists() and _is_held(lock):
            if time.monotonic() > until:
                raise OperatorError(
                    f"{where}: {name} still runs, although what started it is gone: "
                    "end the processes that name this folder, then try again"
                )
            time.sleep(0.02)


def is_claimed(root: Path) -> bool:
    """True if a process plays the run of a folder; OperatorError if the disk has no locks."""
    return (root / "lock").exists() and _is_held(root / "lock")


def find_player(root: Path) -> int | None:
    """The id of the process that plays the run; None if there is none yet.

    The lock may contain the id of an earlier play, which the kernel has since reused. So the
    process must have the lock open; otherwise `stop` could end an unrelated process.
    """
    if not is_claimed(root):
        return None
    import psutil  # only `secureps stop` needs it

    lock = (root / "lock").resolve()
    with suppress(ValueError, psutil.Error):
        number = int(lock.read_text())
        if str(lock) in (file.path for file in psutil.Process(number).open_files()):
            return number
    return None


def _is_held(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        return _ask_lock(path, atomic_file.is_held, handle)
    finally:
        os.close(handle)


def _ask_lock(path: Path, ask: Callable[[int], bool], handle: int) -> bool:
    try:
        return ask(handle)
    except OSError as error:
        raise OperatorError(f"{path}: cannot lock: {error.strerror}") from None


# --- names of parties --------------------------------------------------------------

OBSERVER = "observer"
"""The party with which `up` reads the status of its run."""


def shard_names(count: int) -> tuple[str, ...]:
    return tuple(f"shard-{i}" for i in range(count))


def holder_names(count: int) -> tuple[str, ...]:
    return tuple(f"holder-{i}" for i in range(count))


def site_holder(client: str) -> str:
    """The name of the key holder that a site runs beside its client."""
    return f"{client}-holder"


def client_names(count: int) -> tuple[str, ...]:
    """Names with leading zeros, so that they sort by number: client-00, client-01, ..."""
    digits = max(2, len(str(count - 1)))
    return tuple(f"client-{i:0{digits}d}" for i in range(count))


RESERVED = frozenset({COORDINATOR, STANDBY, OBSERVER})
"""Names that mean one party in every run of `up`."""
LISTEN = "127.0.0.1:0"
"""The address to listen on: all parties are on this machine, so loopback and any free port."""


class RunFolder:
    """The absolute paths of a run's files.

    `summary` exists once the run has ended; `over` says why it ended while its report is made, and
    `failed` has the error that ended the last play, until the next one. `model` is the last model,
    and `best` the best version by the federation's own evaluation, if the plan says what is best.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kit, self.logs = root / "kit", root / "logs"
        self.checkpoints, self.report = root / "checkpoints", root / "report"
        self.plan, self.over = root / "plan.toml", self.report / "over.txt"
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

    def added_shards(self, cast: Cast, known: Iterable[str] = ()) -> tuple[str, ...]:
        """Finds shards that were added while the run trained, except those that are `known`.

        The kit and a configuration file name them, and the plan does not.
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
        standby = self.state(STANDBY)
        return (self.state(COORDINATOR), *((standby,) if standby.is_dir() else ()))


@dataclass(frozen=True)
class Origin:
    """The settings with which a run was started, besides its copy of the plan.

    Args:
        plan: the plan's file; paths in it are relative to its folder.
        directory: the working directory, to which paths in a script's settings are relative.
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
        """Reads the file; ConfigError if there is no run, or `up` has not finished the folder."""
        path = folder.root / ORIGIN
        try:
            record = json.loads(path.read_text())
            return cls(**record | {key: Path(record[key]) for key in ("plan", "directory")})
        except FileNotFoundError:
            raise ConfigError(
                f"{folder.root}: no run of `secureps up`: there is no {ORIGIN}; `secureps runs` "
                "lists those in runs, and `secureps export` reads the checkpoints of any run"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None


@dataclass(frozen=True)
class Cast:
    """The names of a run's parties."""

    shards: tuple[str, ...]
    holders: tuple[str, ...]
    clients: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, clients: int, kit: Path | None = None) -> Cast:
        """Names all parties; key holders belong to the clients' sites if there are equally many.

        `kit` is that of a resumed run, whose key holders keep their names.
        """
        names = client_names(clients)
        sites = tuple(map(site_holder, names))
        known = kit is None or all((kit / "private" / name).is_dir() for name in sites)
        own = sites if known and plan.holders == clients else holder_names(plan.holders)
        return cls(shard_names(plan.section.most_shards), own, names)


def make_folder(root: Path, plan_file: Path, plan: Plan, cast: Cast) -> RunFolder:
    """Makes the folder of a run, with a kit for all parties; ConfigError if it is not empty."""
    folder = RunFolder(root.resolve())
    new_folder(root)
    try:
        folder.report.mkdir()  # first: of two `up`s that name this folder one ends here
        shutil.copyfile(plan_file, folder.plan)
    except OSError as error:
        raise OperatorError(f"{root}: cannot make the run's folder: {error}") from None
    make_kit(folder.kit, plan, cast, ("observer", OBSERVER))
    return folder


def make_kit(kit: Path, plan: Plan, cast: Cast, *more: tuple[Role, str], host: str = "") -> None:
    """Makes a kit for a coordinator, for `more` parties by role and name, and for a cast.

    `host` is that of the kit's runs (`keyring.demand_host`).
    """
    from secureps.store.issuing import create_kit, issue_all

    create_kit(kit, plan.cipher_parameters, hours=0, host=host)
    names: dict[Role, tuple[str, ...]] = {
        "shard": cast.shards,
        "holder": cast.holders,
        "client": cast.clients,
    }
    parties = [(role, name) for role, own in names.items() for name in own]
    issue_all(kit, [("coordinator", COORDINATOR), *more, *parties])


def write_coordinator(
    folder: RunFolder, base: Path, copies: str | None, name: str = COORDINATOR, **own: str
) -> None:
    """Writes the coordinator's configuration; the plan's own paths are relative to `base`."""
    paths = {"plan": str(folder.plan), "plan_base": str(base.resolve())}
    values = {"listen": LISTEN, **paths, "checkpoint_copies": copies, **own}
    checkpoints = str(folder.checkpoints)
    write_config(folder, name, {**values, "checkpoints": checkpoints, "name": COORDINATOR})


def write_servers(
    folder: RunFolder, plan: Plan, cast: Cast, coordinator: str, **own: object
) -> None:
    """Writes the configuration of shards and key holders.

    `coordinator` is HOST:PORT, and `own` are further keys of shards.
    """
    checkpoints = str(folder.checkpoints)
    given = {"listen": LISTEN, "coordinator": coordinator, "checkpoints": checkpoints, **own}
    for shard in cast.shards:
        write_config(folder, shard, {**given, **plan.section.shard_memory})
    minimum = min(plan.bounds(group).minimum for group in plan.all_groups)
    for holder in cast.holders:
        write_config(folder, holder, {"coordinator": coordinator, "minimum": minimum})


def write_config(folder: RunFolder, name: str, own: Mapping[str, object]) -> None:
    """Writes a server's configuration without None values; OperatorError if the disk refuses."""
    from secureps.config.sections import toml_tables

    values = {"name": name, "kit": str(folder.kit), "state": str(folder.state(name)), **own}
    try:
        folder.config(name).parent.mkdir(exist_ok=True)
        replace_text(folder.config(name), toml_tables(values))  # atomic: a process waits for it
    except OSError as error:
        raise OperatorError(f"{folder.config(name)}: cannot write: {error}") from None
