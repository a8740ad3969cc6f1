"""The published versions that a client knows, and the blocks of them that it has pulled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from secureps.errors import ClientError, Refused, SecurepsError, WrongVersion
from secureps.messages.orders import Published
from secureps.messages.requests import GetBlock
from secureps.messages.run import GroupVersion
from secureps.messages.submission import model_digest
from secureps.roles.machine import Call, Effect, Halt, Say, Step
from secureps.roles.member.tasks import in_own_order
from secureps.roles.pinned_run import Pinned

Place = tuple[str, int]
"""A group and the number of a block in it."""


@dataclass(slots=True)
class PulledModel:
    """The model that one client has pulled; a restart begins with an empty one.

    A block that does not change is pulled once. No event about one block looks at all others.

    Args:
        groups: the groups that the client pulls, and whether it asks for differences.
        published: the newest known version of each group.
        pulled_bytes: bytes since the last `take_account`.
    """

    groups: Mapping[str, bool] = field(default_factory=dict)
    published: dict[str, Published] = field(default_factory=dict)
    pulled_bytes: int = 0
    client: str = ""
    _held: dict[Place, bytes] = field(default_factory=dict)
    """The newest digest that came for each block, which the worker has until `take`."""
    _absent: dict[Place, None] = field(default_factory=dict)
    """Blocks that are not here as published, in the order in which they were published."""
    _unasked: dict[Place, None] = field(default_factory=dict)
    """Absent blocks that are not in transit."""

    def publish(self, order: Published) -> None:
        """Notes a published version; one older than the known one changes nothing.

        Blocks that were asked for by an older version may never come, and are asked for anew.
        """
        known = self.published.get(order.group)
        if known is not None and order.version < known.version:
            return
        self.published[order.group] = order
        if order.group not in self.groups:
            return
        news = known is None or (known.version, known.blocks) != (order.version, order.blocks)
        for block, digest in enumerate(order.blocks):
            place = order.group, block
            if self._held.get(place) == digest:
                self._arrive(place)
            elif news or place not in self._absent:
                self._absent[place] = self._unasked[place] = None

    def _arrive(self, place: Place) -> None:
        self._absent.pop(place, None)
        self._unasked.pop(place, None)

    def pull_also(self, groups: Iterable[str]) -> None:
        """Pulls published groups that the client's records do not touch, too."""
        others = [group for group in groups if group not in self.groups]
        self.groups = {**self.groups, **dict.fromkeys(others, False)}
        for group in others:
            self.publish(self.published[group])

    def ask_for_absent(self, pinned: Pinned, step: Step) -> bool:
        """Asks for published blocks that are not here; returns whether any are not."""
        if self._unasked:
            ranks = {group: pinned.placement.ranks(group) for group in self.groups}
            for group, block in in_own_order(self.client, self._unasked):
                base = self._held.get((group, block), b"") if self.groups[group] else b""
                version = self.published[group].version
                ask = GetBlock(pinned.run.id, group, version, block, base=base)
                to, *others = filter(None, (rank.owners[block] for rank in ranks[group]))
                step.effects.append(Call(to, ask, others=tuple(others)))
            self._unasked.clear()
        return bool(self._absent)

    def ask_again(self) -> None:
        """Has all blocks that are not here asked for again, because they may lie elsewhere now."""
        self._unasked |= self._absent

    @property
    def is_pulling(self) -> bool:
        """True if blocks are in transit, and none is to be asked for."""
        return bool(self._absent) and not self._unasked

    def take_block(self, ask: GetBlock, digest: bytes, length: int) -> Effect | None:
        """Takes a block of `length` bytes; returns an effect if it is not the published one."""
        self.pulled_bytes += length
        published = self.published[ask.group]
        if published.version != ask.version:
            return None
        if published.blocks[ask.block] != digest:
            text = "is not the one that was published; tell the aggregator's operator"
            return self._wrong(ask, text, Refused)
        place = ask.group, ask.block
        self._held[place] = digest
        self._arrive(place)
        return None

    def take_failure(self, ask: GetBlock, error: SecurepsError) -> Effect | None:
        """Takes the failure of a pull, and asks again; returns an effect if that is no use."""
        published = self.published[ask.group]
        if published.version != ask.version or isinstance(error, WrongVersion):
            return None  # a newer version is published, or will be in a moment
        if isinstance(error, ClientError):
            return self._wrong(ask, f"cannot be pulled: {error}", type(error))
        self._again(ask)
        return None

    def _wrong(self, ask: GetBlock, text: str, kind: type[SecurepsError]) -> Effect:
        """Asks for the whole block if its differences were wrong; ends if the whole block was."""
        text = f"block {ask.block} of {ask.group} {text}"
        if not ask.base:
            return Halt(text, kind)
        self._held.pop((ask.group, ask.block), None)
        self._again(ask)
        return Say(f"{text}; differences were asked for, and now the whole block is")

    def _again(self, ask: GetBlock) -> None:
        place = ask.group, ask.block
        if place in self._absent:
            self._unasked[place] = None

    def digest(self, group: str) -> bytes:
        """Returns the digest of a group's newest published version."""
        return model_digest(group, self.published[group].version, self.published[group].blocks)

    def take(self) -> tuple[tuple[GroupVersion, ...], tuple[bytes, ...]]:
        """Returns versions and blocks of the model for the worker, which drops all others."""
        orders = [self.published[group] for group in self.groups]
        blocks = tuple(digest for order in orders for digest in order.blocks)
        return tuple(GroupVersion(order.group, order.version) for order in orders), blocks

    def take_account(self) -> int:
        count, self.pulled_bytes = self.pulled_bytes, 0
        return count
