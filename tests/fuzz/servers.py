"""Running servers before hostile input: every method under TLS, handshakes, the metrics port.

Key holders and clients have no server; what holders serve is their metrics port. All parties are
in this process, which makes versions meanwhile and afterwards.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import grpc

from secureps.client.trainer import FitConfig, FitResult
from secureps.crypto.identity import tls_name
from secureps.errors import InternalError, SecurepsError
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import PutBlock, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.service.metrics import Metrics, serve_metrics
from secureps.store.keyring import TlsFiles
from secureps.wire.grpc import framing, servers
from secureps.wire.grpc.framing import REQUEST_DOMAIN, sign_request
from secureps.wire.msgpack import SENT, encode
from tests.fuzz.attempt import FINDINGS, Attempt, resident
from tests.fuzz.mutate import mutated
from tests.golden.values import full
from tests.kits.disk_federation import DiskFederation
from tests.kits.extremes import sendable, signed_anew
from tests.kits.federations import Tensors, Walker, small_plan
from tests.kits.handshakes import hello
from tests.kits.permissions_page import SERVED
from tests.kits.transport_kit import PATIENCE
from tests.kits.unset import unset

SERVERS: Mapping[str, int] = {
    "rpc-messages": 200_000,
    "rpc-streams": 20_000,
    "tls-handshakes": 20_000,
    "metrics-port": 20_000,
}
"""Kinds of hostile callers, and how much each of them says in `make fuzz`."""
AT_ONCE = 8
BUNDLE = 24
GROUP = {"clip": 3.0, "range": 1.0, "most_examples": 32}
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 60.0}
CHECKS = (f"/{servers.SERVICE}/Check", f"/{servers.SERVICE}/Watch")
STATUS = b"GET /metrics HTTP/1.1\r\nHost: localhost:%d\r\nAccept: */*\r\nConnection: close\r\n\r\n"
REQUESTS = (
    b"GET /?name[]=secureps_ready HTTP/1.0\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\nContent-Type: text/plain\r\n\r\nabc",
    b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0\r\n"
    b"Accept-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)

Said = tuple[int, int, str | None]
"""How many inputs a step was, how many of them were taken, and what is wrong."""


def besiege(name: str, folder: Path, seed: int, inputs: int) -> Attempt:
    """Lets one kind of caller say so much to servers that make versions, and have to go on."""
    random, findings = Random(f"{seed}:{name}"), list[tuple[int, str]]()
    step_of = {
        "rpc-messages": Messages,
        "rpc-streams": Streams,
        "tls-handshakes": Handshakes,
        "metrics-port": Ports,
    }[name]
    plan = small_plan("rlwe-2-of-3", versions=1_000_000, group=[GROUP | {"rule": RULE}])
    done, taken, small = 0, 0, 0
    with (
        _stderr(folder / "stderr") as printed,
        DiskFederation(plan, folder, 4, Unhurried) as around,
    ):
        around.makes(2)
        began = time.process_time()
        with step_of(around) as caller:
            while done < inputs and len(findings) < FINDINGS:
                said, accepted, complaint = caller.step(random)
                if not small and done >= inputs // 5:
                    small = resident()
                if complaint is not None:
                    findings.append((done, complaint))
                done, taken = done + said, taken + accepted
        seconds = time.process_time() - began
        around.makes(1)
        grown = resident() - small
        text = printed()
        if "Traceback" in text:
            findings.append((done, f"printed: {text[text.index('Traceback') - 300 :][:3000]}"))
    return Attempt(name, done, taken // 16, seconds, grown, tuple(findings))


@contextmanager
def _stderr(path: Path) -> Iterator[Callable[[], str]]:
    """What the process writes there meanwhile, threads and gRPC's core included."""
    sys.stderr.flush()
    kept, file = os.dup(2), os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(file, 2)
    try:
        yield lambda: path.read_text(errors="replace")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


