"""Times the messages on the links of a simulation's clients and shards.

A message takes a latency. What carries values or keys (a block, a receipt)
takes the time of its bytes besides, one after another on the client's own link, up and down
apart; smaller messages overtake it. Where a shard's link has a bandwidth, what all send to it and
fetch from it shares that: it is there when both links are done with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from secureps.config.scenario import ShardsSection
from secureps.messages.requests import GetBlock, GetSum, Payload, PutBlock, Submit
from secureps.scenario.delays import Delays

Link = tuple[str, bool]
"""One direction of a link: a client or a shard, and whether it sends."""


_DATA = (PutBlock, GetBlock, GetSum)
"""What takes a data message's latency; a tuple, for every message is asked."""


def message_bytes(message: Any) -> int:
    """The bytes that take time on a link; 0 for small messages."""
    if isinstance(message, PutBlock | Payload):
        return len(message.payload)
    if isinstance(message, Submit):
        own = message.receipt
        parts = (*own.blocks, *own.envelopes, *own.commitments, own.correction or b"")
        return sum(len(part) for part in parts)
    return 0


@dataclass
class Links:
    """All links of a simulation, in virtual time.

    `seed` decides each link's draws; `size` is how many bytes of a message take time.
    """

    delays: Delays
    seed: int
    shards: ShardsSection = field(default_factory=ShardsSection)
    size: Callable[[Any], int] = message_bytes
    _latency: dict[tuple[str, str], float] = field(default_factory=dict)
    _bandwidth: dict[str, float] = field(default_factory=dict)
    _free: dict[Link, float] = field(default_factory=dict)
    _adds: dict[str, float] = field(default_factory=dict)

    def seconds(self, client: str, up: bool, message: Any, now: float) -> float:
        """The seconds until a message that leaves now arrives.

        Args:
            client: whose link it takes; `up`: from it, else to it.
        """
        latency, size = self._drawn(client, message), self.size(message)
        if not size:
            return latency
        if client not in self._bandwidth:
            self._bandwidth[client] = self.delays.bytes_per_second(self.seed, client)
        sent = max(now, self._free.get((client, up), now)) + size / self._bandwidth[client]
        self._free[client, up] = sent
        return sent - now + latency

    def between(self, sender: str, to: str, message: Any, now: float) -> float:
        """The seconds until a message that leaves now arrives, by the slower of both links."""
        slowest = 0.0
        for name, sends in ((sender, True), (to, False)):
            if name.startswith("client-"):
                slowest = max(slowest, self.seconds(name, sends, message, now))
            elif name.startswith("shard-"):
                slowest = max(slowest, self.of_shard(name, sends, message, now))
        return slowest

    def of_shard(self, shard: str, sends: bool, message: Any, now: float) -> float:
        """The seconds until a shard's own link is done with a message that leaves now.

        Bytes queue in the order in which they were sent, wherever they come from.
        """
        size = 0 if self.shards.bandwidth is None else self.size(message)
        if not size or self.shards.bandwidth is None:
            return 0.0
        seconds = size / self.shards.bandwidth * self.shards.slow.get(shard, 1.0)
        done = max(now, self._free.get((shard, sends), now)) + seconds
        self._free[shard, sends] = done
        return done - now

    def adding(self, shard: str, blocks: int, now: float) -> float:
        """The seconds until a shard has added up so many blocks, after what it is at already."""
        seconds = blocks * self.shards.block_seconds * self.shards.slow.get(shard, 1.0)
        done = max(now, self._adds.get(shard, now)) + seconds
        self._adds[shard] = done
        return done - now

    def cut(self, client: str) -> None:
        """Drops the messages under way, which no longer occupy the link."""
        self._free.pop((client, True), None)
        self._free.pop((client, False), None)

    def _drawn(self, client: str, message: Any) -> float:
        kind = "data" if isinstance(message, _DATA) else "control"
        seconds = self._latency.get((client, kind))
        if seconds is None:  # the same for all of a client's messages of a kind: drawn once
            seconds = self.delays.network_seconds(self.seed, client, 0, kind)
            self._latency[client, kind] = seconds
        return seconds
