"""Network namespaces on one bridge, for tests of parties on machines of their own."""

import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self


def possible() -> str:
    """Why there can be no machines here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip (iproute2)"
    name = own_name()
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "no network namespaces can be made here"
    tried = ip("link", "add", "br0", "type", "bridge", at=name, check=False)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return "no bridge can be made here" if tried else ""


def ip(*words: str, at: str = "", check: bool = True) -> int:
    where = ["-n", at] if at else []
    return subprocess.run(["ip", *where, *words], capture_output=True, check=check).returncode


def own_name() -> str:
    """Of namespaces of this process: whoever finds them knows when nobody needs them any more."""
    return f"secureps-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def remove(name: str) -> None:
    for _try in range(50):
        found = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if not found:
            break
        time.sleep(0.05)
    ip("netns", "del", name, check=False)
    shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def remove_left() -> None:
    """Namespaces of runs that were killed, and removed nothing."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for name in re.findall(r"^secureps-\d+-\S+", listed.stdout, re.MULTILINE):
        try:
            os.kill(int(name.split("-")[1]), 0)
        except ProcessLookupError:
            remove(name)


class Switch:
    """A bridge in a namespace, and machines on it; `with` removes them, and all that runs there."""

    def __init__(self) -> None:
        self._own = own_name()
        self._made: list[str] = []
        self._ports = 0

    def __enter__(self) -> Self:
        remove_left()
        try:
            self._hub = self._make("hub")
            ip("link", "add", "br0", "type", "bridge", at=self._hub)
            ip("link", "set", "br0", "up", at=self._hub)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            remove(name)

    def add(self, machine: str, address: str) -> str:
        """A machine's namespace with an address of a network of 2^16; its hosts file is empty."""
        name, port = self._make(machine), f"port{self._ports}"
        self._ports += 1
        link = ("link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._hub)
        ip(*link, at=name)
        ip("link", "set", port, "master", "br0", "up", at=self._hub)
        ip("addr", "add", f"{address}/16", "dev", "eth0", at=name)
        ip("link", "set", "eth0", "up", at=name)
        own = Path("/etc/netns") / name
        own.mkdir(parents=True)
        (own / "hosts").write_text("127.0.0.1 localhost\n")
        return name

    def remove(self, name: str) -> None:
        remove(name)
        self._made.remove(name)

    def _make(self, machine: str) -> str:
        name = f"{self._own}-{machine}"
        ip("netns", "add", name)
        self._made.append(name)
        ip("link", "set", "lo", "up", at=name)
        return name
