"""What compares this project with others counts, judges and tells as it should; no peer plays."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from benchmarks.peers import environments, flare, meter, table
from benchmarks.peers.__main__ import PAGE
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.meter import CLIENTS, SERVERS, Process, Sample, Traffic
from benchmarks.peers.ours import thin_plan
from benchmarks.peers.outcome import MEASURED, OUT_OF_MEMORY, Figures, Outcome, PeerError
from benchmarks.peers.stage import Limits, Stage
from benchmarks.report import filled
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.policy.plan import load_plan
from tests.kits.nursery import ROOT

FIGURES = Figures(0.7123, 1.5, 12.0, 3.36, None, 2_500_000_000, 6.1e-6)
GOOD = Outcome("ours", 1000, 5, 4, MEASURED, "four holders", "x 1.0", "bytes on the wire", FIGURES)
BAD = Outcome("theirs", 1000, 5, 3, OUT_OF_MEMORY, "more than 19.0 GB", "y 2.0")
LARGE = Outcome("ours", 10_000, 5, 4, MEASURED, "", "x 1.0", "", FIGURES)


def test_a_line_of_stat_is_read_whatever_the_process_is_called() -> None:
    numbers = [*range(3, 23), 7, *range(24, 40)]  # fields 5 to 24 and on, as proc(5) numbers them
    line = f"42 (a (b) c) S 1 {' '.join(map(str, numbers))}"
    fields = line.rpartition(") ")[2].split()
    found = meter.parse_stat(line)
    assert (found.pid, found.parent) == (42, 1)
    assert found.cpu == sum(int(fields[k]) for k in (11, 12, 13, 14)) / meter.TICKS
    assert found.resident == int(fields[21]) * meter.PAGE


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads Linux's /proc")
def test_this_process_is_among_all() -> None:
    own = meter.processes()[os.getpid()]
    assert own.parent == os.getppid()
    assert own.cpu > 0
    assert own.resident > 1 << 20


def test_bytes_of_an_interface_are_read() -> None:
    text = (
        "Inter-|   Receive                         |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
        "    lo:     100   1    0    0    0     0          0         0      200     1\n"
        "  near: 3000   1    0    0    0     0          0         0 4000       1    0\n"
    )
    assert meter.parse_counters(text, "near") == (3000, 4000)
    assert meter.parse_counters(text, "far") == (0, 0)


def test_a_process_belongs_to_whoever_began_it() -> None:
    parents = {1: 0, 10: 1, 20: 10, 21: 20, 22: 21, 30: 10, 40: 10, 41: 40, 99: 1}
    everybody = {pid: Process(pid, parent, 0.0, 0) for pid, parent in parents.items()}
    groups = meter.members(everybody, {20: CLIENTS, 30: SERVERS}, reaper=10)
    assert {pid for pid, group in groups.items() if group == CLIENTS} == {20, 21, 22}
    assert {pid for pid, group in groups.items() if group == SERVERS} == {30, 40, 41}


def test_between_two_looks_a_quantity_grows_evenly() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 20.0)]
    at = {0.0: 10.0, 1.0: 10.0, 1.5: 15.0, 2.0: 20.0, 3.0: 20.0, 9.0: 20.0}
    assert {time: meter.interpolate(points, time) for time in at} == at


def test_figures_are_of_warm_rounds_and_of_one_client() -> None:
    samples = [Sample(t, 2.0 * t, 3.0 * t, 100 if t < 9 else 999) for t in map(float, range(11))]
    traffic = [Traffic(t, int(400 * t), int(200 * t)) for t in map(float, range(11))]
    found = meter.figures(samples, traffic, [1.0, 2.0, 6.0, 8.0], 10, 5, 0.25)
    assert found.wall == 2.0  # the median of 1, 4 and 2
    assert (found.client_cpu, found.server_cpu) == pytest.approx((2 * 7 / 3, 3 * 7 / 3))
    assert found.up == pytest.approx(400 * 7 / 3 / 50)
    assert found.down == pytest.approx(200 * 7 / 3 / 50)
    assert (found.peak, found.error) == (100, 0.25)  # what comes after the last round is not its


def test_what_was_not_counted_has_no_figure() -> None:
    samples = [Sample(float(t), 0.0, 0.0, 1) for t in range(4)]
    found = meter.figures(samples, [Traffic(0.0, 0, 0)], [1.0, 2.0], 10, 5, None)
    assert (found.up, found.down, found.error) == (None, None, None)
    with pytest.raises(PeerError, match="1 rounds were over"):
        meter.figures(samples, [], [1.0], 10, 5, None)


def test_a_table_has_a_row_for_whoever_failed_too() -> None:
    assert table.cells(GOOD)[:5] == ["ours", "0.712", "1.50", "12.0", "3.36"]
    assert table.cells(BAD)[:2] == ["theirs", "out of memory: more than 19.0 GB"]
    assert len(table.cells(GOOD)) == len(table.cells(BAD)) == len(table.COLUMNS) + 1
    text = io.StringIO()
    table.show([GOOD, BAD, LARGE], Console(file=text, width=200))
    assert "1,000 float32 values, 5 clients" in text.getvalue()
    assert "10,000 float32 values, 5 clients" in text.getvalue()


def test_a_page_gets_the_tables_in_their_place() -> None:
    text = table.markdown([GOOD, BAD, LARGE], "a machine")
    assert "| ours | 0.712 | 1.50 | 12.0 | 3.36 | not counted | 2.50 | 6e-06 |" in text
    assert "- ours: x 1.0; four holders; bytes on the wire." in text
    assert "- theirs: y 2.0." in text
    page = "before\n<!-- peers: begin -->\nwhat was here\n<!-- peers: end -->\nafter\n"
    made = filled(page, "peers", text)
    assert made.startswith("before\n<!-- peers: begin -->\n")
    assert made.endswith("<!-- peers: end -->\nafter\n")
    assert "what was here" not in made
    assert filled(made, "peers", text) == made
    with pytest.raises(ValueError, match="no place"):
        filled("a page", "peers", text)
    filled(PAGE.read_text(), "peers", text)


def test_every_peer_has_its_environment_and_two_rounds_at_least() -> None:
    for peer in PEERS.values():
        assert peer.environment in {"", *environments.PACKAGES}
        assert peer.rounds >= 2
    assert len({peer.label for peer in PEERS.values()}) == len(PEERS)
    own = {name: environments.own_name(each[0]) for name, each in environments.PACKAGES.items()}
    assert own == {"flower": "flwr", "flare": "nvflare", "tenseal": "tenseal"}


def test_a_thin_update_is_that_of_its_policy() -> None:
    own = load_plan(ROOT / "policies" / "thin.toml").section
    made = parse(PlanSection, tomllib.loads(thin_plan(3).format(cipher="rlwe", versions=4)), "thin")
    assert (made.cipher, made.shards, made.versions) == (own.cipher, own.shards, 4)
    (group,), (theirs,) = made.group, own.group
    assert group.model_copy(update={"rule": theirs.rule}) == theirs
    assert (group.rule.name, group.rule.minimum) == ("sync", 3)


def test_what_cannot_be_installed_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Collecting flwr\nERROR: No matching distribution found for flwr\nbye"

    def failing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, "pip" in command, "", said)

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(PeerError, match=r"^ERROR: No matching distribution found for flwr$"):
        environments.python("flower", tmp_path)
    assert environments.python("", tmp_path) == sys.executable


def test_a_job_of_flare_encrypts_only_if_it_shall(tmp_path: Path) -> None:
    stage = Stage(tmp_path, 10, 5, 3, Limits(1, 1.0), wired=False)
    plain, secure = (flare.job(stage, ("a.A", "b.B"), secure) for secure in (False, True))
    assert json.dumps(plain).count("nvflare.app_opt.he") == 0
    assert json.dumps(secure).count("nvflare.app_opt.he") == 2
    made = flare.project("flserver", (1, 2), ["site-1", "site-2"])
    assert [each["type"] for each in made["participants"]] == ["server", *2 * ["client"], "admin"]
    default = {"class_allow_list": ["a.B"], "root": "/tmp/nvflare/jobs"}
    local = flare.resources(default, tmp_path)
    assert local["root"] == f"{tmp_path}/jobs"
    assert "benchmarks.peers.apps.flare_parts.Same" in local["class_allow_list"]


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads Linux's /proc")
@pytest.mark.parametrize(
    ("memory", "seconds", "status"),
    [(1 << 40, 100.0, "measured"), (1, 100.0, "out of memory"), (1 << 40, 0.001, "timed out")],
)
def test_a_peer_plays_to_its_end_or_to_its_limit_and_leaves_nobody(
    tmp_path: Path, memory: int, seconds: float, status: str
) -> None:
    words = ["grpc", "1000", "2", "3", str(memory), str(seconds), "", str(tmp_path), "loopback"]
    command = [sys.executable, "-m", "benchmarks.peers.play", *words]
    subprocess.run(command, cwd=ROOT, check=True)
    found = json.loads((tmp_path / "outcome.json").read_text())
    assert found["status"] == status, found["detail"]
    assert found.get("figures", {}).get("up") is None  # there was no wire
    there = [each.info["cwd"] for each in psutil.process_iter(["cwd"])]
    assert str(tmp_path) not in there  # where all that it begins is
