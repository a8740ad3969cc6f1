"""A party's places go to those of its connections whose calls end well.

Refused requests are counted by party and error, in bounded memory.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from secureps.errors import (
    Busy,
    Conflict,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    Unreachable,
    Unsigned,
)
from secureps.messages.records import RefusedRequests
from secureps.wire.grpc import admission
from secureps.wire.grpc.admission import (
    MOST,
    NOBODY,
    OTHERS,
    REMEMBERED,
    TRUST,
    Connections,
    Places,
    Refusals,
)


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on its own loop, in bounded time."""

    @functools.wraps(test)
    def play(**given: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**given), 20.0))

    return play


class Hall:
    """Two places of each party, four in all; calls that do not end by themselves."""

    def __init__(self, silent: float = admission.TURN) -> None:
        self.connections = Connections()
        self.places = Places(4, 2, self.connections, silent)
        self.ends: dict[str, type[BaseException] | None] = {}
        self.inside: list[str] = []
        self.said: set[str] = set()
        self._over = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def trusts(self, peer: str, times: int = 1) -> None:
        for _ in range(times):
            self.connections.note("a", peer, True)

    async def begin(self, *names: str, peer: str, party: str = "a") -> None:
        """Begins calls, each up to its first wait."""
        for name in names:
            self.tasks.append(asyncio.create_task(self._call(name, peer, party)))
            for _ in range(20):
                await asyncio.sleep(0)

    async def _call(self, name: str, peer: str, party: str) -> None:
        try:
            async with self.places.take(party, peer):
                self.inside.append(name)
                try:
                    await self._over.wait()
                finally:
                    self.inside.remove(name)
            self.ends[name] = None
        except SecurepsError as error:
            self.ends[name] = type(error)
            self.said.add(str(error))

    async def close(self) -> None:
        self._over.set()
        await asyncio.gather(*self.tasks)


@played
async def test_a_connection_that_ends_its_calls_goes_before_one_that_does_not() -> None:
    hall = Hall()
    hall.trusts("own")
    await hall.begin("x1", "x2", "x3", "x4", peer="other")
    assert hall.inside == ["x1", "x2"]
    await hall.begin("a1", peer="own")
    assert hall.inside == ["x2", "a1"]
    assert hall.ends == {"x1": Busy}
    await hall.begin("a2", peer="own")
    assert hall.inside == ["a1", "a2"]
    await hall.begin("x5", peer="third")
    assert hall.inside == ["a1", "a2"], "whoever is trusted less waits"
    assert hall.connections.trust("a", "other") < 0
    await hall.close()
    text = "another connection of a goes before a call on which nothing moves"
    assert hall.said == {text}
    assert hall.ends == {"x1": Busy, "x2": Busy} | dict.fromkeys(("a1", "a2", "x3", "x4", "x5"))


@played
async def test_of_equals_the_one_with_fewer_goes_first_once_nothing_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "QUIET", 0.05)
    hall = Hall()
    await hall.begin("x1", "x2", peer="other")
    await hall.begin("a1", peer="own")
    assert hall.inside == ["x1", "x2"]
    while "a1" not in hall.inside:
        await asyncio.sleep(0.01)
    assert hall.ends == {"x1": Busy}
    hall.trusts("other", TRUST)
    hall.trusts("own", TRUST)
    await hall.begin("x3", peer="other")
    await asyncio.sleep(0.2)
    assert hall.inside == ["x2", "a1"], "each has its share, however quiet"
    await hall.close()


