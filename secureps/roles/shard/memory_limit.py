"""What a shard may have in memory, and whether that is enough for a run.

What must not live here: what is resident (`service.shard.tiers`), and what a shard says of it
(`roles.shard.memory_report`).
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.errors import ConfigError
from secureps.messages.records import RunPinned
from secureps.policy.tiers import Room, room_of
from secureps.roles.machine import Halt
from secureps.roles.pinned_run import Pinned


@dataclass(frozen=True, slots=True)
class Limit:
    """The bytes that a shard may have resident (None: all), and the threads that work on blocks."""

    memory: int | None = None
    threads: int = 1

    def room(self, name: str, pinned: Pinned) -> Room | None:
        """The room for the blocks that are placed on the shard of this name, if there is one.

        Raises:
            ConfigError: it is too little.
        """
        if self.memory is None:
            return None
        groups, placement = pinned.layout.all_groups, pinned.placement
        own = {group.name: placement.blocks_of(group.name, name) for group in groups}
        return room_of(pinned.plan, groups, own, self.memory, self.threads)

    def refuses(self, name: str, record: RunPinned) -> list[Halt]:
        """Ends a shard that has too little for a run, before it takes part in it."""
        if self.memory is None:
            return []
        try:
            self.room(name, Pinned.of(record))
        except ConfigError as error:
            return [Halt(f"{name}: {error}", ConfigError)]
        return []


UNLIMITED = Limit()
