"""Bad requests to real servers are refused, and no cohort loses anything.

`CASES` has what is sent, and the pattern of the answer with its fault.
"""

import math
import os
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from secureps import errors
from secureps.crypto.bfv import DATA_PRIME
from secureps.crypto.identity import Identity
from secureps.errors import SecurepsError
from secureps.messages.charge import Charge
from secureps.messages.evaluation import EVALUATION, Evaluated, Metric
from secureps.messages.requests import (
    AskStatus,
    Decline,
    Figure,
    GetBlock,
    GetSum,
    Heartbeat,
    Join,
    Register,
    Stored,
    Submit,
    Subscribe,
    Telemetry,
)
from secureps.messages.run import Schema, TensorSpec
from secureps.messages.submission import FOUNDING, OPENED, Held, SubmissionId
from secureps.wire.grpc import framing
from secureps.wire.msgpack import encode
from tests.kits.documented import check_error
from tests.kits.hostile_peer import HostilePeer, Send, peer_of
from tests.kits.processes import PLAN, Processes

HEALTHY = 6
NAME = "client-06"
"""On the roster; the healthy do without it."""

TELL, PUT, GET = framing.COORDINATOR_TELL, framing.PUT, framing.GET
SHARD_TELL, WATCH = framing.SHARD_TELL, framing.WATCH
SENDERS = " (the sender's fault)"
RUN = bytes(32)
STRANGER = Identity.generate()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder, plan = tmp_path_factory.mktemp("rpc"), PLAN.replace("capacity", "holders = 1\ncapacity")
    with Processes(
        folder, "bfv", clients=HEALTHY + 1, versions=100_000, plan=plan, insecure=True
    ) as processes:
        processes.pace = 0.3
        processes.start_all(clients=HEALTHY)
        processes.wait(lambda: processes.reached(4), "some versions")
        yield processes


@pytest.fixture(scope="module")
def peer(federation: Processes) -> Iterator[HostilePeer]:
    with closing(peer_of(federation, NAME, NAME)) as peer:
        yield peer


def tell(data: bytes, to: str = "coordinator", method: str = TELL) -> Send:
    return lambda peer: peer.raw(to, method, [data])


def ask(message: object, to: str = "coordinator") -> Send:
    return lambda peer: peer.ask(to, message)


def nan_inside(peer: HostilePeer) -> None:
    data = encode(Telemetry(NAME, "all", 1, (Figure("seconds", 1.5),)))
    before = struct.pack(">d", 1.5)
    assert data.count(before) == 1
    peer.raw("coordinator", TELL, [data.replace(before, struct.pack(">d", math.nan))])


def framed(announced: int | None = None, **changes: object) -> Send:
    def send(peer: HostilePeer) -> None:
        envelope, pieces = peer.frame(peer.block(**changes), announced)  # type: ignore[arg-type]
        peer.raw(peer.owner(), PUT, pieces, envelope)

    return send


def put(**changes: object) -> Send:
    return lambda peer: peer.put(**changes)


def submit(**changes: object) -> Send:
    return lambda peer: peer.ask("coordinator", Submit(peer.receipt(**changes)))  # type: ignore[arg-type]


def short(peer: HostilePeer) -> None:
    envelope, pieces = peer.frame(peer.block())
    peer.raw(peer.owner(), PUT, [*pieces[:-1], pieces[-1][:-1]], envelope)


def longer(peer: HostilePeer) -> None:
    envelope, pieces = peer.frame(peer.block())
    peer.raw(peer.owner(), PUT, [*pieces, b"x"], envelope)


def not_below_q(peer: HostilePeer) -> None:
    right = bytes(peer.block().payload)
    peer.ask(peer.owner(), peer.block(payload=struct.pack("<Q", DATA_PRIME) + right[8:]))


def of_another_layout(peer: HostilePeer) -> None:
    peer.ask(peer.owner(), peer.block(payload=bytes(peer.block().payload)[:-8]))


