"""A slow line between one process and all others: a rate, a delay, and lost packets.

As root it is an IP link between two network namespaces, whose packets this process carries
(kernels without netem have no other), so that TCP sees loss and a queue as on a real line. Else,
or where there is no TUN device, TCP is relayed at the rate and with the delay, and nothing is lost.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

NEAR, FAR = "10.78.0.1", "10.78.0.2"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of unshare(2)
_TUNSETIFF, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000
_CHUNK = 4 << 10


@dataclass(frozen=True)
class Speed:
    """Bytes a second and seconds each way; the share of packets lost; bytes that wait at most."""

    rate: float = 125_000.0
    delay: float = 0.05
    loss: float = 0.01
    queue: int = 64 << 10


class _Lane:
    """One direction: when what comes now arrives at the other end; None if it is lost."""

    def __init__(self, speed: Speed, seed: int) -> None:
        self.bytes = 0
        self.delay = speed.delay
        self._speed = speed
        self._free_at = 0.0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def arrival(self, size: int, loses: bool) -> float | None:
        with self._lock:
            now, speed = time.monotonic(), self._speed
            waiting = max(0.0, self._free_at - now) * speed.rate
            if loses and (waiting + size > speed.queue or self._random.random() < speed.loss):
                return None
            self._free_at = max(now, self._free_at) + size / speed.rate
            self.bytes += size
            return self._free_at + speed.delay


class Line:
    """`with` lays it and takes it away; to be made by the main thread before it starts others."""

    def __init__(self, speed: Speed | None = None) -> None:
        self._speed = speed or Speed()
        self._up, self._down = _Lane(self._speed, 1), _Lane(self._speed, 2)
        self._relays: list[_Relay] = []
        self._far: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._carrier: threading.Thread | None = None
        self.kind = "relays of TCP, nothing lost"
        self.host = "127.0.0.1"
        """Where servers listen."""

    @property
    def up(self) -> int:
        """Bytes that went from the slow side, with whatever TCP and IP add to them."""
        return self._up.bytes

    @property
    def down(self) -> int:
        return self._down.bytes

    def __enter__(self) -> Line:
        if os.geteuid() == 0 and os.path.exists("/dev/net/tun"):
            self._lay()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._carrier is not None:
            self._carrier.join()
        if self._far is not None:
            self._far.kill()
            self._far.wait()
        for relay in self._relays:
            relay.close()

    def behind(self, command: Sequence[str]) -> list[str]:
        """The command, to be run on the slow side."""
        if self._far is None:
            return list(command)
        return ["nsenter", f"--net=/proc/{self._far.pid}/ns/net", *command]

    def address(self, server: str) -> str:
        """Where the slow side dials a server's HOST:PORT."""
        if self._far is not None:
            return server
        self._relays.append(_Relay(server, self._up, self._down))
        return self._relays[-1].address

    def _lay(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "no network namespace")
        ends = [_tun("near"), _tun("far")]
        self._far = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self._far.pid}/ns/net") == own:
            time.sleep(0.01)
        _run("ip", "link", "set", "far", "netns", str(self._far.pid))
        for prefix, name, ip in (((), "near", NEAR), (self.behind(()), "far", FAR)):
            _run(*prefix, "ip", "link", "set", "lo", "up")
            _run(*prefix, "ip", "addr", "add", f"{ip}/30", "dev", name)
            _run(*prefix, "ip", "link", "set", name, "up")
        self.kind, self.host = "an IP link between network namespaces", NEAR
        self._carrier = threading.Thread(target=self._carry, args=ends, daemon=True)
        self._carrier.start()

    def _carry(self, near: int, far: int) -> None:
        """Packets from either end to the other, each at its time."""
        coming: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        ways = {near: (far, self._down), far: (near, self._up)}
        while not self._stop.is_set():
            wait = 0.2 if not coming else max(0.0, coming[0][0] - time.monotonic())
            for end in select.select(list(ways), (), (), min(wait, 0.2))[0]:
                packet, (other, lane) = os.read(end, 65536), ways[end]
                at = lane.arrival(len(packet), True)
                if at is not None:
                    heapq.heappush(coming, (at, next(order), other, packet))
            while coming and coming[0][0] <= time.monotonic():
                with suppress(OSError):  # an end that is not up yet
                    os.write(coming[0][2], coming[0][3])
                heapq.heappop(coming)
        for end in ways:
            os.close(end)


class _Relay:
    """The same for connections to one server, as far as TCP can be told apart from a line."""

    def __init__(self, target: str, up: _Lane, down: _Lane) -> None:
        self._target, self._up, self._down = target, up, down
        self._open: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._socket, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        host, _, port = self._target.rpartition(":")
        with suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:  # nobody listens there now
                    near.close()
                    continue
                # What waits in sockets of this machine is no part of the line.
                near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
                self._open += [near, far]
                for ways in ((near, far, self._up), (far, near, self._down)):
                    threading.Thread(target=self._pump, args=ways, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, lane: _Lane) -> None:
        """Reads at the line's rate; what was read is written when the delay is over."""
        coming: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        args = (coming, source, sink)
        threading.Thread(target=self._deliver, args=args, daemon=True).start()
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                at = lane.arrival(len(data), False)
                assert at is not None
                coming.put((at, data))
                time.sleep(max(0.0, at - lane.delay - time.monotonic()))
        coming.put((0.0, b""))

    def _deliver(
        self, coming: SimpleQueue[tuple[float, bytes]], source: socket.socket, sink: socket.socket
    ) -> None:
        with suppress(OSError):
            while (item := coming.get())[1]:
                time.sleep(max(0.0, item[0] - time.monotonic()))
                sink.sendall(item[1])
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _tun(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER))
    return end


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
