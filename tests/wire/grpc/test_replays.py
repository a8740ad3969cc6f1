"""Requests that somebody recorded: not again, not elsewhere, not in another run; and challenges."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from secureps.errors import (
    ConfigError,
    Malformed,
    NotFresh,
    SecurepsError,
    Unreachable,
    Unsigned,
    WrongRun,
)
from secureps.messages.format import FORMAT, UNNUMBERED
from secureps.messages.requests import Heartbeat, Noted, Subscribe
from secureps.wire.grpc import authentication, challenges, framing
from secureps.wire.grpc.authentication import CHALLENGE_BYTES, Claim, Signer, claim_of
from secureps.wire.grpc.challenges import EACH, LIFETIME, WINDOW, Challenges
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.msgpack import encode
from tests.kits.signing_kit import challenge
from tests.kits.transport_kit import PATIENCE, EchoServer, Grpc, put, sign_as

RUN, OTHER = b"r" * 32, b"o" * 32


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Challenges:
    return Challenges(clock.now)


def claim(challenge: bytes, number: int, party: str = "a") -> Claim:
    return Claim(party, "shard-0", RUN, challenge, number, b"d" * 32)


def taken(server: Challenges, one: Claim) -> bool:
    try:
        server.check(one)
        server.use(one)
    except NotFresh as error:
        server.check(claim(error.challenge, 0))  # what it is refused with is fresh
        return False
    return True


# --- challenges -------------------------------------------------------------------


def test_every_number_under_a_challenge_is_taken_once(server: Challenges) -> None:
    fresh = partial(claim, server.fresh())
    for number in (0, 2, 1, 5, WINDOW + 4, 6, WINDOW + 3, 10**15, 2**64 - 1):
        assert taken(server, fresh(number)), number
        assert not taken(server, fresh(number)), number
    for number in (0, 3, WINDOW + 5, 10**15 + 1, 2**64 - 1 - WINDOW):  # passed by, or there before
        assert not taken(server, fresh(number)), number
    assert taken(server, fresh(2**64 - WINDOW))
    assert taken(server, dataclasses.replace(fresh(5), party="b")), "another party's numbers"


def test_all_of_a_window_may_come_in_any_order(server: Challenges) -> None:
    fresh = partial(claim, server.fresh())
    for number in reversed(range(WINDOW)):
        assert taken(server, fresh(number))
    assert not any(taken(server, fresh(number)) for number in range(WINDOW))


def test_only_what_this_process_gave_out_and_not_long_ago(server: Challenges, clock: Clock) -> None:
    mine, other = server.fresh(), Challenges(clock.now).fresh()
    forged = bytes(8) + mine[8:]
    for wrong in (b"", bytes(CHALLENGE_BYTES), other, forged, mine[:-1] + bytes([mine[-1] ^ 1])):
        assert not taken(server, claim(wrong, 0))
    assert taken(server, claim(mine, 0))
    clock.time += LIFETIME - 1
    assert taken(server, claim(mine, 1))
    clock.time += 1
    assert not taken(server, claim(mine, 2))


def test_a_challenge_that_is_in_use_is_over_in_time_too(server: Challenges, clock: Clock) -> None:
    """Whenever what is over was last swept away."""
    clock.time += LIFETIME / 2
    mine = server.fresh()
    for number in range(3):
        assert taken(server, claim(mine, number))
        clock.time += LIFETIME / 3
    assert not taken(server, claim(mine, 3))


def test_memory_is_bounded_and_what_is_forgotten_is_not_taken_again(
    server: Challenges, clock: Clock
) -> None:
    given = []
    for _ in range(3 * EACH):
        clock.time += 0.5
        given.append(server.fresh())
        assert taken(server, claim(given[-1], 0))
    assert len(server._used["a"]) == EACH
    assert not any(taken(server, claim(old, 0)) for old in given)
    assert not any(taken(server, claim(old, 1)) for old in given[: 2 * EACH])
    assert all(taken(server, claim(young, 1)) for young in given[2 * EACH :])
    clock.time += 2 * LIFETIME
    assert taken(server, claim(server.fresh(), 0, "b"))
    assert set(server._used) == {"b"}, "what is over is forgotten"
    assert server._floor == {}
    assert not any(taken(server, claim(old, 2)) for old in given)


def test_what_runs_out_between_check_and_use_is_not_taken(server: Challenges, clock: Clock) -> None:
    """Its numbers are forgotten then: an old one would be taken for a new one."""
    one = claim(server.fresh(), 0)
    assert taken(server, one)
    clock.time += LIFETIME - 0.001
    server.check(one)
    clock.time += 0.002
    with pytest.raises(NotFresh):
        server.use(one)


def test_an_answer_that_is_no_challenge_spoils_nothing(world: Grpc) -> None:
    """Answers are not signed: whoever sits on the wire can say so once, and no more."""
    world.serve("shard-0", EchoServer())
    transport = world.transport("a")
    for wrong in (b"", b"short", bytes(CHALLENGE_BYTES), bytes(1000)):
        transport._signer("shard-0").challenged(NotFresh("", challenge=wrong))
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()


def test_every_part_of_a_claim_is_signed() -> None:
    signed: set[bytes] = set()
    one = Claim("a", "shard-0", RUN, bytes(CHALLENGE_BYTES), 7, b"d" * 32)
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"party": "b"},
        {"to": "shard-1"},
        {"run": OTHER},
        {"run": b""},
        {"challenge": b"\1" * CHALLENGE_BYTES},
        {"number": 8},
        {"digest": b"e" * 32},
        {"party": "ashard-0", "to": ""},
    )
    for change in changes:
        signed.add(dataclasses.replace(one, **change).signed("/m"))
    signed.add(one.signed("/n"))
    assert len(signed) == len(changes) + 1


def test_metadata_comes_back_as_it_was_signed() -> None:
    signer = Signer("a", "shard-0", sign_as("a"))
    signer.challenged(NotFresh("", challenge=b"c" * CHALLENGE_BYTES))
    for number in range(3):
        back = claim_of(signer.metadata("/m", RUN, b"envelope"))
        assert (back.party, back.to, back.run) == ("a", "shard-0", RUN)
        assert (back.challenge, back.number) == (b"c" * CHALLENGE_BYTES, number)
        assert back.format == FORMAT
        assert back.signature == sign_as("a")(back.signed("/m"))
        assert back.envelope(b"envelope") == b"envelope"
        with pytest.raises(Unsigned):
            back.envelope(b"another")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("secureps-to", None, Unsigned),
        ("secureps-to", "../x", Malformed),
        ("secureps-party", b"x", Unsigned),
        ("secureps-run-bin", None, Unsigned),
        ("secureps-run-bin", b"x", Malformed),
        ("secureps-fresh-bin", None, Unsigned),
        ("secureps-fresh-bin", b"", Malformed),
        ("secureps-fresh-bin", bytes(CHALLENGE_BYTES), Malformed),
        ("secureps-fresh-bin", bytes(1 << 12), Malformed),
        ("secureps-digest-bin", b"x", Malformed),
        ("secureps-signature-bin", None, Unsigned),
        ("secureps-format", "", Malformed),
        ("secureps-format", "0", Malformed),
        ("secureps-format", "-2", Malformed),
        ("secureps-format", "2.0", Malformed),
        ("secureps-format", "9" * 5000, Malformed),
    ],
)
def test_metadata_that_says_nothing_sensible(
    key: str, value: Any, error: type[SecurepsError]
) -> None:
    said: dict[str, Any] = dict(Signer("a", "shard-0", sign_as("a")).metadata("/m", RUN, b""))
    said[key] = value
    with pytest.raises(error):
        claim_of(tuple(said.items()))


def test_who_names_no_format_has_that_of_the_first_version() -> None:
    said: dict[str, Any] = dict(Signer("a", "shard-0", sign_as("a")).metadata("/m", RUN, b""))
    del said["secureps-format"]
    assert claim_of(tuple(said.items())).format == UNNUMBERED == 2


# --- over sockets -----------------------------------------------------------------


class Recorded:
    """A party's transport, and all the metadata and bytes that it ever sent."""

    def __init__(self, world: Grpc, party: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, tuple[Any, ...], bytes]] = []
        real = Signer.metadata

        def metadata(signer: Signer, method: str, run: bytes, envelope: bytes) -> Any:
            made = real(signer, method, run, envelope)
            self.sent.append((method, made, envelope))
            return made

        monkeypatch.setattr(Signer, "metadata", metadata)
        self.transport = world.transport(party)


