"""A peer of real servers that sends whatever it likes, well signed or not."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from secureps.crypto.identity import Identity
from secureps.errors import SecurepsError
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import AskRun, AskStatus, PutBlock, Subscribe, Welcome
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
from secureps.wire.grpc.authentication import REQUEST_DOMAIN, sign_request
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.msgpack import encode
from tests.kits.processes import PATIENCE, Processes

STREAMED = (framing.WATCH, framing.GET)


class HostilePeer:
    """Args: `name` is whom it claims to be, `key` whose key it signs with."""

    def __init__(self, federation: Processes, name: str, key: str) -> None:
        self.name = name
        self._identity: Identity = load_private(federation.folder / "kit", key)
        self._addresses = {
            party: (federation.folder / party / "address").read_text().strip()
            for party in ("coordinator", *federation.shards)
        }
        self._transport = GrpcTransport(PLAINTEXT, name, self._sign, self._addresses, PATIENCE)

    def close(self) -> None:
        self._transport.close()

    def _sign(self, request: bytes) -> bytes:
        return self._identity.sign(REQUEST_DOMAIN, request)

    def _signed(self, to: str, method: str, envelope: bytes) -> Any:
        return sign_request(self.name, to, self._sign, method, b"", envelope)

    # --- what it says -------------------------------------------------------------

    def ask(self, to: str, message: Any) -> Any:
        """The answer; raises the error that the server answers with."""
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
        pieces: Sequence[bytes],
        envelope: bytes | None = None,
        signed_for: str | None = None,
        anonymous: bool = False,
    ) -> None:
        """These bytes as they are, under a signature of `envelope` (default: of the bytes)."""
        covered = b"".join(pieces) if envelope is None else envelope
        metadata = self._signed(to, signed_for or method, covered)
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(self._addresses[to], options=options) as channel:
            call: Any
            try:
                sent: Any
                if method == framing.PUT:
                    call, sent = channel.stream_unary(method), iter(pieces)
                else:
                    streamed = method in STREAMED
                    call = channel.unary_stream(method) if streamed else channel.unary_unary(method)
                    (sent,) = pieces
                answer = call(sent, metadata=() if anonymous else metadata, timeout=PATIENCE)
                if method in STREAMED:
                    next(answer)
            except grpc.RpcError as error:
                raise framing.error_of(error, f"{to} at {self._addresses[to]}") from None

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

    def run(self) -> Welcome:
        answer: Welcome = self.ask("coordinator", AskRun())
        return answer

    def plan(self) -> Plan:
        return Plan.from_text(self.run().run.plan)

    def owner(self, block: int) -> str:
        return self.run().placement.of("all").owners[block]

    def version(self) -> int:
        version: int = self.ask("coordinator", AskStatus()).groups[0].version
        return version

    def put(
        self, payload: bytes | None = None, signer: Identity | None = None, **changes: Any
    ) -> PutBlock:
        """Block 0 of a submission of its own, of the right size, and then what is changed."""
        plan, run = self.plan(), self.run().run
        length = block_bytes(plan, plan.layout(run.schema).group("all"), UPDATE, 0)
        whole = bytes(length) if payload is None else payload
        header = BlockHeader(
            run=run.id,
            author=self.name,
            purpose=UPDATE,
            group="all",
            sequence=0,
            block=0,
            length=len(whole),
            digest=payload_digest(whole),
        )
        header = dataclasses.replace(header, **changes)
        signature = (signer or self._identity).sign(*signing_bytes(header))
        return PutBlock(dataclasses.replace(header, signature=signature), whole)

    def receipt(self, signer: Identity | None = None, **changes: Any) -> Receipt:
        """Of a submission of its own to version 1, and then what is changed."""
        plan, run = self.plan(), self.run().run
        layout = plan.layout(run.schema).group("all")
        blocks = tuple(payload_digest(bytes([b])) for b in range(layout.blocks))
        receipt = Receipt(
            run=run.id,
            id=SubmissionId(self.name, "all", 900),
            purpose=UPDATE,
            version=0,
            base=model_digest("all", 0, blocks),
            blocks=blocks,
            root=ciphertext_root(blocks),
            envelopes=(),
            commitments=(),
            size=sum(block_bytes(plan, layout, UPDATE, b) for b in range(layout.blocks)),
            charge=None,
            release=None,
            unsafe=False,
            update=bytes(UPDATE_BYTES),
        )
        receipt = dataclasses.replace(receipt, **changes)
        signature = (signer or self._identity).sign(*signing_bytes(receipt))
        return dataclasses.replace(receipt, signature=signature)

    def frame(self, put: PutBlock, announced: int | None = None) -> tuple[bytes, list[bytes]]:
        """(envelope, pieces) of a block; `announced` payload bytes instead of those there are."""
        envelope = encode(put)
        payload = bytes(put.payload)
        head = framing.head(envelope, len(payload) if announced is None else announced)
        rest = [payload[at : at + (1 << 20)] for at in range(0, len(payload), 1 << 20)]
        return envelope, [head, *rest]


Send = Callable[[HostilePeer], Any]
