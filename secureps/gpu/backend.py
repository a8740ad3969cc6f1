"""Seals and opens ring elements on the device: a `Backend` of `crypto.backend`.

A batch is copied to the device, worked on there and copied back, in a stream of its own; several
threads have several batches on their way. Words of noise and public polynomials are made on the
device. What is secret lies in the device's memory meanwhile, the noise's key and the one-time key
among it, and zeros are written over it when the submission's sealer is let go of.
What must not live here: kernels, and whether the device is used (`gpu.choice`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.backend import Noise
from secureps.crypto.cipher import Payload, Place, check_values
from secureps.crypto.ntt import paired, twiddles
from secureps.crypto.public import RAN_OUT, PublicPolynomials
from secureps.crypto.ring import WORD_BITS, Encoding, Ring
from secureps.crypto.rlwe_tables import constants, limbs, scale
from secureps.crypto.sampling import BLOCK_WORDS, STREAM_WORDS
from secureps.crypto.secret import Secret
from secureps.errors import InternalError
from secureps.gpu.chacha_kernels import key_stream
from secureps.gpu.device import Device
from secureps.gpu.open_kernels import decode_narrow, decode_wide, remove_key
from secureps.gpu.public_kernels import reduce_accepted
from secureps.gpu.seal_kernels import pack_words, seal_words

BATCH = 1 << 20
"""Values that are worked on at a time, in whole elements: 4 MiB on their way there."""
_WORD = np.dtype("<u8")
WARPS = {2048: 8, 4096: 16, 8192: 16}
"""Of 32 lanes each, by N, that work on one polynomial: all that they keep fits their registers."""
EXACT = {"enable_fp_fusion": False}
"""What Triton is told of every kernel: a product and a sum round one after the other."""


@lru_cache(maxsize=4)
def tables(device: Device, ring: Ring) -> Mapping[str, Any]:
    """Constants of a ring on the device, by the names of the kernels' arguments."""
    made, primes = constants(ring), ring.primes
    forth, back = zip(*(twiddles(ring.degree, p) for p in primes), strict=True)
    found = {
        "primes": made.primes,
        "garner": made.garner,
        "mixed": made.mixed,
        "last": made.last,
        "upper": np.stack([paired([(1 << 32) % p], p)[:, 0] for p in primes]),
        "forth": np.stack([paired(ws, p) for ws, p in zip(forth, primes, strict=True)]),
        "back": np.stack([paired(ws, p) for ws, p in zip(back, primes, strict=True)]),
    }
    return {name: device.upload(each) for name, each in found.items()}


