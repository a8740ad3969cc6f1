"""Small messages wait for one call at a time, go together, and get separate answers."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from secureps.errors import Busy, InternalError, Malformed, SecurepsError, UnknownParty, Unreachable
from secureps.messages.requests import Follow, Heartbeat, Missing, Noted
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import Tells
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import settle
from tests.kits.transport_kit import PATIENCE

SLOW = Missing("shard-1", "all", 3, ())
"""A shard answers it only after others have ended."""


class Line:
    """Begun calls as (server, names of the heartbeats), and the calls, to be ended by hand."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, list[str]]] = []
        self.calls: list[Future[bytes]] = []
        self.broken: Exception | None = None
        self._changed = threading.Condition()
        self.tells = Tells(self._begin, self._failed, settle)

    def say(self, *names: str, to: str = "shard-0") -> list[Future[Any]]:
        return [self.tell(Heartbeat(name), to) for name in names]

    def tell(self, message: Any, to: str = "shard-0") -> Future[Any]:
        self.tells.add(to, message, encode(message), said := Future[Any]())
        return said

    def await_calls(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE)
        assert len(self.begun) == count

    def end(self, number: int, *answers: Any) -> None:
        """Ends a call; a SecurepsError among the answers refuses one message."""
        told = [
            framing.encode_refusal(each) if isinstance(each, SecurepsError) else encode(each)
            for each in answers
        ]
        self.calls[number].set_result(framing.bundle(told))

    def _begin(self, to: str, data: bytes) -> Future[bytes]:
        with self._changed:
            said = [decode(each) for each in framing.unbundle(data)]
            self.begun.append((to, [getattr(each, "party", "") for each in said]))
            self.calls.append(Future())
            self._changed.notify_all()
            if self.broken is not None:
                raise self.broken
            return self.calls[-1]

    def _failed(self, error: Exception, to: str) -> SecurepsError:
        return error if isinstance(error, SecurepsError) else InternalError(repr(error))


def busy() -> Line:
    """A call with one message is open, and three more messages wait."""
    line = Line()
    line.say("a")
    line.await_calls(1)
    return line


def test_what_is_said_during_a_call_goes_together_in_the_next() -> None:
    line = busy()
    waiting = line.say("b", "c", "d")
    other = line.say("x", to="shard-1")
    line.await_calls(2)
    assert line.begun == [("shard-0", ["a"]), ("shard-1", ["x"])]
    line.end(0, Noted())
    line.await_calls(3)
    assert line.begun[2] == ("shard-0", ["b", "c", "d"])
    line.end(2, Noted(), Busy("full", 2.0), Noted())
    assert [waiting[0].result(PATIENCE), waiting[2].result(PATIENCE)] == [Noted(), Noted()]
    refused = waiting[1].exception(PATIENCE)
    assert isinstance(refused, Busy)
    assert (str(refused), refused.retry_after) == ("full", 2.0)
    assert not other[0].done()
    line.say("e")
    line.await_calls(4)


def test_some_messages_go_alone() -> None:
    line = busy()
    line.say("b")
    line.tell(Follow(b"", 0, b""))
    line.say("d", "e")
    for number in range(3):
        line.end(number, Noted())
        line.await_calls(number + 2)
    assert [names for _, names in line.begun] == [["a"], ["b"], [""], ["d", "e"]]


def test_a_call_takes_so_many_messages_and_bytes_and_a_long_one_too() -> None:
    line = busy()
    line.say(*(str(number) for number in range(framing.BUNDLED + 5)))
    line.say("l" * framing.BUNDLE_LENGTH, "m")
    line.end(0, Noted())
    line.await_calls(2)
    first = len(line.begun[1][1])
    assert first == framing.BUNDLED - 1
    line.end(1, *[Noted()] * first)
    line.await_calls(3)
    assert len(line.begun[2][1]) == 6
    line.end(2, *[Noted()] * 6)
    line.await_calls(4)
    assert [len(name) for name in line.begun[3][1]] == [framing.BUNDLE_LENGTH]
    line.end(3, Noted())
    line.await_calls(5)


def test_nobody_waits_for_a_message_whose_answer_waits_for_others() -> None:
    line = Line()
    slow = line.tell(SLOW)
    line.await_calls(1)
    (said,) = line.say("a")
    line.await_calls(2)
    line.end(1, Noted())
    assert said.result(PATIENCE) == Noted()
    line.say("b")
    line.await_calls(3)
    line.tell(SLOW)
    line.await_calls(4)
    assert [names for _, names in line.begun] == [["shard-1"], ["a"], ["b"], ["shard-1"]]
    line.end(0, Noted())
    assert slow.result(PATIENCE) == Noted()
    line.say("c")
    line.end(2, Noted())
    line.await_calls(5)
    line.broken = Unreachable("nobody is there")
    assert isinstance(line.tell(SLOW).exception(PATIENCE), Unreachable)


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_answers_as_messages_or_none(count: int) -> None:
    line = busy()
    said = line.say("b", "c")
    line.end(0, Noted())
    line.await_calls(2)
    line.end(1, *[Noted()] * count)
    assert [type(each.exception(PATIENCE)) for each in said] == [Malformed, Malformed]


def test_what_cannot_be_sent_fails_and_the_next_is_tried() -> None:
    line = Line()
    line.broken = Unreachable("nobody is there")
    said = [each for name in ("a", "b") for each in line.say(name)]
    assert [type(each.exception(PATIENCE)) for each in said] == [Unreachable, Unreachable]
    line.broken = None
    (later,) = line.say("c")
    while len(line.begun) < 2 or line.begun[-1][1] != ["c"]:
        threading.Event().wait(0.005)
    line.end(len(line.calls) - 1, UnknownParty("who are you?"))
    assert isinstance(later.exception(PATIENCE), UnknownParty)


def test_nothing_is_begun_once_closed() -> None:
    line = Line()
    line.tells.close()
    for message in (Heartbeat("a"), SLOW):
        assert isinstance(line.tell(message).exception(PATIENCE), Unreachable)
    assert line.begun == []
