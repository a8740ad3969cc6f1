"""A simulation has the same bits on a Ray cluster, where workers die too.

What a cluster does is done in this process here; by Ray itself, on 1 and 4 raylets, in a network of
its own, where `make ray` asks for it (SECUREPS_RAY=1): Ray listens beyond this machine.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig
from secureps.errors import ConfigError, ScriptFailed
from secureps.run.script.cut_off import judging_record
from secureps.run.simulate import ray_cluster as module
from secureps.run.simulate import simulation as simulating
from secureps.run.simulate.ray_cluster import make_call, ray_cluster
from secureps.run.simulate.simulation import simulate
from tests.kits.nursery import ROOT

SCRIPT = '''
import os
import numpy as np
import secureps as ps


class Line:
    """y = slope x, on a few points; it keeps nothing from one call to the next."""

    def __init__(self, settings):
        rng = np.random.default_rng(int(settings["partition"]))
        self.x = rng.normal(size=40).astype(np.float32)
        self.y = 3 * self.x + rng.normal(size=40).astype(np.float32)
        self.dies = settings.get("dies", "")
        self.raises = settings.get("raises", False)

    def parameters(self, seed):
        rng = np.random.default_rng(seed)
        return {"slope": rng.normal(size=3).astype(np.float32), "steps": np.zeros(2, np.int64)}

    def fit(self, parameters, config):
        if self.dies and not os.path.exists(self.dies):
            open(self.dies, "w").close()
            os.abort()
        if self.raises:
            raise ValueError("no records today")
        rng = np.random.default_rng(config.seed)
        slope = parameters["slope"]
        for _ in range(config.settings["local_steps"]):
            chosen = rng.integers(0, 40, 8)
            x, y = self.x[chosen], self.y[chosen]
            slope -= np.float32(0.05) * np.float32(np.mean((slope[0] * x - y) * x))  # in place
        steps = parameters["steps"]
        return ps.FitResult({"slope": slope, "steps": steps}, 40, {}, 1)

    def evaluate(self, parameters):
        loss = float(np.mean((parameters["slope"][0] * self.x - self.y) ** 2))
        return ps.EvaluateResult(loss, 40, {})


def make(settings):
    return Line(settings)
'''
PLAN = """
name = "line"
versions = 4
local = ["steps"]
[cipher]
name = "plain"
capacity = 8
[[group]]
clip = 4.0
range = 1.0
most_examples = 64
rule = { quorum = 5, minimum = 3, start = 5, deadline = 30.0 }
[evaluation]
every = 1
metrics = { loss = 16.0 }
[training]
local_steps = 5
"""
SCENARIO = """
name = "line"
plan = "plan.toml"
script = "script.py"
clients = 6
seed = 5
downtime = 10.0
[settings]
{settings}
[delays]
train = {{ kind = "lognormal", median = 8.0, sigma = 0.8 }}
dropout = {dropout}
"""


def scenario(folder: Path, settings: str = "", dropout: float = 0.3) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "plan.toml").write_text(PLAN)
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(settings=settings, dropout=dropout))
    return path


def result(path: Path, out: Path, **options: Any) -> tuple[bytes, bytes]:
    """The final model and the metrics of a scenario."""
    simulate(path, out, lambda line: None, **options)
    return (out / "model.safetensors").read_bytes(), (out / "metrics.jsonl").read_bytes()


class Cluster:
    """Makes calls in this process; `most` is how many had begun and were not asked for at once."""

    def __init__(self) -> None:
        self.made: Counter[bytes] = Counter()
        self.open, self.most = set[int](), 0

    def begin(self, order: bytes, tensors: bytes, after: Any) -> tuple[Any, Any]:
        self.made[order + tensors] += 1
        number = sum(self.made.values())
        self.open.add(number)
        self.most = max(self.most, len(self.open))
        return (number, make_call(order, tensors, after)[0]), b""

    def end(self, coming: Any) -> bytes:
        number, answer = coming
        self.open.discard(number)
        return bytes(answer)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    @contextmanager
    def there() -> Iterator[Cluster]:
        yield made

    monkeypatch.setattr(simulating, "ray_cluster", there)
    return made


@pytest.mark.slow
def test_the_same_bits_and_as_many_at_once_as_train_at_once(
    tmp_path: Path, cluster: Cluster
) -> None:
    path = scenario(tmp_path / "given")
    own = result(path, tmp_path / "here")
    assert not cluster.made
    assert result(path, tmp_path / "there", engine="ray") == own
    assert cluster.most >= 5, "clients of a version train side by side"
    assert set(cluster.made.values()) == {1}, "nothing is done twice, drop-outs and all"


@pytest.mark.slow
def test_what_a_script_says_elsewhere_is_what_it_says_here(
    tmp_path: Path, cluster: Cluster
) -> None:
    path = scenario(tmp_path / "given", "raises = true", 0.0)
    said = []
    for engine in ("here", "ray"):
        with pytest.raises(ScriptFailed) as failed:
            result(path, tmp_path / engine, engine=engine)
        said.append(str(failed.value))
    assert said[0] == said[1]
    assert "fit raised ValueError: no records today" in said[0]


def test_calls_that_nobody_asked_for_are_forgotten(tmp_path: Path) -> None:
    script = scenario(tmp_path / "given").parent / "script.py"
    cluster = Cluster()
    calls = module.RayCalls(cluster, script, {"partition": 0}, tmp_path / "state")
    for seed in range(9):
        calls.begin({"do": "parameters", "seed": seed}, {})
    assert len(calls._begun) == module.KEPT
    _, tensors = calls.ask({"do": "parameters", "seed": 8}, {})
    assert sum(cluster.made.values()) == 9, "it had begun"
    assert list(tensors) == ["slope", "steps"]
    calls.ask({"do": "parameters", "seed": 0}, {})
    assert sum(cluster.made.values()) == 10


def test_what_began_for_another_model_is_no_answer_for_this_one(tmp_path: Path) -> None:
    """A client that was killed comes back to a newer version: its evaluations have no number."""
    script = scenario(tmp_path / "given").parent / "script.py"
    calls = module.RayCalls(Cluster(), script, {"partition": 0}, tmp_path / "state")
    _, model = calls.ask({"do": "parameters", "seed": 1}, {})
    asked, _ = calls.ask(judging_record("evaluate"), model)
    calls.begin(judging_record("evaluate"), {**model, "slope": model["slope"] + 1})
    assert calls.ask(judging_record("evaluate"), model)[0] == asked


def test_who_trained_elsewhere_reports_from_there(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        SCRIPT.replace("return Line(settings)", "return Reporter(settings)")
        + """

