"""What carries a model or a sum: payloads of ciphers, differences, tensors, apps' states."""

import dataclasses
import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from secureps.client.flower.trainer import FlowerModel, States
from secureps.client.initial_model import (
    LocalTensors,
    RoundRecords,
    ServerAppRecords,
    read_served,
    write_served,
)
from secureps.client.update import keep, load_kept
from secureps.crypto.bfv import most_levels
from secureps.crypto.bfv_seal import generate
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.sharing import parse_vector, vector_bytes
from secureps.crypto.suite import cipher, key_length
from secureps.flower.post import ModelForm
from secureps.messages.run import GroupVersion
from secureps.model.layout import GroupLayout
from secureps.model.optimizer import Values
from secureps.policy.block_deltas import BlockDelta, block_delta
from secureps.roles.member.tasks import Aim, kept_key
from secureps.run.initial_schema import read_initial_schema
from secureps.run.script.channel import Channel
from secureps.run.script.cut_off import Calls
from secureps.store.checkpoint import write_state
from secureps.store.spool import MemorySpool
from tests.fuzz.target import Target, in_file
from tests.kits.cipher_kit import PLACE
from tests.kits.roles_kit import make_plan
from tests.kits.unset import unset

SLOTS = 24


def targets(folder: Path) -> list[Target]:
    return [*_ciphers(), *_models(folder), *_apps(folder)]


def _ciphers() -> list[Target]:
    secret, key = generate()
    parameters = {
        "plain": CipherParameters("plain", 32, 65_535),
        "bfv": CipherParameters("bfv", 32, most_levels(32)),
        "rlwe": CipherParameters("rlwe", 32, 65_536, 4),
        "rlwe-wide": CipherParameters("rlwe", 8192, 1 << 20, 4),
    }
    made = []
    for name, each in parameters.items():
        public = key.to_bytes() if name == "bfv" else None
        made += _cipher(name, each, public, secret if name == "bfv" else None)
    vector = vector_bytes(np.arange(64, dtype=np.uint32))
    made.append(
        Target(
            "vector",
            ("crypto.sharing:parse_vector",),
            (vector,),
            lambda data: vector_bytes(parse_vector(data, 64)),
        )
    )
    return made


def _cipher(
    name: str, parameters: CipherParameters, public: bytes | None, secret: object
) -> list[Target]:
    """A block that is added up, a total that is opened, and a sum of keys that opens it."""
    built = cipher(parameters)
    sealer, adder = built.sealer(PLACE, public), built.adder()
    values = np.arange(SLOTS, dtype=np.int64)
    block = sealer.seal(0, values)
    own: object = secret if sealer.key is None else sealer.key
    opener = built.opener(PLACE, own)
    sums = adder.zero(SLOTS)
    adder.add(sums, block, 1)
    total = bytes(adder.total(sums))

    def added(data: bytes) -> bytes:
        """What passes is added up to a total that passes, and by a weight of 4 too."""
        adder.check(SLOTS, data)
        for weight in (1, 4):
            room = adder.zero(SLOTS)
            for _ in range(3):
                adder.add(room, data, weight)
            adder.check_total(SLOTS, adder.total(room))
        return data

    def opened(data: bytes) -> bytes:
        """What opens has values that a cohort can have; under `rlwe` no other total has the same.

        A bfv total may have other noise, of which decryption says nothing.
        """
        found = opener.open(0, data, SLOTS)
        most = parameters.capacity * parameters.levels
        assert found.min() >= 0
        if name != "plain":
            assert found.max() <= most
        other = (found != values).any() or name in ("plain", "bfv")
        return data if data == total or other else total

    cost = {"plain": 4, "rlwe": 60, "rlwe-wide": 200, "bfv": 400}[name]
    read = {
        "plain": (
            "crypto.suite:PlainAdder._check_block",
            "crypto.suite:PlainAdder._check_total",
            "crypto.suite:PlainAdder._add",
            "crypto.suite:PlainOpener._open",
        ),
        "bfv": ("crypto.bfv:BfvAdder._check_block", "crypto.bfv:BfvAdder._add"),
    }.get(name, ("crypto.rlwe:_read_words",))
    found = [
        Target(f"{name}-block", read, (block,), added, cost=cost),
        Target(f"{name}-total", read, (total,), opened, cost=2 * cost),
    ]
    if sealer.key is None:
        return found
    keys = sealer.key.coefficients().astype("<i4").tobytes()
    assert len(keys) == 4 * key_length(parameters)

    def keyed(data: bytes) -> bytes:
        """A total opens under its own sum of keys, and as other values, or not, under others."""
        read = built.opener(PLACE, data).open(0, total, SLOTS)
        return data if data == keys or (read != values).any() else keys

    of = ("crypto.suite:RlweCipher.opener",)
    return [*found, Target(f"{name}-keys", of, (keys,), keyed, cost=2 * cost)]


