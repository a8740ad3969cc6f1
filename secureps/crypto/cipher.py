"""The three sides of every cipher: clients seal, shards add, whoever may opens the sum.

A block is `slots` integers, each in [0, levels]; a cohort adds blocks with weights 1, 2
or 4 that sum to at most `capacity`. A total is the canonical bytes of a cohort's sum.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from secureps.crypto.secret import Secret
from secureps.errors import Malformed, Oversized, PlanRefused

_SUM = np.dtype("<u8")

Payload = bytes | memoryview
"""One sealed block as it came off the wire."""

WEIGHTS = (1, 2, 4)
"""Weights that a member of a cohort may have: quarters of a fresh update's (FedBuff)."""


class Opening(enum.Enum):
    """What turns a cohort's sum into numbers."""

    NOTHING = "nothing"
    """The sum lies in the clear."""
    HOLDER = "holder"
    """One key holder decrypts the sum."""
    COMMITTEE = "committee"
    """Key holders together give the sum of the members' one-time keys."""


@dataclass(frozen=True, slots=True)
class CipherParameters:
    """What all parties of a run agree on before the first key.

    Args:
        name: which cipher, see `secureps.crypto.suite`.
        capacity: W, the greatest total weight of a cohort.
        levels: 2Z, the greatest value in a slot of one block.
        most_weight: w_max, the greatest weight of one member.
        slots: integers of a large block, for which the fewest bytes are sought.
        security: "standard", or "conservative" (`crypto.ring`).

    Raises:
        PlanRefused: capacity, levels or slots below 1, or sums that do not fit 62 bits.
    """

    name: str
    capacity: int
    levels: int
    most_weight: int = 1
    slots: int = 1 << 18
    security: str = "standard"

    def __post_init__(self) -> None:
        if min(self.capacity, self.levels, self.slots) < 1:
            raise PlanRefused(
                f"capacity {self.capacity}, levels {self.levels} and slots {self.slots} must all "
                "be at least 1"
            )
        if (self.capacity * self.levels).bit_length() > 62:
            raise PlanRefused(
                f"capacity {self.capacity} times levels {self.levels} exceeds 62 bits: "
                "take a smaller cohort or a coarser grid"
            )

    @property
    def base(self) -> int:
        """B = W 2Z + 1: as digits in this base the sums of a cohort never carry."""
        return self.capacity * self.levels + 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where blocks belong: what a sealed one is bound to, under ciphers that bind it.

    Args:
        run: the run's id, 32 bytes.
        group: its name.
        layout: digest of the run's layout, 32 bytes.
        slots: integers of a full block of the group.
    """

    run: bytes
    group: str
    layout: bytes
    slots: int


@dataclass(slots=True, eq=False)
class Accumulator:
    """A running sum of one block on a shard; only the `Adder` that made it changes it.

    Args:
        slots: values in the block.
        sums: the sum so far, in the cipher's own layout, not yet reduced.
        weight: total weight added.
        units: how many multiples of the modulus an entry of `sums` may hold.
    """

    slots: int
    sums: npt.NDArray[np.uint64]
    weight: int = 0
    units: int = 0


class OneTimeKey(Secret):
    """What one submission alone is sealed under, N small integers; only its sealer makes one."""

    __slots__ = ("_small",)

    def __init__(self, small: npt.NDArray[np.int32]) -> None:
        self._small = small

    def coefficients(self) -> npt.NDArray[np.int32]:
        """s, int32 (N,), |s| <= 41: for `crypto.sharing` and the submission's own opener alone."""
        return self._small


