"""The work that a client's machine hands out, and the events that report its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from secureps.messages.encoding import digest
from secureps.messages.member_records import Sealed
from secureps.messages.orders import GroupVersion, Task
from secureps.messages.requests import Figure
from secureps.messages.submission import BlockHeader, Receipt
from secureps.roles.machine import TaskResult

DECLINES = "sends no evaluation; its own log says why"
"""All that the coordinator hears of a refusal: why is the client's own matter."""

NO_EXAMPLES = "its script trained on 0 examples"


def block_key(digest: bytes) -> str:
    """Where a pulled block's values lie in the member's cache."""
    return f"block/{digest.hex()}"


def kept_key(group: str, update: bytes) -> str:
    """Where in the outbox lies what an update of this name did not carry (`client.update`)."""
    return f"kept/{group}/{update.hex()}"


@dataclass(frozen=True, slots=True)
class Offer(Task):
    """Seals (in the clear) the founding model of a group."""

    group: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Aim:
    """One group that a training run contributes to.

    `step` is which of the client's updates of the version this is (`Receipt.step`). What the update
    called `carried` left over is added, if there is one.
    """

    group: str
    version: int
    sequence: int
    step: int = 0
    carried: bytes = b""


@dataclass(frozen=True, slots=True)
class Contribute(Task):
    """Trains from a model and seals every aim; without aims a session gets the last totals alone.

    `model` are the newest pulled versions of the groups that it contributes to, `blocks` the
    digests of their blocks, group after group; `work` the part of the local work that is done.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]
    aims: tuple[Aim, ...]
    work: float = 1.0


@dataclass(frozen=True, slots=True)
class Reseal(Task):
    """Seals an update that lies in the outbox anew, as the submission of this sequence."""

    receipt: Receipt
    headers: tuple[BlockHeader, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Evaluate(Task):
    """Judges a model on held-out records.

    `model` and `blocks` as in `Contribute`. With an `aim` the metrics are sealed for the metrics'
    group, whose digest is `own`; a designated evaluator has none, and signs them. `digests` are
    those of the model's groups.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]
    digests: tuple[bytes, ...]
    aim: Aim | None = None
    own: bytes = b""


Pulled = Contribute | Evaluate
"""Tasks that begin with a pulled model."""


@dataclass(frozen=True, slots=True)
class SealOn(Task):
    """Seals the next block of the contribution that is being made.

    It may leave before its whole update is sealed; the contribution is done after the last one.
    """


@dataclass(frozen=True, slots=True)
class Contributed(TaskResult):
    """What came of `Contribute`, `Offer`, `Reseal`, or `Evaluate` with an aim.

    Args:
        figures: what it took.
        unsent: aims for which nothing leaves, with what the coordinator is told of it.
        told: to the data holder alone, of the training; standing: of its budget over all runs.
        again: aims to be sealed anew: the disk failed when blocks of theirs had left, or no
            training began, because the site allows the next one in `rest` seconds.
        evaluated: the version whose evaluation it is, 0 for a training.
    """

    updates: tuple[Sealed, ...]
    figures: tuple[Figure, ...]
    unsent: Mapping[Aim, str] = field(default_factory=dict)
    told: str = ""
    standing: str = ""
    again: tuple[Aim, ...] = ()
    evaluated: int = 0
    rest: float = 0.0


Block = TypeVar("Block")


def in_own_order(client: str, blocks: Iterable[Block]) -> list[Block]:
    """Rotates the blocks to begin at one that follows from the client's name."""
    every = list(blocks)
    if len(every) < 2:
        return every
    first = int.from_bytes(digest("secureps-block-order", client.encode())[:8], "little")
    first %= len(every)
    return every[first:] + every[:first]
