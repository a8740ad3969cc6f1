"""A signed claim is valid for one server, method, run and message."""

import dataclasses
import queue
from typing import Any

import grpc
import pytest

from secureps.errors import ConfigError, Malformed, SecurepsError, Unreachable, Unsigned, WrongRun
from secureps.messages.format import FORMAT
from secureps.messages.requests import Heartbeat, Noted, Subscribe
from secureps.wire.grpc import framing
from secureps.wire.grpc.framing import Claim, read_claim, sign_request
from secureps.wire.msgpack import encode
from tests.kits.transport_kit import PATIENCE, EchoServer, Grpc, sign_as

RUN, OTHER = b"r" * 32, b"o" * 32


def test_every_part_of_a_claim_is_signed() -> None:
    one = Claim("a", "shard-0", RUN, b"d" * 32)
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"party": "b"},
        {"to": "shard-1"},
        {"run": OTHER},
        {"run": b""},
        {"digest": b"e" * 32},
        {"party": "ashard-0", "to": ""},
    )
    signed = {dataclasses.replace(one, **change).signed("/m") for change in changes}
    signed.add(one.signed("/n"))
    assert len(signed) == len(changes) + 1


def test_metadata_comes_back_as_it_was_signed() -> None:
    back = read_claim(said_of(b"envelope"))
    assert (back.party, back.to, back.run, back.format) == ("a", "shard-0", RUN, FORMAT)
    assert back.signature == sign_as("a")(back.signed("/m"))
    assert back.envelope(b"envelope") == b"envelope"
    with pytest.raises(Unsigned):
        back.envelope(b"another")


def said_of(envelope: bytes) -> Any:
    return sign_request("a", "shard-0", sign_as("a"), "/m", RUN, envelope)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("secureps-to", None, Unsigned),
        ("secureps-to", "../x", Malformed),
        ("secureps-party", b"x", Unsigned),
        ("secureps-run-bin", None, Unsigned),
        ("secureps-run-bin", b"x", Malformed),
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
    said: dict[str, Any] = dict(said_of(b""))
    said[key] = value
    with pytest.raises(error):
        read_claim(tuple(said.items()))


# --- over sockets -----------------------------------------------------------------


def send(address: str, method: str, metadata: Any, envelope: bytes) -> SecurepsError | None:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            if method == framing.WATCH:
                stream: Any = channel.unary_stream(method)
                next(iter(stream(envelope, metadata=metadata, timeout=PATIENCE)))
            else:
                call: Any = channel.unary_unary(method)
                call(envelope, metadata=metadata, timeout=PATIENCE)
        except grpc.RpcError as error:
            return framing.read_error(error, "it")
    return None


def test_a_recorded_request_serves_nobody_else(world: Grpc) -> None:
    """Not at another server, in another run, or with another message."""
    echoes = {name: EchoServer() for name in ("shard-0", "shard-1", "coordinator")}
    for name, echo in echoes.items():
        echo.run = RUN
        world.serve(name, echo)
    method, envelope = framing.SHARD_TELL, encode(Heartbeat("a"))
    metadata = sign_request("a", "shard-0", sign_as("a"), method, RUN, envelope)
    error = send(world.address("shard-1"), method, metadata, envelope)
    assert isinstance(error, Unreachable)
    assert "shard-0 is asked, and this is shard-1; check the address" in str(error)
    for to, key, value in (
        ("shard-1", "secureps-to", "shard-1"),
        ("shard-0", "secureps-party", "b"),
        ("shard-0", "secureps-run-bin", OTHER),
        ("shard-0", "secureps-run-bin", b""),
    ):
        changed = tuple((k, value if k == key else v) for k, v in metadata)
        assert isinstance(send(world.address(to), method, changed, envelope), Unsigned), key
    assert isinstance(send(world.address("shard-0"), framing.GET, metadata, envelope), Unsigned)
    other = encode(Heartbeat("b"))
    assert isinstance(send(world.address("shard-0"), method, metadata, other), Unsigned)
    metadata = sign_request("a", "shard-0", sign_as("a"), method, OTHER, envelope)
    error = send(world.address("shard-0"), method, metadata, envelope)
    assert isinstance(error, WrongRun)
    assert f"a takes part in run {OTHER.hex()[:16]}" in str(error)
    assert not any(echo.seen for echo in echoes.values())


def test_a_server_that_began_anew_takes_the_next_request_at_once(world: Grpc) -> None:
    """No request depends on a server's earlier answers."""
    echo = EchoServer()
    world.serve("shard-0", echo)
    envelope = encode(Heartbeat("a"))
    metadata = sign_request("a", "shard-0", sign_as("a"), framing.SHARD_TELL, b"", envelope)
    for _ in range(2):
        assert send(world.address("shard-0"), framing.SHARD_TELL, metadata, envelope) is None
    world.stop("shard-0")
    world.serve("shard-0", again := EchoServer())
    assert send(world.address("shard-0"), framing.SHARD_TELL, metadata, envelope) is None
    assert (len(echo.seen), len(again.seen)) == (2, 1)


def test_a_party_speaks_in_the_run_that_it_belongs_to(world: Grpc) -> None:
    echo = EchoServer()
    echo.run = RUN
    world.serve("shard-0", echo)
    transport = world.transport("a")
    for run in (b"", RUN):
        transport.bind_run(run)
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
    transport.bind_run(OTHER)
    with pytest.raises(WrongRun):
        world.result(transport.call("shard-0", Heartbeat("a")))


@pytest.mark.parametrize("theirs", [FORMAT - 1, FORMAT + 1])
def test_a_peer_of_another_format_is_refused_at_its_first_request(
    world: Grpc, theirs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shard-0", "coordinator"):
        world.serve(name, EchoServer())
    transport = world.transport("a")
    said = rf"a has format {theirs} of secureps, and .* format {FORMAT}: .* install the coord"
    with monkeypatch.context() as other:
        other.setattr(framing, "FORMAT", theirs)
        for name in ("shard-0", "coordinator"):
            with pytest.raises(ConfigError, match=said):
                world.result(transport.call(name, Heartbeat("a")))
        lost: queue.Queue[SecurepsError] = queue.Queue()
        transport.watch(Subscribe("a", ()), lambda _: None, lost.put)
        with pytest.raises(ConfigError, match=said):
            raise lost.get(timeout=PATIENCE)
    assert world.result(transport.call("coordinator", Heartbeat("a"))) == Noted()
