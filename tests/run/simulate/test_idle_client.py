"""Idle clients of a simulation cost nothing and change no journal."""

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from secureps.client.runner import machine_and_worker
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster, sign_roster
from secureps.messages.coordinator_records import MemberAsked
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import Configure, Finish, Invite, KeyCommittee, Published, SealFor
from secureps.messages.requests import Join, Welcome
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles.machine import Answered, Halt, Step
from secureps.roles.member.member import Member
from secureps.roles.member.terms import MemberSettings
from secureps.run.simulate.simulation import MOST_HEARD, Conditions, IdleClient, ToldOfHolders
from secureps.run.up.folder import client_names
from secureps.scenario.delays import Delays, Links
from secureps.store.journal import MemoryJournal
from tests.kits.federations import same
from tests.kits.member_kit import COUNTS, TWO
from tests.kits.roles_kit import ADDRESSES, CA, ROSTER, SCHEMA, make_placement, make_run
from tests.kits.streams import stream, stream_plan

CLIENTS = 20
OPEN = sign_roster(CA, [each for each in ROSTER.certificates if each.role != "holder"])
RUN = make_run(TWO, holders=OPEN.committee, roster=OPEN.digest)
FEW = {"name": "buffered", "buffer": 3, "minimum": 3, "max_staleness": 4, "concurrency": 3}
ROUNDS = {"name": "sync", "quorum": 3, "minimum": 3, "deadline": 60.0, "most": 4}
DELAYS = Delays.of({"network": {"kind": "uniform", "low": 0.02, "high": 0.3}})


class Names:
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
        self.simulation = stream(plan, folder, CLIENTS, conditions)

    def _journal(self, name: str) -> MemoryJournal:
        return self.journals.setdefault(name, MemoryJournal())

    def to(self, version: int) -> None:
        self.simulation.run(lambda: min(self.simulation.versions().values()) >= version)

    @property
    def clients(self) -> dict[str, IdleClient]:
        found = {n: p.machine for n, p in self.simulation.parties.items() if n in client_names(99)}
        return {name: each for name, each in found.items() if isinstance(each, IdleClient)}

    @property
    def rows(self) -> dict[str, list[tuple[float, object]]]:
        return {name: journal.rows for name, journal in self.journals.items()}


class Woken:
    def __init__(self, keeps: bool, told: ToldOfHolders | None = None) -> None:
        settings = MemberSettings("c0", OPEN, SCHEMA)
        self.made = 0

        def make() -> Any:
            self.made += 1
            return Member(settings), None

        self.client = IdleClient(make, lambda task: 0.0, {} if told is None else told)
        self.machine: Any = Member(settings) if keeps else self.client
        welcome = Welcome(RUN, make_placement(TWO), ADDRESSES)
        self.machine.resume(0.0)
        self.give(Answered(Join("c0", SCHEMA), welcome))
        self.machine.subscription()

    def give(self, event: Any) -> Step:
        step: Step = self.machine.handle(1.0, COORDINATOR, event)
        return step


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
        items = [(inside(k, seen), inside(v, seen)) for k, v in value.items()]
        return sorted(items, key=repr)
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
@pytest.mark.parametrize("rule", [FEW, ROUNDS], ids=lambda rule: str(rule["name"]))
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
    asleep = [name for name, each in lazy.clients.items() if each._made is None]
    assert asleep
    for name, each in lazy.clients.items():
        assert inside(each.member) == inside(eager.simulation.parties[name].machine), name
    for play in (lazy, eager):
        play.simulation.run()
    assert same(lazy.simulation.model(), eager.simulation.model())
    assert lazy.rows == eager.rows
    assert next(lazy.simulation.loop._count) <= next(eager.simulation.loop._count)


