"""What requests that are sent by hand are bound to: a challenge of the server, a cohort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from secureps.errors import NotFresh
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import opening_digest
from secureps.roles.coordinator.state import CoordinatorState
from secureps.wire.grpc import framing
from secureps.wire.grpc.authentication import Signer
from secureps.wire.grpc.links import PLAINTEXT, Link

WAIT = 20.0


def about(federation: CoordinatorState, group: str) -> bytes:
    """What a holder's answers for the cohort of a group that is asked for are bound to."""
    known, pinned = federation.groups[group], federation.pinned
    if known.cohort is None or pinned is None:
        return b""
    receipts = (known.receipts[member.id] for member in known.cohort.members)
    return opening_digest(pinned.run.id, known.cohort, receipts)


def signer(
    address: str, to: str, party: str, sign: Callable[[bytes], bytes], link: Link = PLAINTEXT
) -> Signer:
    """A party's, for the server `to` at HOST:PORT, which has given it a challenge."""
    made = Signer(party, to, sign)
    made.challenged(challenge(address, to, party, link))
    return made


def challenge(address: str, to: str, party: str = "anybody", link: Link = PLAINTEXT) -> NotFresh:
    """What a server refuses a request with that has none; anybody gets one who may connect."""
    method = framing.COORDINATOR_TELL if to == COORDINATOR else framing.SHARD_TELL
    with link.channel(to, address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.unary_unary(method)
        unsigned = Signer(party, to, lambda signed: b"").metadata(method, b"", b"")
        try:
            call(b"", metadata=unsigned, timeout=WAIT)
        except grpc.RpcError as error:
            refused = framing.error_of(error, to)
            assert isinstance(refused, NotFresh), refused
            return refused
    raise AssertionError("a request without a challenge was taken")
