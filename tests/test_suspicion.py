"""Who is suspected and tried: every offender is found in a bounded number of burnt cohorts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from math import ceil, log2

from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.policy.buckets import Clients, halves, within
from secureps.policy.suspicion import Choice, Suspicion, choose

RUN = b"r" * 32
MOST = 100


def named(*numbers: int) -> Clients:
    return frozenset(f"c{number:02}" for number in numbers)


def crowd(count: int) -> Clients:
    return named(*range(count))


def cutting(version: int) -> Callable[[Clients, int], tuple[Clients, ...]]:
    return partial(halves, RUN, "all", version)


@dataclasses.dataclass
class Played:
    """A run without anything but clients that spoil cohorts."""

    minimum: int
    clients: Clients
    state: Suspicion = dataclasses.field(default_factory=Suspicion)
    isolated: Clients = frozenset()
    included: Clients = frozenset()
    burnt: int = 0
    versions: int = 0
    over: bool = False

    def version(self, spoils: Callable[[Clients], Clients]) -> None:
        """Makes one version, or that it cannot be; holders watch what is asked of them."""
        asked: list[Clients] = []
        while not self.over:
            able = self.clients - self.isolated
            choice = Choice(able, "free")
            if self.state.chooses:
                cut = cutting(self.versions)
                choice = choose(self.state, cut, able, able, self.minimum, MOST)
            self.over = choice.over or len(choice.clients) < self.minimum
            if self.over:
                return
            for before in asked:
                known = partial(within, RUN, "all", self.versions, before, choice.clients)
                assert not before & choice.clients or known(self.minimum)
            asked.append(choice.clients)
            self.state = self.state.opened_for(choice.clients)
            if not spoils(choice.clients):
                self.state = self.state.opens(choice.clients)
                self.included |= choice.clients
                self.isolate()
                break
            self.burnt += 1
            self.state = self.state.burns(dict.fromkeys(choice.clients, 1), spoilt=True)
            self.isolate()
        self.versions += 1

    def isolate(self) -> None:
        for client in sorted(self.state.alone):
            self.isolated |= {client}
            self.state = self.state.without(client)

    def on(self, spoils: Callable[[Clients], Clients]) -> Played:
        """Until everybody is in a version or out."""
        for _ in range(8 * len(self.clients)):
            if self.included | self.isolated == self.clients and not self.state.chooses:
                break
            self.version(spoils)
        return self


@settings(max_examples=150, deadline=None)
@given(minimum=st.integers(2, 6), more=st.integers(0, 40), data=st.data())
def test_one_offender_is_found_and_everybody_else_goes_on(
    minimum: int, more: int, data: st.DataObject
) -> None:
    clients = crowd(2 * minimum + more)
    offender = frozenset({data.draw(st.sampled_from(sorted(clients)))})
    played = Played(minimum, clients).on(offender.intersection)
    assert not played.over
    assert played.isolated == offender
    assert played.included == clients - offender
    assert played.burnt <= 2 * (1 + ceil(log2(len(clients))))
    before = played.burnt
    played.version(offender.intersection)
    assert played.burnt == before
