"""Each kind of parameter server that this project stands in for, by its model's bits.

A plan and a script are all that a test says: whatever holds, moves, waits for or sends the values,
the model has the digest that is written here.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import secureps as ps
from tests.kits.nursery import nursery
from tests.kits.own_keys import told

SCRIPT = '''
import numpy as np
import secureps as ps


class Site(ps.Settings):
    partition: int = 0
    partitions: int = 1


class Worker:
    """Moves each value by a multiple of 1/64 that depends on client, place and value."""

    def __init__(self, number):
        self.number = number

    def parameters(self, seed):
        return {
            "table": np.arange(4096 * 4, dtype=np.float32).reshape(4096, 4) / 64,
            "dense": np.arange(40, dtype=np.float32) / 64,
        }

    def touches(self):
        return {"table": np.arange(4096)[self.number % 2 :: 2]}

    def examples(self):
        return 8

    def fit(self, parameters, config):
        moved = {}
        for name, values in parameters.items():
            place = np.arange(values.size).reshape(values.shape)
            here = np.floor(values * 64).astype(np.int64)
            step = (here * 7 + place * 3 + self.number * 5) % 9 - 4
            if name == "table":
                step[1 - self.number % 2 :: 2] = 0
            moved[name] = values + step.astype(np.float32) / 64
        return ps.FitResult(moved, 8)


def make(settings):
    site = Site.of(settings)
    return Worker(site.partition)


if __name__ == "__main__":
    ps.run_client(make)
'''

ALL = {"name": "all", "pattern": "*", "clip": 16.0, "range": 0.25, "most_examples": 8}
SYNC = {"name": "sync", "quorum": 5, "minimum": 5, "deadline": 60.0}
ADAM = {"name": "adam", "learning_rate": 0.0625}
DENSE = {**ALL, "name": "dense", "rule": SYNC}
PLAIN = {"name": "plain", "capacity": 8}
RLWE = {"name": "rlwe", "holders": 4, "threshold": 3, "capacity": 8}
WAITING = {"buffer": 5, "minimum": 5, "max_staleness": 4, "deadline": 60.0}
TABLE = {
    **ALL,
    "name": "table",
    "pattern": "table",
    "sparse": {"rows": 4096, "block": 2048},
    "rule": {"name": "buffered", **WAITING},
}


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def plan_of(folder: Path, *groups: dict[str, Any], **keys: Any) -> Path:
    (folder / "worker.py").write_text(keys.pop("script", SCRIPT))
    clients, more = keys.pop("clients", 5), keys.pop("federation", {})
    federation = {"script": "worker.py", "clients": clients, "baselines": False, **more}
    plan = {"name": "kind", "versions": 4, "shards": 2, "cipher": PLAIN, "group": list(groups)}
    whole = {**plan, **keys, "federation": federation}
    (folder / "plan.toml").write_text("".join(f"{n} = {toml(v)}\n" for n, v in whole.items()))
    return folder / "plan.toml"


def digest_of(model: ps.Parameters) -> str:
    hasher = hashlib.sha256()
    for name in sorted(model):
        hasher.update(name.encode() + np.ascontiguousarray(model[name], "<f4").tobytes())
    return hasher.hexdigest()[:16]


def simulated(folder: Path, *groups: dict[str, Any], **keys: Any) -> ps.RunResult:
    """Plays a plan on devices of unlike speed; drawing it would take longer than that."""
    clients = keys.get("clients", 5)
    plan_of(folder, *groups, **keys)
    scenario = {
        "name": "kind",
        "plan": "plan.toml",
        "script": "worker.py",
        "clients": clients,
        "seed": 1,
        "delays": {
            "device": {"kind": "lognormal", "median": 1.0, "sigma": 0.9},
            "train": {"kind": "lognormal", "median": 20.0, "sigma": 0.4},
        },
    }
    (folder / "scenario.toml").write_text(
        "".join(f"{name} = {toml(value)}\n" for name, value in scenario.items())
    )
    with patch("secureps.run.simulate.simulation.draw"):
        return ps.simulate(folder / "scenario.toml", folder / "out", quiet=True)


@pytest.mark.parametrize("cipher", [PLAIN, RLWE], ids=["plain", "rlwe"])
def test_workers_and_servers(cipher: dict[str, Any], tmp_path: Path) -> None:
    done = simulated(tmp_path, {**DENSE, "optimizer": ADAM}, cipher=cipher)
    assert done.versions == {"dense": 4}
    assert digest_of(done.model()) == "495444fc3afe6d95"


@pytest.mark.parametrize("cipher", [PLAIN, RLWE], ids=["plain", "rlwe"])
def test_sparse_pushes_beside_dense_ones(cipher: dict[str, Any], tmp_path: Path) -> None:
    """Rows of a table go at the pace of those who touch them, the dense rest by rounds."""
    done = simulated(tmp_path, TABLE, DENSE, cipher={**cipher, "capacity": 20}, clients=10)
    assert done.versions["dense"] == 4
    assert digest_of(done.model()) == "43070ef8a1e51f4a"


@pytest.mark.parametrize("cipher", [PLAIN, RLWE], ids=["plain", "rlwe"])
def test_a_queue_of_updates_by_priority(cipher: dict[str, Any], tmp_path: Path) -> None:
    rule = {"name": "priority", "pool": 6, **WAITING, "power": 0.0, "buffer": 5}
    done = simulated(tmp_path, {**DENSE, "rule": rule}, cipher=cipher, clients=8)
    assert done.versions == {"dense": 4}
    assert digest_of(done.model()) == "2e6f5ef60793df6f"


@pytest.mark.parametrize("cipher", [PLAIN, RLWE], ids=["plain", "rlwe"])
def test_compressed_pushes_and_pulls(cipher: dict[str, Any], tmp_path: Path) -> None:
    """Half of the values with 4 bits each; what was not sent is sent later."""
    codec = [{"name": "support", "one_in": 2}, "rotate", "round"]
    thin = {**DENSE, "bits": 4, "codec": codec, "feedback": True, "pull_bits": 8, "clip": 2.0}
    thin = {k: v for k, v in thin.items() if k not in ("range", "most_examples")}
    done = simulated(tmp_path, {**thin, "weighting": "uniform"}, cipher=cipher, block_size=4096)
    assert digest_of(done.model()) == "31aa61aa33b376aa"


def test_servers_that_come_and_go(tmp_path: Path) -> None:
    """A new server takes its share of the model, and another gives up all, while clients train."""
    nursery()
    run, group = tmp_path / "run", {**DENSE, "optimizer": ADAM}
    training = "        moved = {}"
    script = (
        f"import time\n{SCRIPT.replace(training, f'        time.sleep(0.3){chr(10)}{training}')}"
    )
    plan = plan_of(tmp_path, group, versions=30, block_size=4096, script=script)
    secureps: list[str | Path] = [sys.executable, "-m", "secureps"]
    begin = [*secureps, "up", plan, "--out", run, "--unsafe-seed", "1", "--insecure-for-tests"]
    with subprocess.Popen(begin, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            next(line for line in up.stdout if "version 2" in line)
            told("shards", "add", "shard-2", run)
            told("shards", "drain", "shard-0", run)
            assert up.poll() is None, "all blocks have moved before the run ends"
            up.stdout.read()
            assert up.wait(120) == 0
        finally:
            up.terminate()
    found = ps.RunResult.read(run)
    assert found.versions == {"dense": 30}
    unmoved = simulated(tmp_path, group, versions=30, block_size=4096)
    assert digest_of(found.model()) == digest_of(unmoved.model()) == "8066fcb2675f53ef"


@pytest.mark.slow
def test_tables_larger_than_memory(tmp_path: Path) -> None:
    """Each of two servers holds 98 KB of values and Adam's vectors, in a file for each version."""
    table, little = {**DENSE, "optimizer": ADAM}, {"memory": "64 KiB"}
    plan = plan_of(tmp_path, table, block_size=1024, federation=little)
    done = ps.up(plan, tmp_path / "run", unsafe_seed=1, insecure_for_tests=True, quiet=True)
    assert digest_of(done.model()) == "495444fc3afe6d95"
