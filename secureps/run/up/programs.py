"""Starts a run's processes in order, reports those that die, and adds shards to a running run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from secureps.client.runner import LOCAL
from secureps.client.trainer import Setting
from secureps.config.plan import FederationSection
from secureps.config.sections import read_toml, toml_text
from secureps.crypto.cipher import Opening
from secureps.crypto.identity import check_name
from secureps.errors import InternalError, OperatorError, PeerError, UnknownParty
from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.policy.plan import Plan
from secureps.roles.shard.shard import IDLE
from secureps.run.processes.launcher import SECUREPS, Launcher, Program
from secureps.run.processes.supervisor import Died, Finished, Supervisor
from secureps.run.report.terminal import Progress
from secureps.run.report.version_metrics import Extras
from secureps.run.script.process import assign
from secureps.run.server_app import share_settings
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import (
    LISTEN,
    RESERVED,
    Cast,
    RunFolder,
    write_config,
    write_coordinator,
    write_servers,
)
from secureps.service.process import choose_address
from secureps.store.issuing import issue
from secureps.store.keyring import load_public
from secureps.wording import join_alike

START_SECONDS = 60.0
"""Seconds within which the coordinator has to listen."""

NOTHING_ELSE = Extras()

_TICK = 0.02


@dataclass(frozen=True)
class Order:
    """The options of `up`.

    Args:
        unsafe_seed: makes the run repeatable, and noise and masks worthless.
        extras: further sinks of its metrics.
        copies: the URL below which its checkpoints are copied.
        beside: a context in which the run is played, such as a dashboard of its folder.
        standby: the coordinator gets a standby.
    """

    plan: Path
    out: Path | None
    unsafe_seed: int | None
    environment: Mapping[str, str]
    extras: Extras = NOTHING_ELSE
    copies: str | None = None
    beside: Callable[[Path], AbstractContextManager[object]] = nullcontext
    standby: bool = False
    pin: str = "off"

    @property
    def processes(self) -> dict[str, str]:
        """The environment of all processes; their output is unbuffered."""
        return {**self.environment, "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Programs:
    """The programs of a run's processes, and the order in which they start.

    `launchers` start the servers, and the scripts.
    """

    order: Order
    folder: RunFolder
    plan: Plan
    federation: FederationSection
    cast: Cast
    launchers: tuple[Launcher, Launcher] | tuple[None, None] = (None, None)

    @property
    def unsafe(self) -> bool:
        return self.order.unsafe_seed is not None

    @property
    def script(self) -> Path:
        return (self.order.plan.parent / self.federation.script).resolve()

    @property
    def pooled(self) -> dict[str, Setting]:
        """The script's settings without a partition, for evaluation and central training."""
        own = self.federation
        return share_settings(self.plan, self.script, own.settings, own.clients)

    @property
    def copies(self) -> str | None:
        if (below := self.order.copies) is None:
            return None
        return f"{below.rstrip('/')}/{self.folder.root.name}/checkpoints"

    def settings(self, partition: int) -> dict[str, Setting]:
        return {**self.pooled, "partition": partition}

    @property
    def assignment(self) -> dict[str, Any]:
        names = self.cast.clients
        return assign(
            self.script,
            self.plan,
            {name: self.settings(i) for i, name in enumerate(names)},
            self.pooled,
            {name: self.folder.state(name) / LOCAL for name in names},
            self.order.unsafe_seed,
            dict(zip(names, self.federation.records, strict=False)),
        )

    @contextmanager
    def pair(self) -> Iterator[tuple[str, ...]]:
        """Reserves the addresses of the coordinator and its standby while the `with` lasts.

        Empty without a standby: then the coordinator chooses its own address.
        """
        names = (COORDINATOR, STANDBY) if self.order.standby else ()
        with ExitStack() as held:
            states = [self.folder.state(name) for name in names]
            yield tuple(held.enter_context(choose_address(state, LISTEN)) for state in states)

    def start(self, supervisor: Supervisor, progress: Progress, pair: tuple[str, ...] = ()) -> str:
        """Starts all processes; returns the coordinator's address, or both of `pair`."""
        progress.show_activity("starts the coordinator")
        address = self._start_coordinator(supervisor, progress, pair)
        cast = replace(self.cast, shards=(*self.cast.shards, *self.folder.added_shards(self.cast)))
        servers = ", ".join((*cast.shards, *cast.holders))
        progress.show_activity(f"starts {servers} and {len(self.cast.clients)} clients")
        write_servers(
            *(self.folder, self.plan, cast, address),
            checkpoint_copies=self.copies,
            unsafe_seed=self.order.unsafe_seed,
            insecure_for_tests=self.unsafe,  # the operator has given both options
            pin=self.order.pin,
        )
        for shard in cast.shards:
            supervisor.start(self._shard(shard))
        for holder in self.cast.holders:
            supervisor.start(self._server("keyholder", holder))
        for i, client in enumerate(self.cast.clients):
            supervisor.start(self._client(client, address, i))
        return address

    def start_added(self, supervisor: Supervisor, started: set[str]) -> None:
        """Starts shards that were added since, but none of those that were `started` before."""
        for shard in self.folder.added_shards(self.cast, started):
            started.add(shard)
            supervisor.start(self._shard(shard))

    def _start_coordinator(
        self, supervisor: Supervisor, progress: Progress, pair: tuple[str, ...]
    ) -> str:
        own = (self.folder, self.order.plan.parent, self.copies)
        if not pair:
            write_coordinator(*own)
            supervisor.start(self._server("coordinator", COORDINATOR))
            return self._await(supervisor, progress)
        one, other = pair
        write_coordinator(*own, listen=one, standby=other)
        write_coordinator(*own, STANDBY, listen=other, coordinator=one)
        for name, more in ((COORDINATOR, ()), (STANDBY, ("--standby",))):
            program = self._server("coordinator", name)
            arguments = (*program.arguments, *more)
            supervisor.start(replace(program, arguments=arguments))
        self._await(supervisor, progress)
        return f"{one},{other}"

    def _await(self, supervisor: Supervisor, progress: Progress) -> str:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            tell_deaths(progress, supervisor.poll())
            address = self.folder.address(COORDINATOR)
            if address is not None:
                return address
            time.sleep(_TICK)
        log = self.folder.logs / f"{COORDINATOR}.log"
        raise InternalError(f"the coordinator does not listen after {START_SECONDS:g} s; see {log}")

    def _server(self, role: str, name: str) -> Program:
        config = str(self.folder.config(name))
        arguments = (*SECUREPS, "serve", role, "--config", config)
        return Program(name, arguments, self.order.processes, launcher=self.launchers[0])

    def _shard(self, name: str) -> Program:
        return replace(self._server("shard", name), done=IDLE)

    def _client(self, name: str, server: str, partition: int) -> Program:
        arguments = [*SECUREPS, "join", str(self.script), "--server", server, "--name", name]
        arguments += ["--kit", str(self.folder.kit), "--state", str(self.folder.state(name))]
        if self.order.unsafe_seed is not None:
            arguments += ["--unsafe-seed", str(self.order.unsafe_seed), "--insecure-for-tests"]
        if self.order.pin != "off":
            arguments += ["--pin", self.order.pin]
        if self.federation.site is not None:
            arguments += ["--site", str((self.order.plan.parent / self.federation.site).resolve())]
        if self.federation.records:
            arguments += ["--records", str(self.federation.records[partition])]
        for key, value in self.settings(partition).items():
            arguments += ["--set", f"{key}={toml_text(value)}"]
        # one thread each: clients share this machine's cores
        environment = {**self.order.processes, "OMP_NUM_THREADS": "1"}
        own = (name, tuple(arguments), environment)
        return Program(*own, may_finish=True, launcher=self.launchers[1], may_fail=True)


