import numpy as np
import pytest

from secureps.client.trainer import FitConfig, FitResult, RecordPrivacy
from secureps.errors import ConfigError


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