class Reporter(Line):
    fits = 0

    def fit(self, parameters, config):
        self.fits += 1
        return super().fit(parameters, config)

    def report_at(self, parameters, versions, message):
        return ps.EvaluateResult(None, 40, {message: float(self.fits)}) if self.fits else None
"""
    )
    own, cluster = Script(path).make({"partition": 0}), Cluster()
    calls = module.RayCalls(cluster, path, {"partition": 0}, tmp_path / "state")
    spread = module.SpreadTrainer(own, calls)
    model = spread.parameters(1)
    spread.fit(model, FitConfig({"all": 0}, 1, {"local_steps": 2}))
    found = spread.__dict__["report_at"](model, {"all": 1}, "train")
    assert (found.examples, found.metrics) == (40, {"train": 1.0})


def test_where_no_cluster_runs_nothing_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoRay:
        @staticmethod
        def init(**options: Any) -> None:
            raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setitem(sys.modules, "ray", NoRay)
    with pytest.raises(ConfigError, match="no Ray cluster runs here: begin one"), ray_cluster():
        raise AssertionError


asked = pytest.mark.skipif(
    not os.environ.get("SECUREPS_RAY"), reason="Ray takes a minute: `make ray` tries it"
)

REAL = """
import json, os, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
from secureps.run.simulate.simulation import simulate

raylets, path, out = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
small = {"num_cpus": 1, "object_store_memory": 100 << 20}
cluster = Cluster(
    initialize_head=True, head_node_args={**small, "include_dashboard": False}
)
for _ in range(raylets - 1):
    cluster.add_node(**small)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
began = time.perf_counter()
try:
    simulate(path, out, lambda line: None, engine="ray")
finally:
    print("seconds", time.perf_counter() - began)
    cluster.shutdown()
"""


def by_ray(raylets: int, path: Path, out: Path) -> tuple[bytes, bytes]:
    """What a scenario comes to on so many raylets, in a network namespace with loopback alone."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no network namespaces here: unshare and ip are missing")
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system allows no network namespaces")
    pytest.importorskip("ray", reason="ray is not installed: pip install 'secureps[ray]'")
    inner = 'ip link set lo up && exec "$0" "$@"'
    command = ["unshare", "-rn", "sh", "-c", inner, sys.executable, "-c", REAL, str(raylets)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [*command, str(path), str(out)],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return (out / "model.safetensors").read_bytes(), (out / "metrics.jsonl").read_bytes()


@asked
@pytest.mark.parametrize("raylets", [1, 4])
def test_ray_comes_to_the_same_bits(raylets: int, tmp_path: Path) -> None:
    path = scenario(tmp_path / "given")
    assert by_ray(raylets, path, tmp_path / "ray") == result(path, tmp_path / "here")


@asked
def test_a_worker_that_dies_is_followed_by_another(tmp_path: Path) -> None:
    died = tmp_path / "died"
    path = scenario(tmp_path / "given", f'dies = "{died}"', 0.0)
    model, _ = by_ray(2, path, tmp_path / "ray")
    assert died.exists()
    assert model == result(path, tmp_path / "here")[0]
