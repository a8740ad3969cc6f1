"""`secureps serve`: one coordinator, shard or key holder from its configuration file."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from secureps.config.sections import memory_bytes, parse, read_toml
from secureps.config.site_files import ServeSection
from secureps.crypto.identity import Role
from secureps.crypto.sampling import Seed
from secureps.errors import ConfigError, DamagedStore, Fenced, naming
from secureps.files.objects import ObjectStore, is_url
from secureps.messages.run import COORDINATOR, ShardAddress, demand_address, is_on_loopback
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import refuse_unaffordable
from secureps.roles.coordinator.reign import BEGINS, TAKES_OVER
from secureps.roles.machine import Halt
from secureps.roles.shard.state import Limit
from secureps.run import assemble
from secureps.run.initial_schema import read_initial_schema
from secureps.run.options import ServerRole
from secureps.service.checkpoint_copies import CheckpointCopies, parts_at
from secureps.service.environment import Environment, Meters, Stores
from secureps.service.executor import Executor
from secureps.service.lead import ALONE, CoordinatorWorker
from secureps.service.logs import LogFormat, logging_as, tell
from secureps.service.malloc import GC_THRESHOLDS
from secureps.service.metrics import Metrics, serve_metrics, spooled_bytes
from secureps.service.one_wave import answer_batches, play_wave
from secureps.service.pinning import pin_process
from secureps.service.process import Party, Serve, await_certificates, choose_address, run_process
from secureps.service.shard.states import ShardFolders, nowhere
from secureps.service.shutdown import Shutdown
from secureps.store import keyring
from secureps.store.backup import (
    JOURNAL,
    begin_from_copy,
    find_half_moved,
    has_copy,
    is_numbered,
    load_folder_number,
    read_run,
    set_aside,
)
from secureps.store.keyring import NATIVE, TlsFiles, demand_host, demand_role
from secureps.store.kit_files import Passphrases
from secureps.wire.grpc.admission import Authenticate
from secureps.wire.grpc.framing import PLAINTEXT, Link, Tls
from secureps.wire.grpc.servers import (
    IN_FLIGHT_BYTES,
    CoordinatorServer,
    Server,
    ShardServer,
    StandbyServer,
)
from secureps.wire.transport import Endpoint

MOST_BLOCK_BYTES = 53 << 20
"""The longest payload of any plan, in bytes."""

EVERYWHERE = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0", "*")
"""Hosts that a server can listen on, but nobody can connect to."""


@dataclass(frozen=True)
class Serving:
    """A server's configuration file `where`; its paths are relative to the folder `base`."""

    section: ServeSection
    base: Path
    where: str
    kit: keyring.PublicKit
    passphrases: Passphrases

    @cached_property
    def tls(self) -> TlsFiles | None:
        """The certificates for connections (KitError); None if the file says `insecure`."""
        if self.section.insecure:
            return None
        name, passphrases = self.section.name, self.passphrases
        return TlsFiles(self.path("kit"), name, self.kit.ca, passphrases=passphrases)

    def path(self, key: str) -> Path:
        """The path of a key; ConfigError if it is missing."""
        value = getattr(self.section, key)
        if value is None:
            raise ConfigError(f"{self.where}: {key}: this role needs it")
        return (self.base / str(value)).resolve()

    @property
    def initial(self) -> str | None:
        """The path or URL of version 0 on this machine, if the configuration names one."""
        named = self.section.initial
        return named if named is None or is_url(named) else str(self.path("initial"))

    @property
    def state(self) -> Path:
        return self.path("state")

    @cached_property
    def copies(self) -> ObjectStore | None:
        url = self.section.checkpoint_copies
        if url is None:
            return None
        with naming(f"{self.where}: checkpoint_copies", ConfigError):
            return ObjectStore(url)

    def seed(self) -> Seed:
        unsafe, insecure = self.section.unsafe_seed, self.section.insecure_for_tests
        return keyring.choose_seed(self.state, unsafe, self.addresses[COORDINATOR], insecure)

    @property
    def addresses(self) -> dict[str, str]:
        """The coordinator's addresses by its name; for a coordinator itself, its counterpart's."""
        own, known = self.section.name == COORDINATOR, self.section.coordinator
        if own:
            known = self.section.standby or known
        elif known is None:
            raise ConfigError(f"{self.where}: coordinator: HOST:PORT of the coordinator is missing")
        if known is None:
            return {}
        demand_address(known, f"{self.where}: coordinator")
        return {COORDINATOR: known}


def serve(
    role: ServerRole,
    config: Path,
    log_format: LogFormat = "text",
    passphrase_fd: int | None = None,
    standby: bool = False,
) -> None:
    """Runs one server until a signal stops it, or raises the error that ended it.

    Args:
        config: its TOML file, with the keys of `ServeSection`.
        log_format: of stderr; under "json" a final error is a line of the log.
        standby: follow the coordinator that the file names, and take over from it.
    """
    section = parse(ServeSection, read_toml(config), str(config))
    base = config.parent.resolve()
    with logging_as(log_format, section.name):
        with naming(config, ConfigError):
            pin_process(section.pin, section.name, section.threads)
        kit = _load_kit((base / section.kit).resolve(), section, str(config))
        serving = Serving(section, base, str(config), kit, Passphrases(passphrase_fd))
        _refuse_role(role, serving)
        if not section.insecure:
            await_certificates(serving.path("kit"), section.name)
        if standby and role != COORDINATOR:
            raise ConfigError(f"a {role} has no standby: --standby is for a coordinator")
        make = partial(_serve_coordinator, standby=True) if standby else SERVERS[role]
        make(serving)


