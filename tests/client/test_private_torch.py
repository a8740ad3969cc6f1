"""What a private fit of a `TorchTrainer` adds and clips, and what its noise depends on."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from secureps.client.torch import TorchTrainer, noise_generators, noise_seeds
from secureps.client.trainer import Array, FitConfig, RecordPrivacy
from secureps.errors import ConfigError
from tests.client.test_torch import PRIVACY, PRIVATE, trainer


def biases(width: int) -> nn.Module:
    layer = nn.Linear(1, width)
    for each in layer.parameters():
        nn.init.zeros_(each)
    return nn.Sequential(layer)


def drift(
    rate: float,
    scale: float,
    seed: int,
    width: int = 20000,
    secret: bytes = bytes(32),
    record: float = 1.0,
) -> Array:
    """The private update of `width` biases in one step of lr 1; `scale` sizes the gradients."""
    holder = TorchTrainer(
        lambda: biases(width),
        (np.ones((50, 1), np.float32), np.full(50, record, np.float32)),
        (np.ones((1, 1), np.float32), np.ones(1, np.float32)),
        loss=lambda out, y: scale * (out[:, 0] * y).mean(),
        metrics={},
        device="cpu",
    )
    start = holder.parameters(0)
    privacy = RecordPrivacy(2.0, 3.0, rate, 1e-5)
    config = FitConfig({}, seed, {"lr": 1.0, "local_steps": 1}, privacy, secret=secret)
    found: Array = holder.fit(start, config).parameters["0.bias"]
    return found


def test_noise_has_the_promised_variance() -> None:
    noise = drift(rate=0.2, scale=0.0, seed=1) * (0.2 * 50)
    assert noise.std() == pytest.approx(2.0 * 3.0, rel=0.03)
    assert abs(noise.mean()) < 0.2
    kurtosis = np.mean(noise**4) / np.mean(noise**2) ** 2
    assert kurtosis == pytest.approx(3.0, abs=0.2)


def test_noise_depends_on_every_byte_of_the_secret() -> None:
    """63 bits of a seed would be few enough to try."""
    found = [drift(rate=1.0, scale=0.0, seed=1, width=50)]
    for at in range(32):
        secret = bytes(at) + b"\x01" + bytes(31 - at)
        found.append(drift(rate=1.0, scale=0.0, seed=1, width=50, secret=secret))
    assert len({each.tobytes() for each in found}) == 33


@pytest.mark.slow
def test_the_same_version_of_other_records_has_other_noise() -> None:
    """A record that was removed is not what is left of two updates, if state was lost between."""
    first, other = (drift(rate=1.0, scale=0.0, seed=1, record=r) for r in (1.0, 2.0))
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_private_noise_needs_a_secret() -> None:
    for secret in (b"", bytes(8)):
        with pytest.raises(ConfigError, match="a secret of 32 bytes"):
            replace(PRIVATE, secret=secret)
    assert "secret" not in repr(PRIVATE)


def test_noise_depends_on_every_bit_of_the_seed_and_not_on_the_gradients() -> None:
    first = drift(rate=1.0, scale=0.0, seed=1)
    assert not np.array_equal(first, drift(rate=1.0, scale=0.0, seed=1 + (1 << 40)))
    assert np.array_equal(first[1:], drift(rate=1.0, scale=50.0, seed=1)[1:])


def test_noise_is_new_for_whatever_else_the_server_asks_under_one_seed() -> None:
    """Else the difference of two answers would be free of noise."""
    holder = trainer()
    start = holder.parameters(1)
    nudged = start | {"3.bias": start["3.bias"] + np.float32(1e-3)}
    one_step = replace(PRIVATE, settings={"lr": 1.0, "local_steps": 1})
    asked = [
        (start, one_step),
        (nudged, one_step),
        (start, replace(one_step, settings={"lr": 1.01, "local_steps": 1})),
        (start, replace(one_step, versions={"all": 1})),
        (start, replace(one_step, privacy=replace(PRIVACY, max_grad_norm=1.01))),
    ]
    noise = [
        (holder.fit(base, config).parameters["0.weight"] - base["0.weight"]).ravel()
        for base, config in asked
    ]
    correlation = np.corrcoef(noise) - np.eye(len(asked))
    assert np.abs(correlation).max() < 0.5


# --- noise is as hard to guess as its key, on every device ---------------------------


def test_a_device_that_takes_seeds_gets_four_that_hold_256_bits_of_the_key() -> None:
    key = bytes(range(32))
    first = noise_seeds(key)
    assert len(set(first)) == 4
    assert all(0 <= seed < 1 << 64 for seed in first)
    assert max(seed.bit_length() for seed in first) == 64, "the highest bit is used"
    for at in range(32):
        changed = bytes(k ^ (i == at) for i, k in enumerate(key))
        assert all(a != b for a, b in zip(first, noise_seeds(changed), strict=True))


def test_other_devices_than_a_cpu_have_a_generator_of_each_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And take each seed whole. There need be no CUDA here to see that."""
    made: list[tuple[str, int]] = []

    class Recorded:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def manual_seed(self, seed: int) -> Recorded:
            made.append((self.device.type, seed))
            return self

    monkeypatch.setattr(torch, "Generator", Recorded)
    key = bytes(32)
    assert len(noise_generators(key, torch.device("cuda"))) == 4
    assert made == [("cuda", seed) for seed in noise_seeds(key)]


def test_noise_on_the_cpu_is_what_it_was() -> None:
    """Its state is filled with 624 words from the key: 256 bits as they are."""
    (generator,) = noise_generators(bytes(range(32)), torch.device("cpu"))
    stream = hashlib.shake_256(b"secureps-noise" + bytes(range(32))).digest(4 * 624)
    words = generator.get_state().numpy()[24 : 24 + 8 * 624].view("<u8")
    assert words.tolist() == np.frombuffer(stream, "<u4").tolist()
