"""Who may say what to whom: one table, by the server that hears it and the role that says it.

It is asked before anything is looked up for a message: what a role has no business to say costs
nothing and can break nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from secureps.crypto.identity import Role
from secureps.crypto.roster import Roster
from secureps.errors import Malformed, UnknownParty
from secureps.messages.acts import Act
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated
from secureps.messages.following import Follow, Rows, TakeOver
from secureps.messages.orders import AnyOrder, Finish, ShardOrder
from secureps.messages.requests import (
    AskBlock,
    AskRun,
    AskStatus,
    Checkpointed,
    Decline,
    Examined,
    GetBlock,
    GetSum,
    Heartbeat,
    Join,
    KeyShare,
    Missing,
    Noted,
    Opened,
    OpenRefused,
    Payload,
    Prepared,
    Proposal,
    PutBlock,
    Refusal,
    Register,
    Reply,
    Request,
    Retire,
    Spoilt,
    Status,
    Stored,
    Submit,
    Subscribe,
    Telemetry,
    Trouble,
    Welcome,
    Withdraw,
)
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Held

Allowed = Mapping[Role, frozenset[type]]

_ASKS = frozenset({AskRun, AskStatus})
"""Anybody on the roster may look: at the run, and at published models."""
_READS = frozenset({GetBlock})

TO_COORDINATOR: Allowed = {
    "client": _ASKS
    | {Join, Subscribe, Heartbeat, Submit, Decline, Withdraw, Missing, Evaluated, Retire}
    | {Telemetry, Trouble},
    "shard": _ASKS
    | {Register, Subscribe, Heartbeat, Trouble, Held, Missing, Spoilt, Prepared, Checkpointed}
    | {Telemetry},
    "holder": _ASKS
    | {Register, Subscribe, Heartbeat, Trouble, Opened, Examined, KeyShare, OpenRefused}
    | {Telemetry, EnvelopeKeyAnnounced},
    "observer": _ASKS,
    "coordinator": _ASKS | {Act, Register, Follow, TakeOver},
}
"""An act is the coordinator's own: an observer's key is for looking, and whoever has the
coordinator's decides on rounds and cohorts anyway."""
TO_SHARD: Allowed = {
    "client": _READS | {AskBlock, PutBlock},
    "shard": _READS | {AskBlock, PutBlock, Missing, GetSum},
    "holder": _READS | {AskBlock, PutBlock, GetSum},
    "observer": _READS,
    "coordinator": _READS.union(get_args(ShardOrder | Finish)),
}
"""The coordinator's orders come over the stream that the shard has opened."""

MESSAGES: frozenset[type] = frozenset(get_args(Request | AnyOrder))
"""Everything that a party may say to another, but for answers."""

_ANSWERS: Mapping[type, tuple[type, ...]] = {
    Join: (Welcome, Proposal),
    AskRun: (Welcome,),
    AskStatus: (Status,),
    Follow: (Rows,),
    GetBlock: (Payload,),
    GetSum: (Payload,),
    PutBlock: (Stored,),
    AskBlock: (Stored,),
}


SAID = MESSAGES.union(get_args(Reply), (Refusal,))
"""Everything that comes from another party: answers too, which no role may say of itself."""


def check_answer(server: str, request: object, reply: object) -> None:
    """Malformed if this server answers the request with what is no answer to it."""
    kinds = _ANSWERS.get(type(request), (Noted,))
    if type(reply) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise Malformed(
            f"{server} answered {type(request).__name__} with {type(reply).__name__}, and not "
            f"with {wanted}: it is no secureps server of this version"
        )


def check(server: str, table: Allowed, roster: Roster, sender: str, message: object) -> None:
    """UnknownParty if nobody in the sender's role says such a message to this server."""
    role: Role = "coordinator" if sender == COORDINATOR else roster.find(sender).role
    kind = type(message)
    if kind not in table[role]:
        raise UnknownParty(
            f"{sender} is {_an(role)} {role}, and sends no {kind.__name__} to {server}"
        )


def _an(role: str) -> str:
    return "an" if role[0] in "aeiou" else "a"
