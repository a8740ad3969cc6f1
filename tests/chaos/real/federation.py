"""A federation of real processes, each on a machine of its own, to which a table of faults happens.

What has ended without having been told to is started again, as whatever supervises a server would.
"""

from __future__ import annotations

import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from secureps.errors import Malformed, Refused, SecurepsError, UnknownParty
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.run.preflight import take_over
from secureps.run.status_client import StatusClient
from secureps.store.issuing import issue, renew, renew_roster
from secureps.store.keyring import load_public
from tests.chaos.operator import AGAINST
from tests.chaos.real.client import NOTES
from tests.chaos.real.schedule import CLIENTS, SPARE, VERSIONS, Setting
from tests.chaos.real.takeover import has_version, stopped_while_followed, taken_over
from tests.chaos.schedule import ADDED, FROZEN, GONE, MOVES, TAKEOVERS, Fault
from tests.chaos.shards import DEEDS
from tests.kits.command import INSECURE
from tests.kits.links import Links
from tests.kits.nursery import ROOT, Child, spawn
from tests.kits.processes import ADAM, Processes, plan_text

AGAIN = 0.5
"""Seconds after which it is said once more."""


class Operator:
    """Acts on one run.

    `wanted` are shards that were added last, and whose processes are to run; `wrong` is what was
    answered that no operator should hear.
    """

    def __init__(self, machines: Machines) -> None:
        self.wanted, self.wrong = set[str](), list[str]()
        self._machines, self._over = machines, False
        self._acts = queue.SimpleQueue[Act]()
        threading.Thread(target=self._speak, daemon=True).start()

    def demand(self, fault: Fault) -> None:
        """Does it, once all is done that was demanded before: an act says no more than its name."""
        if fault.kind in TAKEOVERS:
            threading.Thread(target=self._command, daemon=True).start()
        else:
            self._acts.put(Act(DEEDS[fault.kind].value, fault.who, "chaos"))

    def end(self) -> None:
        self._over = True

    def _speak(self) -> None:
        machines, client = self._machines, None
        while True:
            act = self._acts.get()
            client = client or StatusClient(machines.kit(COORDINATOR), COORDINATOR, machines.server)
            if act.what == ShardDeed.ADD:
                self.wanted.add(act.party)
            while not self._over and not self._heard(client, act):
                time.sleep(AGAIN)
            if act.what == ShardDeed.REMOVE:
                self.wanted.discard(act.party)

    def _heard(self, client: StatusClient, act: Act) -> bool:
        try:
            client.act(act)
        except (Refused, UnknownParty) as error:
            return AGAINST not in str(error)
        except Malformed as error:
            self.wrong.append(f"an operator said {act} and heard {error!r}")
        except SecurepsError:
            return False
        return True

    def _command(self) -> None:
        while not self._over and not taken_over(self._machines):
            with suppress(OSError, SecurepsError):  # it is not there, or does not follow yet
                take_over(self._machines.folder / f"{STANDBY}.toml")
            time.sleep(AGAIN)


PORT, PACE, SEED, OTHER_SEED = 7600, 0.5, 3, 4
TICK, AGAIN = 0.05, 0.5
MOST_STARTS = 12
"""Of one party by itself: a supervisor would go on, and nobody would learn of it."""

YOUTH = 3.0
"""Seconds after its start until a process surely handles SIGTERM."""

MOST_FROZEN = 40.0
"""Seconds for which a coordinator stands still whose standby does not take over."""

DISK = 24 << 20
"""Bytes of a party's own disk, where it has one."""

MI = 1 << 20

RULES = {
    "all": f"quorum = {CLIENTS}\nminimum = {CLIENTS}\ndeadline = 1000.0\n",
    "sync": "quorum = 3\nminimum = 2\ndeadline = 4.0\nextensions = 50\n",
    "buffered": 'name = "buffered"\nbuffer = 2\nminimum = 2\nmax_staleness = 3\ndeadline = 8.0\n',
}
VALUES = {
    False: "clip = 3.0\nrange = 1.0\nmost_examples = 32\n",
    True: 'clip = 3.0\nbits = 16\nweighting = "uniform"\nmost_examples = 32\n',
}
PRIVACY = """[training]
local_steps = 2
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 20.0
delta = 1e-6
budget = 1000.0
"""
COMMITTEE = 'name = "rlwe"\nholders = 3\nthreshold = 2'


def plan_of(setting: Setting) -> str:
    """The plan's file of a setting, as `Processes` takes it."""
    rule = f"[group.rule]\n{RULES[setting.rule]}{ADAM}{PRIVACY if setting.private else ''}"
    text = plan_text(rule, VALUES[setting.private])
    return text if setting.cipher == "plain" else text.replace('name = "{cipher}"', COMMITTEE)


