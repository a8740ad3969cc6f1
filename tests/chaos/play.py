"""Plays one seed, and says what of it went wrong that must not."""

import logging
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.check import MEMORY, complaints
from tests.chaos.schedule import Fault, setting_of
from tests.chaos.world import World


@dataclass(frozen=True)
class Outcome:
    """What came of a seed under faults: every broken promise, and what machines heard and did.

    `ends` has for every party that has ended what it said last.
    """

    seed: int
    faults: tuple[Fault, ...]
    complaints: tuple[str, ...]
    kinds: Counter[str]
    ended: str
    ends: Mapping[str, str]

    @property
    def replay(self) -> str:
        """The command that plays it again."""
        faults = ",".join(map(str, self.faults))
        return f".venv/bin/python -m tests.chaos --seed {self.seed} --faults '{faults}'"


def play(seed: int, faults: Sequence[Fault]) -> Outcome:
    with quiet(), TemporaryDirectory(dir=MEMORY) as folder:
        world = World(seed, setting_of(seed), faults, Path(folder))
        try:
            world.play()
            wrong = complaints(world)
        except Exception:
            wrong = [traceback.format_exc()]
        seconds = f"{world.loop.now():.0f} virtual seconds, {world.events} events"
        ended = f"{world.coordinator.federation.finished or world.given_up or 'no end'} ({seconds})"
        kinds = world.evidence.kinds
        return Outcome(seed, tuple(faults), tuple(wrong), kinds, ended, world.ends())


@contextmanager
def quiet() -> Iterator[None]:
    """Nobody reads the log of a party in chaos: faults fill it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
