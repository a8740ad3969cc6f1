"""What a client knows and has of published versions; a block that did not change is pulled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from secureps.errors import ClientError, Refused, SecurepsError, WrongVersion
from secureps.messages.orders import GroupVersion, Published
from secureps.messages.requests import GetBlock
from secureps.roles.machine import Call, Effect, Halt, Say, Step
from secureps.roles.member.tasks import in_own_order
from secureps.roles.pinned_run import Pinned


@dataclass(slots=True)
class PulledModel:
    """The model that one client has pulled; a restart begins with an empty one.

    A digest is looked at when it is published, asked for, pulled and taken: with one block never at
    those of all the others.

    Args:
        groups: that the client pulls, in the plan's order, and whether it asks for differences.
        published: the newest version of every group that was heard of.
        pulled_bytes: since somebody last took account of them.
        client: whose it is.
    """

    groups: Mapping[str, bool] = field(default_factory=dict)
    published: dict[str, Published] = field(default_factory=dict)
    pulled_bytes: int = 0
    client: str = ""
    _places: dict[bytes, dict[tuple[str, int], None]] = field(default_factory=dict)
    """Groups and blocks in which a digest is published: no other is cached or absent."""
    _cached: set[bytes] = field(default_factory=set)
    _absent: dict[bytes, None] = field(default_factory=dict)
    """In the order in which they were published: so they are asked for, and asked for again."""
    _held: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """The newest block that came of each place: what the worker has until `take`."""
    _unasked: dict[bytes, None] = field(default_factory=dict)
    """Absent ones that are not on their way."""

    def publish(self, order: Published) -> None:
        """Notes a published version; one older than is known changes nothing.

        What was on its way from an older version may never come: it is asked for anew.
        """
        known = self.published.get(order.group)
        if known is not None and order.version < known.version:
            return
        self.published[order.group] = order
        if order.group not in self.groups:
            return
        for block, digest in enumerate(order.blocks):
            self._places.setdefault(digest, {})[order.group, block] = None
            if digest in self._cached:
                self._held[order.group, block] = digest
            elif digest not in self._absent:
                self._absent[digest] = None
                self._unasked[digest] = None
        if known is not None:
            self._supersede(known, order)

    def _supersede(self, known: Published, order: Published) -> None:
        for block, digest in enumerate(known.blocks):
            if order.blocks[block : block + 1] != (digest,):
                del self._places[digest][order.group, block]
            if not self._places[digest]:
                del self._places[digest]
                self._cached.discard(digest)
                self._absent.pop(digest, None)
                self._unasked.pop(digest, None)
            elif order.version > known.version and digest in self._absent:
                self._unasked[digest] = None

    def ask_for_absent(self, pinned: Pinned, step: Step) -> bool:
        """Whether published blocks are not here; those not asked for yet are asked for."""
        if self._unasked:
            ranks = {group: pinned.placement.ranks(group) for group in self.groups}
            for digest in in_own_order(self.client, self._unasked):
                group, block = next(iter(self._places[digest]))
                base = self._held.get((group, block), b"") if self.groups[group] else b""
                version = self.published[group].version
                ask = GetBlock(pinned.run.id, group, version, block, base=base)
                to, *others = filter(None, (rank.owners[block] for rank in ranks[group]))
                step.effects.append(Call(to, ask, others=tuple(others)))
            self._unasked.clear()
        return bool(self._absent)

    def ask_again(self, gone: Callable[[str, int], bool]) -> None:
        """Asks another shard for what was asked of one that has it no more.

        All else is on its way: asked for twice, it would take as long again on links that are busy.

        Args:
            gone: whether one that had a block of a group has it no more.
        """
        for digest in self._absent:
            if any(gone(group, block) for group, block in self._places[digest]):
                self._unasked[digest] = None

    @property
    def is_pulling(self) -> bool:
        """Whether all that is not here is on its way: there is nothing to do meanwhile."""
        return bool(self._absent) and not self._unasked

    def take_block(self, ask: GetBlock, digest: bytes, length: int) -> Effect | None:
        """A block came, in `length` bytes; returns what follows if it is not the published one."""
        self.pulled_bytes += length
        published = self.published[ask.group]
        if published.version != ask.version:
            return None
        if published.blocks[ask.block] != digest:
            text = "is not the one that was published; tell the aggregator's operator"
            return self._wrong(ask, text, Refused)
        self._cached.add(digest)
        self._absent.pop(digest, None)
        self._unasked.pop(digest, None)
        self._held |= dict.fromkeys(self._places[digest], digest)
        return None

    def take_failure(self, ask: GetBlock, error: SecurepsError) -> Effect | None:
        """A block did not come; returns what follows, if it is more than to ask again."""
        published = self.published[ask.group]
        if published.version != ask.version or isinstance(error, WrongVersion):
            return None  # a newer version is published, or will be in a moment
        if isinstance(error, ClientError):
            return self._wrong(ask, f"cannot be pulled: {error}", type(error))
        self._again(ask)
        return None

    def _wrong(self, ask: GetBlock, text: str, kind: type[SecurepsError]) -> Effect:
        """Asks for a whole block, once, if its differences were wrong."""
        text = f"block {ask.block} of {ask.group} {text}"
        if not ask.base:
            return Halt(text, kind)
        self._held.pop((ask.group, ask.block), None)
        self._again(ask)
        return Say(f"{text}; differences were asked for, and now the whole block is")

    def _again(self, ask: GetBlock) -> None:
        digest = self.published[ask.group].blocks[ask.block]
        if digest in self._absent:
            self._unasked[digest] = None

    def take(self) -> tuple[tuple[GroupVersion, ...], tuple[bytes, ...]]:
        """Versions and blocks of the model for the worker, which keeps no others from now on."""
        orders = [self.published[group] for group in self.groups]
        blocks = tuple(digest for order in orders for digest in order.blocks)
        return tuple(GroupVersion(order.group, order.version) for order in orders), blocks

    def take_account(self) -> int:
        count, self.pulled_bytes = self.pulled_bytes, 0
        return count
