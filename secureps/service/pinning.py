"""Pins a process to the cores of one NUMA node, and its memory to that node.

Memory of another socket is slower. All threads of a pinned process run on one node's cores, and
its memory comes from that node while any is free, because Linux takes a page from the node of the
thread that first touches the page. Without known nodes nothing is pinned.

Source: sched_setaffinity(2), set_mempolicy(2) for the default policy, and
Documentation/ABI/stable/sysfs-devices-node of Linux.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from secureps.config.sections import PIN
from secureps.errors import ConfigError, naming
from secureps.messages.encoding import digest
from secureps.service.logs import tell
from secureps.wording import counted, named

NODES = Path("/sys/devices/system/node")
THREADS = Path("/proc/self/task")


Nodes = Mapping[int, frozenset[int]]
"""NUMA nodes by number, each with the numbers of its CPUs."""


def read_nodes(folder: Path = NODES) -> Nodes:
    """Reads the nodes with CPUs that are online, from `nodeN/cpulist` in a folder."""
    found = dict[int, frozenset[int]]()
    for path in folder.glob("node*"):
        number = re.fullmatch(r"node(\d+)", path.name)
        with suppress(OSError, ValueError):  # some kernels do not list a node's CPUs
            if number and (cpus := parse_cpus((path / "cpulist").read_text())):
                found[int(number[1])] = cpus
    return dict(sorted(found.items()))


def parse_cpus(text: str) -> frozenset[int]:
    """Parses a list such as "0-3,8,10-11"; ValueError if it is none."""
    cpus = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def choose(
    pin: str, name: str, nodes: Nodes, allowed: frozenset[int] | None, threads: int = 1
) -> tuple[int | None, str, frozenset[int]]:
    """Chooses a node for a process: its number (None: pin nothing), the reason, and its CPUs.

    Under "auto" the number at the end of a party's name (shard-0, shard-1 and so on), or else the
    name's digest, chooses the node. So parties spread without agreeing, and a restarted party gets
    the same node.

    Args:
        pin: "auto", "off" or the number of a node.
        allowed: the CPUs of the process's affinity, which cgroups and its parent may narrow; None
            where the system does not tell.

    Raises:
        ConfigError: `pin` is none of these, there is no such node, or the process may use none of
            the node's CPUs.
    """
    if not re.match(PIN, pin):
        raise ConfigError(f"it is auto, off or the number of a NUMA node, not {pin!r:.80}")
    if pin == "off":
        return None, "", frozenset()
    parts = {n: cpus if allowed is None else cpus & allowed for n, cpus in nodes.items()}
    usable = {number: cpus for number, cpus in parts.items() if cpus}
    if pin != "auto":
        _refuse_node(int(pin), nodes, usable, allowed)
        if len(usable) > 1:
            return int(pin), "as it is told to", usable[int(pin)]
    if not nodes:
        return None, "this system tells of no NUMA nodes: nothing is pinned", frozenset()
    if len(usable) < 2:
        here = f"node {next(iter(usable))}" if usable else "no node"
        return None, f"all CPUs that it may use are on {here}: nothing is pinned", frozenset()
    wide = [number for number, cpus in usable.items() if len(cpus) >= threads]
    if not wide:
        most = max(map(len, usable.values()))
        text = f"it has {threads} threads, and no node has more than {counted(most, 'CPU')} for it"
        return None, f"{text}: nothing is pinned", frozenset()
    end = re.search(r"\d+$", name)
    place = int.from_bytes(digest("secureps-pin", name.encode())[:8], "little")
    node = wide[(int(end[0]) if end else place) % len(wide)]
    return node, "by its name", usable[node]


def _refuse_node(number: int, nodes: Nodes, usable: Nodes, allowed: frozenset[int] | None) -> None:
    if number not in nodes:
        there = named([str(each) for each in nodes], len(nodes))
        told = f"this machine has {there}" if nodes else "this system tells of none"
        raise ConfigError(f"there is no NUMA node {number}: {told}")
    if number in usable:
        return
    own = named([str(cpu) for cpu in sorted(allowed or ())])
    raise ConfigError(
        f"this process may use no CPU of NUMA node {number}, but {own}: by its cgroup's cpuset, or "
        "by whoever started it"
    )


def refuse_pin(pin: str) -> None:
    """Raises ConfigError, as `choose`, if no process of this machine can be pinned like this."""
    with naming("pin", ConfigError):
        choose(pin, "", read_nodes(), _allowed())


def pin_process(pin: str, name: str, threads: int = 1, folder: Path = NODES) -> str:
    """Pins this process as `choose` says; logs and returns the reason.

    Call it before threads touch memory, because memory stays on the node of its first touch.
    """
    if pin == "off":
        return ""
    with naming("pin", ConfigError):
        node, reason, cpus = choose(pin, name, read_nodes(folder), _allowed(), threads)
    if node is not None:
        _narrow(node, cpus)
        where = "its memory is taken there as long as there is any"
        reason = f"pinned to NUMA node {node}, {reason}: {counted(len(cpus), 'CPU')}; {where}"
    tell(name, "Pinned", reason)
    return reason


def _allowed() -> frozenset[int] | None:
    ask: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return None if ask is None else frozenset(ask(0))


def _narrow(node: int, cpus: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ConfigError(f"pin: the system refuses node {node}: {error}") from None
    for task in THREADS.glob("[0-9]*"):  # libraries begin threads when they are imported
        with suppress(OSError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(task.name), cpus)
