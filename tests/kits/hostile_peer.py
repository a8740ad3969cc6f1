"""A peer of real servers that says whatever it likes, well signed or not."""

import dataclasses
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import grpc

from secureps.crypto.identity import Identity
from secureps.errors import SecurepsError
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import AskRun, AskStatus, PutBlock, Subscribe, Welcome
from secureps.messages.run import COORDINATOR, Placement, RunInfo
from secureps.messages.submission import (
    UPDATE,
    UPDATE_BYTES,
    BlockHeader,
    Receipt,
    SubmissionId,
    ciphertext_root,
    model_digest,
    signing_bytes,
)
from secureps.policy.plan import Plan
from secureps.roles.validation import block_bytes
from secureps.store.keyring import load_private
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN, Link, sign_request
from secureps.wire.msgpack import encode
from tests.kits.processes import Processes

PATIENCE = 60.0


class HostilePeer:
    """Claims to be `name`, and signs with the key of `identity`.

    Args:
        addresses: of servers, by name.
    """

    def __init__(
        self, name: str, identity: Identity, addresses: Mapping[str, str], link: Link = PLAINTEXT
    ) -> None:
        self.name = name
        self._identity, self._addresses, self._link = identity, addresses, link
        self._transport = GrpcTransport(link, name, self._sign, addresses, PATIENCE)
        self._channels: dict[str, grpc.Channel] = {}

    def close(self) -> None:
        self._transport.close()
        for channel in self._channels.values():
            channel.close()

    def _sign(self, request: bytes) -> bytes:
        return self._identity.sign(REQUEST_DOMAIN, request)

    def _signed(self, to: str, method: str, envelope: bytes) -> Any:
        return sign_request(self.name, to, self._sign, method, b"", envelope)

    def _channel(self, to: str) -> grpc.Channel:
        if to not in self._channels:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
            self._channels[to] = self._link.channel(to, self._addresses[to], options)
        return self._channels[to]

    # --- what it says -------------------------------------------------------------

    def ask(self, to: str, message: Any) -> Any:
        return self._transport.call(to, message).result(PATIENCE)

    def watch(self, message: Subscribe) -> Any:
        """Raises what ends the stream."""
        lost: list[SecurepsError] = []
        ended = threading.Event()

        def end(error: SecurepsError) -> None:
            lost.append(error)
            ended.set()

        self._transport.watch(message, lambda order: None, end)
        assert ended.wait(PATIENCE)
        raise lost[0]

    def raw(
        self,
        to: str,
        method: str,
        pieces: Iterable[bytes],
        envelope: bytes | None = None,
        signed_for: str | None = None,
        anonymous: bool = False,
    ) -> bytes:
        """The first bytes of the answer to these, under a signature of `envelope` (or of them)."""
        if envelope is None:
            envelope = b"".join(pieces := list(pieces))
        metadata = () if anonymous else self._signed(to, signed_for or method, envelope)
        stream: Any = self._channel(to).stream_stream(method)
        call = stream(iter(pieces), metadata=metadata, timeout=PATIENCE)
        try:
            answer: bytes = next(call)
        except grpc.RpcError as error:
            raise framing.read_error(error, f"{to} at {self._addresses[to]}") from None
        finally:
            call.cancel()
        return answer

    def say(self, method: str, message: Any, payload: bytes | memoryview = b"") -> bytes:
        """The first bytes of a shard's answer to a message as it is, with a payload or without."""
        envelope = encode(message)
        frame = (
            (framing.frame_head(envelope, len(payload)), bytes(payload)) if payload else (envelope,)
        )
        return self.raw(self.owner(), method, frame, envelope)

    def announce(self, message: PutBlock) -> bytes:
        """What a shard answers to a block of which nothing comes."""
        over, envelope = threading.Event(), encode(message)

        def frame() -> Iterator[bytes]:
            yield framing.frame_head(envelope, message.header.length)
            over.wait(PATIENCE)

        try:
            return self.raw(self.owner(), framing.PUT, frame(), envelope)
        finally:
            over.set()

    def hang_up(self, to: str, first: bytes, *rest: bytes) -> None:
        """Begins to send and breaks the connection."""
        envelope, _, _ = framing.open_frame(first)
        metadata = self._signed(to, framing.PUT, envelope)
        sent, over = threading.Event(), threading.Event()

        def pieces() -> Iterator[bytes]:
            yield from (first, *rest)
            sent.set()
            over.wait(PATIENCE)

        with grpc.insecure_channel(self._addresses[to]) as channel:
            put: Any = channel.stream_unary(framing.PUT)
            call = put.future(pieces(), metadata=metadata)
            assert sent.wait(PATIENCE)
            call.cancel()
            over.set()

    def babble(self, to: str, data: bytes) -> None:
        """Bytes that are no HTTP/2."""
        host, _, port = self._addresses[to].rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 12):
                pass

    # --- what it could have said rightly ------------------------------------------

    @cached_property
    def _welcome(self) -> Welcome:
        answer: Welcome = self.ask(COORDINATOR, AskRun())
        return answer

    @property
    def run(self) -> RunInfo:
        return self._welcome.run

    @property
    def placement(self) -> Placement:
        return self._welcome.placement

    @cached_property
    def plan(self) -> Plan:
        return Plan.from_text(self.run.plan)

    def owner(self, block: int = 0) -> str:
        return self.placement.of("all").owners[block]

    def version(self) -> int:
        version: int = self.ask(COORDINATOR, AskStatus()).groups[0].version
        return version

    def signed(self, record: Any, signer: Identity | None = None) -> Any:
        signature = (signer or self._identity).sign(*signing_bytes(record))
        return dataclasses.replace(record, signature=signature)

    def block(
        self, payload: bytes | None = None, signer: Identity | None = None, **changes: Any
    ) -> PutBlock:
        """Block 0 of a submission of its own, of the right size, and then what is changed."""
        layout = self.plan.layout(self.run.schema).group("all")
        whole = bytes(block_bytes(self.plan, layout, UPDATE, 0)) if payload is None else payload
        header = BlockHeader(
            run=self.run.id,
            author=self.name,
            purpose=UPDATE,
            group="all",
            sequence=0,
            block=0,
            length=len(whole),
            digest=payload_digest(whole),
        )
        return PutBlock(self.signed(dataclasses.replace(header, **changes), signer), whole)

    def put(self, **changes: Any) -> Any:
        return self.ask(self.owner(), self.block(**changes))

    def receipt(self, signer: Identity | None = None, **changes: Any) -> Receipt:
        """Of a submission of its own to version 1, and then what is changed."""
        layout = self.plan.layout(self.run.schema).group("all")
        blocks = tuple(payload_digest(bytes([b])) for b in range(layout.blocks))
        receipt = Receipt(
            run=self.run.id,
            id=SubmissionId(self.name, "all", 900),
            purpose=UPDATE,
            version=0,
            base=model_digest("all", 0, blocks),
            blocks=blocks,
            root=ciphertext_root(blocks),
            envelopes=(),
            commitments=(),
            size=sum(block_bytes(self.plan, layout, UPDATE, b) for b in range(layout.blocks)),
            charge=None,
            release=None,
            unsafe=False,
            update=bytes(UPDATE_BYTES),
        )
        made: Receipt = self.signed(dataclasses.replace(receipt, **changes), signer)
        return made

    def frame(self, put: PutBlock, announced: int | None = None) -> tuple[bytes, Sequence[bytes]]:
        """(envelope, pieces) of a block; `announced` payload bytes instead of those there are."""
        envelope = encode(put)
        payload = bytes(put.payload)
        head = framing.frame_head(envelope, len(payload) if announced is None else announced)
        rest = [payload[at : at + (1 << 20)] for at in range(0, len(payload), 1 << 20)]
        return envelope, [head, *rest]


def peer_of(federation: Processes, name: str, key: str) -> HostilePeer:
    """Of processes: somebody who claims to be `name`, and signs with the key of `key`."""
    parties = (COORDINATOR, *federation.shards)
    addresses = {p: (federation.folder / p / "address").read_text().strip() for p in parties}
    return HostilePeer(name, load_private(federation.folder / "kit", key), addresses)


Send = Callable[[HostilePeer], Any]
