"""Killed between a durable write and what is to follow it: the same model, bit for bit.

`test_simulation` kills between events of the loop. Here a party dies in the middle of one:
exactly after a file, or exactly before or after a transaction of its journal, and nothing
that would come after happens: no record of the file, no effect of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.policy.plan import Plan
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Conditions
from secureps.store import checkpoint
from secureps.store.journal import MemoryJournal
from secureps.store.spool import MemorySpool
from tests.kits.federations import FEWER, Tensors, same, small_federation, small_plan

MOMENTS = ("file", "before a record", "after a record")

Passed = Callable[[str, str], None]
"""(party, which of MOMENTS): says that it has come, and does not return if the party dies."""


class Dead(BaseException):
    """The party died at this point: for whoever runs its loop, no error of its code."""


class Journal(MemoryJournal):
    def __init__(self, passed: Callable[[str], None]) -> None:
        super().__init__()
        self._passed = passed

    def append(self, at: float, records: Sequence[Any]) -> None:
        self._passed("before a record")
        super().append(at, records)
        self._passed("after a record")


class Spool(MemorySpool):
    def __init__(self, passed: Callable[[str], None]) -> None:
        super().__init__()
        self._passed = passed

    def put(self, key: str, *payload: bytes | memoryview) -> None:
        super().put(key, *payload)
        self._passed("file")


class Stage:
    """A federation whose every durable write is counted; at some the one who wrote dies.

    Args:
        fatal: whether a party's n-th passing of a moment kills it, n from 0.
        plan: another one than the small one, for six clients; memory: of each shard, in bytes.
    """

    def __init__(
        self,
        cipher: str,
        folder: Path,
        fatal: Callable[[str, int], bool],
        plan: Plan | None = None,
        memory: int | None = None,
    ) -> None:
        self.count: Counter[tuple[str, str]] = Counter()
        self.deaths: Counter[str] = Counter()
        self.ghosts: list[tuple[str, str]] = []
        """Who wrote after death."""
        self._fatal = fatal
        self._folder = folder
        self._playing = False
        conditions = Conditions(
            journal=lambda name: Journal(partial(self._passed, name)),
            spool=lambda name: Spool(partial(self._passed, name)),
            memory=memory,
        )
        clients = FEWER if plan is None else 6
        plan = plan or small_plan(cipher, versions=3, clients=FEWER)
        self.simulation = small_federation(plan, folder, conditions, clients=clients)

    def play(self, patch: pytest.MonkeyPatch) -> Tensors:
        """To the end, each who died being started again a second later; the model."""
        write = checkpoint._write

        def write_and_tell(path: Path, pieces: Any, mode: int | None) -> bytes:
            digest = write(path, pieces, mode)
            self._passed(self._owner(path), "file")
            return digest

        with patch.context() as patched:
            patched.setattr(checkpoint, "_write", write_and_tell)
            while not self._finished():
                with suppress(Dead):
                    self.simulation.run(self._finished)
        return self.simulation.model()

    def _finished(self) -> bool:
        assert self.deaths.total() < 300, f"it does not get on: {self.simulation.reasons()}"
        return bool(self.simulation.coordinator.federation.finished)

    def _passed(self, party: str, moment: str) -> None:
        if self.simulation.parties[party].halted.done():
            self.ghosts.append((party, moment))
        number = self.count[party, moment]
        self.count[party, moment] += 1
        if not self._fatal(moment, number):
            return
        self.deaths[party] += 1
        self.simulation.kill(party)
        self.simulation.loop.call_later(1.0, partial(self.simulation.start, party))
        raise Dead(party)

    def _owner(self, path: Path) -> str:
        owner = path.relative_to(self._folder).parts[0]
        if owner != "checkpoints":
            return owner
        return "coordinator" if path.name == checkpoint.MANIFEST else path.stem


@cache
def unharmed(cipher: str) -> tuple[Tensors, Counter[tuple[str, str]]]:
    """The model of a run in which nobody dies, and who passed which moment how often."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        stage = Stage(cipher, Path(folder), lambda moment, number: False)
        return stage.play(patch), stage.count


def moments(cipher: str, moment: str) -> dict[str, int]:
    """How often each party passes a moment when nobody dies."""
    return {party: n for (party, each), n in unharmed(cipher)[1].items() if each == moment}


def test_everybody_passes_every_moment() -> None:
    parties = {"coordinator", "shard-0", "shard-1", *client_names(FEWER)}
    for moment in MOMENTS:
        assert set(moments("plain", moment)) == parties
        assert set(moments("bfv", moment)) == parties | {"holder-0"}


PERIOD = {"plain": 17, "bfv": 31}
"""Of so many passings of a moment one kills. A shard has to keep up to 12 blocks before it
may journal the first: one that died at every 12th would never get on."""

STRIDE = {"plain": 2, "bfv": 6}
"""Between the first deaths of two runs: with 1, every passing would kill in one of them."""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("cipher", PERIOD)
def test_killed_at_a_durable_write_ends_in_the_same_model(
    cipher: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    period, deaths = PERIOD[cipher], Counter[str]()
    for first in range(0, period, STRIDE[cipher]):

        def fatal(now: str, number: int, first: int = first) -> bool:
            return now == moment and number % period == first

        stage = Stage(cipher, tmp_path / str(first), fatal)
        model = stage.play(monkeypatch)
        assert same(model, unharmed(cipher)[0]), f"at {first}, and each {period} after it"
        assert stage.ghosts == []
        deaths += stage.deaths
    for party, passed in moments(cipher, moment).items():
        assert deaths[party] >= passed // STRIDE[cipher] - 1