def _load_kit(folder: Path, section: ServeSection, where: str) -> keyring.PublicKit:
    with naming(f"{where}: ca_fingerprint", ConfigError):
        return keyring.load_public(folder, section.ca_fingerprint)


def _refuse_role(role: ServerRole, serving: Serving) -> None:
    """Refuses a kit for runs inside Flower, and a name that has another role on the roster."""
    wanted: Role = "holder" if role == "keyholder" else role
    name = serving.section.name
    roster = serving.kit.roster
    if wanted != "holder":  # key holders serve runs inside Flower and outside alike
        demand_host(roster, serving.path("kit"), NATIVE)
    demand_role(roster, name, wanted, f"{serving.where}: name")


def _load_party(serving: Serving) -> Party:
    name = serving.section.name
    folder = serving.path("kit")
    identity = keyring.load_private(folder, name, serving.passphrases)
    link = PLAINTEXT if serving.tls is None else Tls(serving.tls)
    return Party(name, identity, link, serving.kit.roster, serving.state, folder)


def _run(
    serving: Serving,
    party: Party,
    make: Callable[[Stores, Environment], Executor],
    listener: Serve | None = None,
    listen: str = "",
) -> Halt:
    section, metrics = serving.section, Metrics()
    copies = None
    if serving.copies is not None:
        copies = CheckpointCopies(section.name, serving.path("checkpoints"), serving.copies)
    with ExitStack() as stack:

        def build(stores: Stores, around: Environment) -> Executor:  # the state folder is locked
            metrics.gauge(
                "secureps_spooled_payload_bytes",
                "Bytes of the payloads that this party keeps on its disk.",
                lambda: spooled_bytes(stores.folder / "spool"),
            )
            if section.metrics is not None:
                shown = serve_metrics(metrics, section.metrics, stores.folder, serving.tls)
                address = stack.enter_context(shown)
                scheme = "http" if is_on_loopback(address) else "https"
                tell(section.name, "Listening", f"metrics are at {scheme}://{address}/metrics")
            meters = (metrics, around.meter) if copies is None else (metrics, around.meter, copies)
            executor = make(stores, replace(around, meter=Meters(*meters)))
            if copies is not None:
                if isinstance(executor.worker, CoordinatorWorker):
                    executor.worker.uncopied = copies.uncopied
                copies.start(executor.trouble)
                stack.callback(copies.stop)
            return executor

        def server(
            link: Link, endpoint: Endpoint, listen: str, authenticate: Authenticate
        ) -> Server:
            assert listener is not None
            made = listener(link, endpoint, listen, metrics.counting(authenticate))
            if isinstance(made, ShardServer):
                metrics.gauge(
                    "secureps_payload_bytes_in_flight",
                    f"Bytes of uploads that are being taken in, of at most {IN_FLIGHT_BYTES}.",
                    lambda: made.bytes_in_flight,
                )
            metrics.on_ready(made.set_ready)
            return made

        made = server if listener is not None else None
        return run_process(party, serving.addresses, build, made, listen)


def _load_plan(serving: Serving) -> Plan:
    if serving.section.name != COORDINATOR:
        raise ConfigError(f"{serving.where}: name: the coordinator is called {COORDINATOR!r}")
    base = None if serving.section.plan_base is None else serving.path("plan_base")
    return load_plan(serving.path("plan"), base, own_initial=serving.initial)


def _serve_coordinator(serving: Serving, standby: bool = False) -> None:
    """Serves as the coordinator or its standby, whichever the state folder last was.

    A standby that has taken over continues as the coordinator; a coordinator that was superseded
    continues as the other one's standby.
    """
    if find_half_moved(serving.state):
        set_aside(serving.state)
    follows = standby or is_numbered(serving.state)
    while not follows or _follow(serving):
        follows = _lead(serving)
        if not follows:
            return


