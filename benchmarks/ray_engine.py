"""How much sooner a simulation ends on a Ray cluster, by how many workers its clients train on.

    python -m benchmarks.ray_engine [--workers 1 2] [--clients 8] [--work 4000]

Clients train at the same virtual time, each for about a second on one core. Each worker is a
raylet of one core, on this machine, in a network namespace with loopback alone: Ray listens
beyond it. Measured is the simulation, with the start of its workers, without that of the cluster:
Ray has workers of their own for each simulation. The models are compared, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

SCRIPT = """
import numpy as np
import secureps as ps


class Holder:
    def __init__(self, settings):
        self.seed, self.work = int(settings["partition"]), int(settings["work"])

    def parameters(self, seed):
        return {"weight": np.zeros((64, 64), np.float32)}

    def fit(self, parameters, config):
        own = np.random.default_rng(self.seed).standard_normal((256, 256)).astype(np.float32)
        for _ in range(self.work):
            own = np.tanh(own @ own / np.float32(16))
        goal = own[:64, :64] - parameters["weight"]
        return ps.FitResult({"weight": parameters["weight"] + goal / 8}, 10, {}, 1)

    def evaluate(self, parameters):
        return ps.EvaluateResult(float(np.square(parameters["weight"]).mean()), 10, {})


def make(settings):
    return Holder(settings)
"""

PLAN = """
name = "ray"
versions = 5
[cipher]
name = "plain"
[[group]]
clip = 8.0
range = 1.0
most_examples = 16
rule = {{ quorum = {clients}, start = {clients}, deadline = 60.0 }}
"""

SCENARIO = """
name = "ray"
plan = "plan.toml"
script = "script.py"
clients = {clients}
settings = {{ work = {work} }}
[delays]
train = {{ kind = "constant", value = 8.0 }}
"""

PLAYED = """
import os, sys, time
from pathlib import Path
from secureps.run.simulate.simulate import simulate

workers, folder = int(sys.argv[1]), Path(sys.argv[2])
engine = "ray" if workers else "here"
if workers:
    from ray.cluster_utils import Cluster
    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    for _ in range(workers - 1):
        cluster.add_node(**small)
    cluster.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = cluster.address
began = time.perf_counter()
out = folder / f"own-{workers}"
simulate(folder / "scenario.toml", out, lambda line: None, engine=engine)
print(f"seconds={time.perf_counter() - began}")
if workers:
    cluster.shutdown()
"""


def written(folder: Path, clients: int, work: int) -> None:
    """A scenario with its plan and script."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "plan.toml").write_text(PLAN.format(clients=clients))
    (folder / "scenario.toml").write_text(SCENARIO.format(clients=clients, work=work))


def seconds(workers: int, folder: Path) -> float:
    """How long a simulation takes on so many workers; 0: without Ray."""
    inner = 'ip link set lo up && exec "$0" "$@"'
    command = ["unshare", "-rn", "sh", "-c", inner, sys.executable, "-c", PLAYED, str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder)],
        capture_output=True,
        text=True,
        env={**environment, "RAY_USAGE_STATS_ENABLED": "0"},
        check=False,
    )
    if found := re.search(r"seconds=(\S+)", done.stdout):
        return float(found[1])
    raise SystemExit(done.stderr[-2000:])


def main() -> None:
    """Prints a line for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--work", type=int, default=4000)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        written(Path(folder), given.clients, given.work)
        took = {workers: seconds(workers, Path(folder)) for workers in (0, *given.workers)}
        models = {Path(folder, f"own-{each}", "model.safetensors").read_bytes() for each in took}
    for workers, each in took.items():
        where = f"{workers} workers" if workers else "no Ray"
        print(f"{where:12} {each:7.2f} s   {took[given.workers[0]] / each:5.2f} times")
    print("the same model, bit for bit" if len(models) == 1 else "OTHER MODELS")


if __name__ == "__main__":
    main()
