"""Noise is as hard to guess as its key, on every device; a key is bound to all that a fit sees."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from secureps.client.torch import noise_generators, noise_seeds


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
