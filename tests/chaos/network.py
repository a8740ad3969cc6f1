"""A network with a delay of its own for every message, faults by a table, and partitions."""

from collections.abc import Callable, Sequence
from typing import Any

from secureps.errors import Unreachable
from secureps.messages.requests import Subscribe
from secureps.scenario.delays import generator
from secureps.wire.transport import Clock, DelayOf, _Call, _Stream
from tests.chaos.schedule import Fault
from tests.kits import faults_kit
from tests.kits.faults_kit import FaultyNetwork, Table, _lost

SLOWEST = 0.05
"""Seconds that a message takes at most, if nothing is wrong."""

TIMEOUT = 5.0
"""Seconds after which a lost request fails."""

_FAULTS: dict[str, Callable[[float], faults_kit.Fault]] = {
    "lost": lambda seconds: faults_kit.Drop(),
    "unanswered": lambda seconds: faults_kit.DropReply(),
    "twice": lambda seconds: faults_kit.Duplicate(),
    "late": faults_kit.Delay,
}


def table(faults: Sequence[Fault]) -> Table:
    """What becomes of which message."""
    return {
        (fault.who, fault.to, fault.message, int(fault.at)): _FAULTS[fault.kind](fault.seconds)
        for fault in faults
        if fault.kind in _FAULTS
    }


class Delays:
    """Seconds that each message takes: others for each, so that later ones overtake."""

    def __init__(self, seed: int) -> None:
        self._draws = generator(seed, "network", 0, "delay")

    def __call__(self, sender: str, to: str, message: Any) -> float:
        return float(self._draws.random()) * SLOWEST


class ChaosNetwork(FaultyNetwork):
    """The network of one seed.

    Args:
        watch: is told of every request (sender, to, message) that leaves its sender.
        answered: is told of every answer (who gives it, to what, answer or error) that leaves.
    """

    def __init__(
        self,
        clock: Clock,
        delay: DelayOf,
        faults: Table,
        watch: Callable[[str, str, Any], None],
        answered: Callable[[str, Any, Any], None],
    ) -> None:
        super().__init__(clock, delay, faults, TIMEOUT)
        self._watched, self._answered = watch, answered
        self._asked: dict[_Call, Any] = {}
        self._cut: dict[frozenset[str], float] = {}
        self._frozen: dict[str, float] = {}

    def part(self, one: str, other: str, seconds: float) -> None:
        """Nothing passes between two parties for so long."""
        self._cut[frozenset((one, other))] = self._clock.now() + seconds

    def freeze(self, party: str, noticed: float, seconds: float) -> None:
        """A process is stopped: in a while whoever is connected knows, and nobody connects."""
        self._frozen[party] = self._clock.now() + seconds

        def notice() -> None:
            links = [link for link in self._links if link.to == party]
            self._end(links, Unreachable("nobody answers"), quiet=False)

        if noticed < seconds:
            self._clock.call_later(noticed, notice)

    def _parted(self, link: _Call | _Stream) -> bool:
        if self._clock.now() < self._frozen.get(link.to, 0.0):
            return True
        until = self._cut.get(frozenset((link.sender, link.to)))
        return until is not None and self._clock.now() < until

    def _call(self, call: _Call, message: Any) -> None:
        self._watched(call.sender, call.to, message)
        self._asked[call] = message
        if self._parted(call):
            self._begin(call)
            self._finish_later(TIMEOUT, call, _lost(call))
        else:
            super()._call(call, message)

    def _reply(self, call: _Call, result: Any) -> None:
        self._answered(call.to, self._asked.pop(call), result)
        if self._parted(call):
            self._finish_later(TIMEOUT, call, _lost(call))
        else:
            super()._reply(call, result)

    def _watch(self, stream: _Stream, message: Subscribe) -> None:
        if self._parted(stream):
            self._begin(stream)
            self._finish_later(TIMEOUT, stream, _lost(stream))
        else:
            super()._watch(stream, message)

    def _order(self, stream: _Stream, order: Any) -> None:
        if self._parted(stream):
            order = _lost(stream)
        super()._order(stream, order)
