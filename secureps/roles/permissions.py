"""The table of which role may send which message to which server.

It is checked before anything is looked up for a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from secureps.crypto.identity import Role
from secureps.crypto.roster import Roster
from secureps.errors import Malformed, UnknownParty
from secureps.messages import requests
from secureps.messages.acts import Act
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated
from secureps.messages.orders import AnyOrder, Finish, ShardOrder
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Held

Allowed = Mapping[Role, frozenset[type]]

_ASKS = frozenset({requests.AskRun, requests.AskStatus})
"""Every party on the roster may look at the run, and at published models."""
_READS = frozenset({requests.GetBlock})

_PRESENT = {requests.Subscribe, requests.Heartbeat, requests.Trouble, requests.Telemetry}
_TAKES_PART = _ASKS | _PRESENT
"""Clients, shards and holders report that they are there, their costs, and their troubles."""

TO_COORDINATOR: Allowed = {
    "client": _TAKES_PART
    | {requests.Join, requests.Submit, requests.Decline, requests.Withdraw, requests.Retire}
    | {requests.Missing, Evaluated},
    "shard": _TAKES_PART
    | {requests.Register, Held, requests.Missing, requests.Spoilt, requests.Prepared}
    | {requests.Checkpointed},
    "holder": _TAKES_PART
    | {requests.Register, requests.Opened, requests.OpenRefused, requests.Examined}
    | {requests.KeyShare, EnvelopeKeyAnnounced},
    "observer": _ASKS,
    "coordinator": _ASKS | {Act, requests.Register, requests.Follow, requests.TakeOver},
}
"""Acts need the coordinator's key, which decides on rounds and cohorts anyway. An observer's key is
only for looking."""
TO_SHARD: Allowed = {
    "client": _READS | {requests.AskBlock, requests.PutBlock},
    "shard": _READS | {requests.AskBlock, requests.PutBlock, requests.Missing, requests.GetSum},
    "holder": _READS | {requests.AskBlock, requests.PutBlock, requests.GetSum},
    "observer": _READS,
    "coordinator": _READS.union(get_args(ShardOrder | Finish)),
}
"""The coordinator's orders come over the stream that the shard has opened."""

MESSAGES: frozenset[type] = frozenset(get_args(requests.Request | AnyOrder))
"""Every message between parties except answers."""

_ANSWERS: Mapping[type, tuple[type, ...]] = {
    requests.Join: (requests.Welcome, requests.Proposal),
    requests.AskRun: (requests.Welcome,),
    requests.AskStatus: (requests.Status,),
    requests.Follow: (requests.Rows,),
    requests.GetBlock: (requests.Payload,),
    requests.GetSum: (requests.Payload,),
    requests.PutBlock: (requests.Stored,),
    requests.AskBlock: (requests.Stored,),
}


SAID = MESSAGES.union(get_args(requests.Reply), (requests.Refusal,))
"""Every message between parties, with answers, which no role may send by itself."""


def check_answer(server: str, request: object, reply: object) -> None:
    """Malformed if a server's reply is of a type that does not answer the request."""
    kinds = _ANSWERS.get(type(request), (requests.Noted,))
    if type(reply) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise Malformed(
            f"{server} answered {type(request).__name__} with {type(reply).__name__}, and not "
            f"with {wanted}: it is no secureps server of this version"
        )


def check(server: str, table: Allowed, roster: Roster, sender: str, message: object) -> None:
    """UnknownParty unless the sender's role may send such a message to this server."""
    role: Role = "coordinator" if sender == COORDINATOR else roster.find(sender).role
    kind = type(message)
    if kind not in table[role]:
        a = "an" if role[0] in "aeiou" else "a"
        raise UnknownParty(f"{sender} is {a} {role}, and sends no {kind.__name__} to {server}")
