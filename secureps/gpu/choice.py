"""Chooses what seals and opens: `--sealing auto`, `cpu` or `gpu`.

`auto` takes the device where there is one, and one batch was sealed (on a shard: opened) there
sooner than on a core of this processor, to the same bytes. A device that fails later, or is out of
memory, is not asked again; the processor goes on with the same batch. What must not live here:
arithmetic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from secureps.config.serve import Sealing
from secureps.crypto.backend import Backend, ElementOpener, ElementSealer, Noise
from secureps.crypto.cipher import Payload, Place
from secureps.crypto.ring import Encoding
from secureps.crypto.secret import Secret
from secureps.errors import ConfigError, SecurepsError
from secureps.gpu.device import device, has_device_file

log = logging.getLogger("secureps")

TRIES = 3
"""Of which the fastest counts, after one that compiles."""

Made = TypeVar("Made")


def sealing_backend(sealing: Sealing) -> Backend | None:
    """What seals and opens, by the word of an option; None for the processor.

    Raises:
        ConfigError: "gpu", and there is none that can be used; says what is missing.
    """
    if sealing == "cpu" or (sealing == "auto" and not has_device_file()):
        return None
    from secureps.crypto.rlwe import CPU

    return ChosenBackend(CPU, gpu_backend, measured=sealing == "auto")


def gpu_backend() -> Backend:
    """The device's.

    Raises:
        ConfigError: as of `gpu.device.device`.
    """
    found = device()
    from secureps.gpu.backend import GpuBackend

    return GpuBackend(found)


class ChosenBackend:
    """A `Backend` that asks the device first, and the processor once the device fails.

    Args:
        make: the device's backend.
        measured: the device is used for an encoding if it was sooner; else always, and there must
            be one.

    Raises:
        ConfigError: there is none, and nothing is measured.
    """

    def __init__(self, cpu: Backend, make: Callable[[], Backend], measured: bool) -> None:
        self._cpu, self._make, self._measured = cpu, make, measured
        self._gpu: Backend | None = None if measured else make()
        self._failed = False
        self._chosen: dict[tuple[Encoding, int], Backend] = {}
        self._lock = threading.Lock()

    def batch(self, encoding: Encoding, slots: int) -> int:
        """As of whoever was chosen for such blocks, also after it failed."""
        return self._chosen[encoding, slots].batch(encoding, slots)

    def sealer(
        self, encoding: Encoding, place: Place, levels: int, noise: Noise, key: NDArray[np.uint32]
    ) -> ElementSealer:
        """As of `Backend`."""
        own = self._cpu.sealer(encoding, place, levels, noise, key)
        chosen = self._choose(encoding, place.slots, _sealing)
        if chosen is self._cpu or self._failed:
            return own
        made = self.tried(lambda: chosen.sealer(encoding, place, levels, noise, key))
        return own if made is None else _TriedSealer(self, made, own)

    def opener(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> ElementOpener:
        """As of `Backend`."""
        own = self._cpu.opener(encoding, place, key)
        chosen = self._choose(encoding, place.slots, _opening)
        if chosen is self._cpu or self._failed:
            return own
        made = self.tried(lambda: chosen.opener(encoding, place, key))
        return own if made is None else _TriedOpener(self, made, own)

    def tried(self, action: Callable[[], Made]) -> Made | None:
        """Does what the device is to do; None if it fails, or did before."""
        if self._failed:
            return None
        try:
            return action()
        except SecurepsError:
            raise
        except Exception as error:  # of torch, Triton or the driver, which have no tree of errors
            self._give_up(f"failed ({type(error).__name__}: {error})")
            return None

    def _give_up(self, why: str) -> None:
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            log.warning("the GPU %s: the processor seals and opens from here on", _line(why))

    def _choose(self, enc: Encoding, slots: int, trial: Callable[..., _Trial]) -> Backend:
        with self._lock:
            if (enc, slots) not in self._chosen:
                self._chosen[enc, slots] = self._sooner(enc, slots, trial)
            return self._chosen[enc, slots]

    def _sooner(self, enc: Encoding, slots: int, trial: Callable[..., _Trial]) -> Backend:
        """Whoever does a batch sooner; the processor if the device cannot, or makes other bytes."""
        try:
            self._gpu = self._gpu or self._make()
            if not self._measured:
                return self._gpu
            tried = trial(enc, min(self._gpu.batch(enc, slots), enc.elements(slots)))
            made, seconds = _fastest(tried, self._gpu)
        except ConfigError as error:
            log.info("the processor seals and opens: %s", _line(str(error)))
            return self._cpu
        except Exception as error:
            log.warning("the processor seals and opens: the GPU cannot: %s", _line(str(error)))
            return self._cpu
        expected, own = _fastest(tried, self._cpu)
        if made != expected:
            log.warning("the processor seals and opens: the GPU makes other bytes")
            return self._cpu
        who = "GPU" if seconds < own else "processor"
        log.info(
            "the %s seals and opens: a batch took the GPU %.3f ms, one core of the processor %.3f",
            *(who, 1e3 * seconds, 1e3 * own),
        )
        return self._gpu if seconds < own else self._cpu


_Trial = Callable[[Backend], bytes]
"""Does a batch with a backend, always the same one; returns what it made."""


def _sealing(enc: Encoding, count: int) -> _Trial:
    noise, values = Noise(), np.arange(count * enc.values, dtype=np.int32) % 2
    key, place = _key(enc, noise), _place(enc, count)

    def sealed(backend: Backend) -> bytes:
        return bytes(backend.sealer(enc, place, 1, noise, key).seal(0, 0, count, values))

    return sealed


def _opening(enc: Encoding, count: int) -> _Trial:
    moduli = np.array(enc.ring.moduli, np.uint64)[:, None]
    words = np.arange(count * len(moduli) * enc.ring.degree, dtype=np.uint64) * np.uint64(1 << 40)
    words = words.reshape(count, len(moduli), -1) % moduli
    words.flags.writeable = False
    key, place = _key(enc, Noise()), _place(enc, count)

    def opened(backend: Backend) -> bytes:
        out = np.empty((count, enc.digits, enc.ring.degree), np.int64)
        backend.opener(enc, place, key).open(0, 0, words, out)
        return out.tobytes()

    return opened


def _key(enc: Encoding, noise: Noise) -> NDArray[np.uint32]:
    """A key that seals nothing else."""
    from secureps.crypto.rlwe import one_time_key, transformed_key

    return transformed_key(enc.ring, one_time_key(enc.ring, noise))


def _place(enc: Encoding, count: int) -> Place:
    return Place(bytes(32), "measured", bytes(32), count * enc.values)


def _fastest(trial: _Trial, backend: Backend) -> tuple[bytes, float]:
    """What a trial made, and its seconds of the clock."""
    made, least = trial(backend), float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        made = trial(backend)
        least = min(least, time.perf_counter() - began)
    return made, least


class _TriedSealer(Secret):
    """An `ElementSealer` of the device until it fails."""

    def __init__(self, chosen: ChosenBackend, gpu: ElementSealer, cpu: ElementSealer) -> None:
        self._chosen, self._gpu, self._cpu = chosen, gpu, cpu

    def seal(self, block: int, first: int, count: int, values: NDArray[np.integer[Any]]) -> Payload:
        """As of `ElementSealer`."""
        made = self._chosen.tried(lambda: self._gpu.seal(block, first, count, values))
        return self._cpu.seal(block, first, count, values) if made is None else made


class _TriedOpener(Secret):
    """An `ElementOpener` of the device until it fails."""

    def __init__(self, chosen: ChosenBackend, gpu: ElementOpener, cpu: ElementOpener) -> None:
        self._chosen, self._gpu, self._cpu = chosen, gpu, cpu

    def open(
        self, block: int, first: int, words: NDArray[np.uint64], out: NDArray[np.int64]
    ) -> tuple[float, bool]:
        """As of `ElementOpener`."""
        made = self._chosen.tried(lambda: self._gpu.open(block, first, words, out))
        return self._cpu.open(block, first, words, out) if made is None else made


def _line(text: str) -> str:
    """The first line of a message, cut short."""
    return text.splitlines()[0][:200] if text else text
