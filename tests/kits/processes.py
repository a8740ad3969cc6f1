"""A federation of real processes on loopback, for tests: start, kill, restart, look in."""

import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from secureps.crypto.identity import Role
from secureps.errors import SecurepsError
from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.policy.plan import Plan, load_plan
from secureps.run.status_client import Model, StatusClient
from secureps.run.up.folder import client_names, holder_names, shard_names
from secureps.store.issuing import create_kit, issue_all
from secureps.store.journal import SqliteJournal
from tests.kits.command import INSECURE
from tests.kits.nursery import ROOT, Child, spawn
from tests.kits.relay import Relay

PATIENCE = 90.0
KITS = ROOT / "tests" / "kits"
WALKERS = str(KITS / "walker_client.py")
JOIN = ("-m", "secureps", "join")

VALUES = """clip = 3.0
range = 1.0
most_examples = 32
"""


def plan_text(rule: str, values: str = VALUES) -> str:
    """A plan's file of which `{versions}` and `{cipher}` are open, for the model of the walkers.

    Args:
        rule, values: what the group says of its rule, and whatever follows; and before that.
    """
    return f"""
name = "small"
versions = {{versions}}
shards = 2
block_size = 64
local = ["*.count"]
[cipher]
name = "{{cipher}}"
capacity = 8
[[group]]
{values}{rule}
"""


ROUNDS = """[group.rule]
quorum = 6
deadline = 60.0
"""
ADAM = """[group.optimizer]
name = "adam"
learning_rate = 0.1
"""
PLAN = plan_text(ROUNDS + ADAM)
"""That of `small_plan`, as a file."""


def make_kit(kit: Path, plan: Plan, *names: str) -> None:
    """A kit for a plan, with the keys of parties whose names say their roles, as shard-0 does."""
    create_kit(kit, plan.cipher_parameters)
    issue_all(kit, [(cast(Role, name.partition("-")[0]), name) for name in names])