def tell_deaths(progress: Progress, news: Iterable[Finished | Died]) -> None:
    """Reports processes that died; those that died alike since the last report share a line."""
    died = {
        each.name: f"{each.name} died ({each.how}){each.last and f': {each.last}'}; it is started "
        f"again, restart {each.restarts}"
        for each in news
        if isinstance(each, Died)
    }
    for line in join_alike(died):
        progress.say(line, "yellow")


_SERVERS = (
    *("secureps.run.cli", "secureps.run.commands", "secureps.run.join", "secureps.run.serve"),
    "grpc.experimental",
)
_KERNELS = ("secureps.codec.kernels", "secureps.compiled:load_kernels")
_OPENING = {
    Opening.NOTHING: _KERNELS,
    Opening.HOLDER: ("secureps.crypto.bfv_seal", *_KERNELS),
    Opening.COMMITTEE: ("secureps.crypto.rlwe", *_KERNELS),
}
_SCRIPTS = {
    "sklearn": ("sklearn.datasets",),
    "torch": ("secureps.client.torch", "torch._dynamo"),  # the first optimizer imports it
    "opacus": ("opacus.optimizers",),
}
"""Modules to import ahead for a package that a script uses. None of them starts a thread."""


@contextmanager
def open_launchers(
    plan: Plan, script: Path, environment: Mapping[str, str]
) -> Iterator[tuple[Launcher, Launcher]]:
    """Opens the launchers of servers and of scripts, so that no server waits for torch.

    They import what their processes need, if these can be forks. The data holders' code at `script`
    is searched for package names, but not run.
    """
    with (
        Launcher(imports_of_all(plan), environment) as servers,
        Launcher((*imports_of_all(plan), *imports_of_script(plan, script)), environment) as scripts,
    ):
        yield servers, scripts


