"""Times the messages on the links of a simulation's clients and shards.

A message takes a latency. What carries values or keys (a block, a receipt)
takes the time of its bytes besides, one after another on the client's own link, up and down
apart; smaller messages overtake it. Where a shard's link has a bandwidth, what all send to it and
fetch from it shares that: it is there when both links are done with it.

What is sealed is as long as its plan says, whatever is in it. So a simulation that plays in the
clear takes the virtual time of encryption without its work (`sealed_bytes`), and comes to the same
model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from secureps.config.scenario import ShardsSection
from secureps.crypto.cipher import Opening
from secureps.errors import ConfigError
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.requests import GetBlock, GetSum, Payload, PutBlock, Submit
from secureps.messages.submission import UPDATE
from secureps.model.layout import GroupLayout, Layout
from secureps.policy.envelope_size import envelope_bytes
from secureps.policy.plan import Plan
from secureps.scenario.delays import Delays

Queue = tuple[str, bool | None]
"""One direction of the link of a client or a shard, by whether it sends; None: a shard's adding."""

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
    """All links of a simulation; `size` is how many bytes of a message take time."""

    delays: Delays
    seed: int
    shards: ShardsSection = field(default_factory=ShardsSection)
    size: Callable[[Any], int] = message_bytes
    _latency: dict[tuple[str, str], float] = field(default_factory=dict)
    _bandwidth: dict[str, float] = field(default_factory=dict)
    _free: dict[Queue, float] = field(default_factory=dict)

    def seconds(self, client: str, up: bool, message: Any, now: float) -> float:
        """The seconds until a message that leaves now arrives, up or down a client's link."""
        latency, size = self._drawn(client, message), self.size(message)
        if not size:
            return latency
        if client not in self._bandwidth:
            self._bandwidth[client] = self.delays.bytes_per_second(self.seed, client)
        return self._done((client, up), now, size / self._bandwidth[client]) + latency

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
        return self._done((shard, sends), now, seconds)

    def adding(self, shard: str, blocks: int, now: float) -> float:
        """The seconds until a shard has added up so many blocks, after what it is at already."""
        seconds = blocks * self.shards.block_seconds * self.shards.slow.get(shard, 1.0)
        return self._done((shard, None), now, seconds)

    def _done(self, queue: Queue, now: float, seconds: float) -> float:
        """Queues something that takes so many seconds; returns those until it is done."""
        done = max(now, self._free.get(queue, now)) + seconds
        self._free[queue] = done
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


def sealed_bytes(plan: Plan, own: Layout, clear: Layout) -> Callable[[Any], int]:
    """Like `message_bytes`, for messages that stand for those sealed under a plan's cipher.

    `own` are the plan's groups and blocks, `clear` those of the plan that is played; ConfigError if
    their blocks are not the same.
    """
    if [_spans(group) for group in own.all_groups] != [_spans(g) for g in clear.all_groups]:
        raise ConfigError(
            f"study.sealed: under {plan.section.cipher.name} the model lies in other blocks than "
            "in the clear, so that its bytes cannot be told: give the plan a block_size, by which "
            "it lies alike, or set study.sealed to 0, and all is encrypted"
        )

    @cache
    def of_block(group: str, block: int) -> int:
        layout = own.group(group)
        return plan.cipher_of(layout).block_bytes(layout.slots(block))

    @cache
    def of_key(group: str) -> int:
        if plan.opening is not Opening.COMMITTEE:
            return 0
        return envelope_bytes(plan.unnamed_committee, plan.key_length(own.group(group)))

    def size(message: Any) -> int:
        match message:
            case PutBlock(header) if header.purpose == UPDATE:
                return of_block(header.group, header.block)
            case Submit(receipt) if receipt.purpose == UPDATE:
                return len(receipt.blocks) * DIGEST_BYTES + of_key(receipt.id.group)
        return message_bytes(message)

    return size


def _spans(group: GroupLayout) -> tuple[str, list[tuple[int, int]]]:
    return group.name, [group.span(block) for block in range(group.blocks)]
