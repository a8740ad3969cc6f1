"""Machines of one process each, and what lies between them: lossy, late, narrow or cut.

Every party has a network namespace with one TUN device, and a thread of this process passes
packets from one to another: many kernels lack netem. `Links` needs root, and a network namespace
of its own around it, which takes all of it along when it ends.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from tests.kits.namespaces import ip

_TUNSETIFF, _TUN_NO_INFO = 0x400454CA, 0x1001
_NEWNET = 0x40000000
_PACKET, _HEADER = 2048, 20
_BACKLOG = 1.0
"""Seconds of packets that wait for a narrow link; what comes more is lost, as at any router."""

NAMESPACES = Path("/run/netns")
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


@cache
def possible() -> str:
    """Why there can be no links here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("unshare", "ip", "mount"):
        if shutil.which(tool) is None:
            return f"network namespaces need {tool}"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    tried = [*UNSHARE, "sh", "-c", "mount -t tmpfs none /run && ip netns add x && ip tuntap list"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@dataclass(slots=True)
class Way:
    """What becomes of packets from one machine to another; `cuts` counts who cuts it."""

    cuts: int = 0
    loss: float = 0.0
    delay: float = 0.0
    rate: float = 0.0
    free_at: float = 0.0


def enter(namespace: Path) -> None:
    """This thread is in another network namespace from here on."""
    file = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.setns(file, _NEWNET)
    os.close(file)
    if failed:
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


class Links:
    """The machines by name, and a way from each to each; `with` ends them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._ways: defaultdict[tuple[str, str], Way] = defaultdict(Way)
        self._machines: dict[str, tuple[int, bytes]] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._pass, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        if self._thread.is_alive():
            self._thread.join()
        for file, _address in self._machines.values():
            os.close(file)

    def start(self) -> None:
        """Packets pass from here on, between the machines that were added."""
        self._thread.start()

    def add(self, name: str, own: bool = False) -> str:
        """A machine; returns its address. `own`: that of this process, where nothing goes wrong."""
        address = f"10.79.0.{len(self._machines) + 1}"
        at = "" if own else name
        if not own:
            ip("netns", "add", name)
            ip("link", "set", "lo", "up", at=name)
        made = list[int | OSError]()
        opener = threading.Thread(target=_open, args=(at, made))  # its namespace is a thread's
        opener.start()
        opener.join()
        (file,) = made
        if isinstance(file, OSError):
            raise file
        ip("addr", "add", f"{address}/24", "dev", "tun0", at=at)
        ip("link", "set", "tun0", "up", "mtu", "1400", at=at)
        self._machines[name] = file, bytes(map(int, address.split(".")))
        return address

    def change(self, party: str, **to: float) -> None:
        """Every way from and to a machine is so from here on: `loss`, `delay`, `rate`."""
        for other in self._machines:
            for way in ((party, other), (other, party)):
                for key, value in to.items():
                    setattr(self._ways[way], key, value)

    def cut(self, sender: str, to: str, by: int) -> None:
        """Nothing passes on this way, until it is mended by as much (`by` below 0)."""
        self._ways[sender, to].cuts += by

    def _pass(self) -> None:
        names = {file: name for name, (file, _) in self._machines.items()}
        at = {address: name for name, (_, address) in self._machines.items()}
        waiting, number = list[tuple[float, int, int, bytes]](), 0
        while not self._ended:
            wait = min(0.05, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.05
            for file in select.select(names, [], [], wait)[0]:
                with suppress(BlockingIOError):
                    while packet := os.read(file, _PACKET):
                        to = at.get(packet[16:_HEADER])
                        due = None if to is None else self._due(names[file], to, len(packet))
                        if to is not None and due is not None:
                            number += 1
                            sink = self._machines[to][0]
                            heapq.heappush(waiting, (due, number, sink, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, sink, packet = heapq.heappop(waiting)
                with suppress(OSError):
                    os.write(sink, packet)

    def _due(self, sender: str, to: str, length: int) -> float | None:
        """When a packet arrives; None if it does not."""
        way, now = self._ways[sender, to], time.monotonic()
        if way.cuts or (way.loss and self._rng.random() < way.loss):
            return None
        if way.rate:
            begun = max(now, way.free_at)
            if begun - now > _BACKLOG:
                return None
            now = way.free_at = begun + length / way.rate
        return now + way.delay


def _open(at: str, made: list[int | OSError]) -> None:
    try:
        if at:
            enter(NAMESPACES / at)
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _TUN_NO_INFO))
        made.append(file)
    except OSError as error:
        made.append(error)
