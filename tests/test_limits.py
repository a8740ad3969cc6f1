"""What a stranger may send, open or name: so much is taken, and one more is refused in clear words.

The numbers stand here by themselves, so that whoever changes a limit says so in this table.
"""

import dataclasses
import json
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from secureps.client.initial_model import RoundRecords, ServerAppRecords, write_served
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import choose
from secureps.crypto.roster import KeyRequest, Roster
from secureps.crypto.sharing import Committee
from secureps.errors import (
    ConfigError,
    Conflict,
    DamagedStore,
    KitError,
    Malformed,
    Oversized,
    PlanRefused,
    SecurepsError,
)
from secureps.messages import requests
from secureps.messages.run import Schema, TensorSpec
from secureps.messages.submission import SubmissionId
from secureps.roles.member.outbox import Outbox
from secureps.service.one_wave import answer_batches
from secureps.store.checkpoint import header_end
from secureps.store.issuing import make_keys
from secureps.store.keyring import ENVELOPE
from secureps.store.kit_files import read
from secureps.store.spool import check_key
from secureps.wire.grpc.framing import open_frame, unbundle
from secureps.wire.msgpack import decode, encode
from tests.kits.party_kits import phrase
from tests.kits.privacy_kit import PRIVACY
from tests.kits.roles_kit import collecting, make_plan
from tests.kits.transport_kit import EchoServer, Grpc

Try = Callable[[int, Path], object]
ALIKE = {"name": "all", "weighting": "uniform"}


@dataclass(frozen=True)
class Limit:
    """What is taken at most, how to try so much, and how one more is refused."""

    most: int
    attempt: Try
    error: type[SecurepsError]
    words: str


def only(kind: type[SecurepsError], call: Callable[[], object]) -> None:
    """Calls with bytes of no meaning, of which the length alone matters here."""
    try:
        call()
    except kind:
        raise
    except SecurepsError:
        pass


# --- plans ------------------------------------------------------------------------


def cohort_of(members: int, capacity: int, **changes: Any) -> object:
    group = ALIKE | {"rule": {"quorum": 3, "minimum": 2, "most": members}}
    return make_plan("rlwe", capacity=capacity, group=[group], **changes)


def tensor_of(values: int) -> None:
    try:
        make_plan().layout(Schema((TensorSpec("w", (values,), "float32"),)))
    except PlanRefused as error:  # so many values are too many blocks in any case
        if "shape" in str(error):
            raise


def blocks_of(number: int) -> None:
    plan = make_plan()
    whole = plan.layout(Schema((TensorSpec("w", (10_000,), "float32"),)))
    each = whole.group("all").block_values
    plan.layout(Schema((TensorSpec("w", (number * each,), "float32"),)))


# --- what parties say -------------------------------------------------------------


def registered(address: int = 3, seen: int = 0) -> None:
    world = collecting("bfv")
    world.give("shard-a", requests.Register("shard-a", "a" * address, 1.0, seen))


def telemetry(*figures: requests.Figure) -> None:
    collecting("bfv").give("c0", requests.Telemetry("c0", "all", 1, figures))


def leaps(number: int, _: Path) -> None:
    """A shard says that it knows so many more submissions of a client."""
    id = SubmissionId("c0", "all", 7)
    known = Conflict("known", free=id.sequence + number)
    if Outbox(next={"all": 8}).next_free_sequence(id, known) is None:
        raise Conflict("not believed")


# --- lengths ----------------------------------------------------------------------


def request(length: int, _: Path) -> None:
    """A server of a run is told a message of so many bytes, all envelope."""
    with closing(Grpc()) as world:
        world.serve("coordinator", EchoServer())
        transport = world.transport("a")
        beside = len(encode(requests.Heartbeat("x" * length))) - length
        world.result(transport.call("coordinator", requests.Heartbeat("x" * (length - beside))))


def framed(length: int) -> bytes:
    return struct.pack("<IQ", length, 0) + bytes(length)


def bundled(number: int, _: Path) -> None:
    unbundle(b"\0" + b"".join(struct.pack("<I", 1) + b"x" for _ in range(number)))


def batch(length: int, folder: Path) -> None:
    """A key holder's socket is told that a batch of so many bytes comes."""
    head = struct.Struct("<BQ")
    path = folder / "socket"
    with answer_batches("keys", path, bytes, test=True), socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        line.sendall(head.pack(0, length))
        line.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: line.recv(1 << 16), b""))
    if said:
        raise Oversized(said[head.size :].decode())


def kit_file(length: int, folder: Path) -> None:
    path = folder / "file"
    with open(path, "wb") as file:
        file.truncate(length)
    path.chmod(0o600)
    read(path, "")


def cipher_key(length: int, folder: Path) -> None:
    whole = make_keys(folder, "holder", "keys-0", ENVELOPE)
    dataclasses.replace(whole, cipher_key=bytes(length))


def told_to_clients(length: int, folder: Path) -> None:
    """A ServerApp's settings of all rounds come to so many bytes."""

    def served(text: int) -> ServerAppRecords:
        return ServerAppRecords(fits=(RoundRecords(1, json.dumps([["x" * text, "config", {}]])),))

    beside = len(json.dumps(dataclasses.asdict(served(0))))
    write_served(folder / "initial", {}, served(length - beside))


def records(number: int) -> object:
    text = json.dumps([[f"{each}", "config", {}] for each in range(number)])
    try:
        return TypeAdapter(RoundRecords).validate_python({"since": 1, "records": text})
    except ValidationError as error:
        raise ConfigError(str(error)) from None