class Processes:
    """Kit, configurations and processes under one folder; `with` stops them all.

    `settings` has a line more for the configuration of a server, by its name.

    Args:
        kit: of another run, for the same parties; None makes one.
    """

    def __init__(
        self,
        folder: Path,
        cipher: str = "bfv",
        clients: int = 6,
        versions: int = 4,
        record: bool = False,
        plan: str = PLAN,
        metrics: bool = False,
        json_logs: bool = False,
        insecure: bool = False,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.toml").write_text(plan.format(cipher=cipher, versions=versions))
        self.plan: Plan = load_plan(folder / "plan.toml")
        self.shards = shard_names(self.plan.section.most_shards)
        self.holders = holder_names(self.plan.holders)
        self.clients = client_names(clients)
        self.recorders: dict[str, Relay] = {}
        self._running: dict[str, Child | subprocess.Popen[bytes]] = {}
        self._hangs: dict[str, str] = {}
        self._observer: StatusClient | None = None
        self._record = record
        self._metrics = metrics
        self._json_logs = json_logs
        self.insecure = insecure or record  # nobody can read TLS
        self.pace = 0.0
        self.settings: dict[str, str] = {}
        self._kit = folder / "kit"
        self._make_kit()

    def kit(self, name: str) -> Path:
        """The kit of a party: here one folder has everybody's keys."""
        return self._kit

    def _make_kit(self) -> None:
        names = (COORDINATOR, *self.shards, *self.holders, *self.clients)
        make_kit(self._kit, self.plan, *names)

    # --- processes ----------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer is not None:
            self._observer.close()
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        for recorder in self.recorders.values():
            recorder.close()

    def start_all(self, clients: int | None = None, **hangs: str) -> None:
        """Starts all servers, and as many clients as are wanted (default: all of the roster).

        Args:
            hangs: where which party stands still, as `start` takes it; `_` for `-` in its name.
        """
        self._hangs = {name.replace("_", "-"): place for name, place in hangs.items()}
        self.start("coordinator")
        self.wait(lambda: self._address("coordinator") is not None, "the coordinator")
        for name in (*self.shards, *self.holders, *self.clients[:clients]):
            self.start(name)

    def start(self, name: str) -> None:
        """Starts a party, or starts it again where it was."""
        command = self._client(name) if name in self.clients else self._server(name)
        self._running[name] = self._begin(command, self.folder / f"{name}.log")

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        return spawn(command, self.folder, log)

    def kill(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait()

    def kill_in_turn(self, *victims: str) -> None:
        """Each while the next version is being made, the first before version 1; all come back."""
        for version, victim in enumerate(victims):
            self.wait(partial(self.reached, version), f"version {version}")
            self.kill(victim)
            self.start(victim)

    def stop(self, name: str, times: int = 1) -> int:
        """SIGTERM, that many times; returns the exit status."""
        for _ in range(times):
            self._running[name].send_signal(signal.SIGTERM)
        return self._running[name].wait(PATIENCE)

    def exit_status(self, name: str) -> int:
        """Waits for its last process to end by itself; returns the exit status."""
        return self._running[name].wait(PATIENCE)

    def alive(self, name: str) -> bool:
        return self._running[name].poll() is None

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def _server(self, name: str) -> list[str]:
        own = COORDINATOR if name == STANDBY else name
        role = COORDINATOR if own == COORDINATOR else name.partition("-")[0]
        lines = [f'name = "{own}"', f'kit = "{self.kit(own)}"', f'state = "{name}"']
        if role == COORDINATOR:
            lines.append('plan = "plan.toml"')
        else:
            lines.append(f'coordinator = "{self.server}"')
        if role != "holder":
            lines.append('checkpoints = "checkpoints"')
        if self.insecure:
            lines.append("insecure = true")
        if role == "shard" and self._record:
            lines.append(f'advertise = "{self._recorder(name).address}"')
        if self._metrics:
            lines.append('metrics = "127.0.0.1:0"')
        lines += [self.settings[name]] if name in self.settings else []
        config = self.folder / f"{name}.toml"
        config.write_text("\n".join(lines) + "\n")
        role = {"holder": "keyholder"}.get(role, role)
        command = [*self._program(name, "-m", "secureps"), "serve", role, "--config", str(config)]
        command += ["--standby"] * (name == STANDBY)
        return [*command, "--log-format", "json"] if self._json_logs else command

    def _client(self, name: str) -> list[str]:
        return [*self._program(name, WALKERS), *self._as_client(name)]

    def _as_client(self, name: str) -> list[str]:
        """The options of a client, whatever its script."""
        number = self.clients.index(name)
        return [
            *("--server", self.server, "--kit", str(self.kit(name)), "--name", name),
            *("--state", str(self.folder / name), "--unsafe-seed", "3", INSECURE),
            *(("--insecure",) if self.insecure else ()),
            *("--set", f"partition={number}", "--set", f"pace={self.pace}"),
        ]

    def _program(self, name: str, *own: str) -> list[str]:
        """What a command begins with, also of a party that stands still somewhere."""
        place = self._hangs.get(name)
        return list(own) if place is None else [str(KITS / "hanging.py"), place, "--"]

    # --- looking in ---------------------------------------------------------------

    @property
    def server(self) -> str:
        if self._record:
            return self._recorder("coordinator").address
        address = self._address("coordinator")
        assert address is not None
        return address

    def _recorder(self, name: str) -> Relay:
        if name not in self.recorders:
            self.recorders[name] = Relay(lambda: self._address(name) or "127.0.0.1:9", keeps=True)
        return self.recorders[name]

    def _address(self, name: str) -> str | None:
        path = self.folder / name / "address"
        return path.read_text().strip() if path.is_file() else None

    def scrape(self, name: str) -> dict[str, float]:
        """A server's metrics as one scrape shows them: "name{label=value,...}" to value."""
        address = (self.folder / name / "metrics-address").read_text().strip()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            families = text_string_to_metric_families(reply.read().decode())
            return {_series(s): s.value for family in families for s in family.samples}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def journal(self, name: str, *kinds: type[Any]) -> list[Any]:
        """Kills a server, if it runs, and reads the records of these kinds that it wrote."""
        self.kill(name)
        journal = SqliteJournal(self.folder / name / "journal.db")
        try:
            return [record for _, record in journal.replay() if isinstance(record, kinds)]
        finally:
            journal.close()

    def observer(self) -> StatusClient:
        if self._observer is None:
            self._observer = StatusClient(
                self.kit("coordinator"), "coordinator", self.server, self.insecure
            )
        return self._observer

    def status(self) -> Status | None:
        """How the run stands, or None while the coordinator does not answer."""
        try:
            return self.observer().status()
        except SecurepsError:
            return None

    @property
    def seen(self) -> Status:
        """How the run stands, once the coordinator answers."""
        self.wait(lambda: self.status() is not None, "the coordinator")
        return self.observer().status()

    def live(self, name: str) -> bool:
        """Whether the coordinator says that a server is there."""
        status = self.status()
        servers = () if status is None else status.servers
        return any(each.live for each in servers if each.name == name)

    def check_goes_on(self, healthy: int) -> None:
        """Two more versions are made with every update of the first so many clients."""
        clients, later = self.clients[:healthy], self.seen.groups[0].version + 2
        self.wait(lambda: self.reached(later), "healthy versions")
        status = self.seen
        made, members = status.groups[0].version, {m.name: m for m in status.members}
        for name in clients:
            assert members[name].submissions == made, "a healthy client was left out"
            assert "dropped" not in self.log(name)
        for name in (COORDINATOR, *self.shards, *self.holders, *clients):
            assert self.alive(name), self.log(name)
            assert "Traceback" not in self.log(name)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Polls until a condition holds; fails with everybody's log when it takes too long."""
        end, pause = time.monotonic() + PATIENCE, 0.02
        while not condition():
            if time.monotonic() > end:
                logs = {path.name: path.read_text()[-800:] for path in self.folder.glob("*.log")}
                raise AssertionError(f"waited too long for {what}: {logs}")
            time.sleep(pause)
            pause = min(1.1 * pause, 0.06)  # whoever waits long asks less: a status costs 2 ms

    def reached(self, version: int) -> bool:
        status = self.status()
        return status is not None and all(g.version >= version for g in status.groups)

    def finished(self) -> bool:
        status = self.status()
        return status is not None and bool(status.finished)

    def model(self) -> Model:
        found: list[Model] = []

        def pulled() -> bool:
            model = self.observer().model()
            if model is not None:
                found.append(model)
            return model is not None

        self.wait(pulled, "a published model")
        return found[0]


def _series(sample: Sample) -> str:
    labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
    return f"{sample.name}{{{labels}}}" if labels else sample.name
