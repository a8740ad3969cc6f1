"""A whole run in which one of three clients has a slow line: 1 Mbit/s and 50 ms each way, 1 % loss.

Two shards, three key holders, a quarter of a million values under `rlwe`: 0.83 MB up and 1 MB down
a version. `all wait` has a quorum of all three, so that versions are made at the speed of the line;
where one is killed, that is once in the middle of an upload, and it is started again; in `deadline`
two suffice, and the others wait for the deadline. "to payload" is what passed the line to what had
to, with TCP's and gRPC's own bytes and packets sent anew; "most" is of one version.

It needs root: the line lies between network namespaces, as in `tests/chaos/real`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.crowd import start_servers
from benchmarks.deployed import Deployed, with_script
from benchmarks.report import Row, report
from benchmarks.slow_client import SHAPE
from secureps.policy.block_deltas import FLOAT_BYTES
from tests.kits.links import UNSHARE, Links, possible
from tests.kits.namespaces import ip
from tests.kits.nursery import ROOT, Child

SLOW = "client-02"
LINE = {"rate": 125_000.0, "delay": 0.05, "loss": 0.01}
"""Bytes a second and seconds each way; the share of packets lost."""
VERSIONS = 5
"""Counted after the first."""
DEADLINE = 12.0
PATIENCE = 300.0

_PLAN = """
name = "slow-line"
versions = {{versions}}
shards = 2
block_size = 65536
local = ["*.count"]
[cipher]
name = "{{cipher}}"
holders = 3
threshold = 2
capacity = 8
[[group]]
clip = 100.0
range = 0.5
most_examples = 32
[group.rule]
quorum = {quorum}
minimum = 2
deadline = {deadline}
"""


class _Federation(Deployed):
    """Its servers listen at `host`, and its last client is behind the line."""

    host: str

    def _server(self, name: str) -> list[str]:
        holds, listens = "minimum = 2", f'listen = "{self.host}:0"'
        self.settings[name] = holds if name in self.holders else listens
        return super()._server(name)

    def _client(self, name: str) -> list[str]:
        return with_script(super()._client(name), ROOT / "benchmarks" / "slow_client.py")

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        if log.stem != SLOW:
            return super()._begin(command, log)
        with log.open("ab") as said:
            return subprocess.Popen(
                ["ip", "netns", "exec", SLOW, sys.executable, *command],
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=self.environment,
            )


def _passed() -> tuple[int, int]:
    """Bytes so far from the slow side and to it, with whatever TCP and IP add to them."""
    command = ["ip", "-n", SLOW, "-s", "-j", "link", "show", "tun0"]
    (found,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found["stats64"]["tx"]["bytes"], found["stats64"]["rx"]["bytes"]


class _Watch:
    """When versions were made, how much passed the line by then, and whose lease ran out."""

    def __init__(self, run: _Federation) -> None:
        self._run = run
        self.made: list[tuple[float, int, int]] = []
        self.away: set[str] = set()

    def until(self, version: int, uploaded: float = 0.0) -> None:
        """Waits for a version, and for so many bytes up after it; AssertionError if none comes."""
        end = time.monotonic() + PATIENCE
        while True:
            status, (up, down) = self._run.status(), _passed()
            if status is not None:
                while status.groups and status.groups[0].version > len(self.made):
                    self.made.append((time.monotonic(), up, down))
                if self.made:
                    self.away |= {m.name for m in status.members if not m.live}
            if len(self.made) >= version and up >= self.made[version - 1][1] + uploaded:
                return
            assert time.monotonic() < end, self._run.log(SLOW)
            time.sleep(0.1)


def _row(name: str, host: str, quorum: int, deadline: float, victim: str = "") -> Row:
    versions = VERSIONS + 1
    plan = _PLAN.format(quorum=quorum, deadline=deadline)
    with tempfile.TemporaryDirectory(prefix="secureps-line-") as folder:
        run = _Federation(Path(folder), "rlwe", 3, versions, plan=plan)
        run.host = host
        with run:
            start_servers(run)
            for client in run.clients:
                run.start(client)
            watch = _Watch(run)
            if victim:
                watch.until(2)
                watch.until(2, (watch.made[1][1] - watch.made[0][1]) / 2)
                run.kill(victim)
                run.start(victim)
            watch.until(versions)
            status = run.status()
    assert status is not None
    up = [f.value for t in status.telemetry for f in t.figures if f.name == "bytes_up"]
    times = [b[0] - a[0] for a, b in zip(watch.made, watch.made[1:], strict=False)]
    ups = [b[1] - a[1] for a, b in zip(watch.made, watch.made[1:], strict=False)]
    came = watch.made[-1][2] - watch.made[0][2]
    values = SHAPE[0] * SHAPE[1]
    return {
        "run": name,
        "seconds a version": sum(times) / len(times),
        "shortest": min(times),
        "longest": max(times),
        "up to payload": sum(ups) / (VERSIONS * max(up)),
        "most": max(ups) / max(up),
        "down to payload": came / (VERSIONS * FLOAT_BYTES * values),
        "leases that ran out": len(watch.away),
        "part of versions": ", ".join(f"{m.name[-2:]}: {m.submissions}" for m in status.members),
    }


def main() -> None:
    if why := possible():
        raise SystemExit(why)
    if sys.argv[1:] != ["inside"]:
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, "-m", "benchmarks.slow_line", "inside"])
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    ip("link", "set", "lo", "up")
    with Links(1) as links:
        host = links.add("servers", own=True)
        links.add(SLOW)
        links.change(SLOW, **LINE)
        links.start()
        rows = [
            _row("all wait", host, 3, 120.0),
            _row("the client is killed", host, 3, 120.0, SLOW),
            _row("a shard is killed", host, 3, 120.0, "shard-1"),
            _row("deadline", host, 2, DEADLINE),
        ]
    report("slow_line", "A client with 1 Mbit/s, of three", rows)


if __name__ == "__main__":
    main()
