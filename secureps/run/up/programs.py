"""The programs of a run's processes: the order in which they start, what they import, who died.

Brings another shard into a run of `up`: its keys, and the file that its process reads.

Whoever plays the run sees the file, and starts the process as those of the plan's shards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from secureps.client.runner import LOCAL
from secureps.client.script import is_flower_app
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
from secureps.run.processes.spawning import (
    SECUREPS,
    ForkServers,
    Program,
    Spawner,
    Subprocesses,
    can_fork,
)
from secureps.run.processes.supervisor import Died, Finished, Supervisor
from secureps.run.report.terminal import Progress
from secureps.run.report.version_metrics import Extras
from secureps.run.script.process import Assignment
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
from secureps.wording import named, numberless

START_SECONDS = 60.0
"""Seconds until the coordinator must listen."""

NOTHING_ELSE = Extras()

_TICK = 0.02


@dataclass(frozen=True)
class Order:
    """The options of `up`.

    Args:
        unsafe_seed: makes the run repeatable, and noise and masks worthless.
        extras: where else its figures are written.
        copies: the URL below which its checkpoints are copied.
        beside: what goes on beside a run in this folder, from before its processes start.
        standby: the coordinator has one, which follows it.
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
        """The environment with what all processes are told besides: their lines come at once."""
        return {**self.environment, "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Programs:
    """The programs of a run's processes, and the order in which they start."""

    order: Order
    folder: RunFolder
    plan: Plan
    federation: FederationSection
    cast: Cast
    spawner: Spawner = field(default_factory=Subprocesses)

    @property
    def unsafe(self) -> bool:
        return self.order.unsafe_seed is not None

    @property
    def script(self) -> Path:
        return (self.order.plan.parent / self.federation.script).resolve()

    @property
    def pooled(self) -> dict[str, Setting]:
        """The settings of no single client, for the script's own process."""
        own: dict[str, Setting] = {
            **self.federation.settings,
            "partitions": self.federation.clients,
        }
        initial = self.plan.section.initial
        if initial is not None and is_flower_app(self.script):
            own["initial"] = initial
        return own

    @property
    def copies(self) -> str | None:
        if (below := self.order.copies) is None:
            return None
        return f"{below.rstrip('/')}/{self.folder.root.name}/checkpoints"

    def settings(self, partition: int) -> dict[str, Setting]:
        return {**self.pooled, "partition": partition}

    @property
    def assignment(self) -> Assignment:
        names = self.cast.clients
        return Assignment(
            self.script,
            self.plan,
            {name: self.settings(i) for i, name in enumerate(names)},
            self.pooled,
            {name: self.folder.state(name) / LOCAL for name in names},
            self.order.unsafe_seed,
            self.order.processes,
            dict(zip(names, self.federation.records, strict=False)),
        )

    @contextmanager
    def pair(self) -> Iterator[tuple[str, ...]]:
        """Where the coordinator and its standby listen, and nobody else while the `with` lasts.

        Empty if it has no standby: then it chooses by itself.
        """
        names = (COORDINATOR, STANDBY) if self.order.standby else ()
        with ExitStack() as held:
            states = [self.folder.state(name) for name in names]
            yield tuple(held.enter_context(choose_address(state, LISTEN)) for state in states)

    def start(self, supervisor: Supervisor, progress: Progress, pair: tuple[str, ...] = ()) -> str:
        """Starts all processes; returns the address of the coordinator, or of those of `pair`."""
        progress.doing("starts the coordinator")
        address = self._start_coordinator(supervisor, progress, pair)
        cast = replace(self.cast, shards=(*self.cast.shards, *self.folder.further(self.cast)))
        servers = ", ".join((*cast.shards, *cast.holders))
        progress.doing(f"starts {servers} and {len(self.cast.clients)} clients")
        own = (address, self.order.unsafe_seed, self.copies, self.order.pin)
        write_servers(self.folder, self.plan, cast, *own)
        for shard in cast.shards:
            supervisor.start(self._shard(shard))
        for holder in self.cast.holders:
            supervisor.start(self._server("keyholder", holder))
        for i, client in enumerate(self.cast.clients):
            supervisor.start(self._client(client, address, i))
        deaths = Deaths(progress)
        while supervisor.is_starting():
            deaths.tell(supervisor.poll())
            time.sleep(_TICK)
        return address

    def start_further(self, supervisor: Supervisor, started: set[str]) -> None:
        """Starts shards that were added since; one that was `started`, and has ended, not anew."""
        for shard in self.folder.further(self.cast, started):
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
        until, deaths = time.monotonic() + START_SECONDS, Deaths(progress)
        while time.monotonic() < until:
            deaths.tell(supervisor.poll())
            address = self.folder.address(COORDINATOR)
            if address is not None:
                return address
            time.sleep(_TICK)
        log = self.folder.logs / f"{COORDINATOR}.log"
        raise InternalError(f"the coordinator does not listen after {START_SECONDS:g} s; see {log}")

    def _server(self, role: str, name: str) -> Program:
        config = str(self.folder.config(name))
        return Program(name, (*SECUREPS, "serve", role, "--config", config), self.order.processes)

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
        # the clients share this machine's cores
        environment = {**self.order.processes, "OMP_NUM_THREADS": "1"}
        own = (name, tuple(arguments), environment)
        return Program(*own, may_finish=True, preloaded=True, may_fail=True)


class Deaths:
    """Tells which processes died, and why: the last lines of a log once for all who died alike."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told: dict[tuple[str, ...], str] = {}

    def tell(self, news: Iterable[Finished | Died]) -> None:
        alike: dict[str, list[Died]] = {}
        for each in news:
            if not isinstance(each, Died):
                continue
            # names, times, ports and lines of a log are their own
            said = tuple(map(numberless, (each.how, *each.tail)))
            if each.tail and said in self._told:
                alike.setdefault(self._told[said], []).append(each)
                continue
            self._told[said] = each.name
            for line in each.tail:
                self._progress.say(f"  {each.name}: {line}", "dim")
            text = f"it is started again, restart {each.restarts}"
            self._progress.say(f"{each.name} died ({each.how}); {text}", "yellow")
        for first, others in alike.items():
            names = named([each.name for each in others])
            text = f"{names} died as {first} did ({others[0].how}); started again"
            self._progress.say(text, "yellow")


_SERVERS = (
    *("secureps.run.cli", "secureps.run.cli:app.commands", "secureps.run.serve"),
    *("secureps.run.join", "grpc.experimental"),
)
_KERNELS = ("secureps.codec.kernels", "secureps.compiled:load_kernels")
_OPENING = {
    Opening.NOTHING: _KERNELS,
    Opening.HOLDER: ("secureps.crypto.bfv_seal", *_KERNELS),
    Opening.COMMITTEE: ("secureps.crypto.rlwe", *_KERNELS),
}
_SCRIPTS = {
    "sklearn": ("sklearn.datasets",),
    "torch": ("secureps.client.torch", "torch._dynamo"),  # which the first optimizer imports
    "opacus": (
        "opacus.grad_sample",
        "opacus.optimizers",
        "opacus.utils.fast_gradient_clipping_utils",
        "opacus.validators",
    ),
}
"""For a package what is imported of it: none of these starts a thread, or does more than import."""


def open_spawner(
    plan: Plan, script: Path, environment: Mapping[str, str]
) -> AbstractContextManager[Spawner]:
    """Starts a run's processes as forks, or from their beginning where these cannot be had.

    The data holders' code at `script` is read, and not run.
    """
    if not can_fork(environment):
        return nullcontext(Subprocesses())
    return ForkServers(
        tuple(imports_of_all(plan)), tuple(imports_of_script(plan, script)), environment
    )


def imports_of_all(plan: Plan) -> Iterator[str]:
    """What every party imports, servers too."""
    yield from (*_SERVERS, *_OPENING[plan.opening])
    if plan.section.privacy is not None:
        yield "secureps.privacy.accountant"


def imports_of_script(plan: Plan, script: Path) -> Iterator[str]:
    """What the data holders' code imports besides, as far as its words tell."""
    private = plan.section.privacy is not None
    named = _words_of(script)
    for package, modules in _SCRIPTS.items():
        wanted = package in named or (package == "opacus" and private and "torch" in named)
        if wanted and find_spec(package) is not None:
            yield from modules


def _words_of(script: Path) -> set[str]:
    """All words of the code: a package that is not named in it is not imported by it itself."""
    files = sorted(script.glob("**/*.py")) if script.is_dir() else [script]
    text = "\n".join(file.read_text(errors="replace") for file in files if file.is_file())
    found = set(re.findall(r"\w+", text))
    return found | ({"torch"} if "TorchTrainer" in found else set())


# --- further shards ----------------------------------------------------------------

EVERY_LOOK = 0.5
"""Seconds between two looks at whether the run knows it."""
WITHIN = 60.0
"""Seconds in which its coordinator has to read the new roster, and then the shard has to come."""


def demand_shard(root: Path, name: str) -> None:
    """Refuses text that is no name (Malformed), or that names another party (UnknownParty)."""
    check_name(name)
    if name in RESERVED:
        raise UnknownParty(f"{name} is no shard's name in any run of up: take another one")
    roster = load_public(RunFolder(root.resolve()).kit).roster
    if name in roster and (role := roster.find(name).role) != "shard":
        raise UnknownParty(f"{name} is a {role} of this run, and no shard")


def bring_shard(
    root: Path,
    name: str,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Has a shard come to a run that is being played; returns when it is there, or the run is over.

    Said again, it goes on where it was. Of a run that is over no process is begun. Raises
    OperatorError if the shard does not come, or the disk refuses. `pause` is for EVERY seconds.
    """
    folder = RunFolder(root.resolve())
    roster = load_public(folder.kit).roster
    if name not in roster:
        issue(folder.kit, "shard", name)
    wait = partial(_await_status, pause=pause, clock=clock)

    def here(status: Status) -> bool:
        return name in [shard.name for shard in status.shards]

    # who asks is on the coordinator's roster
    with closing(StatusClient(folder.kit, name, folder.server)) as own:
        status = wait(own.status, lambda status: True, f"{name} is not on its roster yet")
        if status.finished:
            return status
        if not folder.config(name).exists():  # started earlier, it would be refused, and end
            shards = [each.name for each in roster.certificates if each.role == "shard"]
            like = next(each for each in shards if folder.config(each).exists())
            settings = read_toml(folder.config(like))
            write_config(folder, name, {**settings, "name": name, "state": str(folder.state(name))})
        log = folder.logs / f"{name}.log"
        return wait(own.status, here, f"it has not come; see {log}")


def _await_status(
    ask: Callable[[], Status],
    done: Callable[[Status], bool],
    otherwise: str,
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> Status:
    """Asks until it is so, or the run is over; OperatorError says what is not after WITHIN seconds.

    A coordinator that cannot be reached may take long to be asked.
    """
    last, until = otherwise, clock() + WITHIN
    while clock() < until:
        try:
            if done(status := ask()) or status.finished:
                return status
        except (PeerError, UnknownParty) as error:
            last = f"{otherwise}: {error}"
        pause(EVERY_LOOK)
    raise OperatorError(f"the run was given {WITHIN:g} seconds: {last}")
