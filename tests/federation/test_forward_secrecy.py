"""Secrecy: files stolen from key holders open no update of closed rounds."""

import dataclasses
import itertools
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from secureps.client.sealing import OutboxSealer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey
from secureps.errors import Malformed, Refused
from secureps.messages import orders, requests
from secureps.messages.coordinator_records import FlawNoted, RoundGivenUp, SubmissionsDropped
from secureps.messages.holder_records import KeyReplaced
from secureps.messages.requests import Examined, OpenRefused, Submit
from secureps.messages.run import COORDINATOR, GroupVersion
from secureps.messages.submission import Receipt, enveloped_part
from secureps.policy.plan import Plan
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.holder import KEPT
from secureps.roles.machine import WORKER, KitRead, RosterFollower, Step
from secureps.roles.member.committees import Committees
from secureps.run.simulate import simulation as simulations
from secureps.run.simulate.simulation import Conditions, MemoryKit, Simulation, make_memory_kit
from secureps.run.up.folder import shard_names
from secureps.store.backup import backup
from secureps.store.envelope_keys import RUNS, EnvelopeKeyFiles, EnvelopeKeys, load_keys, run_folder
from secureps.store.issuing import create_kit, issue_all
from secureps.store.journal import Journal, SqliteJournal, last_row
from secureps.store.journal_rows import height_path, write_height
from secureps.store.keyring import load_private, load_public
from secureps.store.spool import MemorySpool
from tests.kits.changing_roster import Issuer
from tests.kits.cheats import journalled
from tests.kits.committee_kit import CLIENTS, Holder, Sent, Site, committee_plan
from tests.kits.federations import (
    CIPHERS,
    ends,
    ends_as_unharmed,
    later,
    pinned_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)

HOLDERS = ("holder-0", "holder-1", "holder-2", "holder-3")


def rotating(
    monkeypatch: pytest.MonkeyPatch,
    every: int = 1,
    cipher: str = "rlwe",
    seconds: float = 3600.0,
    **changes: Any,
) -> Plan:
    """Makes a plan; its holders take another key after so many cohorts, or so long."""
    monkeypatch.setattr("secureps.roles.holder.holder.KEY_COHORTS", every)
    monkeypatch.setattr("secureps.roles.holder.holder.KEY_SECONDS", seconds)
    section = {**CIPHERS[cipher], "capacity": 8}
    plain = small_plan(**changes).section.model_dump(exclude_unset=True)
    return Plan(parse(PlanSection, plain | {"cipher": section}, "test"))


def machine(simulation: Simulation, holder: str) -> CommitteeHolder:
    found = simulation.parties[holder].machine
    assert isinstance(found, CommitteeHolder)
    return found


def keys_of(simulation: Simulation, holder: str) -> EnvelopeKeys:
    found = simulation._kit.secrets[holder]
    assert isinstance(found, EnvelopeKeys)
    return found


def received(simulation: Simulation) -> list[Receipt]:
    """What a recorder on the wire has, too: every receipt that came with envelopes."""
    journal = simulation._stores[COORDINATOR].journal
    found = (record.receipt for _, record in journal.replay() if isinstance(record, Submit))
    return [receipt for receipt in found if receipt.envelopes]


def calendar(simulation: Simulation, unix: float, holders: tuple[str, ...] = HOLDERS) -> None:
    """What the calendar says, to holders that are there."""
    for holder in holders:
        simulation.parties[holder].post(WORKER, KitRead(unix))


def stop_in_a_full_round(simulation: Simulation, version: int) -> None:
    """All six have sent what follows a version; coordinator and all holders but one are down."""
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.version == version)
    for holder in HOLDERS[1:]:
        simulation.kill(holder)  # too few look, so that the round stays open
    simulation.run(lambda: len(group.receipts) == 6)
    simulation.kill(COORDINATOR)


