"""Members that cheat in a simulation under a committee, and what its journals say of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from secureps.client.hands import MemberHands
from secureps.messages.submission import Receipt
from secureps.run.simulation import Simulation


def journalled(simulation: Simulation, kind: type[Any], party: str = "coordinator") -> list[Any]:
    journal = simulation._stores[party].journal
    return [record for _, record in journal.replay() if isinstance(record, kind)]


def cheats(
    simulation: Simulation, client: str, change: Callable[[Receipt], dict[str, Any]], times: int = 1
) -> None:
    """What this member says of its key is changed before it signs, so many times."""
    hands = simulation.parties[client].hands
    assert isinstance(hands, MemberHands)
    right, left = hands._sealer._shared, [times]

    def shared(*given: Any) -> Receipt:
        receipt = right(*given)
        left[0] -= 1
        return receipt if left[0] < 0 else dataclasses.replace(receipt, **change(receipt))

    hands._sealer._shared = shared  # type: ignore[method-assign, assignment]


def spoil_one(receipt: Receipt) -> dict[str, Any]:
    """Holder 2 alone gets an envelope that does not open."""
    envelopes = list(receipt.envelopes)
    envelopes[2] = envelopes[2][:-1] + bytes([envelopes[2][-1] ^ 1])
    return {"envelopes": tuple(envelopes)}


def spoils(simulation: Simulation, client: str, times: int) -> None:
    """It shares another key than it seals with, so many times."""
    hands = simulation.parties[client].hands
    assert isinstance(hands, MemberHands)
    sealer = hands._sealer
    right, left = sealer._shared, [times]

    def shared(pinned: Any, receipt: Receipt, key: Any) -> Receipt:
        left[0] -= 1
        if left[0] >= 0:
            key = type(key)(key.coefficients()[::-1].copy())
        return right(pinned, receipt, key)

    sealer._shared = shared  # type: ignore[method-assign]
