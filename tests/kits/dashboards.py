"""What tests of the dashboard share: statuses, a run that ended, and a browser of a dashboard."""

import http.client
import json
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from secureps.messages.requests import (
    Figure,
    GroupStatus,
    Holding,
    MemberStatus,
    ServerStatus,
    Status,
    Telemetry,
)
from secureps.messages.run import ShardAddress
from secureps.run.up.folder import METRICS, ORIGIN, RunFolder
from secureps.store.issuing import issue

PATIENCE = 60.0
"""Seconds in which a dashboard has said whatever a test waits for."""

CLIENTS = ("client-00", "client-01", "hospital-of-st.-anne")

STATUS = Status(
    run=b"\x01" * 32,
    incarnation=1,
    finished="",
    groups=(
        GroupStatus("all", 3, "collecting", "waits for 1 of 3: hospital-of-st.-anne", CLIENTS[2:]),
    ),
    members=tuple(MemberStatus(name, True, "waits", 3, 3, 1.25, False) for name in CLIENTS),
    shards=(ShardAddress("shard-0", "here:1", 1.0), ShardAddress("shard-1", "here:2", 1.0)),
    telemetry=(
        Telemetry("client-00", "all", 3, (Figure("bytes_up", 1000.0),)),
        Telemetry("shard-0", "all", 3, (Figure("adding_seconds", 0.25),)),
        Telemetry("coordinator", "all", 3, (Figure("epsilon", 1.25),)),
    ),
    holdings=(Holding("shard-0", 3, 768), Holding("shard-1", 2, 512)),
    servers=(
        *(ServerStatus(f"holder-{i}", "holder", True, True) for i in range(4)),
        *(ServerStatus(f"shard-{i}", "shard", True, True) for i in range(2)),
    ),
    adjacency="one record, added or removed",
    delta=1e-5,
)
"""Three clients, of which one owes its update."""


def without(status: Status, *names: str) -> Status:
    """The same, and these servers and clients are away."""
    return replace(
        status,
        servers=tuple(replace(s, live=s.live and s.name not in names) for s in status.servers),
        members=tuple(
            replace(m, live=False, state="gone") if m.name in names else m for m in status.members
        ),
    )


class Browser:
    """Whoever opens the address that a dashboard prints; keeps its cookie."""

    def __init__(self, address: str) -> None:
        self.address = urlsplit(address)
        self.host = self.address.netloc
        self.cookie = ""

    def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of an answer; Host and Cookie may be given another way."""
        own = {"Host": self.host, **({"Cookie": self.cookie} if self.cookie else {})}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(self.connection()) as line:
            line.request(method, path, headers=own | named)
            answer = line.getresponse()
            kept = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, kept, answer.read().decode()

    def enter(self) -> int:
        status, headers, _ = self.get(f"{self.address.path}?{self.address.query}")
        if "set-cookie" in headers:
            self.cookie = headers["set-cookie"].partition(";")[0]
        return status

    def told(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Opens the address; the first news that are wanted, within PATIENCE."""
        self.enter()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if wanted(news := self.news()):
                return news
            time.sleep(0.05)
        raise AssertionError(f"it has not said so: {news}")

    def news(self) -> dict[str, Any]:
        status, headers, text = self.get("/news")
        assert (status, headers["content-type"]) == (200, "application/json"), text
        found: dict[str, Any] = json.loads(text)
        return found

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(str(self.address.hostname), self.address.port, timeout=20)


def ended_up(run: Path, folder: Path, versions: int = 3) -> Path:
    """The folder of a run of `up` of three versions, of one that was played on disk.

    It has ended, or it was stopped where it has fewer.
    """
    for name in ("kit", "state", "ledgers"):
        if (run / name).exists():
            shutil.copytree(run / name, folder / name)
    shutil.copyfile(run / "plan.toml", folder / "plan.toml")
    issue(folder / "kit", "observer", "observer")
    origin = {"plan": "plan.toml", "directory": ".", "unsafe_seed": None, "began": 0.0}
    (folder / ORIGIN).write_text(json.dumps(origin))
    made = RunFolder(folder)
    made.report.mkdir()
    lines = [
        {"group": "all", "version": version, "elapsed": 1.0, "epsilon": 100.0 * version}
        | ({"bytes_up": 3000.0, "bytes_down": 500.0} if version else {})
        | ({"loss": 2.0 / version, "accuracy": 0.3 * version} if version > 1 else {})
        for version in range(versions + 1)
    ]
    (made.report / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if versions == 3:
        made.summary.write_text(json.dumps({"finished": "all 3 versions are made", "versions": {}}))
    return folder
