"""Private apps inside Flower's engine as it is deployed: the same bits, whoever is killed or lies.

A wave of messages takes ten seconds of two cores: `make flower` runs this, `make test` does not.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.kits.command import INSECURE, run
from tests.kits.flower_examples import copied, private
from tests.kits.flower_federation import SEED, PrivateDeployment

ASKED = "SECUREPS_FLOWER"
"""In the environment: these tests are wanted."""

pytestmark = [
    pytest.mark.skipif(ASKED not in os.environ, reason="minutes each: make flower"),
    pytest.mark.timeout(1200),
]

NODES = 3


def fewer(app: Path) -> Path:
    """An app whose plan is for NODES."""
    plan = app / "plan.toml"
    text = plan.read_text().replace("quorum = 5", f"quorum = {NODES}, minimum = {NODES}")
    plan.write_text(text.replace("clients = 5", f"clients = {NODES}"))
    return app


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The model of `secureps up`, of the same plan, app and seed, without Flower's engine."""
    folder = tmp_path_factory.mktemp("up")
    app, out = fewer(copied("numpy", folder)), folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        seed = ("--unsafe-seed", str(SEED), INSECURE)
        assert run(patch, "up", app / "plan.toml", "--out", out, *seed) == 0
    return load_file(out / "model.safetensors")


def deployed(folder: Path) -> PrivateDeployment:
    """Not begun yet."""
    plan = fewer(copied("numpy", folder / "plan")) / "plan.toml"
    return PrivateDeployment(folder / "deployed", NODES, plan)


def begin(deployment: PrivateDeployment, folder: Path) -> int:
    """The private app's run."""
    app = fewer(private("numpy", folder / "app", **deployment.said))
    return deployment.run(app, "--run-config", "fraction-evaluate=0.0")


def same(deployment: PrivateDeployment, expected: dict[str, np.ndarray]) -> None:
    with np.load(deployment.folder / "final_model.npz") as found:
        assert len(found) == len(expected)
        for each, name in zip(found, sorted(expected), strict=True):
            assert found[each].tobytes() == expected[name].tobytes(), name


def test_the_same_bits_as_without_flowers_engine(
    tmp_path: Path, expected: dict[str, np.ndarray]
) -> None:
    with deployed(tmp_path) as deployment:
        deployment.finish(begin(deployment, tmp_path))
        same(deployment, expected)