LIMITS = {
    # --- plans: what one file may ask of a federation ---
    "capacity": Limit(
        4096,
        lambda n, _: make_plan("plain", capacity=n),
        ConfigError,
        "must be 4096 or less, and is 4097",
    ),
    "members in a sum": Limit(
        8, lambda n, _: cohort_of(n, 8), PlanRefused, "9 exceeds the cipher's capacity of 8; raise"
    ),
    "members in a sum with the shards' noise": Limit(
        7,
        lambda n, _: cohort_of(n, 8, privacy=PRIVACY | {"placement": "aggregator"}),
        PlanRefused,
        "capacity of 8, of which the shards' noise takes 1; raise cipher.capacity to 9",
    ),
    "weights of a ring": Limit(
        (1 << 21) - 1,
        lambda n, _: choose(CipherParameters("rlwe", n, 2, 1, 64)),
        PlanRefused,
        "weights below 2097152",
    ),
    "holders of a committee": Limit(
        64,
        lambda n, _: Committee(tuple(f"k{each:02}" for each in range(n)), n),
        PlanRefused,
        "a committee of 65 holders; at most 64",
    ),
    "holders of whom most must agree": Limit(
        12,
        lambda n, _: Committee(tuple(f"k{each:02}" for each in range(n)), n // 2 + 1),
        PlanRefused,
        "need 3003 seeds a key, and at most 2048 are allowed: take fewer",
    ),
    "values of a tensor": Limit(
        1 << 36, lambda n, _: tensor_of(n), PlanRefused, "impossible shape"
    ),
    "blocks of a group": Limit(
        1 << 14, lambda n, _: blocks_of(n), PlanRefused, "would have 16385 blocks, and may have"
    ),
    # --- what parties say of themselves ---
    "letters of an address": Limit(
        300, lambda n, _: registered(n), Malformed, "an address has 300 letters, no more"
    ),
    "starts that a journal may have lost": Limit(
        1 + (1 << 20), lambda n, _: registered(seen=n), Malformed, "no start is 1048576 further"
    ),
    "figures of one report": Limit(
        16,
        lambda n, _: telemetry(*(requests.Figure(f"f{each}", 0.0) for each in range(n))),
        Malformed,
        "at most 16 figures",
    ),
    "letters of a figure's name": Limit(
        64, lambda n, _: telemetry(requests.Figure("f" * n, 0.0)), Malformed, "names of 64 letters"
    ),
    "a figure": Limit(
        10**15,
        lambda n, _: telemetry(requests.Figure("f", float(n))),
        Malformed,
        "from 0 to 1e\\+15",
    ),
    "submissions that a client may have lost": Limit(1 << 20, leaps, Conflict, "not believed"),
    # --- lengths, in bytes, of what comes from elsewhere ---
    "a request": Limit(1 << 20, request, Oversized, "1048577 bytes; at most 1048576 are allowed"),
    "a message": Limit(
        20 << 20,
        lambda n, _: only(Oversized, lambda: decode(bytes(n))),
        Oversized,
        "a message of 20971521 bytes; at most 20971520 are allowed",
    ),
    "a frame's envelope": Limit(
        64 << 10, lambda n, _: open_frame(framed(n)), Oversized, "65537 bytes, more than 65536"
    ),
    "messages of a bundle": Limit(64, bundled, Malformed, "no bundle of 2 to 64 messages"),
    "a batch of waves": Limit(64 << 20, batch, Oversized, "a batch of 67108865 bytes; at most"),
    "a roster": Limit(
        15 << 20,
        lambda n, _: only(Oversized, lambda: Roster.from_bytes(bytes(n))),
        Oversized,
        "a roster of 15728641 bytes; at most 15728640",
    ),
    "a request for keys": Limit(
        512 << 10,
        lambda n, _: only(Oversized, lambda: KeyRequest.from_bytes(bytes(n))),
        Oversized,
        "a request of 524289 bytes; at most 524288",
    ),
    "a holder's key": Limit(200_000, cipher_key, Malformed, "cipher key cannot have 200001 bytes"),
    "a file of a kit": Limit(32 << 20, kit_file, KitError, "more than 33554432 bytes"),
    "a passphrase": Limit(
        1024, lambda n, _: phrase("x" * n), ConfigError, "1 to 1024 bytes, this one 1025"
    ),
    "a spool's key": Limit(250, lambda n, _: check_key("x" * n), Malformed, "not a key"),
    "the header of a state file": Limit(
        16 << 20,
        lambda n, folder: header_end(folder, n.to_bytes(8, "little"), 1 << 40),
        DamagedStore,
        "its header is not whole",
    ),
    "a ServerApp's settings": Limit(
        1 << 20, told_to_clients, ConfigError, "1048577 bytes in all rounds; 1048576 fit"
    ),
    "records of a round": Limit(64, lambda n, _: records(n), ConfigError, "too many records"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_so_much_is_taken_and_one_more_is_refused(name: str, tmp_path: Path) -> None:
    limit = LIMITS[name]
    for folder in ("at", "beyond"):
        (tmp_path / folder).mkdir()
    limit.attempt(limit.most, tmp_path / "at")
    with pytest.raises(limit.error, match=limit.words) as caught:
        limit.attempt(limit.most + 1, tmp_path / "beyond")
    assert type(caught.value) is limit.error
