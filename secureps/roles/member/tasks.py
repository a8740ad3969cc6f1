"""The tasks of a client's worker, and the events that report their end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from secureps.messages.encoding import digest
from secureps.messages.member_records import Sealed
from secureps.messages.requests import Figure
from secureps.messages.run import GroupVersion, Task
from secureps.messages.submission import BlockHeader, Receipt
from secureps.roles.machine import TaskResult

DECLINES = "sends no evaluation; its own log says why"
"""The reason that the coordinator is told; the real one may be private."""

NO_EXAMPLES = "its script trained on 0 examples"
COMES_LATE = "it kept no training for this version, whose groups are sent in turn"


def block_key(digest: bytes) -> str:
    """Returns the key of a pulled block's values in the member's cache."""
    return f"block/{digest.hex()}"


def kept_key(group: str, update: bytes) -> str:
    """Returns the outbox key of the remainder that an update left out (`client.update`)."""
    return f"kept/{group}/{update.hex()}"


@dataclass(frozen=True, slots=True)
class Offer(Task):
    """Seals (in the clear) the founding model of a group."""

    group: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Aim:
    """One group that a training run contributes to.

    `step` counts the client's updates of the version (`Receipt.step`). `carried` names an earlier
    update whose remainder is added; empty for none.
    """

    group: str
    version: int
    sequence: int
    step: int = 0
    carried: bytes = b""


@dataclass(frozen=True, slots=True)
class Contribute(Task):
    """Trains from a model and seals every aim; without aims, only keeps the last version.

    `model` has the newest pulled versions of the client's groups, and `blocks` the digests of their
    blocks, group after group. `work` is the fraction of the local work to do.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]
    aims: tuple[Aim, ...]
    work: float = 1.0


@dataclass(frozen=True, slots=True)
class Reseal(Task):
    """Seals an update from the outbox anew, as the submission of this sequence."""

    receipt: Receipt
    headers: tuple[BlockHeader, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Evaluate(Task):
    """Evaluates a model on held-out records.

    `model` and `blocks` are as in `Contribute`, and `digests` are those of the model's groups. With
    an `aim`, the metrics are sealed for the trailing group, whose digest is `own`. A designated
    evaluator has no aim, and signs the metrics.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]
    digests: tuple[bytes, ...]
    aim: Aim | None = None
    own: bytes = b""

    @property
    def aims(self) -> tuple[Aim, ...]:
        return () if self.aim is None else (self.aim,)


Pulled = Contribute | Evaluate
"""Tasks that begin with a pulled model."""


@dataclass(frozen=True, slots=True)
class Contributed(TaskResult):
    """The result of `Contribute`, `Offer`, `Reseal`, or `Evaluate` with an aim.

    Args:
        figures: seconds and bytes that it took.
        unsent: aims for which no update is sent, with the reason for the coordinator.
        told: words on the training, for the data holder only.
        standing: words on the data holder's budget over all runs.
        again: aims to be done again, because the site allows the next training only in `rest`
            seconds.
        evaluated: the evaluated version; 0 for a training.
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