def too_long_for_the_plan(peer: HostilePeer) -> None:
    peer.ask(peer.owner(), peer.block(payload=bytes(peer.block().payload) + bytes(8)))


def to_the_other_shard(peer: HostilePeer) -> None:
    blocks = range(len(peer.placement.of("all").owners))
    elsewhere = next(b for b in blocks if peer.owner(b) != peer.owner())
    peer.ask(peer.owner(), peer.block(block=elsewhere))


def other_bytes(peer: HostilePeer) -> None:
    """The same once more is harmless; other bytes under its name are not."""
    first = peer.block(sequence=5)
    for _ in range(2):
        assert peer.ask(peer.owner(), first) == Stored(first.header.digest)
    right = first.payload
    peer.ask(peer.owner(), peer.block(payload=b"\1" + right[1:], sequence=5))


def other_receipt(federation: Processes) -> Send:
    def send(_: HostilePeer) -> None:
        with closing(peer_of(federation, "client-00", "client-00")) as client:
            known = SubmissionId("client-00", "all", 0)
            client.ask("coordinator", Submit(client.receipt(id=known)))

    return send


def old_version(peer: HostilePeer) -> None:
    """Between two rounds the answer is another one."""
    while True:
        try:
            peer.ask("coordinator", Submit(peer.receipt()))
        except errors.WrongVersion as error:
            if "takes no updates now" not in str(error):
                raise


def between_rounds(peer: HostilePeer) -> None:
    while True:
        try:
            peer.ask("coordinator", Submit(peer.receipt()))
        except errors.WrongVersion as error:
            if "takes no updates now" in str(error):
                raise


def get(version: int) -> Send:
    return lambda peer: peer.ask(peer.owner(), GetBlock(peer.run.id, "all", version, 0))


def get_sum(peer: HostilePeer) -> None:
    peer.ask(peer.owner(), GetSum(peer.run.id, "all", 0, 0))


def other_schema(peer: HostilePeer) -> None:
    first, *others = peer.run.schema.tensors
    wider = TensorSpec(first.name, (*first.shape, 2), first.dtype)
    peer.ask("coordinator", Join(NAME, Schema((wider, *others))))


CHARGE = Charge(NAME, "all", 0, 1.0, 0.5, 1)