@played
async def test_a_call_has_its_turn_and_then_gives_way_to_another_party_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two parties that hold all places and send a byte now and then do not shut out a third."""
    monkeypatch.setattr(admission, "QUIET", 0.02)
    monkeypatch.setattr(admission, "TURN", 0.2)
    hall = Hall()
    await hall.begin("a1", "a2", peer="own")
    await hall.begin("b1", "b2", peer="there", party="b")
    await hall.begin("c1", peer="elsewhere", party="c")
    assert hall.inside == ["a1", "a2", "b1", "b2"]
    while "c1" not in hall.inside:
        await asyncio.sleep(0.01)
    assert hall.ends == {"a1": Busy}, "the one that came first, and no other"
    assert hall.said == {"others wait, and this call has had its turn; go on with it later"}
    await hall.begin("d1", peer="elsewhere", party="d")
    hall.tasks.pop().cancel()  # whoever gave up waiting takes no place
    await asyncio.sleep(0.3)
    assert len(hall.inside) == 4
    await hall.begin("d2", peer="elsewhere", party="d")
    while "d2" not in hall.inside:
        await asyncio.sleep(0.01)
    assert len(hall.inside) == 4
    await hall.close()


@played
async def test_a_silent_call_gives_way_to_another_party_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for the server, or moves, is not silent."""
    monkeypatch.setattr(admission, "QUIET", 0.02)
    hall = Hall(silent=0.1)
    await hall.begin("a1", "a2", peer="own")
    await hall.begin("b1", "b2", peer="there", party="b")
    held = [place for party in ("a", "b") for place in hall.places.active(party)]
    held[1].pause()
    held[3].pause()
    await hall.begin("c1", peer="elsewhere", party="c")
    while "c1" not in hall.inside:
        held[0].move()
        await asyncio.sleep(0.01)
    assert hall.inside == ["a1", "a2", "b2", "c1"]
    assert hall.ends == {"b1": Busy}
    await hall.close()


@played
async def test_a_turn_ends_for_an_equal_connection_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thief of a key may gain its owner's trust and then move a little at a time."""
    monkeypatch.setattr(admission, "QUIET", 0.02)
    monkeypatch.setattr(admission, "TURN", 0.2)
    hall = Hall()
    for peer in ("other", "own"):
        hall.trusts(peer, TRUST)
    await hall.begin("x1", "x2", peer="other")
    await hall.begin("a1", peer="own")
    while "a1" not in hall.inside:
        for place in hall.places.active("a"):
            place.move()
        await asyncio.sleep(0.01)
    assert hall.ends == {"x1": Busy}
    await hall.close()


@played
async def test_another_party_s_places_are_its_own() -> None:
    hall = Hall()
    hall.trusts("own", TRUST)
    await hall.begin("x1", "x2", peer="there", party="b")
    await hall.begin("a1", "a2", "a3", peer="own")
    assert hall.inside == ["x1", "x2", "a1", "a2"]
    await hall.close()
    assert set(hall.ends.values()) == {None}


class Crowd:
    """Calls for several places each, which end together."""

    def __init__(self, most: int, each: int) -> None:
        self.places = Places(most, each, Connections(), admission.TURN)
        self.inside: list[str] = []
        self.over = asyncio.Event()

    def begin(self, *sizes: tuple[str, int]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._call(*each)) for each in sizes]

    async def _call(self, party: str, size: int) -> None:
        with suppress(Busy):
            async with self.places.take(party, party, size):
                self.inside.append(party)
                await self.over.wait()


@pytest.mark.parametrize(
    ("most", "each", "sizes", "first"),
    [
        # "c" takes no more than its party has, and waits for room; "d" waits for "c"
        (4, 2, {"a": [2], "b": [1], "c": [9], "d": [1]}, ["a", "b"]),
        # two parties leave a third its share
        (9, 3, {"a": [1, 3, 1, 1], "b": [3, 1, 3], "c": [3]}, ["a", "b", "c"]),
    ],
)
@played
async def test_a_long_payload_takes_several_places(
    most: int, each: int, sizes: dict[str, list[int]], first: list[str]
) -> None:
    crowd = Crowd(most, each)
    calls = crowd.begin(*((party, size) for party, several in sizes.items() for size in several))
    await asyncio.sleep(0.02)
    assert crowd.inside == first
    crowd.over.set()
    await asyncio.gather(*calls)
    assert Counter(crowd.inside) == {party: len(several) for party, several in sizes.items()}
    assert crowd.places._free == most