class Adder(abc.ABC):
    """The shard's side: it needs no key."""

    called: ClassVar[str]
    """The cipher's name with its article, as errors have it."""
    most_units: ClassVar[int] = 1 << 62
    """Multiples of the modulus that an entry of a sum may hold until it is reduced."""

    def __init__(self, parameters: CipherParameters) -> None:
        self._parameters = parameters

    @abc.abstractmethod
    def block_bytes(self, slots: int) -> int:
        """Exact length in bytes of a sealed block of `slots` values."""

    @abc.abstractmethod
    def total_bytes(self, slots: int) -> int:
        """Exact length in bytes of a total of `slots` values."""

    def check(self, slots: int, payload: Payload) -> None:
        """Accepts a sealed block that can be added.

        Raises:
            Malformed: too short, or an entry out of range.
            Oversized: too long.
        """
        check_length(f"{self.called} block", payload, self.block_bytes(slots))
        self._check_block(payload)

    def check_total(self, slots: int, total: Payload) -> None:
        """Accepts a total that can be opened; raises as `check` does."""
        check_length(f"{self.called} total", total, self.total_bytes(slots))
        self._check_total(total)

    def zero(self, slots: int, room: memoryview | None = None) -> Accumulator:
        """The empty sum; in `room`, `total_bytes(slots)` bytes that may hold anything, if given."""
        if room is None:
            return Accumulator(slots, np.zeros(self.total_bytes(slots) // 8, np.uint64))
        sums = np.frombuffer(room, np.uint64)
        sums.fill(0)
        return Accumulator(slots, sums)

    def add(self, accumulator: Accumulator, payload: Payload, weight: int) -> None:
        """Adds weight times a block that has passed `check`, in place.

        Raises:
            Malformed: a weight that is not 1, 2 or 4 or that exceeds the capacity (nothing
                is added then), or a payload of the wrong length.
            Oversized: a payload that is too long.
        """
        if weight not in WEIGHTS:
            raise Malformed(f"weight {weight} is not one of {WEIGHTS}")
        after, capacity = accumulator.weight + weight, self._parameters.capacity
        # Beyond the capacity digits carry, and noise passes the bound of decryption.
        if after > capacity:
            raise Malformed(
                f"the cohort's weight would be {after}, above the plan's capacity of {capacity}"
            )
        check_length(f"{self.called} block", payload, self.block_bytes(accumulator.slots))
        if accumulator.units + weight > self.most_units:
            self._reduce(accumulator.sums)
            accumulator.units = 1
        self._add(payload, weight, accumulator.sums)
        accumulator.units += weight
        accumulator.weight = after

    def total(self, accumulator: Accumulator) -> memoryview:
        """Canonical little-endian bytes of the sum: the same for every order of adding.

        They are the accumulator's own, and change when more is added.
        """
        self._reduce(accumulator.sums)
        accumulator.units = min(accumulator.units, 1)
        return accumulator.sums.astype(_SUM, copy=False).view(np.uint8).data.toreadonly()

    @abc.abstractmethod
    def _check_block(self, payload: Payload) -> None:
        """Malformed if an entry of a block is out of range."""

    @abc.abstractmethod
    def _check_total(self, total: Payload) -> None:
        """Malformed if an entry of a total is out of range."""

    @abc.abstractmethod
    def _add(self, payload: Payload, weight: int, sums: npt.NDArray[np.uint64]) -> None:
        """Adds weight times a block to sums, which have room for it."""

    @abc.abstractmethod
    def _reduce(self, sums: npt.NDArray[np.uint64]) -> None:
        """Reduces every entry by its modulus, in place."""


Integers = Callable[[int, int], npt.NDArray[np.integer[Any]]]
"""integers(first, last): those of a block's slots in [first, last), from any thread; any dtype."""

Piece = Callable[[], Payload]
"""Makes a piece of a payload, once, from any thread."""


class Sealer(abc.ABC):
    """The client's side, for one submission: it needs the public key at most."""

    key: OneTimeKey | None = None
    """What a committee is to share; None under a cipher that no committee opens."""

    @abc.abstractmethod
    def pieces(self, block: int, slots: int, integers: Integers) -> Iterator[Piece]:
        """Seals a block of the place, a few elements at a time: its payload, in order.

        Args:
            block: its number in the group.
            integers: each in [0, levels]; asked for once, in pieces that are its whole.

        Raises:
            Malformed: a piece is asked for, and a value is out of range.
            InternalError: the block was sealed before, under a key that seals once.
        """

    def seal(self, block: int, values: npt.NDArray[np.integer[Any]]) -> bytes:
        """Seals a block, whole; raises as `pieces`, and Malformed for another dtype or shape.

        Args:
            values: integers (slots,).
        """
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise Malformed(f"values are {values.dtype}{list(values.shape)}: not integers (slots,)")
        made = self.pieces(block, values.size, lambda first, last: values[first:last])
        return b"".join(piece() for piece in made)


class Opener(abc.ABC):
    """The side that may see sums, those of one cohort where a key opens no more."""

    @abc.abstractmethod
    def pieces(self, block: int, total: Payload, slots: int) -> Iterator[npt.NDArray[np.int64]]:
        """The integer sums of a block's total, piece by piece, each in [0, capacity * levels].

        Nothing is known of them before all were taken: an error may come after the last.

        Yields:
            int64 (n,), any n >= 1, `slots` together; the next piece may lie in the same memory.
        Raises:
            Malformed, Oversized: not a total, or made under another key.
        """

    def open(self, block: int, total: Payload, slots: int) -> npt.NDArray[np.int64]:
        """The integer sums of a block's total, int64 (slots,); raises as `pieces`."""
        sums, at = np.empty(slots, np.int64), 0
        for piece in self.pieces(block, total, slots):
            sums[at : at + piece.size] = piece
            at += piece.size
        return sums


class Cipher(abc.ABC):
    """One cipher under fixed parameters; building it touches no key."""

    opening: ClassVar[Opening]

    def __init__(self, parameters: CipherParameters) -> None:
        self.parameters = parameters

    def block_bytes(self, slots: int) -> int:
        """Exact length in bytes of a sealed block of `slots` values; loads no kernels."""
        return self.adder().block_bytes(slots)

    def total_bytes(self, slots: int) -> int:
        """Exact length in bytes of a total of `slots` values; loads no kernels."""
        return self.adder().total_bytes(slots)

    @property
    @abc.abstractmethod
    def element(self) -> int:
        """Integers that are sealed as one: a block of a multiple of them wastes no byte."""

    @abc.abstractmethod
    def adder(self) -> Adder:
        """The shard's side."""

    def sealer(self, place: Place, public_key: bytes | None) -> Sealer:
        """The client's side of one submission; KitError without the key that it needs."""
        return self.noise_sealer(public_key)

    @abc.abstractmethod
    def noise_sealer(self, public_key: bytes | None) -> Sealer:
        """For what a shard itself adds to a sum, and hides from nobody who may open that."""

    @abc.abstractmethod
    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> Opener:
        """The opening side.

        Args:
            key: the holder's secret key; where a committee opens, the sum of the members' one-time
                keys, int32 little-endian, or the `OneTimeKey` of one submission.
            weights: of the members of the sum.

        Raises:
            KitError: another key than it needs.
            Malformed: a sum of keys that is none of any cohort.
        """


def check_length(what: str, data: Payload, expected: int) -> None:
    """Malformed if `data` is shorter than `expected` bytes, Oversized if longer."""
    length = memoryview(data).nbytes
    if length < expected:
        raise Malformed(f"{what} has {length} bytes; it must have exactly {expected}")
    if length > expected:
        raise Oversized(f"{what} has {length} bytes; it must have exactly {expected}")


def check_values(values: npt.NDArray[np.integer[Any]], levels: int) -> None:
    """Malformed unless every value is within [0, levels]."""
    # A larger value would carry into its neighbours' digits of the sum.
    if values.size and (int(values.min()) < 0 or int(values.max()) > levels):
        raise Malformed(f"a value lies outside [0, {levels}]")


def strip_tag(what: str, data: bytes, tag: bytes, size: int) -> bytes:
    """The `size` bytes that follow a key's tag; Oversized or Malformed if it is not such a key."""
    size += len(tag)
    if len(data) > size:
        raise Oversized(f"{what} has {len(data)} bytes; it must have exactly {size}")
    if len(data) < size or not data.startswith(tag):
        raise Malformed(f"this is not {what} of {size} bytes")
    return data[len(tag) :]
