"""A client that nobody asks for anything has no machine, and the run is the same to the last bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster
from secureps.messages.coordinator_records import MemberAsked
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.run.party_names import client_names
from secureps.run.simulate.idle_client import IdleClient
from secureps.run.simulate.simulation import Conditions
from secureps.scenario.delays import Delays
from secureps.scenario.links import Links
from secureps.store.journal import MemoryJournal
from tests.kits.federations import same
from tests.kits.streams import SSP, stream, stream_plan

CLIENTS = 20
FEW = {"name": "buffered", "buffer": 3, "minimum": 3, "max_staleness": 4, "concurrency": 3}
ROUNDS = {"name": "sync", "quorum": 3, "minimum": 3, "deadline": 60.0, "most": 4}
DELAYS = Delays.of({"network": {"kind": "uniform", "low": 0.02, "high": 0.3}})


class Names:
    """Identities by number: two simulations have the same, and so all that is signed is the same."""

    def __init__(self) -> None:
        self.number = 0

    def generate(self) -> Identity:
        self.number += 1
        return Identity(self.number.to_bytes(32, "big"))


NAMES = Names()


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two simulations have the same keys, and a clock on which no work takes any time."""
    monkeypatch.setattr(Identity, "generate", NAMES.generate)
    still = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr("secureps.client.worker.time", still)


class Play:
    """One run, and what is on record of it."""

    def __init__(self, plan: Plan, folder: Path, idle: bool, late: tuple[str, ...] = ()) -> None:
        NAMES.number = 0
        self.journals: dict[str, MemoryJournal] = {}
        links = Links(DELAYS, 7)
        conditions = Conditions(
            delay=lambda a, b, m: links.between(a, b, m, self.simulation.loop.now()),
            journal=self._journal,
            late=frozenset(late),
            idle=idle,
        )
        # The network asks for delays once the loop runs.
        self.simulation = stream(plan, folder, CLIENTS, conditions)

    def _journal(self, name: str) -> MemoryJournal:
        return self.journals.setdefault(name, MemoryJournal())

    def to(self, version: int) -> None:
        """Plays until every group has come to a version."""
        self.simulation.run(lambda: min(self.simulation.versions().values()) >= version)

    def end(self) -> None:
        self.simulation.run()

    @property
    def clients(self) -> dict[str, IdleClient]:
        found = {n: p.machine for n, p in self.simulation.parties.items() if n in client_names(99)}
        return {name: each for name, each in found.items() if isinstance(each, IdleClient)}

    @property
    def rows(self) -> dict[str, list[tuple[float, object]]]:
        return {name: journal.rows for name, journal in self.journals.items()}


def both(plan: Plan, folder: Path, **options: Any) -> tuple[Play, Play]:
    return tuple(Play(plan, folder / str(idle), idle, **options) for idle in (True, False))  # type: ignore[return-value]


def inside(value: object, seen: frozenset[int] = frozenset()) -> object:
    """A machine as plain values, to the last of its attributes."""
    if isinstance(value, str | bytes | int | float | None | Plan | Roster):
        return value
    if id(value) in seen:
        return "again"
    seen = seen | {id(value)}
    if isinstance(value, dict):
        return [(inside(k, seen), inside(v, seen)) for k, v in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple) or type(value).__name__ in ("deque", "mappingproxy"):
        return [inside(each, seen) for each in value]  # type: ignore[attr-defined]
    slots = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    names = [*getattr(value, "__dict__", ()), *slots]
    return type(value).__name__, [
        (n, inside(getattr(value, n), seen)) for n in names if hasattr(value, n)
    ]


def decided(rows: dict[str, list[tuple[float, object]]]) -> list[object]:
    """What is on record, without bytes and long texts: keys and ciphertexts differ by chance."""

    def bare(value: object) -> object:
        if isinstance(value, bytes) or (isinstance(value, str) and len(value) > 200):
            return ""
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return type(value).__name__, [bare(getattr(value, each.name)) for each in fields]
        if isinstance(value, tuple | list):
            return [bare(each) for each in value]
        return value

    return [(name, [(at, bare(record)) for at, record in own]) for name, own in rows.items()]


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("rule", [FEW, ROUNDS, SSP], ids=lambda rule: str(rule["name"]))
def test_the_run_is_the_same_record_for_record(rule: dict[str, Any], tmp_path: Path) -> None:
    lazy, eager = both(stream_plan("plain", rule), tmp_path, late=("client-05",))
    for play in (lazy, eager):
        play.to(1)
        play.simulation.start("client-05")
        play.to(2)
        for name in ("client-02", "client-07"):
            play.simulation.kill(name)
            play.simulation.start(name)
        play.to(3)
    asleep = [name for name, each in lazy.clients.items() if not each.awake]
    assert bool(asleep) is (rule is not SSP)
    for name, each in lazy.clients.items():
        assert inside(each.member) == inside(eager.simulation.parties[name].machine), name
    for play in (lazy, eager):
        play.end()
    assert same(lazy.simulation.model(), eager.simulation.model())
    assert lazy.rows == eager.rows
    assert next(lazy.simulation.loop._count) <= next(eager.simulation.loop._count)


def test_it_is_the_same_under_encryption(tmp_path: Path) -> None:
    lazy, eager = both(stream_plan("rlwe", FEW), tmp_path)
    for play in (lazy, eager):
        play.end()
    assert same(lazy.simulation.model(), eager.simulation.model())
    assert decided(lazy.rows) == decided(eager.rows)
    asked = {r.client for _, r in lazy.rows[COORDINATOR] if isinstance(r, MemberAsked)}
    awake = {name for name, each in lazy.clients.items() if each.awake}
    assert asked <= awake
    assert len(awake) < CLIENTS, "who was asked for nothing has a machine"
