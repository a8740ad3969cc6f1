"""The choice of a NUMA node, on machines made up as folders like /sys."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.service.pinning import Nodes, choose, pin_process, read_nodes, refuse_pin

TWO = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
ONE = {0: TWO[0]}
NONE: Nodes = {}
ALL = frozenset(range(8))


def machine(folder: Path, nodes: Mapping[int, str]) -> Path:
    """Makes a folder like /sys/devices/system/node."""
    for number, cpus in nodes.items():
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    (folder / "possible").write_text("0-63\n")
    return folder


def test_nodes_are_read_by_number_and_those_without_cpus_left_out(tmp_path: Path) -> None:
    folder = machine(tmp_path / "node", {10: "8,10-11", 2: "0-3", 3: ""})
    (folder / "node7").mkdir()  # one that tells nothing
    (folder / "node8").mkdir()
    (folder / "node8" / "cpulist").write_text("what\n")
    (folder / "nodes").mkdir()
    found = read_nodes(folder)
    assert found == {2: frozenset(range(4)), 10: frozenset({8, 10, 11})}
    assert list(found) == [2, 10]
    assert read_nodes(tmp_path / "nowhere") == {}


def test_by_auto_parties_take_the_nodes_in_turns_by_their_names() -> None:
    for name, number in (("shard-0", 0), ("shard-1", 1), ("shard-12", 0), ("client-07", 1)):
        assert choose("auto", name, TWO, ALL) == (number, "by its name", TWO[number])
    assert {choose("auto", f"hospital-{c}", TWO, ALL)[0] for c in "abcdefgh"} == {0, 1}
    assert choose("auto", "north", TWO, ALL) == choose("auto", "north", TWO, ALL)


def test_of_a_node_it_takes_what_its_cpuset_leaves() -> None:
    few = frozenset({1, 2, 6})
    for pin, name, threads, node, cpus in (
        ("auto", "shard-0", 1, 0, {1, 2}),
        ("1", "shard-0", 1, 1, {6}),
        ("auto", "shard-1", 2, 0, {1, 2}),
    ):
        found, _, own = choose(pin, name, TWO, few, threads)
        assert (found, own) == (node, frozenset(cpus))
    assert choose("1", "a", TWO, None)[2] == TWO[1], "a system that tells no affinity has all"


@pytest.mark.parametrize(
    ("pin", "nodes", "allowed", "threads", "reason"),
    [
        ("off", TWO, ALL, 1, ""),
        ("auto", NONE, ALL, 1, "this system tells of no NUMA nodes: nothing is pinned"),
        ("auto", ONE, ALL, 1, "all CPUs that it may use are on node 0: nothing is pinned"),
        ("0", ONE, ALL, 1, "all CPUs that it may use are on node 0: nothing is pinned"),
        (
            "auto",
            TWO,
            frozenset({5, 6}),
            1,
            "all CPUs that it may use are on node 1: nothing is pinned",
        ),
        (
            "auto",
            TWO,
            ALL,
            5,
            "it has 5 threads, and no node has more than 4 CPUs for it: nothing is pinned",
        ),
    ],
)
def test_why_nothing_is_pinned(
    pin: str, nodes: Nodes, allowed: frozenset[int], threads: int, reason: str
) -> None:
    assert choose(pin, "shard-1", nodes, allowed, threads) == (None, reason, frozenset())


@pytest.mark.parametrize(
    ("pin", "nodes", "allowed", "told"),
    [
        ("2", TWO, ALL, "there is no NUMA node 2: this machine has 0, 1"),
        ("0", NONE, ALL, "there is no NUMA node 0: this system tells of none"),
        (
            "1",
            TWO,
            frozenset(range(4)),
            "this process may use no CPU of NUMA node 1, but 0, 1, 2 and 1 more: by its cgroup's "
            "cpuset, or by whoever started it",
        ),
        ("both", TWO, ALL, "it is auto, off or the number of a NUMA node, not 'both'"),
        ("-1", TWO, ALL, "it is auto, off or the number of a NUMA node, not '-1'"),
    ],
)
def test_a_node_that_cannot_be_had_is_refused(
    pin: str, nodes: Nodes, allowed: frozenset[int], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(pin, "shard-0", nodes, allowed)
    assert str(caught.value) == told


def test_off_does_nothing_and_a_wrong_node_names_the_key() -> None:
    assert pin_process("off", "shard-0") == ""
    refuse_pin("off")
    with pytest.raises(ConfigError, match=r"^pin: there is no NUMA node 999: "):
        refuse_pin("999")
    with pytest.raises(ConfigError, match=r"^pin: there is no NUMA node 999: "):
        pin_process("999", "shard-0")


_PINNED = """
import os, sys, threading
from pathlib import Path
from secureps.service.pinning import pin_process
hold = threading.Event()
thread = threading.Thread(target=hold.wait)
thread.start()  # a library's, from its import
print(pin_process("auto", "shard-1", 1, Path(sys.argv[1])))
tasks = Path("/proc/self/task").iterdir()
print(*{frozenset(os.sched_getaffinity(int(task.name))) for task in tasks})
hold.set()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="nobody is pinned here")
def test_every_thread_of_a_process_is_pinned(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU is all that there is")
    folder = machine(tmp_path, {0: f"{cpus[0]}", 1: f"{cpus[1]}"})
    command = [sys.executable, "-c", _PINNED, str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told, affinity = said.splitlines()
    assert told.startswith("pinned to NUMA node 1, by its name: 1 CPU; its memory ")
    assert affinity == f"frozenset({{{cpus[1]}}})"
