"""Private apps inside Flower's engine as it is deployed: the same bits, whoever is killed or lies.

A wave of messages takes ten seconds of two cores: `make flower` runs this, `make test` does not.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.examples.test_flower_examples import APPS
from tests.kits import key_search
from tests.kits.command import INSECURE, run
from tests.kits.flower_deployment import APP, SEED, Deployment, PrivateDeployment
from tests.kits.flower_simulation import copied, private, simulate
from tests.kits.key_search import digested, piece, search
from tests.kits.users import playable

ASKED = "SECUREPS_FLOWER"
"""In the environment: these tests are wanted."""

pytestmark = [
    pytest.mark.skipif(ASKED not in os.environ, reason="minutes each: make flower"),
    pytest.mark.timeout(3600),
]

NODES, ROUNDS = 3, 2

Model = dict[str, np.ndarray]


def fewer(app: Path) -> Path:
    plan = app / "plan.toml"
    text = plan.read_text().replace("quorum = 5", f"quorum = {NODES}, minimum = {NODES}")
    text = text.replace("versions = 3", f"versions = {ROUNDS}")
    plan.write_text(text.replace("clients = 5", f"clients = {NODES}"))
    project = app / "pyproject.toml"
    text = project.read_text().replace("num-server-rounds = 3", f"num-server-rounds = {ROUNDS}")
    project.write_text(text.replace("fraction-evaluate = 1.0", "fraction-evaluate = 0.0"))
    return app


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """The model of `secureps up`, of the same plan, app and seed, without Flower's engine."""
    known: dict[str, Model] = {}

    def of(name: str) -> Model:
        if name not in known:
            folder = tmp_path_factory.mktemp("up")
            app, out = fewer(copied(name, folder)), folder / "run"
            with pytest.MonkeyPatch.context() as patch:
                seed = ("--unsafe-seed", str(SEED), INSECURE)
                assert run(patch, "up", app / "plan.toml", "--out", out, *seed) == 0
            known[name] = load_file(out / "model.safetensors")
        return known[name]

    return of


def final(folder: Path) -> Model:
    (path,) = folder.glob("final_*")
    if path.suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    return {name: each.numpy() for name, each in torch.load(path, weights_only=True).items()}


def same(found: Model, expected: Model) -> None:
    assert len(found) == len(expected)
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert found[one].tobytes() == expected[other].tobytes(), one


# --- simulated --------------------------------------------------------------------


