"""What may happen to messages between parties: a network with faults by a table, and marks."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from secureps.errors import Unreachable
from secureps.messages.requests import Subscribe
from secureps.wire.transport import (
    Clock,
    DelayOf,
    InProcessNetwork,
    _Call,
    _Stream,
    ask,
    no_delay,
    party_at,
)


def unheard(answer: Any) -> None:
    """The answer is lost."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The request is lost: Unreachable after the network's timeout; for an order, its stream."""


@dataclass(frozen=True, slots=True)
class DropReply:
    """The request is performed and its reply lost: Unreachable after the timeout."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The request is performed twice, and answered by the first; an order comes twice."""


@dataclass(frozen=True, slots=True)
class Delay:
    """This much later, in seconds; a stream's later orders wait behind it."""

    seconds: float


Fault = Drop | DropReply | Duplicate | Delay

Table = Mapping[tuple[str, str, str, int], Fault]
"""What goes wrong, by (sender, to, message's class name, its how-manieth: 1 is the first).

Requests, Subscribe (from its party to the coordinator) and orders (from the coordinator to their
party) are counted; replies are not.
"""


class FaultyNetwork(InProcessNetwork):
    """Loses, repeats and delays messages; a lost request fails after `timeout` seconds.

    `sent` counts messages by sender, receiver and class.
    """

    def __init__(
        self,
        clock: Clock,
        delay: DelayOf = no_delay,
        faults: Table | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(clock, delay)
        self._faults = faults or {}
        self._timeout = timeout
        self.sent: Counter[tuple[str, str, str]] = Counter()
        self._performed: dict[_Call, Fault | None] = {}

    def _call(self, call: _Call, message: Any) -> None:
        fault = self._performed[call] = self._fault(call.sender, call.to, message)
        self._send(fault, call, partial(super()._call, call, message), Drop)

    def _watch(self, stream: _Stream, message: Subscribe) -> None:
        fault = self._fault(stream.sender, stream.to, message)
        self._send(fault, stream, partial(super()._watch, stream, message), Drop | DropReply)

    def _send(
        self, fault: Fault | None, link: _Call | _Stream, send: Callable[[], None], lost: Any
    ) -> None:
        if isinstance(fault, lost):
            self._begin(link)
            self._finish_later(self._timeout, link, _lost(link))
        elif isinstance(fault, Delay):
            self._begin(link)

            def later() -> None:
                if link in self._links:  # else one of its ends is gone, and it has failed
                    send()

            self._clock.call_later(fault.seconds, later)
        else:
            send()

    def _perform(self, call: _Call, message: Any) -> None:
        fault, endpoint = self._performed.pop(call), self._endpoints.get(call.to)
        if endpoint is None or call not in self._links or not fault:
            super()._perform(call, message)
        elif isinstance(fault, DropReply):
            ask(endpoint, party_at(call.sender), message, unheard)
            self._finish_later(self._timeout, call, _lost(call))
        else:
            super()._perform(call, message)
            if isinstance(fault, Duplicate):
                ask(endpoint, party_at(call.sender), message, unheard)

    def _order(self, stream: _Stream, order: Any) -> None:
        fault = self._fault(stream.to, stream.sender, order)
        if isinstance(fault, Drop | DropReply):
            order = _lost(stream)
        if isinstance(fault, Delay):
            stream.due = max(stream.due, self._clock.now() + fault.seconds)
        super()._order(stream, order)
        if isinstance(fault, Duplicate):
            super()._order(stream, order)

    def _fault(self, sender: str, to: str, message: Any) -> Fault | None:
        key = (sender, to, type(message).__name__)
        with self._lock:
            self.sent[key] += 1
            return self._faults.get((*key, self.sent[key]))


def _lost(link: _Call | _Stream) -> Unreachable:
    return Unreachable(f"lost between {link.sender} and {link.to}")


def seen(network: InProcessNetwork, sender: str, to: str, kind: str) -> int:
    """How many messages of a class went from `sender` to `to`."""
    assert isinstance(network, FaultyNetwork)
    return network.sent[sender, to, kind]


def faulty(table: Table) -> Callable[[Clock, DelayOf], FaultyNetwork]:
    return partial(FaultyNetwork, faults=table)
