"""A payload's memory is freed at once after its use, without a garbage collection."""

import errno
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from secureps.errors import Busy, NotReady, Unreachable
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetBlock, Missing, Noted, Payload, PutBlock, Stored
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Call, CallOff, Effect, Step, Tick
from secureps.service.executor import PAYLOADS_IN_FLIGHT
from tests.kits.executor_kit import Stage, spoken

ASK = GetBlock(b"r" * 32, "g", 0, 0)
SEND = PutBlock(BlockHeader(b"r" * 32, "a", "update", "g", 0, 0, 3, b"d" * 32))
OWN = PutBlock(replace(SEND.header, author="me"))


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_pulled_payload_goes_with_what_was_made_of_it() -> None:
    stage, block = spoken(Call("there", ASK)), np.ones(8, np.uint8)
    there = weakref.ref(block)
    stage.play()
    (_, _, answer) = stage.line.calls.pop()
    answer.set_result(Payload(payload_digest(block.data), block.data))
    del answer, block
    stage.play()
    assert stage.worker.kept["kept"] == bytes([1] * 8)
    assert there() is None


def test_a_sent_payload_goes_with_its_answer() -> None:
    stage, block = spoken(Call("there", SEND, attach="k")), np.ones(8, np.uint8)
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
    stage = spoken(Call("there", ASK, others=("second", "third")))
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


def called(*calls: Call) -> Stage:
    """A machine that begins these calls for "a", and calls those to "there" off for "b"."""
    effects: dict[str, list[Effect]] = {"a": list(calls), "b": [CallOff("there")]}
    stage = Stage(lambda s, e: Step([], list(effects.get(s, ()))))
    stage.ask()
    return stage


def heard(stage: Stage) -> list[str]:
    """The senders of all events but ticks and those of "a" and "b"."""
    return [s for s, e in stage.machine.heard if s not in ("a", "b") and not isinstance(e, Tick)]


LACKS = Missing("me", "g", 0, ())


def test_a_call_that_is_called_off_is_tried_no_more_and_nothing_is_heard_of_it() -> None:
    stage = called(Call("there", LACKS), Call("here", LACKS))
    (to, _, first), (_, _, other) = stage.line.calls
    assert to == "there"
    first.set_exception(Unreachable("is it up?"))
    stage.play()
    (_, _, again) = stage.line.calls.pop()
    stage.ask("b")
    again.set_exception(Unreachable("is it up?"))
    other.set_exception(Unreachable("is it up?"))
    stage.play()
    assert [to for to, _, _ in stage.line.calls] == ["there", "here", "here"]
    stage.line.calls[-1][2].set_result(Noted())
    stage.play()
    assert heard(stage) == ["here"]


def test_an_answer_that_comes_after_all_is_not_heard() -> None:
    stage = called(Call("there", LACKS))
    stage.ask("b")
    stage.line.calls.pop()[2].set_result(Noted())
    stage.play()
    assert heard(stage) == []


def test_who_was_called_off_may_be_called_again() -> None:
    stage = called(Call("there", LACKS))
    stage.ask("b")
    stage.ask()
    first, again = stage.line.calls
    first[2].set_result(Noted())
    again[2].set_result(Noted())
    stage.play()
    assert heard(stage) == ["there"]


def test_payloads_that_wait_for_who_left_make_room() -> None:
    lost = [Call("there", OWN, attach="k")] * (PAYLOADS_IN_FLIGHT + 3)
    stage = called(*lost, Call("here", OWN, attach="k"))
    assert [to for to, _, _ in stage.line.calls] == ["there"] * PAYLOADS_IN_FLIGHT
    stage.ask("b")
    under_way, stage.line.calls = stage.line.calls, []
    under_way[0][2].set_exception(Unreachable("is it up?"))
    stage.play()
    ((to, _, answer),) = stage.line.calls
    assert to == "here"
    answer.set_result(Stored(SEND.header.digest))
    stage.play()
    assert heard(stage) == ["here"]


@pytest.mark.parametrize("fault", [KeyError("k"), OSError(errno.EIO, "the disk")])
def test_payloads_that_cannot_be_read_make_room(fault: Exception) -> None:
    """One that was settled meanwhile is gone for good; a disk may work again."""
    gone = [replace(SEND, header=replace(SEND.header, block=k)) for k in range(PAYLOADS_IN_FLIGHT)]
    calls: list[Effect] = [Call("there", each, attach="gone") for each in gone]
    calls.append(Call("there", OWN, attach="k"))
    stage, failed = Stage(lambda s, e: Step([], calls if s == "a" else [])), list[str]()

    def fetch(key: str) -> bytes:
        if key == "gone" and len(failed) < len(gone):
            failed.append(key)
            raise fault
        return b"own"

    stage.worker.fetch = fetch  # type: ignore[method-assign]
    stage.ask()
    stage.play()
    assert stage.line.calls[0][1] == replace(OWN, payload=b"own")


def test_what_others_can_answer_is_asked_of_them() -> None:
    asks = [Call("there", ASK, others=("second", "third")), Call("second", ASK, others=("there",))]
    stage = called(*asks)
    stage.ask("b")
    assert [to for to, _, _ in stage.line.calls] == ["there", "second", "second"]
    for _, _, answer in stage.line.calls:
        answer.set_exception(Unreachable("is it up?"))
    stage.play()
    assert [to for to, _, _ in stage.line.calls[3:]] == ["second", "third"]