def _models(folder: Path) -> list[Target]:
    values = np.arange(9, dtype=np.float32)
    initial = folder / "initial.safetensors"
    served = ServerAppRecords(
        names=("a", "b"), fits=(RoundRecords(1, json.dumps([["config", "config", {"lr": 1}]])),)
    )
    write_state(initial, {"a": values, "b": values.reshape(3, 3)}, {})
    model = initial.read_bytes()
    write_served(initial, {"a": values, "b": values.reshape(3, 3)}, served)
    recorded = initial.read_bytes()
    plan = make_plan()
    pinned = plan.section.model_copy(update={"initial": str(initial)})
    with_initial = type(plan)(pinned, "00" * 32)

    own = LocalTensors(folder / "local")
    (folder / "local").mkdir()
    own.save((GroupVersion("all", 6),), {"a": values}, {"a": values + 1})
    local = next((folder / "local").iterdir())
    honest = local.read_bytes()

    return [
        Target(
            "initial",
            ("run.initial_schema:read_initial_schema",),
            (model, recorded),
            in_file(initial, lambda _: read_initial_schema(with_initial)),
            cost=8,
        ),
        Target(
            "served",
            ("client.initial_model:_parse", "client.initial_model:_check_records"),
            (model, recorded),
            in_file(folder / "served.safetensors", read_served),
            cost=8,
        ),
        Target(
            "local-tensors",
            ("store.checkpoint:find_tensors",),
            (honest,),
            in_file(local, lambda _: own.load()),
            cost=8,
        ),
        _feedback(values),
        *_differences(),
    ]


def _differences() -> list[Target]:
    """Differences of a block, of every value and of a part of them, from one that is known."""
    made = []
    codec = {"codec": [{"name": "support", "one_in": 4}, "rotate"], "clip": 2.0, "range": 1.0}
    for name, group in (("whole", {}), ("part", codec)):
        rule = {"quorum": 3, "minimum": 2}
        plan = make_plan(group=[{"rule": rule, "most_examples": 32, "pull_bits": 4, **group}])
        layout = GroupLayout("all", (), 256, 256)
        delta = block_delta(plan, layout, 0)
        assert delta is not None
        before = np.linspace(-1, 1, 256, dtype=np.float32)
        honest = tuple((bytes(range(256)) * 8)[: count * delta.length] for count in (1, 2))

        def followed(data: bytes, delta: BlockDelta = delta, before: Values = before) -> bytes:
            found = delta.follow(before, data, 7)
            return data if found.shape == before.shape and found.dtype == before.dtype else b""

        of = ("policy.block_deltas:BlockDelta.follow",)
        made.append(Target(f"differences-{name}", of, honest, followed, cost=8))
    return made


def _feedback(values: Any) -> Target:
    """What was kept of an update is added as it was, or not at all."""
    outbox = MemorySpool()
    keep(outbox, "all", b"n" * 32, values.copy())
    name = kept_key("all", b"n" * 32)
    honest = outbox.get(name)

    aim = dataclasses.replace(unset(Aim), group="all", carried=b"n" * 32)

    def taken(data: bytes) -> bytes:
        outbox.put(name, data)
        return data if load_kept("c", outbox, aim, 9) is None or data == honest else honest

    return Target("feedback", ("client.update:load_kept",), (honest,), taken, cost=8)


def _apps(folder: Path) -> list[Target]:
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    states = States(folder / "states")
    (folder / "states").mkdir()
    arrays = ArrayRecord({"w": Array(np.arange(4, dtype=np.float32))})
    config = ConfigRecord({"text": "é", "bytes": b"ab", "many": [b"a", b"b"], "flag": True})
    metrics = MetricRecord({"x": 0.5, "many": [1, 2]})
    states.keep(6, RecordDict({"arrays": arrays, "config": config, "metrics": metrics}))
    state = next((folder / "states").iterdir())

    records = tuple(
        json.dumps(each).encode()
        for each in (
            {"examples": 3, "steps": 1},
            {"done": {"a": 1}},
            {"say": "text"},
            {"failed": ["Refused", "no"]},
            {"at": "fit"},
        )
    )
    tensors = folder / "channel.safetensors"
    write_state(tensors, {"00000000 a": np.arange(4, dtype=np.float32)}, {})
    said = [
        len(text).to_bytes(8, "big") + text + data
        for text in records
        for data in (b"", tensors.read_bytes())
    ]
    frames = tuple(len(each).to_bytes(4, "big") + each for each in said)
    model = FlowerModel({"w": np.zeros((2, 3), np.float32), "n": np.zeros((), np.int64)}, False)
    form = ModelForm(model).to_json().encode()
    heard = ("run.script.channel:Channel.receive", "run.script.channel:unpack")
    return [
        Target(
            "flower-state",
            ("client.flower.trainer:from_plain", "client.flower.trainer:_from_scalars"),
            (state.read_bytes(),),
            in_file(state, lambda _: states.load_newest()),
            cost=12,
        ),
        Target("model-form", ("flower.post:ModelForm.from_json",), (form,), _form, cost=2),
        Target("script", heard, frames, _heard, cost=8),
        Target("script-cut-off", heard, frames[:2], _answered, cost=8),
    ]


def _form(data: bytes) -> bytes:
    text = data.decode(errors="replace")
    read = ModelForm.from_json(text).to_json()
    return data if read == text else read.encode()


def _answered(data: bytes) -> bytes:
    """What a process without a network says to a call."""
    _from_socket(data, lambda channel: Calls(channel).receive())
    return data


def _heard(data: bytes) -> bytes:
    def all_of(channel: Channel) -> None:
        while channel.receive() is not None:
            pass

    _from_socket(data, all_of)
    return data


def _from_socket(data: bytes, read: Callable[[Channel], object]) -> None:
    """Reads what came over a socket whose other end is closed."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.setblocking(False)
        theirs.send(data[:100_000])
        theirs.close()
        channel = Channel(ours)
        try:
            read(channel)
        finally:
            channel.close()
