"""What compares this project with others counts, judges and tells as it should; no peer plays."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import flare, meter
from benchmarks.peers.meter import Sample, Traffic
from benchmarks.peers.ours import thin_plan
from benchmarks.peers.stage import Limits, Stage
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.policy.plan import load_plan
from tests.kits.nursery import ROOT


def test_figures_are_of_warm_rounds_and_of_one_client() -> None:
    samples = [Sample(t, 2.0 * t, 3.0 * t, 100 if t < 9 else 999) for t in map(float, range(11))]
    traffic = [Traffic(t, int(400 * t), int(200 * t)) for t in map(float, range(11))]
    found = meter.figures(samples, traffic, [1.0, 2.0, 6.0, 8.0], 10, 5, 0.25)
    assert found.wall == 2.0  # the median of 1, 4 and 2
    assert (found.client_cpu, found.server_cpu) == pytest.approx((2 * 7 / 3, 3 * 7 / 3))
    assert found.up == pytest.approx(400 * 7 / 3 / 50)
    assert found.down == pytest.approx(200 * 7 / 3 / 50)
    assert (found.peak, found.error) == (100, 0.25)  # what comes after the last round is not its


def test_a_thin_update_is_that_of_its_policy() -> None:
    own = load_plan(ROOT / "policies" / "thin.toml").section
    made = parse(PlanSection, tomllib.loads(thin_plan(3).format(cipher="rlwe", versions=4)), "thin")
    assert (made.cipher, made.shards, made.versions) == (own.cipher, own.shards, 4)
    (group,), (theirs,) = made.group, own.group
    assert group.model_copy(update={"rule": theirs.rule}) == theirs
    assert (group.rule.name, group.rule.minimum) == ("sync", 3)


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
    [(1 << 40, 100.0, "measured"), (1, 100.0, "out of memory")],
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
