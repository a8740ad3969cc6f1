"""What a party and its server know of one another's answers before they are given.

A wave costs seconds: a process, and two polls. So nobody waits for what follows anyway. A party
takes a block for stored that travels before its receipt, in order; the server gives the receipt to
the coordinator only once that is true (`wire.waves.relay`), and what was not is sent again after
the next subscription, as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable

from secureps.messages.orders import Configure, Invite, Open, SealAgain, SendAgain
from secureps.messages.requests import (
    AskBlock,
    AskRun,
    AskStatus,
    GetBlock,
    Heartbeat,
    Join,
    Noted,
    PutBlock,
    Reply,
    Stored,
    Telemetry,
)

REPEATED = (Join, AskRun, AskStatus, GetBlock)
"""Requests that change nothing, and that a party's next process asks again: an answer that comes
with the next wave still is one. Of all others it is told errors alone."""

WORK = (Invite, SealAgain, SendAgain)
"""Orders by which a client has something to do; all others can wait until it has."""

OPENS = (Open,)
"""Those of a key holder: what it is to look into goes along with what it is to open."""


def foreseen(message: object) -> Reply | None:
    """The answer that a party takes for granted; None where it has to be waited for."""
    match message:
        case PutBlock(header):
            return Stored(header.digest)
        case AskBlock(header):
            return Stored(header.digest, 0)
        case Heartbeat() | Telemetry():
            return Noted()
    return None


def due(orders: Iterable[object]) -> bool:
    """Whether a client has something to do by these orders."""
    return any(isinstance(order, WORK) for order in orders)


def holder_due(orders: Iterable[object], begins: bool) -> bool:
    """Whether a key holder has something to do by these orders.

    Args:
        begins: it has yet to hear which run this is, and to announce its keys.
    """
    wanted = (*OPENS, Configure) if begins else OPENS
    return any(isinstance(order, wanted) for order in orders)
