"""The three sides of every cipher: clients seal, shards add, and an opener opens the sum.

A block is `slots` integers, each in [0, levels]. A cohort adds blocks with weights 1, 2 or 4 that
sum to at most `capacity`. A total is the canonical bytes of a cohort's sum.
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
"""A sealed block as received."""

WEIGHTS = (1, 2, 4)
"""Weights of a cohort's members, in quarters of a fresh update's (FedBuff)."""


class Opening(enum.Enum):
    """The key material that opens a cohort's sum."""

    NOTHING = "nothing"
    """The sum is in the clear."""
    HOLDER = "holder"
    """One key holder decrypts the sum."""
    COMMITTEE = "committee"
    """Key holders together compute the sum of the members' one-time keys."""


@dataclass(frozen=True, slots=True)
class CipherParameters:
    """The parameters that all parties of a run agree on before the first key.

    Args:
        name: of the cipher (`secureps.crypto.suite`).
        capacity: W, the greatest total weight of a cohort.
        levels: 2Z, the greatest value in a slot of one block.
        most_weight: w_max, the greatest weight of one member.
        slots: integers of a large block, for which the parameters minimize bytes.
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
        """B = W 2Z + 1: digits in this base never carry in the sum of a cohort."""
        return self.capacity * self.levels + 1


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a group's blocks, to which some ciphers bind a sealed block.

    Args:
        run: the run's id, 32 bytes.
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
        sums: in the cipher's own layout, not yet reduced.
        weight: total weight added.
        units: how many multiples of the modulus an entry of `sums` may contain.
    """

    slots: int
    sums: npt.NDArray[np.uint64]
    weight: int = 0
    units: int = 0


class OneTimeKey(Secret):
    """The key of a single submission, N small integers; only its sealer makes one."""

    __slots__ = ("_small",)

    def __init__(self, small: npt.NDArray[np.int32]) -> None:
        self._small = small

    def coefficients(self) -> npt.NDArray[np.int32]:
        """Returns s, int32 (N,), |s| <= 41, for `crypto.sharing` and the submission's opener."""
        return self._small