CASES: dict[str, tuple[Send, str]] = {
    # --- bytes that are no message ------------------------------------------------
    "malformed MessagePack": (tell(b"\xff" * 40), "these bytes are no secureps message"),
    "to a shard": (
        tell(bytes(range(7, 71)), "shard-1", SHARD_TELL),
        "these bytes are no secureps message",
    ),
    "unknown message": (
        tell(b"\x92\xa7AskMore\x80"),
        "... is no message of this version of secureps",
    ),
    "unknown field": (
        tell(b"\x92\xa9AskStatus\x81\xa4more\x01"),
        "...: unknown, repeated or missing fields, or another spelling of a value; "
        "is the sender's secureps newer?",
    ),
    "another type": (tell(b"\x92\xa9Heartbeat\x81\xa5party\x01"), "...: Expected ..., got ..."),
    "NaN": (nan_inside, "...: a wrong length, or no finite number of 64 bits"),
    "too long a message": (
        tell(b"\xff" * (framing.REQUEST_LIMIT + 1)),
        "a message of ... bytes; at most ... are allowed",
    ),
    "far too long a message": (
        tell(b"\xff" * (framing.REQUEST_LIMIT + (1 << 20))),
        "coordinator at ... takes no message of this length",
    ),
    "a block told": (
        lambda peer: peer.raw("coordinator", TELL, [encode(peer.block())]),
        "... has a method of its own",
    ),
    "watch what is no subscription": (
        tell(encode(AskStatus()), method=WATCH),
        "Watch takes Subscribe, not ...",
    ),
    # --- who says it --------------------------------------------------------------
    "unsigned": (
        lambda peer: peer.raw("coordinator", TELL, [encode(AskStatus())], anonymous=True),
        "a request without a party's name and signature",
    ),
    "signed for another method": (
        lambda peer: peer.raw("coordinator", TELL, [encode(AskStatus())], signed_for=WATCH),
        "the signature is not ...'s: take the kit that the CA made for this run",
    ),
    "speaks as another": (
        ask(Heartbeat("client-00")),
        "... speaks as ...; everyone speaks for themselves",
    ),
    "watches as another": (
        lambda peer: peer.watch(Subscribe("client-00", ())),
        "... speaks as ...; everyone speaks for themselves",
    ),
    "asks for another's fate": (
        lambda peer: peer.watch(Subscribe(NAME, (SubmissionId("client-00", "all", 0),))),
        "... speaks as ...; everyone speaks for themselves",
    ),
    "a client as a shard": (ask(Held(NAME, "all", 1, ())), "... is ..., and sends no ... to ..."),
    "a client registers": (
        ask(Register(NAME, "127.0.0.1:1", 1.0, 0)),
        "... is ..., and sends no ... to ...",
    ),
    # --- receipts -----------------------------------------------------------------
    "another schema": (
        other_schema,
        "...'s model differs from the run's: ...; train the run's model",
    ),
    "another run": (submit(run=RUN), "... was made for another run; join this one first"),
    "an old version": (
        old_version,
        "... was trained on version ..., the open base is ...; pull and train again",
    ),
    "no round": (between_rounds, "... takes no updates now (...); pull and wait to be invited"),
    "an unsigned receipt": (
        submit(signer=STRANGER),
        "a signature in ... is wrong: another key made it, or ...",
    ),
    "too few blocks": (submit(blocks=()), "...: the group has ... blocks, each one digest"),
    "another size": (submit(size=7), "...: ... bytes, the plan makes ..."),
    "a charge": (submit(charge=CHARGE), "...: a charge where nothing is private"),
    "much telemetry": (
        ask(Telemetry(NAME, "all", 1, (Figure("x", 1.0),) * 17)),
        "telemetry has at most 16 figures, with names of 64 letters",
    ),
    # --- blocks -------------------------------------------------------------------
    "no head": (lambda peer: peer.raw(peer.owner(), PUT, [b"abc"]), "a frame without its head"),
    "half an envelope": (
        lambda peer: peer.raw(peer.owner(), PUT, [struct.pack("<IQ", 99, 0) + b"x"]),
        "a frame whose envelope is cut off",
    ),
    "too long an envelope": (
        lambda peer: peer.raw(peer.owner(), PUT, [struct.pack("<IQ", 1 << 30, 0)]),
        "the envelope of a frame has ... bytes, more than ...",
    ),
    "truncated": (short, "... bytes of payload instead of the announced ..."),
    "more than announced": (longer, "more than the announced ... bytes of payload"),
    "oversize": (framed(announced=1 << 60), "a block may have ... bytes, no more"),
    "oversize in its header": (
        framed(length=1 << 60),
        "... bytes, the plan makes ... for this block",
    ),
    "two lengths": (framed(announced=8), "... bytes announced; the header says ..."),
    "wrong shape": (of_another_layout, "... bytes, the plan makes ... for this block"),
    "wrong shape, longer": (too_long_for_the_plan, "... bytes, the plan makes ... for this block"),
    "another digest": (
        put(digest=bytes(32)),
        "the payload does not have the digest of its header; send it again",
    ),
    "coefficient not below q": (
        not_below_q,
        "a coefficient of a bfv block is not below the modulus",
    ),
    "a block of another run": (put(run=RUN), "made for another run; join this one first"),
    "another's block": (put(author="client-00"), "... sends a block of ...; send your own"),
    "an unsigned block": (
        put(signer=STRANGER),
        "a signature in ... is wrong: another key made it, or ...",
    ),
    "replayed with other bytes": (
        other_bytes,
        "... is known with other bytes; begin a new sequence",
    ),
    "a founding block": (put(purpose=FOUNDING), "... bytes, the plan makes ... for this block"),
    "an opened sum": (put(purpose=OPENED), "a ... sends no ... blocks"),
    "no such group": (put(group="nobody's"), "no group is called ..."),
    "a sequence below 0": (put(sequence=-1), "...: a sequence is at least 0, and at most ..."),
    # --- about evaluations --------------------------------------------------------
    "declined for another": (
        ask(Decline("client-00", EVALUATION, 1, "no time")),
        "... speaks as ...; everyone speaks for themselves",
    ),
    "an evaluation by nobody's evaluator": (
        ask(Evaluated(RUN, NAME, 1, (), (Metric("loss", 0.5),), 9)),
        "... is not the evaluator that the plan names",
    ),
    # --- what it would like to have -----------------------------------------------
    "an old block": (get(0), "version ... of ... is gone; pull the newest"),
    "a sum": (get_sum, "... is ..., and sends no ... to ..."),
}


