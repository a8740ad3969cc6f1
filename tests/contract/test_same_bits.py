"""What works on values changes no bit of a model: device or host, sealed or in the clear.

Each model is trained on the CPU, or on the device of SECUREPS_TEST_DEVICE.
"""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from secureps.client import device_rotation
from tests.contract.test_systems import ADAM, DENSE, PLAIN, RLWE, digest_of, simulated
from tests.kits.privacy_kit import PRIVACY
from tests.kits.torch_device import DEVICE

TRAINER = """
import numpy as np
from torch import nn
import secureps as ps


class Site(ps.Settings):
    partition: int = 0
    partitions: int = 1


class There(ps.TorchTrainer):
    def codec_device(self):
        return "DEVICE"


def make(settings):
    rng = np.random.default_rng(Site.of(settings).partition)
    x = rng.normal(size=(24, 6)).astype(np.float32)
    y = rng.integers(0, 3, 24)
    return KIND(lambda: nn.Linear(6, 3), (x, y), (x, y), device="DEVICE")


if __name__ == "__main__":
    ps.run_client(make)
"""

ROUND = {"name": "round", "length": "mean_norm"}
UPDATE = {**DENSE, "clip": 2.0, "range": 1.0, "most_examples": 64, "optimizer": ADAM}
THIN = {k: v for k, v in UPDATE.items() if k not in ("range", "optimizer")} | {
    "bits": 5,
    "codec": [{"name": "support", "one_in": 2}, "rotate", ROUND],
    "feedback": True,
}
PRIVATE = {k: v for k, v in UPDATE.items() if k not in ("range", "most_examples")} | {
    "weighting": "uniform",
    "clip": 0.5,
    "codec": ["rotate"],
}
NOISE = PRIVACY | {"noise_multiplier": 0.5, "budget": 5000.0, "placement": "local"}


@pytest.mark.parametrize(
    ("group", "more", "cipher"),
    [(THIN, {}, RLWE), (PRIVATE, {"privacy": NOISE}, PLAIN)],
    ids=["compressed", "private"],
)
def test_an_update_rotated_on_the_device_is_the_hosts(
    group: dict[str, Any],
    more: dict[str, Any],
    cipher: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, models = Mock(wraps=device_rotation.transform_there), []
    monkeypatch.setattr(device_rotation, "transform_there", made)
    for kind in ("ps.TorchTrainer", "There"):
        script = TRAINER.replace("KIND", kind).replace('"DEVICE"', f'"{DEVICE}"')
        (tmp_path / kind).mkdir()
        steps = {"lr": 0.1, "local_steps": 3}
        given = {"cipher": cipher, "training": steps, "script": script, **more}
        done = simulated(tmp_path / kind, group, **given)
        assert done.versions == {"dense": 4}
        models.append(digest_of(done.model()))
        assert made.called is (kind == "There")
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("optimizer", "digest"),
    [
        ("sgd", "f653ed52108c8012"),
        ("momentum", "55ff8c946882c880"),
        ("nesterov", "856f56c224f71d92"),
        ("yogi", "7e870ce0f85d33ea"),
        ("fedadam", "bd9ca0d888036ee0"),
        ("fedyogi", "bad4d83d821333e3"),
        ("fedadagrad", "e0438c2ad7b2cb75"),
    ],
)
def test_every_optimizer_steps_to_the_same_bits(
    optimizer: str, digest: str, tmp_path: Path
) -> None:
    step = {"name": optimizer, "learning_rate": 0.0625}
    done = simulated(tmp_path, {**DENSE, "optimizer": step})
    assert digest_of(done.model()) == digest
