"""What a client knows and has of what is published: versions, and which blocks are here.

Blocks are named by their digests, so one that did not change is pulled once. What must not
live here: the values (the hands cache them), and what they are pulled for (`roles.member`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.errors import ClientError, SecurepsError, WrongVersion
from secureps.messages.orders import GroupVersion, Published
from secureps.messages.requests import GetBlock
from secureps.roles.charter import Pinned
from secureps.roles.machine import Call, Step


def block_key(digest: bytes) -> str:
    """Where a pulled block's values lie in the member's cache."""
    return f"block/{digest.hex()}"


@dataclass(slots=True)
class Library:
    """Of one client; a restart begins with an empty one.

    Args:
        published: the newest version of every group that was heard of.
        cached: digests of the blocks whose values are here; asked: of those on their way.
        pulled_bytes: since somebody last took account of them.
    """

    published: dict[str, Published] = field(default_factory=dict)
    cached: set[bytes] = field(default_factory=set)
    asked: set[bytes] = field(default_factory=set)
    pulled_bytes: int = 0

    def publish(self, order: Published) -> None:
        """A version is published; an older one than is known changes nothing."""
        known = self.published.get(order.group)
        if known is None or order.version >= known.version:
            self.published[order.group] = order
        if known is not None and order.version > known.version:
            self.asked -= set(known.blocks)

    def lacking(self, pinned: Pinned, groups: Iterable[str], step: Step) -> bool:
        """Whether blocks of these groups are not here; those not asked for yet are asked for."""
        lacks = False
        for group in groups:
            published, owners = self.published[group], pinned.placement.of(group).owners
            for block, digest in enumerate(published.blocks):
                if digest in self.cached:
                    continue
                lacks = True
                if digest not in self.asked:
                    self.asked.add(digest)
                    ask = GetBlock(pinned.run.id, group, published.version, block)
                    step.effects.append(Call(owners[block], ask))
        return lacks

    def got(self, pinned: Pinned, ask: GetBlock, digest: bytes) -> bool:
        """A block came; whether it is the one that was published."""
        published = self.published[ask.group]
        self.asked.discard(digest)
        if published.version != ask.version:
            return True
        if published.blocks[ask.block] != digest:
            return False
        first, last = pinned.layout.group(ask.group).span(ask.block)
        self.cached = {d for p in self.published.values() for d in p.blocks} & self.cached
        self.cached.add(digest)
        self.pulled_bytes += 4 * (last - first)
        return True

    def not_got(self, ask: GetBlock, error: SecurepsError) -> str:
        """A block did not come: why it never will; empty if it may be asked for again."""
        if self.published[ask.group].version != ask.version or isinstance(error, WrongVersion):
            return ""  # a newer version is published, or will be in a moment
        if isinstance(error, ClientError):
            return f"block {ask.block} of {ask.group} cannot be pulled: {error}"
        self.asked.discard(self.published[ask.group].blocks[ask.block])
        return ""

    def take(self, groups: Iterable[str]) -> tuple[tuple[GroupVersion, ...], tuple[bytes, ...]]:
        """Versions and blocks of the model for the hands, who keep no others from now on."""
        orders = [self.published[group] for group in groups]
        blocks = tuple(digest for order in orders for digest in order.blocks)
        self.cached &= set(blocks)
        return tuple(GroupVersion(order.group, order.version) for order in orders), blocks

    def take_account(self) -> int:
        """Bytes that were pulled since the last time."""
        count, self.pulled_bytes = self.pulled_bytes, 0
        return count