@pytest.fixture
def world() -> Iterator[Grpc]:
    world = Grpc()
    yield world
    for endpoint in world.endpoints:
        endpoint.release()
    world.close()


def send(address: str, method: str, metadata: Any, envelope: bytes) -> SecurepsError | None:
    """Somebody's request, by somebody else."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            if method == framing.WATCH:
                stream: Any = channel.unary_stream(method)
                next(iter(stream(envelope, metadata=metadata, timeout=PATIENCE)))
            else:
                call: Any = channel.unary_unary(method)
                call(envelope, metadata=metadata, timeout=PATIENCE)
        except grpc.RpcError as error:
            return framing.error_of(error, "it")
    return None


def test_what_was_recorded_is_refused_everywhere(
    world: Grpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again, at another server with the same keys, and at the same one after a restart."""
    first, second, coordinator = EchoServer(), EchoServer(), EchoServer()
    world.serve("shard-0", first)
    world.serve("shard-1", second)
    world.serve("coordinator", coordinator)
    recorded = Recorded(world, "a", monkeypatch)
    for to in ("shard-0", "coordinator"):
        assert world.result(recorded.transport.call(to, Heartbeat("a"))) == Noted()
    recorded.transport.watch(Subscribe("a", ()), lambda _: None, lambda _: None)
    assert world.next(coordinator.subscribed) == "a"
    sent = recorded.sent[:]
    assert len(sent) == 5, "two requests are signed twice, the third has a challenge"
    for method, metadata, envelope in sent:
        to = dict(metadata)["secureps-to"]
        assert isinstance(send(world.address(to), method, metadata, envelope), NotFresh)
    assert len(first.seen) == len(coordinator.seen) == 1
    assert coordinator.subscribed.empty()
    assert list(coordinator.streams) == ["a"]
    method, metadata, envelope = sent[1]
    error = send(world.address("shard-1"), method, metadata, envelope)
    assert isinstance(error, Unreachable)
    assert "shard-0 is asked, and this is shard-1; check the address" in str(error)
    crossed = tuple((k, "shard-1" if k == "secureps-to" else v) for k, v in metadata)
    assert isinstance(send(world.address("shard-1"), method, crossed, envelope), NotFresh)
    world.stop("shard-0")
    again = EchoServer()
    world.serve("shard-0", again)
    assert isinstance(send(world.address("shard-0"), method, metadata, envelope), NotFresh)
    assert second.seen == again.seen == []