class Adder(abc.ABC):
    """The shard's side, which needs no key."""

    called: ClassVar[str]
    """The cipher's name with its article, for errors."""
    most_units: ClassVar[int] = 1 << 62
    """Multiples of the modulus that an entry of a sum may reach before it is reduced."""

    def __init__(self, parameters: CipherParameters) -> None:
        self._parameters = parameters

    @abc.abstractmethod
    def block_bytes(self, slots: int) -> int:
        """Returns the exact length in bytes of a sealed block of `slots` values."""

    @abc.abstractmethod
    def total_bytes(self, slots: int) -> int:
        """Returns the exact length in bytes of a total of `slots` values."""

    def check(self, slots: int, payload: Payload) -> None:
        """Checks that a sealed block can be added.

        Raises:
            Malformed: too short, or an entry out of range.
            Oversized: too long.
        """
        check_length(f"{self.called} block", payload, self.block_bytes(slots))
        self._check_block(payload)

    def check_total(self, slots: int, total: Payload) -> None:
        """Checks that a total can be opened; raises as `check` does."""
        check_length(f"{self.called} total", total, self.total_bytes(slots))
        self._check_total(total)

    def zero(self, slots: int, room: memoryview | None = None) -> Accumulator:
        """Returns an empty sum, in `room` if given: `total_bytes(slots)` bytes of any content."""
        if room is None:
            return Accumulator(slots, np.zeros(self.total_bytes(slots) // 8, np.uint64))
        sums = np.frombuffer(room, np.uint64)
        sums.fill(0)
        return Accumulator(slots, sums)

    def add(self, accumulator: Accumulator, payload: Payload, weight: int) -> None:
        """Adds weight times a block that has passed `check`, in place.

        Raises:
            Malformed: the weight is not 1, 2 or 4 or would exceed the capacity (nothing is added
                then), or the payload is too short.
            Oversized: the payload is too long.
        """
        if weight not in WEIGHTS:
            raise Malformed(f"weight {weight} is not one of {WEIGHTS}")
        after, capacity = accumulator.weight + weight, self._parameters.capacity
        # Above the capacity digits carry, and noise exceeds the bound of decryption.
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
        """Returns the canonical little-endian bytes of the sum, the same for every order of adding.

        They are a view of the accumulator, and change when more is added.
        """
        self._reduce(accumulator.sums)
        accumulator.units = min(accumulator.units, 1)
        return accumulator.sums.astype(_SUM, copy=False).view(np.uint8).data.toreadonly()

    @abc.abstractmethod
    def _check_block(self, payload: Payload) -> None:
        """Raises Malformed if an entry of a block is out of range."""

    @abc.abstractmethod
    def _check_total(self, total: Payload) -> None:
        """Raises Malformed if an entry of a total is out of range."""

    @abc.abstractmethod
    def _add(self, payload: Payload, weight: int, sums: npt.NDArray[np.uint64]) -> None:
        """Adds weight times a block to sums that have room for it."""

    @abc.abstractmethod
    def _reduce(self, sums: npt.NDArray[np.uint64]) -> None:
        """Reduces every entry by its modulus, in place."""


Piece = Callable[[], Payload]
"""Makes a piece of a payload, once, from any thread."""


class Sealer(abc.ABC):
    """The client's side, for one submission; it needs at most a public key."""

    key: OneTimeKey | None = None
    """The key to share among a committee; None under other ciphers."""

    @abc.abstractmethod
    def pieces(self, block: int, values: npt.NDArray[np.integer[Any]]) -> Iterator[Piece]:
        """Seals a block of the place, a few elements at a time; yields its payload in order.

        Args:
            block: its number in the group.
            values: (slots,), each in [0, levels].

        Raises:
            Malformed: a value is out of range (when its piece is made).
            InternalError: the block was sealed before, under a key that seals once.
        """

    def seal(self, block: int, values: npt.NDArray[np.integer[Any]]) -> bytes:
        """Seals a whole block of integers (slots,); Malformed for another dtype or shape."""
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise Malformed(f"values are {values.dtype}{list(values.shape)}: not integers (slots,)")
        return b"".join(piece() for piece in self.pieces(block, values))


class Opener(abc.ABC):
    """The side that may see sums; where a key opens one cohort, that cohort's sums."""

    def __init__(self, adder: Adder) -> None:
        self._adder = adder

    def open(
        self, block: int, total: Payload, slots: int, room: memoryview | None = None
    ) -> npt.NDArray[np.int64]:
        """Opens a block's total: integer sums, int64 (slots,), in [0, capacity * levels].

        They lie in `room` if given: 8 bytes for each slot. Raises Malformed or Oversized for what
        is no total, or was made under another key.
        """
        self._adder.check_total(slots, total)
        sums = np.empty(slots, np.int64) if room is None else np.frombuffer(room, np.int64)
        self._open(block, total, sums)
        return sums

    @abc.abstractmethod
    def _open(self, block: int, total: Payload, sums: npt.NDArray[np.int64]) -> None:
        """Fills the sums of a block."""


class Cipher(abc.ABC):
    """One cipher under fixed parameters; building it needs no key."""

    opening: ClassVar[Opening]
    element: int
    """Number of integers sealed as one element; a block of a multiple wastes no byte."""

    def __init__(self, parameters: CipherParameters) -> None:
        self.parameters = parameters

    def block_bytes(self, slots: int) -> int:
        """Returns the exact length in bytes of a sealed block; loads no kernels."""
        return self.adder().block_bytes(slots)

    def total_bytes(self, slots: int) -> int:
        """Returns the exact length in bytes of a total; loads no kernels."""
        return self.adder().total_bytes(slots)

    @abc.abstractmethod
    def adder(self) -> Adder:
        """The shard's side."""

    def sealer(self, place: Place, public_key: bytes | None) -> Sealer:
        """Returns the client's side of one submission; KitError without the key that it needs."""
        return self.noise_sealer(public_key)

    @abc.abstractmethod
    def noise_sealer(self, public_key: bytes | None) -> Sealer:
        """Returns the sealer of a shard's own noise, which the sum's openers may see."""

    @abc.abstractmethod
    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> Opener:
        """Returns the opening side.

        Args:
            key: the holder's secret key; where a committee opens, the sum of the members' one-time
                keys, int32 little-endian, or the `OneTimeKey` of one submission.
            weights: of the members of the sum.

        Raises:
            KitError: a key of the wrong kind.
            Malformed: a sum of keys that no cohort can have.
        """


def check_length(what: str, data: Payload, expected: int) -> None:
    """Raises Malformed if `data` is shorter than `expected` bytes, Oversized if longer."""
    length = memoryview(data).nbytes
    if length < expected:
        raise Malformed(f"{what} has {length} bytes; it must have exactly {expected}")
    if length > expected:
        raise Oversized(f"{what} has {length} bytes; it must have exactly {expected}")


def check_values(values: npt.NDArray[np.integer[Any]], levels: int) -> None:
    """Raises Malformed unless every value is within [0, levels]."""
    # A larger value would carry into its neighbours' digits of the sum, and spoil them.
    if values.size and (int(values.min()) < 0 or int(values.max()) > levels):
        raise Malformed(f"a value lies outside [0, {levels}]")


def strip_tag(what: str, data: bytes, tag: bytes, size: int) -> bytes:
    """Returns the `size` bytes after a key's tag; Oversized or Malformed without such a key."""
    size += len(tag)
    if len(data) > size:
        raise Oversized(f"{what} has {len(data)} bytes; it must have exactly {size}")
    if len(data) < size or not data.startswith(tag):
        raise Malformed(f"this is not {what} of {size} bytes")
    return data[len(tag) :]
