"""The randomness of a fit: seeds derived from its key, and the generators that take them."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from secureps.client.trainer import SEED_BITS

_GLOBAL_GENERATORS = threading.RLock()


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restores Python's, NumPy's and torch's global generators of the host on exit.

    Because they are global, threads take turns.
    """
    with _GLOBAL_GENERATORS, torch.random.fork_rng([]):
        states = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def seed_generators(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's global generators of the host with 64 bits."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    # torch.manual_seed would also seed devices that are not restored
    torch.default_generator.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generators with 63 bits, for an app's code.

    Restores their state on exit, except on CUDA devices that the app is the first to use.
    """
    begun: Callable[[], bool] = torch.cuda.is_initialized
    used = range(torch.cuda.device_count()) if begun() else ()
    with _GLOBAL_GENERATORS, torch.random.fork_rng(used):
        torch.manual_seed(seed)
        yield


def derive(key: bytes, purpose: str, size: int = 32) -> int:
    """Derives an integer of `size` bytes from `key` for one purpose."""
    digest = hashlib.blake2b(key, digest_size=size, key=purpose.encode(), person=b"secureps-rng")
    return int.from_bytes(digest.digest(), "big")


def seed_of(key: bytes, purpose: str) -> int:
    return derive(key, purpose, 8) >> (64 - SEED_BITS)


def noise_generators(key: bytes, device: torch.device) -> tuple[torch.Generator, ...]:
    """Makes generators of `device` whose Gaussians together depend on every bit of `key`.

    On the CPU one is enough. torch uses only the low 32 bits of a seed (mt19937), and an attacker
    could try them all, so its state is filled from SHAKE-256 instead: 24 bytes of header, then 624
    words of 32 bits in 8 bytes each. On other devices a generator takes nothing but a seed.
    """
    if device.type != "cpu":
        return tuple(torch.Generator(device=device).manual_seed(seed) for seed in noise_seeds(key))
    generator = torch.Generator(device=device)
    generator.manual_seed(seed_of(key, "noise"))
    state = generator.get_state().numpy().copy()
    stream = hashlib.shake_256(b"secureps-noise" + key).digest(4 * 624)
    state[24 : 24 + 8 * 624] = np.frombuffer(stream, "<u4").astype("<u8").view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    return (generator,)


def noise_seeds(key: bytes) -> tuple[int, ...]:
    """Derives four seeds of 64 bits; the noise is the sum of their Gaussians.

    The best attack by somebody who knows the noise is a meet in the middle, two seeds against the
    other two, which takes 2^128 of work and memory.
    """
    wide = derive(key, "noise")
    return tuple(wide >> shift & (1 << 64) - 1 for shift in (0, 64, 128, 192))
