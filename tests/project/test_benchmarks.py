"""The benchmarks run, count and judge as they should, and leave nothing out."""

import json
import subprocess
import sys
import threading
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks import elastic, outer, receipts, record_level
from benchmarks.ciphers import measure
from benchmarks.figures import FIGURES, Figure, pages
from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import neighbours
from benchmarks.gpu.__main__ import SECTIONS, Bench
from benchmarks.gpu.timing import TINY, one_thread
from benchmarks.peers import flare, meter
from benchmarks.peers.meter import Sample, Traffic
from benchmarks.peers.ours import thin_plan
from benchmarks.peers.stage import Limits, Stage
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.suite import CIPHERS
from secureps.policy.plan import load_plan
from tests.kits.nursery import ROOT

FEW = 1 << 13


def test_every_step_under_every_cipher_is_measured() -> None:
    rows = {(row["who"], row["step"]): row for row in measure(FEW, tries=1)}
    for name in CIPHERS:
        for step in ("seal", "check", "add", "total", "open"):
            assert float(rows[name, step]["ns/value"]) > 0
    empty = {"rlwe": 3.3125, "rlwe wide": 6.625, "rlwe large": 26.5}  # the latter two half or more
    for who, size in empty.items():
        for step in ("seal", "check", "add", "total", "open"):
            assert float(rows[who, step]["ns/value"]) > 0
        assert rows[who, "seal"]["bytes/value"] == size
    for step in ("clip", "grid", "pack", "unpack"):
        assert ("all", step) in rows
    for step in ("round", "noise, local", "noise, distributed"):
        assert ("client", step) in rows
    copy, sealed = rows["float32", "copy"], rows["bfv", "seal"]
    assert (copy["to a copy"], copy["to fp32"]) == (1.0, 1.0)
    assert sealed["bytes/value"] == 8.0
    assert sealed["to fp32"] == 2.0


def test_an_outer_step_sends_a_hundredth_of_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    model = outer.Transformer()
    values = sum(each.numel() for each in model.parameters())
    sent = outer.bytes_of(outer.plan_of(outer.VERSIONS, "rlwe"), values)
    assert 8 * values * outer.VERSIONS * outer.LOCAL_STEPS > 100 * sent
    monkeypatch.setattr(outer, "LOCAL_STEPS", 3)
    before = outer.held_out_loss(model)
    assert outer.played(outer.plan_of(2, "plain"), model, 6, 4e-3) < before
    assert outer.data_parallel(model, 6, 4e-3) < before


@pytest.mark.filterwarnings("ignore::UserWarning")  # Opacus' of itself
def test_private_steps_of_every_model_are_measured_beside_plain_ones() -> None:
    rows = record_level.measure(torch.device("cpu"), turns=1, steps=1, narrow=True, share=16)
    assert len(rows) == len(record_level.CASES) * len(record_level.WAYS)
    assert all(float(row["ms a step"]) > 0 < float(row["to plain"]) for row in rows)


# --- of scale ---------------------------------------------------------------------


def test_costs_of_receipts_shards_and_versions_are_told_apart() -> None:
    control = receipts.Control(receipt=4e-3, shard=6e-3, version=0.05, share=1e-3)
    costs = {
        (shards, clients): (
            control.version + control.receipt * clients + control.shard * shards,
            0.02 + control.share * clients,
        )
        for shards, clients in receipts.CASES
    }
    assert vars(receipts.split(costs)) == pytest.approx(vars(control))


GAINS = {"bursts": (450.0, 1.04), "stragglers": (600.0, 1.33)}
"""How much more a fitted model makes at least, where shards come and go, and where deadlines do.

Each by the seconds that are played. Of all four scenes, and of more seeds, and for longer:
`python -m benchmarks.elastic`.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", GAINS)
def test_a_fitted_model_makes_more_of_changing_loads_than_thresholds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, gain = GAINS[name]
    monkeypatch.setattr(elastic, "SECONDS", seconds)
    fitted, rule = (
        elastic.play(policy, elastic.SCENES[name], elastic.FIRST).reward
        for policy in ("fitted", "rule")
    )
    assert fitted / rule > gain


# --- beside other projects --------------------------------------------------------


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


# --- of a GPU, on a CPU -----------------------------------------------------------


CPU = torch.device("cpu")
BENCH = Bench(CPU, TINY)


def beside_once(count: int, device: torch.device, tiny: bool) -> list[dict[str, Any]]:
    return [neighbours.play(device, tiny, threading.Barrier(1))] * count


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    private = [{"model": "cnn", "way": "secureps", "to plain": 1.4}]
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(neighbours, "beside", beside_once)
        patch.setattr(record_level, "measure", lambda *given: private)
        made = benchmark.measure(BENCH, out, 600)
    assert json.loads(out.read_text()) == json.loads(json.dumps(made))
    return made


def test_every_section_is_measured(found: dict[str, Any]) -> None:
    assert found["left out"] == {}
    assert set(found["sections"]) == set(SECTIONS)
    assert all(row["times as fast"] > 0 for row in found["sections"]["training"])
    assert [row["bits"] for row in found["sections"]["clients on one device"]] == ["same", "same"]


# --- figures of the pages ---------------------------------------------------------


PAGES = pages()


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.quick], ids=lambda f: f.name)
def test_what_the_pages_tell_is_measured(figure: Figure) -> None:
    assert figure.spread == 0
    assert figure.differs(PAGES) == ""


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_every_figure_is_told_once_and_another_one_is_found_out(figure: Figure) -> None:
    told, rounding = figure.told(PAGES)
    assert told > 0
    for off, says in ((0.9 * rounding, ""), (2.1 * rounding + figure.spread, figure.name)):
        for now in (told - off, told + off):
            other = replace(figure, measure=partial(float, now))
            assert other.differs(PAGES).startswith(says)
            assert bool(other.differs(PAGES)) is bool(says)
