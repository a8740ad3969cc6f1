"""What works on values changes no bit of a model."""

from pathlib import Path

import pytest

from tests.contract.test_systems import DENSE, digest_of, simulated


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
