"""What a shard's process may hold of its versions, and whether that is enough for a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from secureps.errors import ConfigError
from secureps.messages.records import RunPinned
from secureps.policy.memory import room_to_make
from secureps.roles.machine import Halt
from secureps.roles.pinned_run import Pinned


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes that a shard's process may hold of versions (None: all), and the threads that work."""

    memory: int | None = None
    threads: int = 1

    def room(self, name: str, pinned: Pinned) -> int | None:
        """Bytes for a version that is made by the shard of this name; None if there is no limit.

        Raises:
            ConfigError: it is too little.
        """
        if self.memory is None:
            return None
        groups, placement = pinned.layout.all_groups, pinned.placement
        own = {group.name: placement.blocks_of(group.name, name) for group in groups}
        return room_to_make(pinned.plan, groups, own, self.memory, self.threads)

    def refuses(self, name: str, record: RunPinned) -> list[Halt]:
        if self.memory is None:
            return []
        try:
            known = Pinned.of(record)
            for placement in filter(None, (record.placement, record.coming)):
                self.room(name, replace(known, placement=placement))
        except ConfigError as error:
            return [Halt(f"{name}: {error}", ConfigError)]
        return []


UNLIMITED = Limit()
