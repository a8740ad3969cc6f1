"""Data holders in a run of chaos: each acts on its own client, by the file in its state folder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

from secureps.errors import ConfigError
from secureps.messages.member_records import OwnDeed
from secureps.roles.machine import WORKER, Leave
from secureps.service.executor import Executor
from secureps.service.process import ActWatch, act_text
from secureps.store.act_lines import ActLines
from tests.chaos.schedule import LOWERS, OWN_ACTS, QUITS, RESTS, STOPS, Fault

if TYPE_CHECKING:
    from tests.chaos.world import World

DEEDS = {RESTS: OwnDeed.PAUSE, LOWERS: OwnDeed.LOWER_BUDGET, QUITS: OwnDeed.LEAVE}
LATER = 1.0
"""Seconds after which it is tried once more, where the client takes part in no run yet."""


class DataHolders:
    """Of the clients of one run; `gone` are those whose client may be in no later version."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._acting = {fault.who for fault in world.faults if fault.kind in OWN_ACTS}
        self.gone: set[str] = set()

    def watch(self, name: str, executor: Executor) -> None:
        """A client that has started reads its acts, as its process does."""
        if name in self._acting:
            own = self._world._kit.identities[name].public
            ActWatch(name, executor, self._world._stores[name].folder, own).start()

    def act(self, fault: Fault) -> None:
        """What a seed says, once the client takes part."""
        name = fault.who
        executor = self._world.parties[name]
        if executor.halted.done() and name not in self._world.down:
            return
        if name in self._world.down or not executor.run:
            self._world.loop.call_later(LATER, partial(self.act, fault))
            return
        if fault.kind != RESTS:
            self.gone.add(name)
        if fault.kind == STOPS:
            executor.post(WORKER, Leave("whoever runs this client has stopped it"))
            return
        self._note(name, DEEDS[fault.kind], fault.seconds if fault.kind == LOWERS else None)
        if fault.kind == RESTS:
            back = partial(self._note, name, OwnDeed.GO_ON)
            self._world.loop.call_later(fault.seconds, back)

    def _note(self, name: str, what: OwnDeed, budget: float | None = None) -> None:
        """Writes a line; another process does, at which the client's faults do not strike."""
        world = self._world
        if name in world.down:  # whatever becomes of its disk is over then
            world.loop.call_later(LATER, partial(self._note, name, what, budget))
            return
        folder, me = world._stores[name].folder, world._kit.identities[name]
        if budget is not None and world.plan.section.privacy is not None:
            try:
                world._ledgers[name].lower(budget)
            except ConfigError:  # it has a lower one already: the command refuses, and says no more
                return
        with patch.object(world, "_acting", ""):
            folder.mkdir(parents=True, exist_ok=True)
            ActLines(folder, name, me, world.loop.now).note(act_text(what, budget))