@pytest.mark.parametrize("how", ["cancelled", "ousted", "given room and ousted at once"])
@played
async def test_whoever_stops_waiting_for_room_gives_back_what_it_had_once(how: str) -> None:
    crowd = Crowd(6, 2)
    held = crowd.begin(("a", 2), ("b", 2), ("c", 1))
    head, behind = crowd.begin(("d", 2), ("e", 1))
    await asyncio.sleep(0.02)
    assert crowd.inside == ["a", "b", "c"], "the one at the head goes before a smaller one"
    (place,) = crowd.places.active("d")
    if how == "cancelled":
        head.cancel()
    else:
        if how != "ousted":
            held[2].cancel()
            while not place.room.done():
                await asyncio.sleep(0)
        place.oust("now")
    await asyncio.wait([head])
    await asyncio.sleep(0.02)
    assert crowd.inside == ["a", "b", "c", "e"], "and what it kept back goes to the one behind"
    crowd.over.set()
    await asyncio.gather(*held, behind, return_exceptions=True)
    assert (crowd.places._free, len(crowd.places._queue)) == (6, 0)


@played
async def test_there_is_room_for_a_call_if_another_connection_s_can_go() -> None:
    hall = Hall()
    hall.trusts("own")
    assert not hall.places.oust("a", "own")
    await hall.begin("x1", "x2", "x3", peer="other")
    assert not hall.places.oust("a", "other"), "not its own"
    assert hall.places.oust("a", "own")
    await asyncio.gather(hall.tasks[2])
    assert hall.ends == {"x3": Busy}, "one that waits goes before one that has a place"
    assert hall.inside == ["x1", "x2"]
    assert hall.places.oust("a", "own")
    await asyncio.gather(hall.tasks[0])
    await hall.begin("a1", peer="own")
    assert hall.inside == ["x2", "a1"]
    await hall.close()


@pytest.mark.parametrize(
    ("error", "trust"), [(None, 1), (Refused("no"), 1), (Unreachable("nothing came"), -1)]
)
@played
async def test_what_is_refused_came_to_its_end(error: SecurepsError | None, trust: int) -> None:
    hall = Hall()
    with suppress(SecurepsError):
        async with hall.places.take("a", "own"):
            if error is not None:
                raise error
    assert hall.connections.trust("a", "own") == trust


def test_trust_has_bounds_and_is_of_few_connections() -> None:
    connections = Connections()
    for _ in range(3 * TRUST):
        connections.note("a", "good", True)
        connections.note("a", "bad", False)
    assert (connections.trust("a", "good"), connections.trust("a", "bad")) == (TRUST, -TRUST)
    for number in range(REMEMBERED):
        connections.note("a", str(number), True)
    assert connections.trust("a", "good") == 0
    assert len(connections._trust["a"]) == REMEMBERED


def test_they_are_counted_by_party_and_error_since_they_were_taken() -> None:
    refusals = Refusals()
    for error in (Unsigned("x"), Unsigned("y"), Malformed("z")):
        refusals.note(NOBODY, error)
    refusals.note("client-00", Conflict("x"))
    refusals.note("client-00", Busy("x"))
    refusals.note("client-00", Refused("x"))
    assert refusals.take() == (
        RefusedRequests(NOBODY, "Malformed", 1),
        RefusedRequests(NOBODY, "Unsigned", 2),
        RefusedRequests("client-00", "Busy", 1),
        RefusedRequests("client-00", "Conflict", 1),
        RefusedRequests("client-00", "Refused", 1),
    )
    assert refusals.take() == ()


def test_what_is_of_the_course_of_a_run_is_not_counted() -> None:
    refusals = Refusals()
    for error in (NotReady("x"), Unreachable("x")):
        refusals.note("client-00", error)
    assert refusals.take() == ()


def test_however_many_ask_a_few_are_told_apart() -> None:
    refusals = Refusals()
    for number in range(10 * MOST):
        for error in (Malformed("x"), Conflict("x")):
            refusals.note(f"client-{number:03}", error)
    counts = refusals.take()
    assert len(counts) == MOST + 2
    assert sum(each.count for each in counts) == 20 * MOST
    assert {each.error for each in counts if each.party == OTHERS} == {"Malformed", "Conflict"}
