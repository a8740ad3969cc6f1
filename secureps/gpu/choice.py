"""Chooses what seals and opens: `--sealing auto`, `cpu` or `gpu`.

Before it seals (on a shard: opens) anything a device must make the processor's bytes. `auto` takes
it where one batch was done there sooner than on a core of this processor. A device that fails, or
is out of memory, is not asked again; the processor goes on with the same batch. What must not live
here: arithmetic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from secureps.config.serve import Sealing
from secureps.crypto.backend import Backend, ElementOpener, ElementSealer, Noise
from secureps.crypto.cipher import Payload, Place
from secureps.crypto.ring import Encoding
from secureps.crypto.sampling import BLOCK_WORDS, public_stream
from secureps.crypto.secret import Secret
from secureps.errors import ConfigError, SecurepsError
from secureps.gpu.device import device, has_device_file
from secureps.wording import one_line

log = logging.getLogger("secureps")

TRIES = 3
"""Of what is measured, of which the fastest counts; it was compiled before, by what is compared."""

Made = TypeVar("Made")


class Fallback:
    """Asks a device first, and leaves all to the processor once the device fails.

    Args:
        does: what is asked of it, as the log says it: "seals and opens".
    """

    def __init__(self, does: str) -> None:
        self.failed = False
        self.lock = threading.Lock()
        self._does = does

    def tried(self, action: Callable[[], Made]) -> Made | None:
        """What an action makes; None if the device fails, or did before.

        Raises:
            SecurepsError, MemoryError: of the action, and no fault of the device: the host has no
                memory either for what the processor would make in its place.
        """
        if self.failed:
            return None
        try:
            return action()
        except (SecurepsError, MemoryError):
            raise
        except Exception as error:  # of torch, Triton or the driver, which have no tree of errors
            why = f"failed ({type(error).__name__}: {one_line(error, lines=1)})"
        with self.lock:
            first, self.failed = not self.failed, True
        if first:
            log.warning("the GPU %s: the processor %s from here on", why, self._does)
        return None

    def begun(self, look: Callable[[], Made]) -> Made | None:
        """What looking for the device, and trying it, comes to; None if there is none that can."""
        try:
            return look()
        except ConfigError as error:
            self.failed = True
            log.info("the processor %s: %s", self._does, one_line(error, lines=1))
        except MemoryError:
            raise
        except Exception as error:
            self.unfit(f"cannot: {one_line(error, lines=1)}")
        return None

    def unfit(self, why: str) -> None:
        """It is not asked again."""
        self.failed = True
        log.warning("the processor %s: the GPU %s", self._does, why)


def sooner(what: str, gpu: float, processor: float) -> bool:
    """Whether the device took fewer seconds; says who does `what` from here on."""
    who = "GPU" if gpu < processor else "processor"
    times = 1e3 * gpu, 1e3 * processor
    log.info("the %s %s took the GPU %.3f ms, one core of the processor %.3f", who, what, *times)
    return gpu < processor


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
            be one, which makes the processor's bytes.

    Raises:
        ConfigError: there is none, and nothing is measured.
    """

    def __init__(self, cpu: Backend, make: Callable[[], Backend], measured: bool) -> None:
        self._cpu, self._make, self._measured = cpu, make, measured
        self._gpu: Backend | None = None if measured else make()
        self._fallback = Fallback("seals and opens")
        self.tried = self._fallback.tried
        self._chosen: dict[tuple[Encoding, int], Backend] = {}
        self._compared = set[tuple[Encoding, int, str]]()

    def batch(self, encoding: Encoding, slots: int) -> int:
        """As of whoever was chosen for such blocks, also after it failed."""
        return self._chosen[encoding, slots].batch(encoding, slots)

    def sealer(
        self, encoding: Encoding, place: Place, levels: int, noise: Noise, key: NDArray[np.uint32]
    ) -> ElementSealer:
        """As of `Backend`.

        Raises:
            ConfigError: the device makes other bytes, and there must be one.
        """
        own = self._cpu.sealer(encoding, place, levels, noise, key)
        chosen = self._choose(encoding, place.slots, "seal", _sealing(levels))
        if chosen is self._cpu or self._fallback.failed:
            return own
        made = self.tried(lambda: chosen.sealer(encoding, place, levels, noise, key))
        return own if made is None else _TriedSealer(self, made, own)

    def opener(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> ElementOpener:
        """As of `Backend`; raises as `sealer`."""
        own = self._cpu.opener(encoding, place, key)
        chosen = self._choose(encoding, place.slots, "open", _opening)
        if chosen is self._cpu or self._fallback.failed:
            return own
        made = self.tried(lambda: chosen.opener(encoding, place, key))
        return own if made is None else _TriedOpener(self, made, own)

    def _choose(self, enc: Encoding, slots: int, what: str, trial: _Trial) -> Backend:
        """Whoever was chosen for such blocks when the first was sealed or opened.

        A device is tried at sealing and at opening, each before it does that.
        """
        with self._fallback.lock:
            known = self._chosen.get((enc, slots))
            if known is not self._cpu and (enc, slots, what) not in self._compared:
                found = self._tested(enc, slots, trial, self._measured and known is None)
                self._compared.add((enc, slots, what))
                self._chosen.setdefault((enc, slots), found)
            return self._chosen[enc, slots]

    def _tested(self, enc: Encoding, slots: int, trial: _Trial, timed: bool) -> Backend:
        """Whoever is asked; the processor if the device cannot, or makes other bytes.

        Args:
            timed: the processor, too, if it is sooner.
        Raises:
            ConfigError: other bytes, and there must be a device.
        """
        if self._fallback.failed:
            return self._cpu

        def begin() -> tuple[Backend, list[_Piece], Callable[[Backend], _Done], bytes, float]:
            self._gpu = gpu = self._gpu or self._make()
            count = min(gpu.batch(enc, slots), enc.elements(slots))
            pieces, tried = _pieces(enc, count), trial(enc, count)
            there = tried(gpu)
            made = there(pieces)
            return gpu, pieces, tried, made, fastest(lambda: there(pieces[:1])) if timed else 0.0

        begun = self._fallback.begun(begin)
        if begun is None:
            return self._cpu
        gpu, pieces, tried, made, seconds = begun
        here = tried(self._cpu)
        if made != here(pieces):
            if not self._measured:
                raise ConfigError(
                    "the GPU makes other bytes than the processor: take sealing = cpu, or mend "
                    "its driver, or Triton's version; nothing of it was sent"
                )
            self._fallback.unfit("makes other bytes")
            return self._cpu
        if not timed:
            return gpu
        own = fastest(lambda: here(pieces[:1]))
        return gpu if sooner("seals and opens: a batch", seconds, own) else self._cpu


_Piece = tuple[int, int, int]
"""A block, its first element, and how many."""
_Done = Callable[[Sequence[_Piece]], bytes]
"""Does pieces; returns what it made."""
_Trial = Callable[[Encoding, int], Callable[[Backend], _Done]]
"""Prepares batches of so many elements, to be done by any backend under the same keys."""


def _pieces(enc: Encoding, count: int) -> list[_Piece]:
    """A batch; elements of another block, behind a batch; and the last that streams have words for.

    Wrong words of noise show in no opening, and the same errors twice under one key give it away:
    so every argument that words depend on varies, and the last counters are above 2^31 where the
    public stream reaches as far (it does but for 8 primes).
    """
    from secureps.crypto.public import PublicPolynomials

    few, noise = min(2, count), 3 * enc.ring.degree // BLOCK_WORDS
    _, public = PublicPolynomials(enc.ring, _place(enc, count)).blocks(0, 1)
    last = ((1 << 32) - 1) // max(noise, public) - few
    return [(0, 0, count), (1, count, few), (0, last, few)]


def _sealing(levels: int) -> _Trial:
    """Seals random values up to `levels`."""

    def trial(enc: Encoding, count: int) -> Callable[[Backend], _Done]:
        drawn = public_stream("secureps-trial").words(count * enc.values).astype(np.uint64)
        values = (drawn % np.uint64(levels + 1)).astype(np.uint32)
        values[-1] = levels
        noise = Noise()
        key, place = _key(enc, noise), _place(enc, count)

        def by(backend: Backend) -> _Done:
            sealer = backend.sealer(enc, place, levels, noise, key)
            return lambda pieces: b"".join(
                sealer.seal(*piece, values[-piece[2] * enc.values :]) for piece in pieces
            )

        return by

    return trial


def _opening(enc: Encoding, count: int) -> Callable[[Backend], _Done]:
    moduli = np.array(enc.ring.moduli, np.uint64)[:, None]
    words = np.arange(count * len(moduli) * enc.ring.degree, dtype=np.uint64) * np.uint64(1 << 40)
    words = words.reshape(count, len(moduli), -1) % moduli
    words.flags.writeable = False
    key, place = _key(enc, Noise()), _place(enc, count)

    def by(backend: Backend) -> _Done:
        opener = backend.opener(enc, place, key)

        def opened(pieces: Sequence[_Piece]) -> bytes:
            made = list[bytes]()
            for block, first, few in pieces:
                out = np.empty((few, enc.digits, enc.ring.degree), np.int64)
                opener.open(block, first, words[:few], out)
                made.append(out.tobytes())
            return b"".join(made)

        return opened

    return by


def _key(enc: Encoding, noise: Noise) -> NDArray[np.uint32]:
    """A key that seals nothing else."""
    from secureps.crypto.rlwe import one_time_key, transformed_key

    return transformed_key(enc.ring, one_time_key(enc.ring, noise))


def _place(enc: Encoding, count: int) -> Place:
    """Of blocks of three batches."""
    return Place(bytes(32), "measured", bytes(32), 3 * count * enc.values)


def fastest(action: Callable[[], object]) -> float:
    """The seconds of the clock of the fastest of TRIES."""
    least = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        action()
        least = min(least, time.perf_counter() - began)
    return least


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