@pytest.mark.parametrize("name", APPS)
def test_each_app_simulated_comes_to_the_bits_of_up(
    name: str, tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    simulate(fewer(private(name, tmp_path, unsafe_seed=SEED)), NODES, tmp_path)
    same(final(tmp_path), expected(name))


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: flwr[simulation]")
def test_ray_comes_to_the_same_bits(tmp_path: Path, expected: Callable[[str], Model]) -> None:
    with Deployment(tmp_path / "simulated", 0) as deployment:
        app = fewer(private("numpy", tmp_path, unsafe_seed=SEED))
        told = f"num-supernodes={NODES} client-resources-num-cpus=1"
        deployment.finish(deployment.run(app, "--federation-config", told))
        same(final(deployment.folder), expected("numpy"))


# --- deployed ---------------------------------------------------------------------


FAULTY = """
import os, signal
from pathlib import Path
from flwr.supernode.runtime import run_clientapp as process
from secureps.flower import mod, post

DONE, CONTEXTS, UPDATES = Path({done!r}), [], []
sealed, packed, pushed = mod._seal, post.pack, process.push_task_output

def remembered(message, context, call_next):
    CONTEXTS.append(context)
    return sealed(message, context, call_next)

def changed(said, batch):
    if CONTEXTS[0].node_config["partition-id"] == 1 and len(batch) > 10_000:
        if not DONE.exists():
            UPDATES.append(batch)
            DONE.touch()
            batch = lie(batch)
    return packed(said, batch)

def push(*arguments, **named):
    if UPDATES:
        die()
    return pushed(*arguments, **named)

mod._seal, post.pack, process.push_task_output = remembered, changed, push

def lie(batch):
    return {batch}

def die():
    {die}
"""
"""At the end of a client_app.py: something happens once, to the first update of node 1."""

LIES = {"batch": "batch[:5000] + bytes([batch[5000] ^ 1]) + batch[5001:]", "die": "pass"}
"""A byte of its update is another than it signed."""
CRASHES = {"batch": "batch", "die": "os.kill(os.getpid(), signal.SIGKILL)"}
"""Its process is killed when its reply is out, and its context is not."""


def deployed(
    folder: Path, name: str = "numpy", holders_as_nodes: bool = False
) -> PrivateDeployment:
    plan = fewer(copied(name, folder / "plan")) / "plan.toml"
    return PrivateDeployment(folder / "deployed", NODES, plan, holders_as_nodes)


def begin(deployment: PrivateDeployment, folder: Path, code: str = "", name: str = "numpy") -> int:
    app = fewer(private(name, folder / "app", **deployment.said))
    with (app / f"{name}example" / "client_app.py").open("a") as client:
        client.write(code)
    return deployment.run(app)


def said(deployment: Deployment, node: int, words: str, times: int) -> Callable[[], bool]:
    log = deployment.folder / f"node-{node}.log"
    return lambda: log.read_text().count(words) >= times


@pytest.mark.parametrize("name", APPS)
def test_the_same_bits_as_without_flowers_engine(
    name: str, tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    with deployed(tmp_path, name) as deployment:
        deployment.finish(begin(deployment, tmp_path, name=name))
        same(final(deployment.folder), expected(name))


SEARCHES = """
{search}

import json, sys
from secureps.flower import mod

WANTED, OUT = json.loads({wanted!r}), Path({out!r})
sealed = mod._seal

def searched(message, context, call_next):
    config = dict(context.node_config)
    report = OUT / str(config["partition-id"])
    if "secureps-holder" in config and not report.exists():
        pids = [p for p in os.listdir("/proc") if p.isdigit() and b"keyholder" in
                (content(f"/proc/{{p}}/cmdline") or b"")]
        told = [dict(os.environ), sys.argv, context, message, config]
        roots = [WANTED["folder"], os.getcwd(), os.environ["HOME"]]
        relay = config["secureps-holder"]
        needles, private, pieces = (WANTED[key] for key in ("needles", "private", "pieces"))
        found = search(needles, private, roots, told, pids, relay, pieces)
        report.write_text(json.dumps([os.geteuid(), len(pids), found]))
    return sealed(message, context, call_next)

mod._seal = searched
"""
"""At the end of a client_app.py: at a key holder's node it looks for all that the holder keeps."""


@pytest.mark.skipif(
    not playable(APP), reason="needs root: key holders and their nodes are two users"
)
def test_key_holders_are_nodes_and_an_app_that_looks_for_their_keys_finds_none(
    expected: Callable[[str], Model],
) -> None:
    with TemporaryDirectory(prefix="flower-") as made:  # others may not come into pytest's
        folder, out = Path(made), Path(made) / "out"
        folder.chmod(0o755)
        out.mkdir()
        os.chown(out, APP, APP)
        with deployed(folder, holders_as_nodes=True) as deployment:
            homes = [deployment.folder / "kits" / name for name in deployment.holders]
            keys = [path for home in homes for path in (home / "private").rglob("*.key")]
            configs = [deployment.folder / f"{name}.toml" for name in deployment.holders]
            assert len(keys) >= 2 * len(homes)
            assert all(path.is_file() for path in configs)
            public = homes[0] / "public" / "roster.json"
            secrets = [*keys, *configs]
            needles = {str(path): digested(path.read_bytes()) for path in (*secrets, public)}
            raw = [path.read_bytes() for path in keys]
            texts = raw + [each.hex().encode() for each in raw]
            wanted: dict[str, Any] = {
                "folder": str(deployment.folder),
                "needles": needles,
                "private": [str(deployment.folder / name) + "/" for name in deployment.holders],
                "pieces": {f"a key, {k}": piece(text) for k, text in enumerate(texts)},
            }
            code = SEARCHES.format(
                search=Path(key_search.__file__).read_text().replace("from __future__", "# "),
                wanted=json.dumps(wanted),
                out=str(out),
            )
            deployment.finish(begin(deployment, folder, code))
            reports = [json.loads(path.read_text()) for path in out.iterdir()]
            assert len(reports) == len(homes)
            for user, pids, found in reports:
                assert (user, pids) == (APP, len(homes)), found
                assert {line.partition(":")[0] for line in found} == {str(public)}, found
            same(final(deployment.folder), expected("numpy"))
            # the same search finds all of it where it may
            may = search(needles, wanted["private"], [str(deployment.folder)], [], [], "", {})
            assert set(needles) <= {line.partition(":")[0] for line in may}
            assert any(line.startswith("private: ") for line in may)


def test_a_supernode_is_killed_in_mid_round_and_comes_back(
    tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    with deployed(tmp_path) as deployment:
        begun = begin(deployment, tmp_path)
        deployment.wait(said(deployment, 1, "Receiving: train", 2), "a round at node 1")
        deployment.kill("node-1")
        deployment.wait(lambda: deployment.online() < NODES, "word of its end")
        deployment.start_node(1)
        deployment.finish(begun)
        same(final(deployment.folder), expected("numpy"))


def test_holders_are_away_and_come_back(tmp_path: Path, expected: Callable[[str], Model]) -> None:
    with deployed(tmp_path) as deployment:
        away = deployment.holders[2:]
        begun = begin(deployment, tmp_path)
        deployment.wait(said(deployment, 1, "Receiving: train", 2), "a round at node 1")
        for name in away:
            deployment.kill(name)
        deployment.wait(said(deployment, 1, "Sent successfully", 2), "an update of node 1")
        assert deployment.status(begun) == "running", "two of four open nothing"
        deployment.start_holder(away[0])
        deployment.finish(begun)
        same(final(deployment.folder), expected("numpy"))


@pytest.mark.parametrize("fault", [LIES, CRASHES], ids=["lies", "crashes after its reply"])
def test_a_node_is_faulty_once(
    fault: dict[str, str], tmp_path: Path, expected: Callable[[str], Model]
) -> None:
    done = tmp_path / "done"
    with deployed(tmp_path) as deployment:
        deployment.finish(begin(deployment, tmp_path, FAULTY.format(done=str(done), **fault)))
        assert done.exists()
        same(final(deployment.folder), expected("numpy"))
