"""Where a peer plays: its processes, their two network namespaces, its limits, and their end.

As root, or where a user may make namespaces, clients and servers are on the two ends of a virtual
wire, whose counters are the bytes up and down; else both are on loopback and nobody counts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from benchmarks.peers import meter
from benchmarks.peers.meter import CLIENTS, SERVERS, Meter, parse_counters
from benchmarks.peers.outcome import Figures, PeerError
from tests.kits.nursery import ROOT

NEAR, FAR = "10.79.0.1", "10.79.0.2"
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER of prctl(2)
_MTU = "65535"  # as on loopback, nearly
_LIBC = ctypes.CDLL(None, use_errno=True)


class Stopped(PeerError):
    """It was stopped because it needed more than it may have."""


@dataclass(frozen=True)
class Limits:
    """Bytes resident in all processes together, and seconds of the clock."""

    memory: int
    seconds: float


@dataclass
class Stage:
    """`with` lays the wire and, at the end, kills whatever is still there.

    Args:
        folder: empty; the peer's own.
        wired: whether this process is in a network namespace of its own, with the right to change
            it; then it is the servers'.
    """

    folder: Path
    values: int
    clients: int
    rounds: int
    limits: Limits
    wired: bool
    among_clients: bool = False
    """Whether what clients tell each other is counted, and not what crosses the wire."""
    stopped_by: str = ""
    _roots: dict[int, str] = field(default_factory=dict)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _far: subprocess.Popen[bytes] | None = None
    _counted: str = ""

    def __enter__(self) -> Stage:
        _reap_orphans()
        if self.wired:
            self._lay()
        self._began = time.monotonic()
        self.meter = Meter(self._roots, self._counters, self._check)
        self.meter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.meter.stop()
        self._kill()
        for process in self._running:
            process.wait()

    # --- the wire ------------------------------------------------------------------

    @property
    def host(self) -> str:
        """Where servers listen and clients dial."""
        return NEAR if self.wired else "127.0.0.1"

    def free_port(self) -> int:
        """A port of `host` that nobody has now."""
        with socket.create_server((self.host, 0)) as server:
            port: int = server.getsockname()[1]
            return port

    def name_host(self, name: str) -> str:
        """A name of `host` that both sides know: this one, or localhost where there is no wire."""
        if not self.wired:
            return "localhost"
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{NEAR} {name}\n")
        _run("mount", "--bind", str(hosts), "/etc/hosts")  # in a mount namespace of our own
        return name

    def answers(self, port: int) -> bool:
        """Whether anybody listens at a port of `host`."""
        with suppress(OSError), socket.create_connection((self.host, port), timeout=1):
            return True
        return False

    def _lay(self) -> None:
        self._far = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._running.append(self._far)
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self._far.pid}/ns/net") == own:
            time.sleep(0.01)
        link = ["ip", "link", "add", "near", "mtu", _MTU, "type", "veth"]
        _run(*link, "peer", "name", "far", "mtu", _MTU)
        _run("ip", "link", "set", "far", "netns", str(self._far.pid))
        for prefix, name, ip in (((), "near", NEAR), (self._behind(), "far", FAR)):
            _run(*prefix, "ip", "link", "set", "lo", "up")
            _run(*prefix, "ip", "addr", "add", f"{ip}/30", "dev", name)
            _run(*prefix, "ip", "link", "set", name, "up")

    def _behind(self) -> tuple[str, ...]:
        """What a command on the clients' end begins with."""
        if self._far is None:
            return ()
        return ("nsenter", f"--net=/proc/{self._far.pid}/ns/net")

    def _counters(self) -> tuple[int, int]:
        """Bytes on the wire, up and down."""
        if self._far is None:
            return 0, 0
        with suppress(OSError):  # it was killed
            self._counted = Path(f"/proc/{self._far.pid}/net/dev").read_text()
        counters = self._counted
        down, up = parse_counters(counters, "far")
        if self.among_clients:
            among = parse_counters(counters, "lo")[1]
            return among, among
        return up, down

    # --- processes ------------------------------------------------------------------

    def start(
        self,
        group: str,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Begins a process of `CLIENTS` or `SERVERS`; what it says is in NAME.log."""
        assert group in (CLIENTS, SERVERS)
        prefix = self._behind() if group == CLIENTS else ()
        with (self.folder / f"{name}.log").open("ab") as said:
            process = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=self.environment(environment),
                preexec_fn=_as_peer,
            )
        self._roots[process.pid] = group
        self._running.append(process)
        return process

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of all processes: one thread for arithmetic each, apps found, nothing of this one's."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        about = {
            "PEERS_VALUES": str(self.values),
            "PEERS_CLIENTS": str(self.clients),
            "PEERS_ROUNDS": str(self.rounds),
            "PEERS_FOLDER": str(self.folder),
        }
        return {**kept, **own, **about, **(more or {})}

    def times(self, name: str) -> list[float]:
        """When each round was over ("marks") or a message went ("waves"), by `time.monotonic`."""
        path = self.folder / name
        return [float(line) for line in path.read_text().split()] if path.is_file() else []

    def error(self) -> float:
        """Waits until the peer says how far its mean is from that in float64."""
        path = self.folder / "error"
        self.wait(path.is_file, "the mean")
        return float(path.read_text())

    def figures(self, error: float | None) -> Figures:
        """Of the rounds that are marked."""
        self.meter.look()
        seen, size, marks = self.meter, (self.values, self.clients), self.times("marks")
        made = meter.figures(seen.samples, seen.traffic, marks, *size, error)
        sent = sum(marks[0] < each <= marks[-1] for each in self.times("waves"))
        return replace(made, waves=sent / (len(marks) - 1) / self.clients) if sent else made

    def wait(self, over: Callable[[], bool], what: str) -> None:
        """Returns when it is over.

        Raises:
            Stopped: a limit was passed.
            PeerError: a process ended.
        """
        while not over():
            if self.stopped_by:
                raise Stopped(self.stopped_by)
            for process in self._running:
                if process.poll() not in (None, 0) and not self.stopped_by:
                    time.sleep(2 * 0.1)  # for whoever killed it to say so
                    if self.stopped_by:
                        raise Stopped(self.stopped_by)
                    raise PeerError(f"waiting for {what}: a process ended; {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """The last line of each log that has any, for whoever looks for a fault."""
        said = {}
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").strip().splitlines()
            if lines:
                said[path.name] = lines[-1][-200:]
        return str(said)

    # --- limits and the end ----------------------------------------------------------

    def _check(self, resident: int) -> None:
        if self.stopped_by:
            return
        if resident > self.limits.memory:
            self.stopped_by = f"more than {self.limits.memory / 1e9:.1f} GB"
        elif time.monotonic() - self._began > self.limits.seconds:
            self.stopped_by = f"more than {self.limits.seconds:.0f} s"
        if self.stopped_by:
            self._kill()

    def _kill(self) -> None:
        """All that descends from this process, also what is begun meanwhile."""
        mine = {process.pid for process in self._running}
        while victims := _living():
            for victim in victims:
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
            time.sleep(0.02)
            for pid in {victim.pid for victim in victims} - mine:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _living() -> list[psutil.Process]:
    """Descendants; zombies hold no memory, and are waited for by whoever began them."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _reap_orphans() -> None:
    """Whatever loses its parent becomes this process' child, and not the machine's."""
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Whoever begins this process cannot leave it behind, not even by being killed."""
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _as_peer() -> None:
    """The first the kernel kills when memory ends, in a session of its own, a reaper of orphans."""
    os.setsid()
    _reap_orphans()
    end_with_parent()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