def _lead(serving: Serving) -> bool:
    """Serves as the coordinator until a signal comes; returns whether it was superseded.

    Each start reads the kit again, because the roster may have changed.

    Raises:
        Fenced: another coordinator has taken over, and the file does not say where that one is.
    """
    gc.set_threshold(*GC_THRESHOLDS)  # the many objects of receipts go by themselves
    plan = _load_plan(serving)
    with naming(serving.path("plan")):
        refuse_unaffordable(plan)
    other = bool(serving.addresses)
    founding = (plan, read_initial_schema(plan), os.urandom(32))
    checkpoints = serving.path("checkpoints")
    try:
        with choose_address(serving.state, serving.section.listen) as listen:
            while True:
                kit = _load_kit(serving.path("kit"), serving.section, serving.where)
                serving = replace(serving, kit=kit)
                begun = _has_run(serving.state)  # a run keeps the key holders it began with
                keyring.check_fits(kit, plan.opening, None if begun else plan.holders)
                run = assemble.pinned_run(kit, *founding, elsewhere=other)
                make = partial(assemble.make_coordinator, run, checkpoints)
                party = _load_party(serving)
                if _run(serving, party, make, CoordinatorServer, listen).reason != ALONE:
                    return False
                tell(party.name, "Alone", ALONE)
    except Fenced as error:
        if not other:
            raise Fenced(
                f"{error}. Leave it off; or name the other one in its file, standby = "
                '"HOST:PORT", and start it again: it becomes that one\'s standby'
            ) from None
        kept = set_aside(serving.state)
        tell(COORDINATOR, "Superseded", f"{error}: this one is its standby now; see {kept}")
        return True


def _follow(serving: Serving) -> bool:
    """Follows the coordinator until a signal comes; returns whether this one took over."""
    if not serving.addresses:
        raise ConfigError(
            f"{serving.where}: coordinator: HOST:PORT of the coordinator that it follows is missing"
        )
    kit, plan, party = serving.kit, _load_plan(serving), _load_party(serving)
    keyring.check_fits(kit, plan.opening, None)  # refuse now rather than at the takeover
    serving.path("checkpoints")

    def make(stores: Stores, around: Environment) -> Executor:
        return assemble.make_standby(kit, plan, load_folder_number(stores.folder), stores, around)

    private = serving.path("kit") / "private" / party.name
    with choose_address(serving.state, serving.section.listen) as listen:
        while True:
            if has_copy(serving.state):
                rows = begin_from_copy(serving.state, private)
                tell(party.name, "Copied", f"begins with the coordinator's first {rows} rows")
            halt = _run(serving, party, make, StandbyServer, listen)
            if halt.reason != BEGINS:
                return halt.reason == TAKES_OVER


def _has_run(state: Path) -> bool:
    """True if a state folder has a run; a damaged journal counts: opening it raises the error."""
    try:
        return (state / JOURNAL).exists() and read_run(state / JOURNAL) is not None
    except DamagedStore:
        return True


def _choose_advertised(serving: Serving, listen: str) -> str:
    """The address that other parties dial; ConfigError if it cannot be dialled."""
    advertise = serving.section.advertise or listen
    host, _, port = advertise.rpartition(":")
    if not host or not port.isdigit() or port == "0":
        raise ConfigError(f"{serving.where}: advertise: {advertise!r} is not HOST:PORT")
    if host.strip("[]") in EVERYWHERE:
        raise ConfigError(
            f"{serving.where}: advertise: {advertise} is every address of this machine, and none "
            f'that clients can dial: add advertise = "NAME:{port}", this machine\'s own name'
        )
    return advertise


def _serve_shard(serving: Serving) -> None:
    section, name = serving.section, serving.section.name

    def listener(
        link: Link, endpoint: Endpoint, listen: str, authenticate: Authenticate
    ) -> ShardServer:
        limits = (IN_FLIGHT_BYTES, MOST_BLOCK_BYTES)
        return ShardServer(link, name, endpoint, listen, authenticate, *limits)

    with choose_address(serving.state, serving.section.listen) as listen:
        address = ShardAddress(name, _choose_advertised(serving, listen), section.weight)
        own = (serving.kit, address, serving.seed(), _open_shard_folders(serving))
        memory = None if section.memory is None else memory_bytes(section.memory)
        make = partial(assemble.make_shard, *own, limit=Limit(memory, section.threads))
        _run(serving, _load_party(serving), make, listener, listen)


def _open_shard_folders(serving: Serving) -> ShardFolders:
    store, part = serving.copies, f"{serving.section.name}.safetensors"
    elsewhere = nowhere if store is None else partial(parts_at, store, part)
    own = (serving.state / "states", serving.path("checkpoints"), elsewhere)
    return ShardFolders(*own, initial=serving.initial)


def _serve_holder(serving: Serving) -> None:
    party, section = _load_party(serving), serving.section
    own = (serving.path("kit"), party.identity, party.name, section.minimum, section.threshold)
    make = assemble.load_holder(serving.kit, *own, serving.passphrases)
    if section.socket is None:
        _run(serving, party, make)
    else:
        _hear_waves(serving, party, make)


def _hear_waves(
    serving: Serving, party: Party, make: Callable[[Stores, Environment], Executor]
) -> None:
    demand_host(serving.kit.roster, party.kit)
    path = serving.path("socket")

    def answer(batch: bytes) -> bytes:
        return play_wave(party, batch, {}, make)[0]

    test = serving.section.insecure_for_tests
    with Shutdown() as shutdown, answer_batches(party.name, path, answer, test):
        tell(party.name, "Listening", f"hears waves at {path}")
        shutdown.wait()


SERVERS: dict[ServerRole, Callable[[Serving], None]] = {
    "coordinator": _serve_coordinator,
    "shard": _serve_shard,
    "keyholder": _serve_holder,
}