def test_a_claim_under_anothers_challenge_or_for_another_run_needs_a_key(world: Grpc) -> None:
    """What the signature covers cannot be changed by whoever has it, a fresh challenge or not."""
    echo = EchoServer()
    echo.run = RUN
    world.serve("shard-0", echo)
    signer, envelope = world.signer("shard-0", "a"), encode(Heartbeat("a"))
    fresh = challenge(world.address("shard-0"), "shard-0").challenge
    for key, value in (
        ("secureps-run-bin", OTHER),
        ("secureps-run-bin", b""),
        ("secureps-fresh-bin", fresh + bytes(8)),
    ):
        metadata = signer.metadata(framing.SHARD_TELL, RUN, envelope)
        changed = tuple((k, value if k == key else v) for k, v in metadata)
        error = send(world.address("shard-0"), framing.SHARD_TELL, changed, envelope)
        assert isinstance(error, Unsigned)
    metadata = signer.metadata(framing.SHARD_TELL, OTHER, envelope)
    error = send(world.address("shard-0"), framing.SHARD_TELL, metadata, envelope)
    assert isinstance(error, WrongRun)
    assert f"a takes part in run {OTHER.hex()[:16]}" in str(error)
    assert echo.seen == []
    metadata = signer.metadata(framing.SHARD_TELL, RUN, envelope)
    assert send(world.address("shard-0"), framing.SHARD_TELL, metadata, envelope) is None


def test_a_party_speaks_in_the_run_that_it_belongs_to(world: Grpc) -> None:
    echo = EchoServer()
    echo.run = RUN
    world.serve("shard-0", echo)
    transport = world.transport("a")
    for run in (b"", RUN):
        transport.belong(run)
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
    transport.belong(OTHER)
    with pytest.raises(WrongRun):
        world.result(transport.call("shard-0", Heartbeat("a")))


@pytest.mark.parametrize("theirs", [FORMAT - 2, FORMAT + 1])
def test_a_peer_of_another_format_is_refused_at_its_first_request(
    world: Grpc, theirs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shard-0", "coordinator"):
        world.serve(name, EchoServer())
    transport = world.transport("a")
    said = rf"a has format {theirs} of secureps, and .* format {FORMAT}: .* install the coord"
    with monkeypatch.context() as other:
        other.setattr(authentication, "FORMAT", theirs)
        for name in ("shard-0", "coordinator"):
            with pytest.raises(ConfigError, match=said):
                world.result(transport.call(name, Heartbeat("a")))
        lost: queue.Queue[SecurepsError] = queue.Queue()
        transport.watch(Subscribe("a", ()), lambda _: None, lost.put)
        with pytest.raises(ConfigError, match=said):
            raise lost.get(timeout=PATIENCE)
    assert world.result(transport.call("coordinator", Heartbeat("a"))) == Noted()


def test_a_server_that_forgot_its_challenges_is_asked_again(world: Grpc) -> None:
    """A restart, and challenges that are over: requests, payloads and streams go on."""
    servers = {"shard-0": EchoServer(), "coordinator": EchoServer()}
    for name, echo in servers.items():
        world.serve(name, echo)
    transport = world.transport("a")
    for block in (put(b"x" * 10), put(b"x" * (1 << 20))):
        for name in servers:
            world.servers[name]._callers._challenges._key = b"k" * 32
            assert world.result(transport.call(name, Heartbeat("a"))) == Noted()
        world.servers["shard-0"]._callers._challenges = Challenges()
        world.result(transport.call("shard-0", block))
    world.servers["coordinator"]._callers._challenges = Challenges()
    transport.watch(Subscribe("a", ()), lambda _: None, lambda _: None)
    assert world.next(servers["coordinator"].subscribed) == "a"


def test_who_is_never_fresh_is_told_and_may_try_again(
    world: Grpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(challenges, "LIFETIME", -1.0)
    world.serve("shard-0", EchoServer())
    transport: GrpcTransport = world.transport("a")
    for message in (Heartbeat("a"), put(b"x")):
        with pytest.raises(NotFresh, match="sign it under this challenge") as caught:
            world.result(transport.call("shard-0", message))
        assert caught.value.retry_after is not None
