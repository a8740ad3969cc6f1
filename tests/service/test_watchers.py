"""Streams of orders: one for each party, and none for who is on the roster no more."""

from __future__ import annotations

from secureps.errors import KitError, UnknownParty
from secureps.messages.orders import Finish
from secureps.service.executor import Watchers
from tests.kits.roles_kit import CLIENTS, ROSTER, STRANGER

END = Finish(1, "over")


class Stream:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def __call__(self, message: object) -> None:
        self.heard.append(message)


def test_orders_go_to_the_newest_stream_of_a_party() -> None:
    ended: list[str] = []
    watchers, older, newer = Watchers(ended.append), Stream(), Stream()
    watchers.tell("c0", END)
    watchers.begin("c0", older)
    watchers.begin("c0", newer)
    watchers.tell("c0", END)
    (taken,) = older.heard
    assert isinstance(taken, KitError)
    assert newer.heard == [END]
    watchers.end("c0", older)
    assert ended == []
    watchers.end("c0", newer)
    watchers.tell("c0", END)
    assert (ended, newer.heard) == (["c0"], [END])


def test_a_refused_stream_says_why_and_ends() -> None:
    ended: list[str] = []
    watchers, stream, error = Watchers(ended.append), Stream(), UnknownParty("who")
    watchers.refuse("c0", error)
    watchers.begin("c0", stream)
    watchers.refuse("c0", error)
    watchers.tell("c0", END)
    assert (stream.heard, ended) == ([error], ["c0"])


def test_who_is_on_the_roster_no_more_hears_nothing_more() -> None:
    ended: list[str] = []
    watchers = Watchers(ended.append)
    streams = {name: Stream() for name in (*CLIENTS, STRANGER)}
    for name, stream in streams.items():
        watchers.begin(name, stream)
    watchers.keep_to(ROSTER)
    (gone,) = streams[STRANGER].heard
    assert isinstance(gone, UnknownParty)
    assert ended == [STRANGER]
    assert not any(streams[name].heard for name in CLIENTS)
