"""Which of several addresses is dialled."""

from __future__ import annotations

from secureps.errors import NotReady, Unreachable
from secureps.wire.grpc.client import TURN, Addresses


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_next_one_is_dialled_when_one_is_not_reached() -> None:
    clock = Time()
    known = Addresses({"coordinator": "a:1,b:2", "shard-0": "c:3"}, clock)
    assert known.several("coordinator")
    assert not known.several("shard-0")
    assert known.of("coordinator") == "a:1"
    assert known.failed("coordinator", Unreachable("gone"))
    assert known.of("coordinator") == "b:2"
    clock.now += TURN
    assert known.failed("coordinator", Unreachable("gone"))
    assert known.of("coordinator") == "a:1"


def test_what_fails_together_is_one_failure() -> None:
    clock = Time()
    known = Addresses({"coordinator": "a:1,b:2"}, clock)
    assert known.failed("coordinator", Unreachable("gone"))
    clock.now += TURN / 2
    assert not known.failed("coordinator", Unreachable("gone"))
    assert known.of("coordinator") == "b:2"


def test_whoever_is_there_and_refuses_is_dialled_again() -> None:
    known = Addresses({"coordinator": "a:1,b:2", "shard-0": "c:3"})
    assert not known.failed("coordinator", NotReady("later"))
    assert not known.failed("shard-0", Unreachable("gone"))
    assert not known.failed("nobody", Unreachable("gone"))
    assert (known.of("coordinator"), known.of("shard-0")) == ("a:1", "c:3")


def test_a_party_that_moved_is_at_one_address() -> None:
    known = Addresses({"coordinator": "a:1,b:2"})
    assert known.of("shard-0") is None
    assert known.set("shard-0", "c:3")
    assert not known.set("shard-0", "c:3")
    assert known.set("coordinator", "d:4")
    assert not known.several("coordinator")