@pytest.fixture(autouse=True)
def servers_live(federation: Processes) -> Iterator[None]:
    yield
    for name in ("coordinator", *federation.shards, *federation.holders):
        assert federation.alive(name), federation.log(name)


def answer(send: Send, peer: HostilePeer) -> SecurepsError:
    with pytest.raises(SecurepsError) as refused:
        send(peer)
    return refused.value


@pytest.mark.parametrize("case", CASES)
def test_a_bad_request_is_refused(case: str, peer: HostilePeer) -> None:
    send, pattern = CASES[case]
    check_error(answer(send, peer), pattern + SENDERS)


ELSEWHERE = (
    "... does not take block ... of ... from ...: by the placement that it knows ... takes it in, "
    "and passes it on to others that hold it (the other side's fault)"
)


def test_a_block_of_another_shard_may_have_moved(peer: HostilePeer) -> None:
    check_error(answer(to_the_other_shard, peer), ELSEWHERE)


NOT_MADE = "version ... of ... is not made yet (the other side's fault)"


def test_what_is_not_made_yet_is_nobodys_mistake(peer: HostilePeer) -> None:
    check_error(answer(get(1 << 30), peer), NOT_MADE)


KNOWN = "... is known with another receipt; begin a new sequence" + SENDERS


def test_another_receipt_under_a_known_name(peer: HostilePeer, federation: Processes) -> None:
    check_error(answer(other_receipt(federation), peer), KNOWN)


STRANGERS = {
    "nobody": "nobody named ... is on the roster, which is number ...: it was revoked, or comes "
    "with a later one that its server does not have yet" + SENDERS,
    "client-00": (
        "the signature is not ...'s: take the kit that the CA made for this run" + SENDERS
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_who_is_not_who_it_says(name: str, federation: Processes) -> None:
    with closing(peer_of(federation, name, NAME)) as stranger:
        for to in ("coordinator", "shard-0"):
            check_error(answer(ask(AskStatus(), to), stranger), STRANGERS[name])


def test_broken_connections_break_nothing_else(peer: HostilePeer, federation: Processes) -> None:
    for to in ("coordinator", "shard-0"):
        peer.babble(to, b"GET / HTTP/1.1\r\n\r\n")
        peer.babble(to, os.urandom(4096))
    _, pieces = peer.frame(peer.block(sequence=7))
    for _ in range(4):
        peer.hang_up(peer.owner(), pieces[0], pieces[1][: len(pieces[1]) // 2])


def test_afterwards_versions_are_made_and_nothing_is_lost(
    peer: HostilePeer, federation: Processes
) -> None:
    for send, _ in CASES.values():
        answer(send, peer)
    federation.check_goes_on(HEALTHY)
    assert NAME not in {member.name for member in federation.seen.members}
