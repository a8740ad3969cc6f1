"""A published block as a client pulled it: its values, or what changed of one that is here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetBlock
from secureps.policy.block_deltas import block_delta
from secureps.roles.member.tasks import block_key
from secureps.roles.pinned_run import Pinned


def published_block(
    pinned: Pinned,
    request: GetBlock,
    payload: bytes | memoryview,
    digest: bytes,
    here: Mapping[str, NDArray[np.float32]],
) -> tuple[NDArray[np.float32], bytes]:
    """The values of a block, float32 (values of the block,), and the digest of them as published.

    Args:
        digest: the payload's.
        here: the blocks that were pulled before, by `roles.member.tasks.block_key`.

    Raises:
        Malformed: the payload is neither a float32 block nor differences from one that is here.
    """
    layout = pinned.layout.group(request.group)
    first, last = layout.span(request.block)
    if len(payload) != 4 * (last - first):
        delta = block_delta(pinned.plan, layout, request.block)
        base = here.get(block_key(request.base))
        if delta is None or base is None:
            raise Malformed(f"block {request.block} of {request.group} has a wrong length")
        made = delta.follow(base, payload, request.version).astype("<f4", copy=False)
        payload = made.data.cast("B")
        digest = payload_digest(payload)
    return np.frombuffer(payload, dtype="<f4").astype(np.float32, copy=False), digest