@lru_cache(maxsize=16)
def scaled(device: Device, enc: Encoding) -> Mapping[str, Any]:
    """Constants of an encoding on the device, by the names of the kernels' arguments."""
    found: dict[str, NDArray[np.unsignedinteger[Any]]]
    q, half, made = enc.ring.modulus, enc.delta // 2, scale(enc)
    words, by_base = len(enc.ring.words), (1 << 64) // enc.base
    if words == 1:
        numbers = [q, enc.delta, half, (1 << 64) // enc.delta, enc.base, by_base]
        found = {"digits": made.digits, "numbers": np.array(numbers, np.uint64)}
    else:
        firsts = range(0, enc.digits, made.together)
        inverses = np.array([1 / (enc.delta * enc.base**k) for k in firsts])
        more = limbs([q - half, (1 << 64 * words) - half], words)
        found = {
            "digits": made.digits,
            "numbers": np.array([enc.base, by_base], np.uint64),
            "places": np.concatenate((made.places, more)),
            "inverses": inverses.view(np.uint64),
        }
    return {name: device.upload(each) for name, each in found.items()}


class _Room(Secret):
    """Memory of the device for one batch, and the stream that works in it.

    Args:
        sizes: words and their bits, by name.
        copied: what is copied there once.
    """

    def __init__(
        self,
        device: Device,
        stream: Any,
        sizes: Mapping[str, tuple[int, int]],
        copied: Mapping[str, NDArray[np.uint32]],
    ) -> None:
        self.stream = stream
        self._words = dict[str, Any]()
        try:
            with device.on(stream):
                for name, size in sizes.items():
                    self._words[name] = device.empty(*size)
                for name, each in copied.items():
                    self._words[name] = device.upload(each)
        except BaseException:
            with suppress(RuntimeError):  # as in `_let_go`
                self.wipe(device)
            raise

    def __getitem__(self, name: str) -> Any:
        return self._words[name]

    def wipe(self, device: Device) -> None:
        """Writes zeros over all of it."""
        with device.on(self.stream):
            for each in self._words.values():
                device.wipe(each)


class _Batches(Secret):
    """What sealing and opening have in common: rooms, and public polynomials.

    Args:
        own: what is copied to every room.
    """

    def __init__(
        self,
        device: Device,
        enc: Encoding,
        place: Place,
        own: Mapping[str, NDArray[np.uint32]],
    ) -> None:
        self._device = device
        self._enc, self._elements = enc, enc.elements(place.slots)
        self._most = min(batch(enc), self._elements)
        self._polynomials = PublicPolynomials(enc.ring, place)
        self._own = {"public_key": np.frombuffer(self._polynomials.key, "<u4"), **own}
        self._idle, self._lock = list[_Room](), threading.Lock()
        weakref.finalize(self, _let_go, device, self._idle).atexit = False

    def _sizes(self) -> dict[str, tuple[int, int]]:
        primes, degree = len(self._enc.ring.primes), self._enc.ring.degree
        rows = self._most * primes
        return {
            "windows": (rows * self._polynomials.window, 32),
            "found": (rows, 32),
            "public": (rows * degree, 32),
            "work": (rows * degree, 32),
            "words": (rows // 2 * degree, 64),
        }

    @contextmanager
    def _room(self) -> Iterator[_Room]:
        """A room that no other thread works in, and its stream; all is done when it is left."""
        with self._lock:
            room = self._idle.pop() if self._idle else None
        if room is None:
            stream = self._device.stream()
            try:
                room = _Room(self._device, stream, self._sizes(), self._own)
            except BaseException:
                self._device.give_back(stream)
                raise
        try:
            with self._device.on(room.stream):
                yield room
        finally:
            with self._lock:
                self._idle.append(room)

    def _public(self, room: _Room, block: int, first: int, count: int) -> Callable[[], None]:
        """Makes polynomials of elements of a block; returns what raises if they ran out."""
        ring, window = self._enc.ring, self._polynomials.window
        start, blocks = self._polynomials.blocks(block * self._elements + first, count)
        stream_of(self._device, room["public_key"], room["windows"], start, 0, blocks)
        rows = count * len(ring.primes)
        found = self._device.staging(rows, 32)
        reduce_accepted[(rows,)](
            room["windows"],
            tables(self._device, ring)["primes"],
            room["public"],
            room["found"],
            WINDOW=window,
            SPAN=1 << window.bit_length(),
            N=ring.degree,
            PRIMES=len(ring.primes),
            num_warps=min(2 * WARPS[ring.degree], 32),
            **EXACT,
        )
        found.copy_(room["found"][:rows], non_blocking=True)

        def demand() -> None:
            if int(found.numpy().min()) < ring.degree:
                raise RuntimeError(RAN_OUT)  # the device's fault, sooner than chance: let go of it

        return demand


def _let_go(device: Device, rooms: list[_Room]) -> None:
    """Ends a submission or a cohort: nothing of it is left on the device."""
    for room in rooms:
        with suppress(RuntimeError):  # after a device's failure nobody reaches its memory
            room.wipe(device)
        device.give_back(room.stream)


def stream_of(device: Device, key: Any, out: Any, counter: int, nonce: int, blocks: int) -> None:
    """Starts `chacha_kernels.key_stream`."""
    lanes = device.lanes
    key_stream[(-(-blocks // lanes),)](key, out, counter, nonce, blocks, LANES=lanes, **EXACT)


def batch(enc: Encoding) -> int:
    """How many elements are worked on at a time."""
    return max(1, BATCH // enc.values)


class GpuSealer(_Batches):
    """An `ElementSealer`."""

    def __init__(
        self,
        device: Device,
        enc: Encoding,
        place: Place,
        levels: int,
        noise: Noise,
        key: NDArray[np.uint32],
    ) -> None:
        own = {"noise_key": np.frombuffer(noise.material(), "<u4"), "key": key}
        super().__init__(device, enc, place, own)
        self._levels = levels

    def _sizes(self) -> dict[str, tuple[int, int]]:
        own, elements = self._enc, self._most
        words = elements * len(own.ring.words)
        return super()._sizes() | {
            "values": (elements * own.values, 32),
            "noise": (elements * 3 * own.ring.degree, 32),
            "most": (words, 32),
            "packed": (words * own.ring.degree * WORD_BITS // 64, 64),
        }

    def seal(self, block: int, first: int, count: int, values: NDArray[np.integer[Any]]) -> Payload:
        """As of `ElementSealer`."""
        enc, degree, device = self._enc, self._enc.ring.degree, self._device
        # What 32 bits hold is told on the device: what is below zero is above every level there.
        if values.dtype.itemsize > 4 or self._levels >= 1 << 31:
            check_values(values, self._levels)
        if (first + count) * 3 * degree > STREAM_WORDS:
            raise InternalError("a block has more elements than a stream has noise for")
        digits = device.staging(count * enc.values, 32)
        digits.numpy()[: values.size] = values.astype(np.uint32, copy=False)
        digits.numpy()[values.size :] = 0
        rows = count * len(enc.ring.words)
        size = rows * degree * WORD_BITS // 64
        payload, most = device.staging(size, 64), device.staging(rows, 32)
        made, own = tables(device, enc.ring), scaled(device, enc)
        with self._room() as room:
            room["values"][: digits.numel()].copy_(digits, non_blocking=True)
            start, blocks = (3 * degree * each // BLOCK_WORDS for each in (first, count))
            stream_of(device, room["noise_key"], room["noise"], start, 1 + block, blocks)
            demand = self._public(room, block, first, count)
            seal_words[(rows,)](
                room["values"],
                room["noise"],
                room["public"],
                room["key"],
                own["digits"],
                made["primes"],
                made["garner"],
                made["forth"],
                room["work"],
                room["words"],
                room["most"],
                N=degree,
                LOG=degree.bit_length() - 1,
                PARTS=enc.digits,
                WORDS=len(enc.ring.words),
                num_warps=WARPS[degree],
                **EXACT,
            )
            lanes = device.lanes
            packing = pack_words[(-(-size // lanes),)]
            packing(room["words"], room["packed"], size, LANES=lanes, **EXACT)
            payload.copy_(room["packed"][:size], non_blocking=True)
            most.copy_(room["most"][:rows], non_blocking=True)
        demand()
        if int(most.numpy().max()) > self._levels:
            check_values(values, self._levels)
            raise RuntimeError("it sees a value that is none of those which it was given")
        sealed: NDArray[np.uint64] = payload.numpy()
        return sealed.astype(_WORD, copy=False).data.cast("B")


class _GpuOpener(_Batches):
    """An `ElementOpener`."""

    def __init__(
        self, device: Device, enc: Encoding, place: Place, key: NDArray[np.uint32]
    ) -> None:
        super().__init__(device, enc, place, {"key": key})

    def _sizes(self) -> dict[str, tuple[int, int]]:
        programs = self._most * self._enc.ring.degree // self._device.even_lanes
        sums = {"squares": (programs, 64), "beyond": (programs, 64)}
        return super()._sizes() | sums | {"digits": (self._most * self._enc.values, 64)}

    def open(
        self, block: int, first: int, words: NDArray[np.uint64], out: NDArray[np.int64]
    ) -> tuple[float, bool]:
        """As of `ElementOpener`."""
        enc, device, count = self._enc, self._device, words.shape[0]
        ring, made = enc.ring, tables(device, enc.ring)
        with self._room() as room:
            total = device.staging(words.size, 64)
            total.numpy()[:] = words.reshape(-1)
            room["words"][: words.size].copy_(total, non_blocking=True)
            demand = self._public(room, block, first, count)
            remove_key[(count * len(ring.primes),)](
                room["words"],
                room["public"],
                room["key"],
                made["primes"],
                made["upper"],
                made["last"],
                made["back"],
                room["work"],
                N=ring.degree,
                LOG=ring.degree.bit_length() - 1,
                WORDS=len(ring.words),
                num_warps=WARPS[ring.degree],
                **EXACT,
            )
            programs = count * ring.degree // device.even_lanes
            decode = self._decode_narrow if len(ring.words) == 1 else self._decode_wide
            decode(room, programs)
            digits = device.staging(out.size, 64)
            digits.copy_(room["digits"][: out.size], non_blocking=True)
            sums = device.staging(2 * programs, 64)
            sums[:programs].copy_(room["squares"][:programs], non_blocking=True)
            sums[programs:].copy_(room["beyond"][:programs], non_blocking=True)
        demand()
        out.reshape(-1)[:] = digits.numpy().view(np.int64)
        squares, beyond = sums.numpy()[:programs].view(np.float64), sums.numpy()[programs:]
        return float(squares.sum()), not beyond.any()

    def _decode_narrow(self, room: _Room, programs: int) -> None:
        """Starts the kernel of that name."""
        enc, device = self._enc, self._device
        made = tables(device, enc.ring)
        decode_narrow[(programs,)](
            room["work"],
            made["primes"],
            made["garner"],
            scaled(device, enc)["numbers"],
            *self._results(room),
            N=enc.ring.degree,
            PARTS=enc.digits,
            LANES=device.even_lanes,
            **EXACT,
        )

    def _decode_wide(self, room: _Room, programs: int) -> None:
        """Starts the kernel of that name."""
        enc, device = self._enc, self._device
        made, own = tables(device, enc.ring), scaled(device, enc)
        decode_wide[(programs,)](
            room["work"],
            made["primes"],
            made["mixed"],
            own["places"],
            own["inverses"].view(device.torch.float64),
            own["numbers"],
            *self._results(room),
            N=enc.ring.degree,
            PARTS=enc.digits,
            WORDS=len(enc.ring.words),
            TOGETHER=scale(enc).together,
            LANES=device.even_lanes,
            **EXACT,
        )

    def _results(self, room: _Room) -> tuple[Any, Any, Any]:
        """Where digits, squares, and what is beyond the messages go."""
        torch = self._device.torch
        return room["digits"].view(torch.int64), room["squares"].view(torch.float64), room["beyond"]


class GpuBackend:
    """The `Backend` of a device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def batch(self, encoding: Encoding, slots: int) -> int:
        """As many elements as have BATCH values."""
        return batch(encoding)

    def sealer(
        self, encoding: Encoding, place: Place, levels: int, noise: Noise, key: NDArray[np.uint32]
    ) -> GpuSealer:
        """As of `Backend`."""
        return GpuSealer(self._device, encoding, place, levels, noise, key)

    def opener(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> _GpuOpener:
        """As of `Backend`."""
        return _GpuOpener(self._device, encoding, place, key)