class Machines(Processes):
    """Kit, configurations and processes, each in a network namespace of its own.

    `notes` is where clients note what they seal; `wiped` are parties that lost their disk, and
    `older` those that got an older one back, with the journal that each had before. `names` are
    those who take part from the start, and whoever came since.

    Args:
        others: a standby, if there is one, and a shard that may come.
    """

    def __init__(
        self, folder: Path, setting: Setting, links: Links, others: Sequence[str] = ()
    ) -> None:
        super().__init__(
            folder, setting.cipher, CLIENTS, VERSIONS, plan=plan_of(setting), json_logs=False
        )
        self.links, self.pace = links, PACE
        self.notes = folder / "notes"
        self.notes.mkdir()
        links.add("watcher", own=True)
        names = (COORDINATOR, *self.shards, *self.holders, *self.clients)
        at = self.addresses = {name: f"{links.add(name)}:{PORT}" for name in (*names, *others)}
        self.names = tuple(name for name in at if name != SPARE)
        listening = (COORDINATOR, *self.shards, *others)
        self.settings = {name: f'listen = "{at[name]}"' for name in listening}
        if STANDBY in others:
            self.settings[COORDINATOR] += f'\nstandby = "{at[STANDBY]}"'
            self.settings[STANDBY] += f'\ncoordinator = "{at[COORDINATOR]}"'
        self.settings |= dict.fromkeys(self.holders, "minimum = 2")
        self.wiped, self.older = set[str](), set[str]()
        self.lost: dict[str, list[Path]] = {}
        links.start()

    @property
    def server(self) -> str:
        """Where the others dial the coordinator, or its standby."""
        places = (COORDINATOR, STANDBY)
        return ",".join(self.addresses[name] for name in places if name in self.addresses)

    def admit(self, name: str) -> int:
        """A shard comes onto the roster; of which number that is."""
        issue(self.kit(name), "shard", name)
        return load_public(self.kit(name)).roster.number

    def goes_by(self, number: int) -> bool:
        """Whether a coordinator has journalled this roster, or a later one."""
        rulers = (name for name in (COORDINATOR, STANDBY) if name in self.names)
        said = (re.findall(r"goes by roster (\d+)", self.log(name)) for name in rulers)
        return any(int(each) >= number for known in said for each in known)

    def _client(self, name: str) -> list[str]:
        seed = OTHER_SEED if name in self.wiped else SEED  # the one that it had is lost
        return [
            *(str(ROOT / "tests" / "chaos" / "real" / "client.py"), "--server", self.server),
            *("--kit", str(self.kit(name)), "--name", name, "--state", str(self.folder / name)),
            *("--unsafe-seed", str(seed), INSECURE),
            *("--set", f"partition={self.clients.index(name)}", "--set", f"pace={self.pace}"),
        ]

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        inside = ["-m", "tests.chaos.real.inside", log.stem, *command]
        environment = {**os.environ, NOTES: str(self.notes), "PYTHONPATH": str(ROOT)}
        return spawn(inside, self.folder, log, environment)

    def status_of(self, name: str) -> int | None:
        """How a party's process ended; None while it runs, 0 if it never began."""
        return self._running[name].poll() if name in self._running else 0

    def send(self, name: str, number: int) -> None:
        """Sends a signal, if there is anybody to hear it."""
        with suppress(ProcessLookupError):
            self._running[name].send_signal(number)


