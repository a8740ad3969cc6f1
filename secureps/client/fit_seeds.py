"""The randomness of one fit: a key bound to all that the fit starts from, and what derives from it.

Streams for different purposes do not touch each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple

import numpy as np
import torch

from secureps.client.local_sgd import LocalSgd
from secureps.client.trainer import SECRET_BYTES, SEED_BITS, Array, FitConfig


def fit_key(
    parameters: Mapping[str, Array], config: FitConfig, local: LocalSgd, records: bytes
) -> bytes:
    """A key of 32 bytes for one fit: BLAKE2b of seed, secret, records and the server's choices."""
    digest = hashlib.blake2b(digest_size=32, person=b"secureps-fit")
    versions = sorted((name, int(version)) for name, version in config.versions.items())
    privacy = config.privacy and [value and float(value) for value in astuple(config.privacy)]
    tensors = {name: np.ascontiguousarray(parameters[name]) for name in sorted(parameters)}
    schema = [(name, str(array.dtype), array.shape) for name, array in tensors.items()]
    header = repr((config.seed, versions, local, privacy, schema, records)).encode()
    digest.update(config.secret.ljust(SECRET_BYTES, b"\0"))
    digest.update(len(header).to_bytes(8, "big") + header)
    for array in tensors.values():
        digest.update(array.tobytes())
    return digest.digest()


def derived(key: bytes, purpose: str, size: int = 32) -> int:
    """Derives an integer of `size` bytes from `key` for one purpose."""
    digest = hashlib.blake2b(key, digest_size=size, key=purpose.encode(), person=b"secureps-rng")
    return int.from_bytes(digest.digest(), "big")


def seed_of(key: bytes, purpose: str) -> int:
    """Derives a seed of SEED_BITS from `key` for one purpose."""
    return derived(key, purpose, 8) >> (64 - SEED_BITS)


def noise_generators(key: bytes, device: torch.device) -> tuple[torch.Generator, ...]:
    """Makes generators of `device` whose Gaussians together depend on every bit of `key`.

    On the CPU one is enough: torch uses only the low 32 bits of a seed (mt19937), few enough to
    try them all, so the state is filled from SHAKE-256 instead: 24 bytes of header, then 624
    words of 32 bits in 8 bytes each. On other devices a generator has its seed alone.
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
    """Four seeds of 64 bits, of which the noise is the sum.

    The best attack by somebody who knows the noise is a meet in the middle, two seeds against the
    other two: 2^128 of work and memory.
    """
    wide = derived(key, "noise")
    return tuple(wide >> shift & (1 << 64) - 1 for shift in (0, 64, 128, 192))
