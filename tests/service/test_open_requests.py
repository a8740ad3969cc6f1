"""A request is answered once: at once, later under its ticket, or when the party ends."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from secureps.errors import Malformed, Unreachable
from secureps.messages.requests import Heartbeat, Noted, Reply
from secureps.roles.machine import Answer, Defer, Effect, Step
from secureps.service.executor import OpenRequests
from tests.kits.executor_kit import Stage


def test_what_is_deferred_is_answered_with_all_of_its_ticket() -> None:
    later: dict[str, Effect] = {
        "first": Defer("t"),
        "second": Defer("t"),
        "last": Answer(Noted(), ticket="t"),
    }
    stage = Stage(lambda sender, event: Step([], [later[sender]] if sender in later else []))
    first, second = (stage.executor.request(name, Heartbeat(name)) for name in ("first", "second"))
    stage.play()
    assert not first.done()
    last = stage.executor.request("last", Heartbeat("last"))
    stage.play()
    assert first.result(0) == second.result(0) == Noted()
    with pytest.raises(Malformed, match="has no answer to a Heartbeat"):
        last.result(0)


def test_what_is_deferred_ends_with_the_party() -> None:
    stage = Stage(lambda sender, event: Step([], [Defer("t")]))
    waiting = stage.executor.request("a", Heartbeat("a"))
    stage.play()
    stage.executor.stop()
    with pytest.raises(Unreachable, match="is stopping"):
        waiting.result(0)


def test_nobody_is_answered_twice() -> None:
    requests, answer = OpenRequests("a"), Future[Reply]()
    assert requests.begin(answer)
    requests.settle(answer, Noted())
    requests.settle(answer, Unreachable("again"))
    assert answer.result(0) == Noted()
    requests.stop()
    late = Future[Reply]()
    assert not requests.begin(late)
    assert isinstance(late.exception(0), Unreachable)