class Played:
    """One run under its faults, from the start of the processes to the end of all of them.

    `stood` says why it has no end, if it has none; `ends` are the ends of processes that nobody
    had asked for, as they were told; `young` is how those may end that hear of SIGTERM too early.
    """

    def __init__(self, machines: Machines, faults: Sequence[Fault], patience: float) -> None:
        self.machines, self.faults, self._patience = machines, faults, patience
        self.stood = ""
        self.ends: list[tuple[str, int, str]] = []
        self.young: dict[str, int] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._down: dict[str, float] = {}
        """Parties that do not run, and when they are started."""
        self._starts = Counter[str]()
        self._started: dict[str, float] = {}
        self._began = self._end = self._tried = 0.0
        self._attempts: list[Callable[[], bool]] = []
        """What is done as soon as it can be, each of which says whether it was."""
        self._frozen = False
        self.operator = Operator(machines)

    def play(self) -> None:
        """Starts everybody, and returns when the run is over or stands still for too long."""
        machines = self.machines
        disks = {fault.who for fault in self.faults if fault.kind == "full"}
        for name in disks:
            (machines.folder / name).mkdir(mode=0o700)
            _mount(machines.folder / name)
        self._began = time.monotonic()
        self._due = [(fault.at, partial(self._happen, fault)) for fault in self.faults]
        self._down = dict.fromkeys(machines.names, 0.0)
        last = max((fault.at + fault.seconds for fault in self.faults), default=0.0)
        self._end = last + self._patience
        while not self._over():
            if self._now() > self._end:
                self.stood = f"{self._now():.0f} s: {self._waits()}"
                for name in machines.names:
                    machines.send(name, signal.SIGUSR1)
                time.sleep(1.0)
                return
            self._step()
            time.sleep(TICK)

    def stop(self) -> dict[str, int | None]:
        """SIGTERM to all servers; how each ended, None if it did not."""
        self.operator.end()
        left = [n for n in self.machines.names if self.machines.status_of(n) is None]
        for name in left:
            if self._now() - self._started[name] < YOUTH:
                self.young[name] = -signal.SIGTERM
            self.machines.send(name, signal.SIGTERM)
        end, found = time.monotonic() + 15.0, dict[str, int | None]()
        for name in left:
            while (status := self.machines.status_of(name)) is None and time.monotonic() < end:
                time.sleep(TICK)
            found[name] = status
            if status is None:
                self.machines.kill(name)  # its journal is to be read
        return found

    # --- one step -----------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _step(self) -> None:
        for at, act in sorted(self._due, key=lambda each: each[0]):
            if at <= self._now():
                self._due.remove((at, act))
                act()
        for name, at in list(self._down.items()):
            if at <= self._now():
                del self._down[name]
                self.machines.start(name)
                self._started[name] = self._now()
        for name in self.machines.names:
            if name not in self._down and (status := self.machines.status_of(name)):
                self._ended(name, status)
        if self._now() > self._tried + AGAIN:
            self._tried = self._now()
            attempts, self._attempts = self._attempts, []
            for attempt in attempts:
                if not attempt():
                    self._attempts.append(attempt)
            for name in self.operator.wanted & set(self.machines.names) - self._down.keys():
                if self.machines.status_of(name) == 0:  # it was told that it had left
                    self._down[name] = self._now()

    def _ended(self, name: str, status: int) -> None:
        """Nobody has told it to end: it is started again, as often as that may help.

        A client whose folder is an older copy is given a new one, as it says.
        """
        self.ends.append((name, status, self._last_line(name)))
        if "give a new --state folder" in self._last_line(name):
            self._lose(name)
        self._starts[name] += 1
        if self._starts[name] < MOST_STARTS:
            self._down[name] = self._now() + AGAIN * self._starts[name]
        else:
            self._down[name] = float("inf")

    def _last_line(self, name: str) -> str:
        lines = self.machines.log(name).strip().splitlines()
        return lines[-1] if lines else ""

    def _over(self) -> bool:
        machines = self.machines
        if self._due or any(at < float("inf") for at in self._down.values()):
            return False
        return all(machines.status_of(name) == 0 for name in machines.clients)

    def _waits(self) -> str:
        gone = [name for name, at in self._down.items() if at == float("inf")]
        ruling = {COORDINATOR, STANDBY} & set(self.machines.names) - set(gone)
        status = self.machines.status() if ruling else None
        said = "" if status is None else "; ".join(group.reason for group in status.groups)
        held = "" if status is None else status.finished
        return f"reasons {said!r}, finished {held!r}, given up {gone}"

    # --- faults -------------------------------------------------------------------

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((self._now() + seconds, act))

    def _happen(self, fault: Fault) -> None:
        machines, who, links = self.machines, fault.who, self.machines.links
        match fault.kind:
            case "part" | "oneway":
                ways = [(who, fault.to), (fault.to, who)][: 1 + (fault.kind == "part")]
                for way in ways:
                    links.cut(*way, by=1)
                    self._later(fault.seconds, partial(links.cut, *way, by=-1))
                return
            case "loss" | "delay" | "narrow":
                key = {"narrow": "rate"}.get(fault.kind, fault.kind)
                links.change(who, **{key: fault.much})
                self._later(fault.seconds, partial(links.change, who, **{key: 0.0}))
                return
            case "full":
                ballast = machines.folder / who / "ballast"
                _fill(ballast)
                self._later(fault.seconds, partial(ballast.unlink, missing_ok=True))
                return
            case "renewed":
                renew(machines.kit(who), [who])
                renew_roster(machines.kit(who))
                return
            case kind if kind in TAKEOVERS or kind in MOVES:
                self._demanded(fault)
                return
        if who in self._down or machines.status_of(who) is not None:
            return  # it is not there
        match fault.kind:
            case "kill":
                self._fall(fault)
            case "stop":
                machines.send(who, signal.SIGSTOP)
                self._later(fault.seconds, partial(self._resume, who))
            case "files" | "memory":
                self._limit(fault)
            case "wiped":
                self._fall(fault)
                self._lose(who)
            case "older":
                copy = machines.folder / "copies" / f"{who}-{len(machines.lost)}"
                _copy(machines.folder / who, copy)
                self._later(fault.seconds, partial(self._go_back, fault, copy))

    def _demanded(self, fault: Fault) -> None:
        """What waits until it can be: a standby takes over, or blocks move."""
        if fault.kind in (GONE, FROZEN):
            self._attempts.append(partial(self._lost, fault))
            return
        if fault.kind == ADDED and fault.who not in self.machines.names:
            self._attempts.append(partial(self._admit, fault.who))
        self.operator.demand(fault)

    def _admit(self, who: str) -> bool:
        """A shard comes onto the roster once there is a version: who joins later has that kit."""
        if not has_version(self.machines):
            return False
        self._attempts.append(partial(self._come, who, self.machines.admit(who)))
        return True

    def _come(self, who: str, number: int) -> bool:
        """A shard that is on the roster is started, once a coordinator knows that.

        One that stands still while its standby takes over does not, and says so until it ends.
        """
        over = "is its standby now" in self.machines.log(COORDINATOR) or COORDINATOR in self._down
        if not self.machines.goes_by(number) or (taken_over(self.machines) and not over):
            return False
        self.machines.names += (who,)
        self._down[who] = self._now()
        return True

    def _lost(self, fault: Fault) -> bool:
        """The coordinator is killed or stopped, unless its standby rules already."""
        machines = self.machines
        if taken_over(machines):
            return True
        if COORDINATOR in self._down or machines.status_of(COORDINATOR) is not None:
            return False
        if not stopped_while_followed(machines):
            return False
        most = self._now() + MOST_FROZEN
        self._end = max(self._end, most + fault.seconds + self._patience)
        self.operator.demand(fault)
        if fault.kind == FROZEN:
            self._frozen = True
            self._thaw(fault, most)
        else:
            machines.kill(COORDINATOR)
            self._down[COORDINATOR] = float("inf")
        return True

    def _thaw(self, fault: Fault, most: float) -> None:
        """The coordinator goes on some seconds after its standby rules, or when that takes long."""
        if taken_over(self.machines) or self._now() > most:
            self._frozen = False
            self._later(fault.seconds, partial(self._resume, COORDINATOR))
        else:
            self._later(AGAIN, partial(self._thaw, fault, most))

    def _resume(self, who: str) -> None:
        """A process that stood still goes on, but for a coordinator that is yet to be lost."""
        if not (who == COORDINATOR and self._frozen):
            self.machines.send(who, signal.SIGCONT)

    def _fall(self, fault: Fault) -> None:
        self.machines.kill(fault.who)
        self._down[fault.who] = self._now() + fault.seconds

    def _lose(self, who: str) -> None:
        """What a process had on its disk is gone; it is kept elsewhere, for the checks."""
        self.machines.wiped.add(who)
        self._put_by(who)
        _empty(self.machines.folder / who)

    def _put_by(self, who: str) -> None:
        """Keeps a copy of what a party had, for whoever checks it afterwards."""
        had = self.machines.lost.setdefault(who, [])
        copy = self.machines.folder / "lost" / f"{who}-{len(had)}"
        _copy(self.machines.folder / who, copy)
        had.append(copy)

    def _go_back(self, fault: Fault, copy: Path) -> None:
        if fault.who not in self._down and self.machines.status_of(fault.who) is None:
            self.machines.kill(fault.who)
        elif fault.who not in self._down:
            return  # it has ended by itself, and needs no disk any more
        self._down[fault.who] = self._now() + AGAIN
        self.machines.older.add(fault.who)
        self._put_by(fault.who)
        _empty(self.machines.folder / fault.who)
        for each in copy.iterdir():
            shutil.move(each, self.machines.folder / fault.who)

    def _limit(self, fault: Fault) -> None:
        """Lowers a limit of a running process, for a while."""
        pid = self.machines.pid(fault.who)
        kind = resource.RLIMIT_NOFILE if fault.kind == "files" else resource.RLIMIT_AS
        before = resource.prlimit(pid, kind)
        if fault.kind == "files":
            used = max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()) + 1
            low = used + int(fault.much)
        else:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            low = pages * resource.getpagesize() + int(fault.much) * MI
        resource.prlimit(pid, kind, (low, before[1]))

        def back() -> None:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, kind, before)

        self._later(fault.seconds, back)


def _mount(folder: Path) -> None:
    options = f"size={DISK},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def _fill(ballast: Path) -> None:
    """Writes until there is no byte left."""
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(MI if _free(ballast) > MI else 4096))


def _free(path: Path) -> int:
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def _copy(folder: Path, to: Path) -> None:
    to.mkdir(parents=True)
    if folder.exists():
        for _try in range(20):  # files come and go meanwhile
            with suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(folder, to, dirs_exist_ok=True)
                break
    (to / "ballast").unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    for each in folder.iterdir() if folder.exists() else ():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.name != "ballast":
            each.unlink()