def test_it_is_the_same_under_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter[str]()

    def counted(settings: MemberSettings, *others: Any) -> Any:
        made[settings.name] += 1
        return machine_and_worker(settings, *others)

    monkeypatch.setattr("secureps.run.simulate.simulation.machine_and_worker", counted)
    cipher = {"name": "rlwe", "holders": 4, "threshold": 3, "capacity": 40}
    monkeypatch.setattr("secureps.roles.holder.holder.KEY_COHORTS", 2)
    of_streams = stream_plan("rlwe", FEW, lease=600.0).section.model_dump()
    plan = Plan(parse(PlanSection, of_streams | {"cipher": cipher}, "test"))
    lazy, eager = both(plan, tmp_path)
    for play in (lazy, eager):
        play.simulation.run()
    assert same(lazy.simulation.model(), eager.simulation.model())
    assert decided(lazy.rows) == decided(eager.rows)
    asked = {r.client for _, r in lazy.rows[COORDINATOR] if isinstance(r, MemberAsked)}
    awake = {name for name, each in lazy.clients.items() if each._made is not None}
    assert asked <= awake
    assert len(awake) < CLIENTS, "who was asked for nothing has a machine"
    news = [r for own in lazy.rows.values() for _, r in own if isinstance(r, EnvelopeKeyAnnounced)]
    assert len(news) > 4 * CLIENTS, "key holders took no other keys"
    often = [name for name in lazy.clients.keys() - awake if made[name] > 2]
    assert len(often) < 2, "to start and to be welcomed; one of all to hear of key holders"


BLOCKS = st.lists(st.sampled_from([bytes([k]) * 32 for k in range(6)]), min_size=4, max_size=4)
TOLD = st.lists(st.tuples(st.sampled_from("bw"), BLOCKS), max_size=12)


@settings(max_examples=30)
@given(TOLD)
def test_it_pulls_as_if_it_had_heard_of_every_version(told: list[tuple[str, list[bytes]]]) -> None:
    """Also where blocks stay as they were, or come again, or are those of another group."""
    idle, eager = Woken(keeps=False), Woken(keeps=True)
    newest = {"b": 0, "w": 0}
    first = [("b", [b"b" * 32] * 4), ("w", [b"w" * 32] * 4)]
    for group, blocks in (*first, *told):
        newest[group] += 1
        order = Published(1, group, newest[group], tuple(blocks[: COUNTS[group]]))
        assert idle.give(order) == eager.give(order) == Step()
    assert idle.client._made is None
    for group in "bw":
        asked = Invite(1, group, newest[group] + 1, newest[group], 10.0)
        assert idle.give(asked) == eager.give(asked)
    assert inside(idle.client.member) == inside(eager.machine)


def test_however_many_versions_are_published_it_has_a_few_messages() -> None:
    idle = Woken(keeps=False)
    made = idle.made
    for version in range(1, 200):
        blocks = tuple(bytes([version, k]) * 16 for k in range(4))
        idle.give(Published(1, "w", version, blocks))
    assert idle.client._heard is not None
    assert len(idle.client._heard) == 3, "its start, its welcome and the newest version"
    assert idle.made == made


def test_who_heard_of_many_versions_of_a_block_that_stays_keeps_its_machine() -> None:
    idle = Woken(keeps=False)
    for version in range(1, 2 * MOST_HEARD):
        idle.give(Published(1, "w", version, (b"w" * 32, *(bytes([version]) * 32,) * 3)))
    assert idle.client._made is not None
    assert idle.client._heard is None


def test_it_ends_with_its_run_and_without_a_machine() -> None:
    idle, eager = Woken(keeps=False), Woken(keeps=True)
    made, end = idle.made, Finish(1, "all versions are made")
    assert idle.give(end) == eager.give(end) == Step(effects=[Halt("all versions are made")])
    assert idle.made == made


def test_to_whom_much_has_happened_keeps_its_machine() -> None:
    idle = Woken(keeps=False)
    for number in range(1, MOST_HEARD):
        asleep = idle.client._made is None
        idle.give(Configure(number, RUN, make_placement(TWO), ADDRESSES))
    assert asleep
    assert idle.client._made is not None
    made = idle.made
    idle.give(Configure(99, RUN, make_placement(TWO), ADDRESSES))
    assert idle.made == made


def test_however_often_holders_take_new_keys_it_needs_no_machine_for_a_version() -> None:
    told = ToldOfHolders()
    first, idle = Woken(keeps=False, told=told), Woken(keeps=False, told=told)
    for each in (first, idle):
        made = each.made
        for _ in range(2 * MOST_HEARD):
            each.give(SealFor(1, KeyCommittee(OPEN.committee, (), ())))
        each.give(Published(1, "w", 1, (b"w" * 32,) * 4))
        assert each.client._made is None
        assert each.client._heard is not None
    assert idle.made == made, "the first one has heard it for all"
