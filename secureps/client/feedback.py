"""Error feedback: what an update did not carry, kept by its client, and added to the next one.

    delta + kept -> clip -> encode and round -> kept' = clipped - what the integers decode to

What is kept comes before any noise, so that no noise is taken back later; what the clip cuts off is
gone. It lies in the outbox beside the sealed blocks, under the update's name, before the record
that has the name is written: which of them counts follows from the journal
(`roles.member.outbox`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.model.difference import Part
from secureps.roles.member.tasks import Aim, kept_key
from secureps.service.logs import tell
from secureps.store.spool import Spool


def keep(
    outbox: Spool, group: str, update: bytes, rest: NDArray[np.float32], scale: float | None = None
) -> None:
    """Keeps what an update did not carry, durably, as the name of the update.

    Args:
        rest: float32 (values of the group,), which may change.
        scale: in units of which it is, where the group has one; its place is the last value.
    """
    if scale is not None:  # that of the next update will be another
        rest *= np.float32(scale)
        rest[-1] = 0
    values = rest.astype("<f4", copy=False).data.cast("B")
    outbox.put(kept_key(group, update), payload_digest(values), values)


def load_kept(party: str, outbox: Spool, aim: Aim, size: int) -> NDArray[np.float32] | None:
    """What a group's last included update did not carry, float32 (size,); None if nothing is kept.

    Where its file is gone or damaged there is nothing either, and the client is told: that much of
    its training is lost, and nothing else.

    Args:
        size: values of the group.
    """
    if not aim.carried:
        return None
    try:
        data = memoryview(outbox.get(kept_key(aim.group, aim.carried)))
    except (KeyError, OSError):
        data = memoryview(b"")
    whole = len(data) == DIGEST_BYTES + 4 * size
    if whole and payload_digest(data[DIGEST_BYTES:]) == data[:DIGEST_BYTES]:
        return np.frombuffer(data, "<f4", offset=DIGEST_BYTES)
    text = f"what earlier updates of {aim.group} did not carry is gone from the state folder"
    tell(party, "FeedbackLost", f"{text}: this one goes on without it")
    return None


def add_kept(delta: Part, kept: NDArray[np.float32] | None) -> Part:
    """A group's difference and what was kept, together."""
    if kept is None:
        return delta
    return lambda first, last: delta(first, last) + kept[first:last]
