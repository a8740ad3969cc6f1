"""Survival: real processes under random kills, pauses and partitions keep their promises."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.real.container import Container
from tests.chaos.real.schedule import (
    EVERY,
    LOSSES,
    SETTINGS,
    faults_of,
    others_of,
    parsed,
    setting_of,
)
from tests.chaos.schedule import MOVES, TAKEOVERS
from tests.kits.links import UNSHARE, possible
from tests.kits.nursery import ROOT


@pytest.fixture
def namespaces() -> None:
    """Of this machine; without them nothing can be played."""
    if why := possible():
        pytest.skip(why)


HARMS = (
    "kill:shard-0@1+0.5,full:coordinator@1.5+2,stop:client-01@2+2,"
    "part:client-00>shard-1@1+3,wiped:shard-1@6+0.5"
)
CHANGES = (
    "added:shard-2@1+0,stop:shard-2@2+2,frozen:coordinator@2.5+0.5,drained:shard-0@3+0,"
    "kill:standby@3+0.5"
)


def test_a_seed_says_what_goes_wrong_and_its_text_is_read_again() -> None:
    drawn = [faults_of(seed) for seed in range(400)]
    assert drawn == [faults_of(seed) for seed in range(400)]
    assert {fault.kind for faults in drawn for fault in faults} == EVERY
    drawn_kinds = [{fault.kind for fault in faults} for faults in drawn]
    assert any(kinds & set(TAKEOVERS) and kinds & set(MOVES) for kinds in drawn_kinds)
    for faults, kinds in zip(drawn, drawn_kinds, strict=True):
        assert not kinds & set(LOSSES) or not others_of(faults), "nobody else has what is lost"
        assert parsed(",".join(map(str, faults))) == faults
    assert {setting_of(seed) for seed in range(len(SETTINGS))} == set(SETTINGS)
    for wrong in ("kill:shard-0", "kills:shard-0@1+1", "kill@1+1", "kill:shard-0@1+1!"):
        with pytest.raises(ValueError, match="not a fault"):
            parsed(wrong)


PACKETS = """
import socket, subprocess, sys, time
from tests.kits.links import Links
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)

ECHO = '''
import socket
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(("10.79.0.2", 7))
print("up", flush=True)
while True:
    data, sender = port.recvfrom(2048)
    port.sendto(data, sender)
'''

def answers(count, size=10, wait=1.0):
    '''How many of so many packets come back within a time, and how long the first one takes.'''
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("10.79.0.1", 0))
    port.settimeout(0.01)
    began, first, found = time.monotonic(), None, 0
    for _ in range(count):
        port.sendto(bytes(size), ("10.79.0.2", 7))
    while time.monotonic() < began + wait and found < count:
        try:
            port.recv(2048)
        except TimeoutError:
            continue
        found += 1
        first = first or time.monotonic() - began
    return found, first or 9.0

with Links(1) as links:
    links.add("here", own=True)
    links.add("there")
    links.start()
    command = ["ip", "netns", "exec", "there", sys.executable, "-c", ECHO]
    echo = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert echo.stdout.readline() == b"up\\n"
    assert answers(50)[0] == 50
    links.cut("there", "here", by=1)
    assert answers(1) == (0, 9.0)
    links.cut("there", "here", by=1)
    links.cut("there", "here", by=-1)
    assert answers(1) == (0, 9.0), "cut by two, mended by one"
    links.cut("there", "here", by=-1)
    links.change("there", delay=0.1)
    found, first = answers(5)
    assert found == 5 and first > 0.2, (found, first)
    links.change("there", delay=0.0, loss=0.5)
    found, _ = answers(200)
    assert 10 < found < 100, found
    links.change("there", loss=0.0, rate=10000)
    found, first = answers(20, 1000, 5.0)
    assert found < 20 and first > 0.1, (found, first)
    links.change("there", rate=0.0)
    assert answers(50)[0] == 50
    echo.kill()
print("all as it should be")
"""


@pytest.mark.usefixtures("namespaces")
def test_packets_are_cut_late_lost_and_held_up() -> None:
    command = [*UNSHARE, sys.executable, "-c", PACKETS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "all as it should be\n", done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "faults"), [(0, HARMS), (1, CHANGES)])
def test_no_promise_is_broken(seed: int, faults: str, tmp_path: Path) -> None:
    """In the clear, and sealed for key holders; by whoever rules in the end."""
    with Container(seed, faults, tmp_path) as container:
        outcome = container.wait()
    logs = {path.name: path.read_text()[-600:] for path in tmp_path.glob("*.log")}
    assert outcome.complaints == (), logs
    assert outcome.ended == "all 6 versions are made"
    if faults == CHANGES:
        assert outcome.happened["takeovers"] > 0
        assert outcome.happened["moves"] == 2, logs


@pytest.mark.usefixtures("namespaces")
@pytest.mark.timeout(120)
def test_nothing_is_left_of_a_run_that_is_killed() -> None:
    """Not even where nobody can clean up any more."""
    command = [sys.executable, "-m", "tests.chaos.real", "--seed", "0", "--faults", ""]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    began = _await(lambda: _children_of(run.pid), 60)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert run.stdout is not None
    run.stdout.close()
    _await(lambda: [pid for pid in began if not _lives(pid)] == began, 60)


def _await(found: object, seconds: float) -> list[int]:
    assert callable(found)
    end = time.monotonic() + seconds
    while not (known := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return known if isinstance(known, list) else []


def _children_of(pid: int) -> list[int]:
    """All that descend from a process, once two of them do: the container and what plays in it."""
    known = [pid]
    for each in known:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            known += map(int, task.read_text().split())
    return known[1:] if len(known) > 2 else []


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