def imports_of_all(plan: Plan) -> Iterator[str]:
    yield from (*_SERVERS, *_OPENING[plan.opening])
    if plan.section.privacy is not None:
        yield "secureps.privacy.accountant"


def imports_of_script(plan: Plan, script: Path) -> Iterator[str]:
    """The further modules that a script imports, as far as its words tell."""
    private = plan.section.privacy is not None
    named = _words_of(script)
    for package, modules in _SCRIPTS.items():
        wanted = package in named or (package == "opacus" and private and "torch" in named)
        if wanted and find_spec(package) is not None:
            yield from modules


def _words_of(script: Path) -> set[str]:
    """All words of a script, among which are the packages that it imports."""
    files = sorted(script.glob("**/*.py")) if script.is_dir() else [script]
    text = "\n".join(file.read_text(errors="replace") for file in files if file.is_file())
    found = set(re.findall(r"\w+", text))
    return found | ({"torch"} if "TorchTrainer" in found else set())


# --- further shards ----------------------------------------------------------------

EVERY_LOOK = 0.5
"""Seconds between two requests for the status."""
WITHIN = 60.0
"""Seconds for the coordinator to read the new roster, and again for the shard to connect."""


def demand_shard(root: Path, name: str) -> None:
    """Refuses an invalid name (Malformed), or the name of another party (UnknownParty)."""
    check_name(name)
    if name in RESERVED:
        raise UnknownParty(
            f"{name} names another party in every run of `secureps up`: take another name"
        )
    roster = load_public(RunFolder(root.resolve()).kit).roster
    if name in roster and (role := roster.find(name).role) != "shard":
        raise UnknownParty(f"{name} is a {role} of this run, and no shard")


def bring_shard(root: Path, name: str) -> Status:
    """Adds a shard to a running run; returns when the shard has connected or the run has ended.

    It may be repeated after an interruption. Raises OperatorError if the shard does not connect, or
    the disk refuses.
    """
    folder = RunFolder(root.resolve())
    roster = load_public(folder.kit).roster
    if name not in roster:
        issue(folder.kit, "shard", name)
    # The new shard asks, so an answer means that it is on the coordinator's roster.
    with closing(StatusClient(folder.kit, name, folder.server)) as own:
        status = _await_status(own, f"{name} is not on its roster yet")
        if status.finished:
            return status
        if not folder.config(name).exists():  # a shard off the roster would be refused, and end
            shards = [each.name for each in roster.certificates if each.role == "shard"]
            like = next(each for each in shards if folder.config(each).exists())
            settings = read_toml(folder.config(like))
            write_config(folder, name, {**settings, "name": name, "state": str(folder.state(name))})
        return _await_status(own, f"it has not come; see {folder.logs / f'{name}.log'}", name)


def _await_status(own: StatusClient, otherwise: str, shard: str | None = None) -> Status:
    """Asks until there is an answer with the shard, if any, or the run has ended.

    Raises OperatorError with `otherwise` after WITHIN.
    """
    last, until = otherwise, time.monotonic() + WITHIN
    while time.monotonic() < until:
        try:
            status = own.status()
            here = [each.name for each in status.shards]
            if status.finished or shard is None or shard in here:
                return status
        except (PeerError, UnknownParty) as error:
            last = f"{otherwise}: {error}"
        time.sleep(EVERY_LOOK)
    raise OperatorError(f"the run was given {WITHIN:g} seconds: {last}")
