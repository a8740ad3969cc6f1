import subprocess
import sys

import numpy as np
import pytest

from secureps.client.trainer import FitConfig, FitResult, RecordPrivacy, check_like
from secureps.errors import ConfigError


def test_importing_it_imports_no_torch() -> None:
    program = "import sys, secureps.client.trainer; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_secrets_stay_out_of_repr() -> None:
    config = FitConfig({"all": 3}, 987654321, {"lr": 0.5})
    assert "987654321" not in repr(config)
    assert "versions={'all': 3}" in repr(config)
    result = FitResult({"w": np.full(2, 1234.5)}, 7, {}, 3)
    assert "1234.5" not in repr(result)


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_has_63_bits(seed: int) -> None:
    FitConfig({}, (1 << 63) - 1, {})
    with pytest.raises(ConfigError, match="63 bits"):
        FitConfig({}, seed, {})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((0.0, 1.0, 0.1, 1e-5), "noise_multiplier"),
        ((float("nan"), 1.0, 0.1, 1e-5), "noise_multiplier"),
        ((1.0, -1.0, 0.1, 1e-5), "max_grad_norm"),
        ((1.0, float("inf"), 0.1, 1e-5), "max_grad_norm"),
        ((1.0, 1.0, 0.0, 1e-5), "sample_rate"),
        ((1.0, 1.0, 1.1, 1e-5), "sample_rate"),
        ((1.0, 1.0, 0.1, 0.0), "delta"),
        ((1.0, 1.0, 0.1, 1.0), "delta"),
    ],
)
def test_unsound_record_privacy_is_refused(
    values: tuple[float, float, float, float], name: str
) -> None:
    RecordPrivacy(1.0, 1.0, 1.0, 1e-5)
    with pytest.raises(ConfigError, match=name):
        RecordPrivacy(*values)


def test_check_like_names_the_first_difference() -> None:
    shapes: dict[str, tuple[int, ...]] = {"w": (2, 3), "n": ()}
    good = {"n": np.array(1), "w": np.zeros((2, 3))}
    assert check_like(good, shapes) is None
    assert check_like({"w": good["w"]}, shapes) == "tensor 'n' is missing"
    assert check_like(good | {"x": np.zeros(1)}, shapes) == "tensor 'x' is not one of this model's"
    assert check_like(good | {"w": np.zeros((3, 2))}, shapes) == (
        "tensor 'w' has shape (3, 2), the model's has (2, 3)"
    )