@contextmanager
def on_files(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Simulation, Path]]:
    """A federation with a real kit and real journals, and where the kit is."""
    kit = folder / "kit"
    create_kit(kit, plan.cipher_parameters, hours=0)

    def made(plan: Plan, clients: tuple[str, ...], spares: int = 0) -> MemoryKit:
        names = [("coordinator", COORDINATOR), *(("client", each) for each in clients)]
        names += [("shard", each) for each in shard_names(plan.section.shards + spares)]
        names += [("holder", each) for each in HOLDERS]
        issue_all(kit, names)  # type: ignore[arg-type]
        identities = {name: load_private(kit, name) for _, name in names}
        secrets = {name: load_keys(kit, name) for name in HOLDERS}
        return MemoryKit(load_public(kit), identities, secrets)

    def journal(name: str) -> Journal:
        (folder / "state" / name).mkdir(parents=True, exist_ok=True)
        return SqliteJournal(folder / "state" / name / "journal.db")

    with monkeypatch.context() as patched:  # of its own alone: others that it is compared with end
        patched.setattr(simulations, "make_memory_kit", made)
        simulation = small_federation(plan, folder / "state", Conditions(journal=journal))
    with closing(simulation):
        yield simulation, kit


def bytes_of(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    """All files under some folders: logs, free pages and what was forgotten too."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path, path.read_bytes()


SOME_DAY = 1.7e9


def blamed(simulation: Simulation) -> list[object]:
    records = simulation._stores["coordinator"].journal.replay()
    flaws = (r for _, r in records if isinstance(r, Examined | FlawNoted) and r.flaw)
    return [*flaws, *simulation.coordinator.federation.accused]


def needles(secret: bytes) -> list[bytes]:
    """Either half of a key, as bytes and as journals spell them."""
    return [half for part in (secret[:64], secret[64:]) for half in (part, part.hex().encode())]


@pytest.mark.parametrize("at", [2, 3])
def test_with_all_of_a_holders_files_what_is_closed_stays_shut(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken at a time T; what is open then does open, so that this could fail."""
    made = dict[int, bytes]()
    make = EnvelopeKeyFiles._generate

    def kept(self: EnvelopeKeyFiles, number: int) -> EnvelopeKey:
        key = make(self, number)
        if self._folder.name == "holder-1":
            made[number] = key.to_bytes()[-96:]
        return key

    monkeypatch.setattr(EnvelopeKeyFiles, "_generate", kept)
    with on_files(rotating(monkeypatch), tmp_path, monkeypatch) as (simulation, kit):
        made[0] = keys_of(simulation, "holder-1").make(0).to_bytes()[-96:]
        group = simulation.coordinator.federation.groups["all"]
        simulation.run(
            lambda: (
                group.version == at
                and len(group.receipts) == 6
                and keys_of(simulation, "holder-1").oldest == at
            )
        )
        state, private = tmp_path / "state" / "holder-1", kit / "private" / "holder-1"
        write_height(height_path(state / "journal.db"), last_row(state / "journal.db"))
        backup(state, tmp_path / "copy")
        files = list(bytes_of(state, private, tmp_path / "copy"))
        assert any(path.name == "journal.db-wal" for path, _ in files)
        left = sorted(path.name for path, _ in files if path.name.startswith("envelope"))
        stolen = {
            n: EnvelopeKey(secret)
            for n, secret in made.items()
            if any(needle in data for _, data in files for needle in needles(secret))
        }
        oldest = keys_of(simulation, "holder-1").oldest
        assert sorted(stolen) == [number for number in made if number >= oldest]
        assert left == [f"envelope-{n}.key" for n in sorted(stolen)] + ["envelope.pub"]
        assert not any(
            needle in data
            for path, data in files
            for secret in made.values()
            for needle in needles(secret)
            if not path.is_relative_to(private)
        ), "keys are in no journal and no copy"
        shut = opened = 0
        for receipt in received(simulation):
            bound = enveloped_part(receipt, "holder-1")
            fits = [n for n, key in stolen.items() if opens(key, receipt.envelopes[1], bound)]
            assert fits == [receipt.keys[1]] * (receipt.keys[1] in stolen)
            shut, opened = shut + (not fits), opened + bool(fits)
            assert bool(fits) == (receipt.id in group.receipts)
        assert (shut, opened) == (6 * at, 6)
        ends_as_unharmed(simulation)


def opens(key: EnvelopeKey, sealed: bytes, bound: bytes) -> bool:
    try:
        return bool(envelope.open(key, sealed, bound, 192))
    except Malformed:
        return False


def test_a_holder_that_is_away_keeps_its_last_key_and_erases_it_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = small_federation(rotating(monkeypatch, versions=5), tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.version >= 2)
    simulation.kill("holder-3")
    before = keys_of(simulation, "holder-3").oldest
    simulation.run(lambda: group.version >= 4)
    assert keys_of(simulation, "holder-3").oldest == before
    simulation.start("holder-3")
    ends_as_unharmed(simulation, versions=5)
    assert keys_of(simulation, "holder-3").oldest > before


def test_a_holder_that_lost_its_keys_accuses_nobody_and_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = unharmed(versions=5)[0]
    with on_files(rotating(monkeypatch, 2, versions=5), tmp_path, monkeypatch) as (simulation, kit):
        federation = simulation.coordinator.federation
        simulation.run(lambda: federation.keys.number("holder-1") == 1)
        simulation.run(lambda: len(federation.groups["all"].receipts) == 6)
        simulation.kill("holder-1")
        private, run = kit / "private" / "holder-1", pinned_of(simulation).run.id
        shutil.rmtree(run_folder(private, run))
        (private / RUNS).write_text(run.hex())
        secrets = simulation._kit.secrets
        assert isinstance(secrets, dict)
        secrets["holder-1"] = load_keys(kit, "holder-1")
        simulation.start("holder-1")
        group = federation.groups["all"]
        simulation.run(lambda: group.version >= 3)
        calendar(simulation, SOME_DAY, ("holder-1",))
        ends(simulation)
        assert blamed(simulation) == []
        announced = [each.announced for each in journalled(simulation, KeyReplaced, "holder-1")]
        keys, numbers = ({getattr(each, name) for each in announced} for name in ("key", "number"))
        assert len(keys) == len(numbers) > 1
        assert keys_of(simulation, "holder-1").newest == max(numbers)
        assert same(simulation.model(), model)


@pytest.mark.parametrize("away", [False, True])
def test_when_the_run_is_over_no_key_is_left(
    away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a holder that hears of it only when it is started again."""
    with on_files(rotating(monkeypatch, 2), tmp_path, monkeypatch) as (simulation, kit):
        group = simulation.coordinator.federation.groups["all"]
        simulation.run(lambda: group.version >= 3)
        if away:
            simulation.kill("holder-1")
        ends(simulation)
        later(simulation, 5.0)
        if away:
            assert list((kit / "private" / "holder-1").glob("**/envelope*.key"))
            simulation.start("holder-1")
            later(simulation, 5.0)
        assert list((kit / "private").glob("**/envelope*.key")) == []
        replaced = journalled(simulation, KeyReplaced, "holder-1")
        calendar(simulation, SOME_DAY)
        later(simulation, 5.0)
        assert journalled(simulation, KeyReplaced, "holder-1") == replaced, "it takes no more"


def test_what_nobody_can_open_any_more_is_dropped_as_stale_and_sealed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that says nothing of keys keeps none alive, and nobody is accused for it."""
    simulation = small_federation(rotating(monkeypatch, 1000, seconds=1e9), tmp_path)
    stop_in_a_full_round(simulation, 1)
    for holder in HOLDERS[1:]:
        simulation.start(holder)
    for days, oldest in ((0.0, 0), (KEPT - 1, 0), (KEPT, 1)):
        calendar(simulation, SOME_DAY + days)
        later(simulation, 1.0)
        assert {keys_of(simulation, holder).newest for holder in HOLDERS} == {1}
        assert {keys_of(simulation, holder).oldest for holder in HOLDERS} == {oldest}
    simulation.start("coordinator")
    ends_as_unharmed(simulation)
    assert blamed(simulation) == []
    records = [r for _, r in simulation._stores["coordinator"].journal.replay()]
    dropped = [r for r in records if isinstance(r, SubmissionsDropped)]
    assert sum(len(each.ids) for each in dropped) == 6
    assert "fewer than 3 key holders have announced, and not erased" in dropped[0].reason
    assert not any(isinstance(r, RoundGivenUp) for r in records), "the same round went on"
    assert {r.keys for r in received(simulation)} == {(0, 0, 0, 0), (1, 1, 1, 1)}


def test_what_enough_others_can_open_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One holder that erased its key says nothing of the envelope, and refuses its share."""
    simulation = small_federation(rotating(monkeypatch, 1000), tmp_path)
    stop_in_a_full_round(simulation, 1)
    for days in (0.0, KEPT):
        calendar(simulation, SOME_DAY + days, ("holder-0",))
        later(simulation, 1.0)
    assert keys_of(simulation, "holder-0").oldest == 1
    for party in ("coordinator", *HOLDERS[1:]):
        simulation.start(party)
    ends_as_unharmed(simulation)
    assert blamed(simulation) == []
    journal = simulation._stores["coordinator"].journal
    assert not any(isinstance(record, SubmissionsDropped) for _, record in journal.replay())
    (refused,) = journalled(simulation, OpenRefused)
    assert "is sealed for key 0, which is erased" in refused.reason


NEW = "holder-9"


class Sites(NamedTuple):
    """One run by the rosters of two committees: before the last holder is replaced, and after."""

    before: Site
    after: Site

    @property
    def threshold(self) -> int:
        return self.before.committee.threshold

    @property
    def lost(self) -> str:
        return self.before.names[-1]

    @property
    def stay(self) -> tuple[str, ...]:
        return self.before.names[:-1]


@cache
def sites_of(holders: int, threshold: int) -> Sites:
    plan = committee_plan(holders, threshold)
    issuer = Issuer(make_memory_kit(plan, CLIENTS))
    before = Site(plan, issuer.kit)
    issuer.replace(f"holder-{holders - 1}", NEW)
    after = Site(plan, issuer.kit)
    after.run, after.pinned = before.run, before.pinned
    return Sites(before, after)


@pytest.fixture
def sites() -> Sites:
    """The default committee, 3 of 4."""
    return sites_of(4, 3)


def holder(sites: Sites, name: str) -> Holder:
    """A holder with an empty ledger that has heard of both rosters, where it is on both."""
    before, after = sites
    made = Holder(after if name == NEW else before, name)
    if name not in (NEW, sites.lost):
        made.give(WORKER, KitRead(0.0, after.kit.public.roster.to_bytes().decode(), ()))
    return made


def answered(holder: Holder, order: orders.Open) -> bool:
    return any(isinstance(said, requests.KeyShare) for said in holder.order(order))


def who_opens(
    sites: Sites, asked: Iterable[tuple[str, orders.Open]], corrupt: str = ""
) -> tuple[set[str], set[str]]:
    """Who answers the first and the second order of a run; who is corrupt keeps no ledger."""
    honest = {
        name: holder(sites, name) for name in (*sites.stay, sites.lost, NEW) if name != corrupt
    }
    found: tuple[set[str], set[str]] = (set(), set())
    for name, order in asked:
        if answered(honest.get(name) or holder(sites, name), order):
            found[order.cohort.number].add(name)
    return found


def larger_and_smaller(sites: Sites) -> tuple[orders.Open, orders.Open]:
    """The same updates, sealed for both committees, but for one that is only in the first sum."""
    before, after = sites
    whole = before.opening([before.send(name) for name in CLIENTS[:6]])
    return whole, after.opening([after.send(name) for name in CLIENTS[1:6]], number=1)


def ways(
    sites: Sites, whole: orders.Open, part: orders.Open
) -> Iterator[list[tuple[str, orders.Open]]]:
    """All ways to ask: each holder that stays gets the one order or the other first."""
    for first in itertools.product((True, False), repeat=len(sites.stay)):
        asked = [(sites.lost, whole), (NEW, part)]
        for name, larger in zip(sites.stay, first, strict=True):
            asked += [(name, order) for order in ((whole, part) if larger else (part, whole))]
        yield asked


def test_what_is_sealed_for_one_committee_the_other_opens_no_part_of(sites: Sites) -> None:
    """A client seals a base version once: all that is left is to call the cohort another's."""
    before, after = sites
    sent = [before.send(name) for name in CLIENTS[:6]]
    whole, part = before.opening(sent), before.opening(sent[1:], number=1)
    digest = after.kit.public.roster.committee
    moved = dataclasses.replace(part.cohort, committee=digest)
    receipts = tuple(dataclasses.replace(each, committee=digest) for each in part.receipts)
    tried = (
        part,
        dataclasses.replace(part, cohort=moved),
        dataclasses.replace(part, cohort=moved, receipts=receipts),
    )
    for smaller in tried:
        for asked in ways(sites, whole, smaller):
            for corrupt in sites.stay:
                answers = who_opens(sites, asked, corrupt)
                assert min(map(len, answers)) < sites.threshold <= max(map(len, answers)), answers


@pytest.mark.parametrize(("n", "t"), [(3, 2), (3, 3), (4, 3), (4, 4), (5, 3), (5, 4)])
@pytest.mark.parametrize("f", [0, 1])
def test_who_seals_for_both_is_protected_within_a_bound_one_lower(n: int, t: int, f: int) -> None:
    """A client whose state was taken back may be led to it: why it has on record for whom it
    sealed. Beyond f <= 2t - n - 2 two sums that differ in one client are both opened."""
    sites = sites_of(n, t)
    corrupt = sites.stay[0] if f else ""
    asked = ways(sites, *larger_and_smaller(sites))
    found = [who_opens(sites, each, corrupt) for each in asked]
    both = any(min(map(len, answers)) >= t for answers in found)
    assert both == (f > 2 * t - n - 2)


def sealed_twice(sites: Sites, name: str) -> tuple[Sent, Sent]:
    """Version 0 of an honest client, and what it sends when it is to seal that for the others.

    It has sealed version 1 for them when it hears that they begin at version 0.
    """
    before, after = sites
    follower, outbox = RosterFollower(before.kit.public.roster), MemorySpool()
    known, identity = Committees(follower, name), before.kit.identities[name]
    sealer = OutboxSealer(identity, {}, known.due_for_made, outbox)
    known.take(before.sealed_for("all", 0))
    first = before.send(name, by=(sealer, outbox))
    known.note_sealed(first.receipt)
    follower.follow(Step(), after.kit.public.roster.to_bytes().decode())
    begins = GroupVersion("all", 1)
    known.take(dataclasses.replace(after.sealed_for("all", 1), since=(begins,)))
    known.note_sealed(after.send(name, 2, version=1, by=(sealer, outbox)).receipt)
    known.take(after.sealed_for("all", 0))
    with pytest.raises(Refused, match="it has sealed version 1 of all"):
        known.due("all", 0)
    again = sealer.seal_again(before.pinned, first.receipt, first.headers, 3)
    payloads = tuple(outbox.get(header.key) for header in again.headers)
    return first, Sent(again.receipt, again.headers, payloads, first.values)


def test_a_version_of_one_committee_is_sealed_again_for_no_later_one(sites: Sites) -> None:
    """A coordinator may say of a committee, once it is sealed for, that it began earlier."""
    before, after = sites
    twice = [sealed_twice(sites, name) for name in CLIENTS[:6]]
    whole = before.opening([first for first, _ in twice])
    part = after.opening([again for _, again in twice[1:]], number=1)
    for asked in ways(sites, whole, part):
        for corrupt in sites.stay:
            answers = who_opens(sites, asked, corrupt)
            assert min(map(len, answers)) < sites.threshold, answers


def test_the_new_committee_opens_newer_versions_without_one_that_stays(sites: Sites) -> None:
    before, after = sites
    earlier = before.opening([before.send(name) for name in CLIENTS[:6]])
    later = after.opening([after.send(n, 2, version=1) for n in CLIENTS[:6]], number=1)
    asked = [
        (name, order) for order in (earlier, later) for name in (*sites.stay[:2], sites.lost, NEW)
    ]
    assert who_opens(sites, asked) == ({*sites.stay[:2], sites.lost}, {*sites.stay[:2], NEW})