class Unhurried(Walker):
    """A trainer that takes its time: journals are in memory here, and grow with every version."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        time.sleep(0.5)
        return super().fit(parameters, config)


class Caller:
    """A client of the kit, with its certificate and keys; a context."""

    def __init__(self, around: DiskFederation) -> None:
        self.around, self.name = around, around.clients[-1]
        self.run = around.parties[COORDINATOR].run
        self.identity = around.kit.identities[self.name]
        self._stack = ExitStack()
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Caller:
        for to in (COORDINATOR, self.around.shards[0]):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = self.around.link(self.name).channel(to, self.around.addresses[to], options)
            self._channels[to] = self._stack.enter_context(closing(channel))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def step(self, random: Random) -> Said:
        """Says something."""
        raise NotImplementedError

    def _sign(self, said: bytes) -> bytes:
        return self.identity.sign(REQUEST_DOMAIN, said)

    def call(self, to: str, method: str, pieces: list[bytes], envelope: bytes) -> Any:
        """Begins a call, signed over an envelope."""
        metadata = sign_request(self.name, to, self._sign, method, b"", envelope)
        begun: Any = self._channels[to].stream_stream(method)
        return begun(iter(pieces), metadata=metadata, timeout=PATIENCE)

    def ended(self, to: str, call: Any) -> bytes | SecurepsError:
        """The first answer to a call, or its error."""
        try:
            answer: bytes = next(call)
        except StopIteration:
            return b""
        except grpc.RpcError as error:
            return framing.read_error(error, to)
        finally:
            call.cancel()
        return answer

    def message(self, random: Random) -> bytes:
        """The envelope of a message of any kind, in this client's name, with something wrong."""
        message = random.choice(_extremes(random.choice(KNOWN)))
        message = _own(message, self.name, self.run)
        if random.random() < 0.3:
            message = signed_anew(message, {self.name: self.identity})
        with suppress(SecurepsError):
            data = encode(message)
            return mutated(random, [data]) if random.random() < 0.5 else data
        return b"\xff"


KNOWN = tuple(kind for _, kind in sorted(SENT.items()))


@cache
def _extremes(kind: type) -> list[Any]:
    """Messages of this class, each with one field far from where it was."""
    honest = [full(kind), unset(kind)]
    found = [other for each in honest for other in sendable(each)]
    return [*honest, *(each for each in found if len(encode(each)) < 4096)]


