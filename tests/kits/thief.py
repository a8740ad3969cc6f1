"""Whoever has a key of the roster, before the real servers of a federation in this process."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from secureps.messages.encoding import payload_digest
from secureps.messages.requests import AskRun, PutBlock
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import UPDATE, BlockHeader, Receipt, signing_bytes
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.validation import block_bytes
from secureps.wire.grpc import framing
from secureps.wire.grpc.authentication import REQUEST_DOMAIN, sign_request
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.msgpack import encode
from tests.kits.one_process import PATIENCE, OneProcess


class Thief:
    """Who has a key of the roster."""

    def __init__(self, around: OneProcess, name: str) -> None:
        self.around, self.name = around, name
        self.identity = around.kit.identities[name]
        self._transport: GrpcTransport = around.transport(name)
        welcome = self.ask(COORDINATOR, AskRun())
        self.run, self.placement = welcome.run, welcome.placement

    def close(self) -> None:
        self._transport.close()

    def ask(self, to: str, message: Any) -> Any:
        return self._transport.call(to, message).result(PATIENCE)

    @property
    def known(self) -> CoordinatorState:
        machine = self.around.parties[COORDINATOR].machine
        assert isinstance(machine, Coordinator)
        return machine.federation

    def stolen(self) -> Receipt:
        """One of the victim's, as whoever listens at the coordinator has it."""
        return self.around.until(
            lambda: next((r for r in tuple(self.known.groups["all"].receipts.values())), None)
        )

    def owner(self, block: int = 0) -> str:
        owner: str = self.placement.of("all").owners[block]
        return owner

    def signed(self, record: Any) -> Any:
        return dataclasses.replace(record, signature=self.identity.sign(*signing_bytes(record)))

    def block(self, **changes: Any) -> PutBlock:
        """Block 0 of an update of its own, well signed, and then what is changed."""
        layout = self.around.plan.layout(self.run.schema).group("all")
        whole = changes.pop("payload", bytes(block_bytes(self.around.plan, layout, UPDATE, 0)))
        digest = payload_digest(whole)
        header = BlockHeader(self.run.id, self.name, UPDATE, "all", 0, 0, len(whole), digest)
        return PutBlock(self.signed(dataclasses.replace(header, **changes)), whole)

    def put(self, **changes: Any) -> Any:
        return self.ask(self.owner(), self.block(**changes))

    def raw(self, method: str, message: Any, payload: bytes | memoryview = b"") -> bytes:
        """The first bytes of an answer to a message as it is, with a payload or without."""
        envelope = encode(message)
        frame = (framing.head(envelope, len(payload)), bytes(payload))
        return self._said(method, envelope, iter(frame if payload else (envelope,)))

    def announce(self, message: PutBlock) -> bytes:
        """What a shard answers to a block of which nothing comes."""
        over = threading.Event()

        def frame() -> Iterator[bytes]:
            yield framing.head(encode(message), message.header.length)
            over.wait(PATIENCE)

        try:
            return self._said(framing.PUT, encode(message), frame())
        finally:
            over.set()

    def _said(self, method: str, envelope: bytes, sent: Iterator[bytes]) -> bytes:
        to = self.owner()
        address = self.around.addresses[to]
        metadata = sign_request(self.name, to, self._sign, method, b"", envelope)
        with grpc.insecure_channel(address) as channel:
            stream: Any = channel.stream_stream(method)
            call = stream(sent, metadata=metadata, timeout=PATIENCE)
            try:
                answer: bytes = next(call)
            except grpc.RpcError as error:
                raise framing.error_of(error, to) from None
            finally:
                call.cancel()
        return answer

    def _sign(self, said: bytes) -> bytes:
        return self.identity.sign(REQUEST_DOMAIN, said)
