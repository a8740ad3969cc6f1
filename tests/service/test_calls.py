"""A payload goes as soon as nobody needs it, and not when memory happens to be collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from secureps.errors import Busy, NotReady, Unreachable
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetBlock, Heartbeat, Payload, PutBlock, Stored
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Call, Step
from tests.kits.executor_kit import Stage

ASK = GetBlock(b"r" * 32, "g", 0, 0)
SEND = PutBlock(BlockHeader(b"r" * 32, "a", "update", "g", 0, 0, 3, b"d" * 32))


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def played(call: Call) -> Stage:
    stage = Stage(lambda s, e: Step([], [call] if s == "a" else []))
    stage.executor.request("a", Heartbeat("a"))
    return stage


def test_a_pulled_payload_goes_with_what_was_made_of_it() -> None:
    stage, block = played(Call("there", ASK)), np.ones(8, np.uint8)
    there = weakref.ref(block)
    stage.play()
    (_, _, answer) = stage.line.calls.pop()
    answer.set_result(Payload(payload_digest(block.data), block.data))
    del answer, block
    stage.play()
    assert stage.worker.kept["kept"] == bytes([1] * 8)
    assert there() is None


def test_a_sent_payload_goes_with_its_answer() -> None:
    stage, block = played(Call("there", SEND, attach="k")), np.ones(8, np.uint8)
    there, kept = weakref.ref(block), {"k": block.data}
    stage.worker.fetch = kept.pop  # type: ignore[assignment]
    del block
    stage.play()
    (_, message, answer) = stage.line.calls.pop()
    assert message.payload == bytes([1] * 8)
    answer.set_result(Stored(SEND.header.digest))
    del message, answer
    stage.play()
    assert there() is None


def test_who_cannot_be_reached_has_others_who_answer_as_well() -> None:
    stage = played(Call("there", ASK, others=("second", "third")))
    asked = []
    for _ in range(4):
        stage.play()
        to, message, answer = stage.line.calls.pop()
        assert message == ASK
        asked.append(to)
        answer.set_exception(Unreachable("is it up?"))
    assert asked == ["there", "second", "third", "there"]
    stage.play()
    to, _, answer = stage.line.calls.pop()
    assert to == "second"
    answer.set_exception(Busy("later", 0.1))
    stage.play()
    to, _, answer = stage.line.calls.pop()
    assert to == "second", "it is there, and will answer"
    answer.set_exception(NotReady("not made yet", 0.1))
    stage.play()
    assert stage.line.calls.pop()[0] == "third", "the second may have lost its disk"