def _own(value: Any, name: str, run: bytes) -> Any:
    """The same, as said by this client in this run."""
    if isinstance(value, tuple):
        return tuple(_own(each, name, run) for each in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        if field.name in ("party", "client", "author") and isinstance(own, str):
            changed[field.name] = name
        elif field.name == "run" and isinstance(own, bytes):
            changed[field.name] = run
        else:
            changed[field.name] = _own(own, name, run)
    return dataclasses.replace(value, **changed)


def _wrong(answer: object) -> str | None:
    """What is wrong with an answer: a fault of the server's own."""
    return (
        f"answered with an InternalError: {answer}" if isinstance(answer, InternalError) else None
    )


class Messages(Caller):
    """Bundles of messages, each judged for itself."""

    def step(self, random: Random) -> Said:
        to = random.choice(tuple(self._channels))
        method = SERVED[COORDINATOR if to == COORDINATOR else "shard-0"][0]
        begun = []
        for _ in range(AT_ONCE):
            count = random.choice((1, 2, BUNDLE, BUNDLE, BUNDLE))
            envelopes = [self.message(random)[:8192] or b"x" for _ in range(count)]
            data = framing.bundle(envelopes)
            begun.append((len(envelopes), self.call(to, method, [data], data)))
        taken = 0
        for count, call in begun:
            answer = self.ended(to, call)
            if (complaint := _wrong(answer)) is not None:
                return count, 0, complaint
            if isinstance(answer, bytes):
                for each in framing.read_replies(answer, count, to):
                    taken += not isinstance(each, SecurepsError)
                    if (complaint := _wrong(each)) is not None:
                        return count, taken, complaint
        return sum(count for count, _ in begun), taken, None


class Streams(Caller):
    """Calls of each method, health's too: frames, pieces of payload, with metadata or without."""

    def step(self, random: Random) -> Said:
        begun = []
        for _ in range(AT_ONCE):
            to = random.choice(tuple(self._channels))
            served = SERVED[COORDINATOR if to == COORDINATOR else "shard-0"]
            method = random.choice((*served, *CHECKS))
            envelope = self.message(random)
            pieces = [envelope]
            if method == framing.WATCH and random.random() < 0.2:
                envelope = encode(Subscribe(self.name, ()))
            if method == framing.PUT:
                envelope, pieces = self._put(random)
            if random.random() < 0.5:
                pieces = [mutated(random, [piece]) for piece in pieces]
            begun.append((to, self.call(to, method, pieces, envelope)))
        for to, call in begun:
            if (complaint := _wrong(self.ended(to, call))) is not None:
                return 1, 0, complaint
        return len(begun), 0, None

    def _put(self, random: Random) -> tuple[bytes, list[bytes]]:
        """A block's frame: with its own digest in many cases, and a header that is signed."""
        payload = random.randbytes(random.choice((0, 1, 8, 900, 5000)))
        header = random.choice([m.header for m in _extremes(PutBlock)])
        right = {"digest": payload_digest(payload), "length": len(payload)}
        if random.random() < 0.7:
            header = dataclasses.replace(header, **right)
        whole = signed_anew(_own(header, self.name, self.run), {self.name: self.identity})
        try:
            envelope = encode(PutBlock(whole, b""))
        except SecurepsError:
            envelope = b"\xff"
        rest = [payload] if payload else []
        return envelope, [framing.frame_head(envelope, len(payload)), *rest]


class Handshakes(Caller):
    """Connections whose handshakes are cut or changed anywhere, or that are none."""

    def step(self, random: Random) -> Said:
        lines: list[socket.socket] = []
        for _ in range(AT_ONCE):
            to = random.choice(tuple(self._channels))
            port = int(self.around.addresses[to].rpartition(":")[2])
            with suppress(OSError):
                line = socket.create_connection(("127.0.0.1", port), PATIENCE)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                lines.append(line)
                self._speak(random, to, line)
        for line in lines:
            line.close()
        if random.random() < 0.02:
            self.around.status()  # an honest party is answered meanwhile
        return AT_ONCE, 0, None

    def _speak(self, random: Random, to: str, line: socket.socket) -> None:
        match random.randrange(4):
            case 0:  # no TLS at all
                said = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", STATUS % 80)
                line.sendall(mutated(random, said))
            case 1:
                line.sendall(mutated(random, (hello(),)))
            case 2:
                whole = hello()
                line.sendall(whole[: random.randrange(len(whole))])
            case _:
                self._second(random, to, line)

    def _second(self, random: Random, to: str, line: socket.socket) -> None:
        """An honest hello, and then what follows the server's flight, changed or cut."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.around.directory / "public" / "tls" / "ca.pem")
        context.set_alpn_protocols(["h2"])
        if random.random() < 0.5:
            own = self.around.directory / "private" / self.name / "tls.key"
            shown = self.around.directory / "public" / "tls" / f"{self.name}.pem"
            context.load_cert_chain(shown, own)
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = context.wrap_bio(came, goes, server_hostname=tls_name(to))
        with suppress(ssl.SSLWantReadError):
            secured.do_handshake()
        line.sendall(goes.read())
        for _ in range(4):
            if not (flight := line.recv(1 << 16)):
                return
            came.write(flight)
            with suppress(ssl.SSLWantReadError):
                secured.do_handshake()
                break
        whole = goes.read()
        if random.random() < 0.5:
            line.sendall(whole[: random.randrange(len(whole) + 1)])
        else:
            line.sendall(mutated(random, (whole,)))


class Ports(Caller):
    """What is no request, to ports of metrics in the clear and under TLS."""

    def __enter__(self) -> Ports:
        super().__enter__()
        kit, ca = self.around.directory, self.around.kit.public.ca
        tls = TlsFiles(kit, COORDINATOR, ca)
        self._ports = []
        for listen in ("127.0.0.1:0", "0.0.0.0:0"):
            metrics = serve_metrics(Metrics(), listen, self.around.folder, tls)
            address = self._stack.enter_context(metrics)
            self._ports.append(int(address.rpartition(":")[2]))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.load_verify_locations(kit / "public" / "tls" / "ca.pem")
        own = kit / "private" / self.name / "tls.key"
        self._context.load_cert_chain(kit / "public" / "tls" / f"{self.name}.pem", own)
        return self

    def step(self, random: Random) -> Said:
        clear, secured = self._ports
        answered = 0
        for _ in range(AT_ONCE):
            under_tls = random.random() < 0.3
            with suppress(OSError), ExitStack() as stack:
                port = random.choice(self._ports) if not under_tls else secured
                line = socket.create_connection(("127.0.0.1", port), PATIENCE)
                stack.enter_context(closing(line))
                if under_tls:
                    line = stack.enter_context(closing(self._context.wrap_socket(line)))
                line.sendall(mutated(random, (STATUS % port, *REQUESTS)))
                line.settimeout(0.01)
                answered += bool(line.recv(1 << 16))
        if random.random() < 0.02:
            with closing(socket.create_connection(("127.0.0.1", clear), PATIENCE)) as line:
                line.sendall(STATUS % clear)
                if not line.recv(1 << 16).startswith(b"HTTP/1.0 200"):
                    return AT_ONCE, answered, "an honest request is not answered"
        return AT_ONCE, answered, None
