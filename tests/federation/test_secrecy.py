"""Secrecy: any t of n key holders suffice, and one that lies or accuses falsely is named.
Secrecy: files stolen from key holders open no update of closed rounds.
Secrecy: after a burnt cohort clients send the same integers, so that no difference shows.
"""

import dataclasses
import itertools
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.client.sealing import OutboxSealer
from secureps.client.worker import ClientWorker
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.sharing import P
from secureps.crypto.suite import key_length
from secureps.errors import Conflict, InternalError, Malformed, Oversized, Refused, UnknownParty
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.coordinator_records import FlawNoted, RoundGivenUp, SubmissionsDropped
from secureps.messages.evaluation import EVALUATION
from secureps.messages.holder_records import KeyReplaced
from secureps.messages.requests import Examined, OpenRefused, Submit
from secureps.messages.run import COORDINATOR, GroupVersion
from secureps.messages.submission import Base, Receipt, SubmissionId, enveloped_part, opening_digest
from secureps.policy.cohorts.suspicion import BELIEVED, believes, find_doubted, tally_doubts
from secureps.policy.plan import Plan
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.scheduler import _arrivals, largest_alike
from secureps.roles.coordinator.status import status
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.holder import KEPT
from secureps.roles.machine import WORKER, KitRead, RosterFollower, Step
from secureps.roles.member.committees import Committees
from secureps.run.report.status_tables import record as as_json
from secureps.run.simulate import simulation as simulations
from secureps.run.simulate.simulation import Conditions, MemoryKit, Simulation, make_memory_kit
from secureps.run.up.folder import client_names, holder_names, shard_names
from secureps.service.holder import CommitteeWorker
from secureps.service.log_lines import LogLines
from secureps.store.backup import backup
from secureps.store.envelope_keys import RUNS, EnvelopeKeyFiles, EnvelopeKeys, load_keys, run_folder
from secureps.store.issuing import create_kit, issue_all
from secureps.store.journal import Journal, SqliteJournal, last_row
from secureps.store.journal_rows import height_path, write_height
from secureps.store.keyring import load_private, load_public
from secureps.store.spool import MemorySpool
from secureps.wire.msgpack import encode
from tests.kits.changing_roster import ChangingRoster, Issuer
from tests.kits.cheats import (
    cheats,
    cohorts,
    holders_allow_all,
    journalled,
    lies,
    small_error,
    spoil_all,
    spoil_one,
    spoils,
    until,
)
from tests.kits.committee_kit import CLIENTS, Holder, Sent, Site, committee_plan
from tests.kits.evaluations import evaluated_plan, examined
from tests.kits.faults_kit import FaultyNetwork
from tests.kits.federations import (
    CIPHERS,
    Walker,
    ends,
    ends_as_unharmed,
    finished,
    later,
    pinned_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.privacy_kit import Restless
from tests.kits.roles_kit import about
from tests.kits.streams import stream, stream_plan

BUFFERED = {"name": "buffered", "buffer": 4, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
SSP = {"name": "ssp", "slack": 1, "minimum": 5}
ROUNDS = {"name": "sync", "quorum": 5, "minimum": 5, "deadline": 10.0}

rules = pytest.mark.parametrize("rule", [BUFFERED, SSP, ROUNDS], ids=lambda rule: rule["name"])


def federation(rule: dict[str, Any], folder: Path, cipher: str = "rlwe") -> Simulation:
    if rule is ROUNDS:
        return small_federation(small_plan(cipher, rule), folder)
    return stream(stream_plan(cipher, rule), folder)


def accuses(simulation: Simulation, holder: str) -> None:
    """Whatever comes, this holder says that its envelope is flawed."""
    worker = simulation.parties[holder].worker
    assert isinstance(worker, CommitteeWorker)

    def examined(receipt: Receipt) -> Examined:
        return Examined(holder, receipt.id, "it does not open", receipt.digest)

    worker._examine = examined  # type: ignore[method-assign]


def dropped(simulation: Simulation) -> list[Examined]:
    return [r for r in journalled(simulation, Examined) if r.flaw]


@pytest.mark.slow
@rules
def test_one_holder_that_finds_flaws_everywhere_ends_no_run_and_is_named(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    simulation = federation(rule, tmp_path)
    accuses(simulation, "holder-1")
    ends(simulation)
    found = simulation.coordinator.federation
    assert found.finished == "all 4 versions are made"
    assert journalled(simulation, coordinator_records.CohortBurnt) == []
    accused = {r.id.client for r in dropped(simulation)}
    assert len(accused) == (2 if rule is BUFFERED else 1), "fewer could not go on without more"
    noted = journalled(simulation, coordinator_records.FlawNoted)
    assert {r.holder for r in noted} == {"holder-1"}
    line = "not believed: holder-1 finds flaws in what 6 clients sent, and too few others do"
    assert noted[-1].reason == line
    said = f"{noted[-1].id}: holder-1 found a flaw, {line}: it does not open"
    assert LogLines().line(noted[-1]) == said
    assert len({(r.id, r.holder) for r in noted}) == len(noted)
    servers = simulation.coordinator.servers
    assert {s.name: s.accuses for s in servers if s.accuses} == {"holder-1": 6}
    again = simulation.coordinator._tx(simulation.loop.now())
    shown = {s["name"]: s["state"] for s in as_json(status(again, (), servers))["servers"]}
    assert shown["holder-0"] == "live"
    assert shown["holder-1"] == "live; finds flaws in what 6 clients sent, and too few others do"


@rules
def test_a_holder_is_believed_of_a_client_or_two(rule: dict[str, Any], tmp_path: Path) -> None:
    """What it cannot open is left out in time, and nothing is burnt."""
    simulation = federation(rule, tmp_path)
    cheats(simulation, "client-05", spoil_one, times=1)
    ends(simulation)
    assert [(r.id.client, r.holder) for r in dropped(simulation)] == [("client-05", "holder-2")]
    assert journalled(simulation, coordinator_records.FlawNoted) == []
    assert simulation.versions() == {"all": 4}


def test_where_no_cohort_waits_a_flaw_is_found_by_whoever_opens_it(tmp_path: Path) -> None:
    """Holders look into nothing before; from then on into what that client sends."""
    simulation = federation(ROUNDS, tmp_path)
    for group in simulation.coordinator.federation.groups.values():
        group.open_receipts.enough = 0
    cheats(simulation, "client-05", spoil_one, times=1)
    ends(simulation)
    assert simulation.versions() == {"all": 4}
    assert journalled(simulation, coordinator_records.CohortBurnt) == []
    (refused,) = journalled(simulation, OpenRefused)
    (noted,) = journalled(simulation, coordinator_records.FlawNoted)
    assert (noted.id.client, noted.holder) == ("client-05", refused.holder)
    assert noted.reason in ("too late to leave it out", "left out already")
    looked = journalled(simulation, Examined)
    assert {r.id.client for r in looked if r.holder != refused.holder} == {"client-05"}


def test_clients_that_frame_a_holder_are_summed_without_its_shares(tmp_path: Path) -> None:
    """More than a holder is believed of: the others open, and it refuses by itself."""
    simulation = federation(BUFFERED, tmp_path)
    for client in ("client-01", "client-03", "client-05"):
        cheats(simulation, client, spoil_one, times=99)
    ends(simulation)
    assert simulation.versions() == {"all": 4}
    assert journalled(simulation, coordinator_records.CohortBurnt) == []
    assert {r.holder for r in journalled(simulation, OpenRefused)} == {"holder-2"}
    assert simulation.coordinator.federation.accused == {
        client: {"holder-2"} for client in ("client-01", "client-03", "client-05")
    }


@pytest.mark.parametrize("cipher", ["rlwe-2-of-3", "rlwe-alone"])
def test_a_holder_that_cannot_be_missed_is_believed_whatever_it_says(
    cipher: str, tmp_path: Path
) -> None:
    simulation = federation(BUFFERED, tmp_path, cipher)
    accuses(simulation, "holder-0")
    ends(simulation)
    finished = simulation.coordinator.federation.finished
    if cipher == "rlwe-2-of-3":
        assert finished == "all 4 versions are made"
        return
    assert "cannot take part before the next version" in finished
    assert journalled(simulation, coordinator_records.FlawNoted) == []


@pytest.mark.parametrize("rule", [BUFFERED, ROUNDS], ids=lambda rule: rule["name"])
def test_who_cannot_be_missed_since_another_is_gone_keeps_out_no_more_than_before(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    """Three of four are left, of whom all are needed: what one accuses beyond two clients waits."""
    plan = stream_plan("rlwe", rule, versions=4)
    changing = ChangingRoster(plan, tmp_path, clients=8)
    play = changing.play
    changing.play_to(1)
    play.kill("holder-0")
    certificate = changing.issuer.certificates["holder-0"]
    changing.revoke("holder-0")
    accuses(play, "holder-1")
    end = play.loop.now() + 500
    with suppress(InternalError):  # nothing is left to happen
        play.run(lambda: play._over() or play.loop.now() > end)
    assert len({r.id.client for r in dropped(play)}) == BELIEVED
    assert not play._over()
    tx = play.coordinator._tx(play.loop.now())
    reason = status(tx, (), play.coordinator.servers).groups[0].reason
    assert re.search(
        r"\d updates? cannot be opened without holder-1: holder-1 finds flaws in what \d clients "
        "sent, and too few others do. Replace it, or whoever was taken off the roster",
        reason,
    )
    assert journalled(play, coordinator_records.CohortBurnt) == []
    changing.issuer.certificates["holder-0"] = certificate
    play.kill("holder-1")
    changing.replace("holder-1", "holder-9")
    play.start("holder-0")
    play.start("holder-9")
    ends(play)
    assert play.versions() == {"all": 4}


MOST_HOLDERS = 6
GRAPHS = st.dictionaries(
    st.integers(0, 9), st.frozensets(st.integers(0, MOST_HOLDERS), min_size=1), max_size=10
)


def named(graph: dict[int, frozenset[int]]) -> dict[str, frozenset[str]]:
    return {f"c{client}": frozenset(f"h{h}" for h in by) for client, by in graph.items() if by}


@given(GRAPHS, st.integers(0, 4), st.integers(0, BELIEVED))
def test_who_is_doubted(graph: dict[int, frozenset[int]], spare: int, most: int) -> None:
    accused = named(graph)
    counts, found = tally_doubts(accused, spare), find_doubted(accused, spare, most)
    assert found == {holder for holder in counts if counts[holder] > most}
    for client, holders in accused.items():
        taken = {h for h in holders if believes(accused, client, h, spare, most)}
        if len(holders) > spare:
            rest = {c: h for c, h in accused.items() if c != client}
            assert tally_doubts(rest, spare) == counts, "what is beyond doubt counts against nobody"
            assert taken == holders, "and is believed, whoever else is doubted"
        elif not taken:
            assert holders <= found, "who stays in is opened without those that are doubted"


@pytest.mark.parametrize("n", [3, 5])
@given(data=st.data())
def test_no_coalition_keeps_more_out_than_its_holders_alone(n: int, data: st.DataObject) -> None:
    """Any corrupt holders that can be missed say anything, in any order; so may any holder of
    clients that collude. With and without a minimum that needs everybody."""
    t = data.draw(st.integers(n // 2 + 1, n))
    honest = [f"honest{k}" for k in range(5)]
    clients, holders = [*honest, *(f"bad{k}" for k in range(7))], range(n)
    pairs = data.draw(st.lists(st.sampled_from([*product(clients, holders)]), unique=True))
    limits = data.draw(st.lists(st.sampled_from([0, BELIEVED]), min_size=1))
    for corrupt in (set(some) for k in range(n - t + 1) for some in combinations(holders, k)):
        accused: dict[str, frozenset[str]] = {}
        kept_out = Counter[int]()
        said = [(c, h) for c, h in pairs if h in corrupt or c not in honest]
        for (client, holder), most in zip(said, cycle(limits), strict=False):
            name = f"h{holder}"
            accused[client] = accused.get(client, frozenset()) | {name}
            if believes(accused, client, name, n - t, most):
                kept_out[holder] += client in honest
            if len(accused[client]) > n - t:
                assert believes(accused, client, name, n - t, most)
                assert client not in honest
        assert max(kept_out.values(), default=0) <= BELIEVED


@pytest.mark.slow
@given(GRAPHS, st.integers(1, 4), st.data())
def test_without_a_client_at_fault_only_liars_are_doubted(
    graph: dict[int, frozenset[int]], spare: int, data: st.DataObject
) -> None:
    liars = data.draw(st.frozensets(st.integers(0, MOST_HOLDERS), max_size=spare))
    accused = named({client: by & liars for client, by in graph.items()})
    many = {f"h{liar}" for liar in liars if sum(liar in by for by in graph.values()) > BELIEVED}
    assert find_doubted(accused, spare, BELIEVED) == many


@given(GRAPHS, st.integers(1, 4))
def test_more_are_doubted_than_can_be_missed_only_for_many_clients(
    graph: dict[int, frozenset[int]], spare: int
) -> None:
    """Without a corrupt holder; with c of them, all but c of the doubted are."""
    accused = named(graph)
    found, counts = find_doubted(accused, spare, BELIEVED), tally_doubts(accused, spare)
    few = sum(len(by) <= spare for by in accused.values())
    assert (BELIEVED + 1) * len(found) <= sum(counts.values()) <= spare * few


HOLDERS = holder_names(4)


def reason(simulation: Simulation) -> str:
    return simulation.coordinator.federation.groups["all"].reason


@pytest.mark.slow
def test_what_a_holder_is_told_is_as_long_with_more_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, told = CommitteeHolder.handle, dict[int, list[tuple[str, int]]]()

    def heard(self: CommitteeHolder, now: float, sender: str, event: Any) -> Any:
        if isinstance(event, orders.Examine | orders.Open):
            told[block_size].append((type(event).__name__, len(encode(event))))
        return handle(self, now, sender, event)

    monkeypatch.setattr(CommitteeHolder, "handle", heard)
    for block_size in (64, 32):
        told[block_size] = []
        plan = small_plan("rlwe", block_size=block_size, versions=1)
        simulation = small_federation(plan, tmp_path / str(block_size))
        simulation.run()
        blocks = len(simulation.coordinator.federation.groups["all"].blocks)
        assert blocks == {64: 4, 32: 7}[block_size]
    assert len(told[64]) == 4 * (6 + 1)
    for (kind, size), (other, longer) in zip(sorted(told[64]), sorted(told[32]), strict=True):
        assert kind == other
        assert abs(longer - size) <= 2 * 6, "the `size` in each receipt has a byte or three"


@pytest.mark.slow
@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.PREPARING])
def test_without_enough_holders_a_run_waits_and_says_for_whom(phase: Phase, tmp_path: Path) -> None:
    """Nothing is given up, burnt or charged twice; once one is back it goes on."""
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    until(simulation, phase)
    for dead in ("holder-1", "holder-2"):
        simulation.kill(dead)
    later(simulation, 500.0)
    assert "holder-1, holder-2 have not answered; 3 of 4 suffice" in reason(simulation)
    assert simulation.versions() == {"all": 2 if phase is Phase.PREPARING else 1}
    simulation.start("holder-2")
    ends_as_unharmed(simulation)
    assert journalled(simulation, coordinator_records.RoundGivenUp) == []
    fates = simulation.coordinator.federation.fates.values()
    assert {fate.outcome for fate in fates} == {"durable"}


def at_random(share: Any) -> Any:
    return np.random.default_rng(1).integers(0, P, share.size).astype(np.uint32)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [at_random, small_error])
def test_a_holder_that_lies_is_named_and_survived(
    lie: Callable[[Any], Any], tmp_path: Path
) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    lies(simulation, "holder-1", lie)
    ends_as_unharmed(simulation)
    assert set(simulation.coordinator.federation.liars) == {"holder-1"}
    named = journalled(simulation, coordinator_records.LiarsNamed)
    assert {record.holders for record in named} == {("holder-1",)}
    assert "but not those of holder-1" in named[0].reason
    failed = journalled(simulation, coordinator_records.OpeningFailed)
    tried = [record.holders for record in failed]
    assert tried == 4 * [("holder-0", "holder-1", "holder-2")] * (lie is small_error)


@pytest.mark.slow
def test_a_silent_holder_has_a_deadline_to_help_against_a_lie(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    until(simulation, Phase.COLLECTING)
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run(lambda: "waits for holder-3" in reason(simulation))
    simulation.start("holder-3")
    ends_as_unharmed(simulation)
    assert journalled(simulation, coordinator_records.CohortBurnt) == []
    assert set(simulation.coordinator.federation.liars) == {"holder-1"}


@pytest.mark.slow
def test_too_few_members_in_order_give_the_round_up(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    for client in ("client-04", "client-05"):
        cheats(simulation, client, spoil_all)
    ends_as_unharmed(simulation)
    (given_up,) = journalled(simulation, coordinator_records.RoundGivenUp)
    assert "a cohort needs 5" in given_up.reason
    assert "found a flaw in what client-0" in given_up.reason
    everybody = frozenset(HOLDERS)
    assert set(simulation.coordinator.federation.accused.values()) == {everybody}


def test_nothing_of_a_key_is_in_any_journal_but_what_was_published(tmp_path: Path) -> None:
    conditions = Conditions(network=FaultyNetwork)
    simulation = small_federation(small_plan("rlwe", versions=1), tmp_path, conditions)
    simulation.run()
    for holder in HOLDERS:
        kinds = {type(r).__name__ for r in journalled(simulation, object, holder)}
        assert kinds == {"Incarnated", "RunPinned", "RosterFollowed", "CohortReleased"}
    assert isinstance(simulation.network, FaultyNetwork)
    called = {call[1] for call in simulation.network.sent if call[0] in HOLDERS}
    assert called == {"coordinator"}, "no shard hears of a holder"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """A cohort is being opened; whatever is refused meanwhile changes nothing."""
    made = small_federation(small_plan("rlwe"), tmp_path_factory.mktemp("opening"))
    until(made, Phase.OPENING)
    yield made
    ends_as_unharmed(made)


def test_shares_are_for_committees_and_opened_sums_are_not(simulation: Simulation) -> None:
    say = partial(simulation.coordinator.handle, simulation.loop.now())
    number = simulation.coordinator.federation.groups["all"].number
    bound = about(simulation.coordinator.federation, "all")
    for share, error in ((b"", Malformed), (bytes(4), Malformed), (bytes(1 << 16), Oversized)):
        with pytest.raises(error, match="values has"):
            say("holder-0", requests.KeyShare("holder-0", "all", number, share, bound))
    with pytest.raises(Malformed, match="gives shares of keys, and opens no sums"):
        say("holder-0", requests.Opened("holder-0", "all", number, (), bound))
    length = key_length(simulation.plan.cipher_parameters)
    for sender, claimed in (("client-00", "client-00"), ("holder-0", "holder-1")):
        with pytest.raises(UnknownParty):
            say(sender, requests.KeyShare(claimed, "all", number, bytes(4 * length), bound))
    late = requests.KeyShare("holder-0", "all", number - 1, bytes(4 * length), bound)
    assert say("holder-0", late).records == []


def test_the_first_answer_of_a_holder_stands(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.making is not None and bool(group.making.shares))
    shares = dict(group.closed_cohort.shares)
    holder, share = next(iter(shares.items()))
    say = partial(simulation.coordinator.handle, simulation.loop.now(), holder)
    bound = about(simulation.coordinator.federation, "all")
    other = requests.KeyShare(holder, "all", group.number, bytes(len(share)), bound)
    assert say(other).records == []
    assert say(requests.OpenRefused(holder, "all", group.number, "no", bound)).records == []
    assert group.closed_cohort.shares == shares


def test_an_answer_is_about_the_cohort_and_the_receipt_that_were_shown(
    simulation: Simulation,
) -> None:
    """Of this number but other members, or of another run: it changes nothing."""
    federation = simulation.coordinator.federation
    group = federation.groups["all"]
    assert group.cohort is not None
    say = partial(simulation.coordinator.handle, simulation.loop.now(), "holder-0")
    cohort, run = group.cohort, pinned_of(simulation).run.id
    receipts = [group.receipts[member.id] for member in cohort.members]
    fewer = dataclasses.replace(cohort, members=cohort.members[1:])
    digests = [receipt.digest for receipt in receipts]
    larger = dataclasses.replace(receipts[0], size=receipts[0].size + 1)
    share = bytes(4 * key_length(simulation.plan.cipher_parameters))
    for bound in (
        b"",
        opening_digest(bytes(32), cohort, digests),
        opening_digest(run, fewer, digests[1:]),
        opening_digest(run, cohort, [larger.digest, *digests[1:]]),
    ):
        for answer in (
            requests.KeyShare("holder-0", "all", group.number, share, bound),
            requests.OpenRefused("holder-0", "all", group.number, "no", bound),
        ):
            with pytest.raises(Conflict, match=r"holder-0 answers for another cohort \d+ of all"):
                say(answer)
    id, receipt = next(iter(group.receipts.items()))
    group.open_receipts.examined.pop(id, None)
    other = dataclasses.replace(receipt, size=receipt.size + 1)
    for bound in (b"", other.digest):
        for flaw in ("", "a flaw"):
            with pytest.raises(Conflict, match="holder-0 answers for another receipt of"):
                say(requests.Examined("holder-0", id, flaw, bound))


@pytest.mark.parametrize("flaw", ["", "a flaw"])
def test_nobody_examines_a_founding_model(flaw: str, tmp_path: Path) -> None:
    """A holder that says so all the same changes nothing: nothing of it is sealed for holders."""
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: bool(group.receipts))
    ((id, receipt),) = group.receipts.items()
    told = requests.Examined("holder-0", id, flaw, receipt.digest)
    step = simulation.coordinator.handle(simulation.loop.now(), "holder-0", told)
    assert (group.phase, step.records) == (Phase.FOUNDING, [])


def test_without_a_committee_nobody_examines_or_shares(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("bfv"), tmp_path)
    until(simulation, Phase.OPENING)
    say = partial(simulation.coordinator.handle, simulation.loop.now(), "holder-0")
    id = next(iter(simulation.coordinator.federation.groups["all"].receipts))
    for message in (
        requests.Examined("holder-0", id, "", b""),
        requests.KeyShare("holder-0", "all", 0, b"", b""),
    ):
        with pytest.raises(Malformed, match="this run has none"):
            say(message)


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
        assert max(keys_of(simulation, "holder-1")._keys) == max(numbers)
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
        assert {max(keys_of(simulation, holder)._keys) for holder in HOLDERS} == {1}
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


COUNT, MINIMUM = 10, 4


def plan_for(*groups: dict[str, Any], versions: int = 6, count: int = COUNT) -> Plan:
    rule = {"quorum": count, "minimum": MINIMUM, "deadline": 10.0, "extensions": 1}
    common = {"clip": 3.0, "range": 1.0, "most_examples": 32, "rule": rule}
    own = [common | group for group in groups]
    return small_plan("rlwe", capacity=16, versions=versions, group=own)


def restless_federation(
    folder: Path, plan: Plan, restless: int = COUNT // 2, count: int = COUNT
) -> Simulation:
    kinds = [Restless] * restless + [Walker] * (count - restless)
    return small_federation(plan, folder, clients=count, kind=lambda i: kinds[i](i))


def fits(simulation: Simulation) -> list[int]:
    return [simulation._cast.trainers[name].fits for name in client_names(COUNT)]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_nobody_trains_again_for_a_cohort_that_was_burnt(tmp_path: Path) -> None:
    """Of ten, five of whom would send another update than before, which no holder would add."""
    simulation = restless_federation(tmp_path, plan_for({}, versions=16))
    until(simulation, Phase.COLLECTING)
    spoils(simulation, "client-07", times=99)
    simulation.run()
    assert simulation.versions() == {"all": 16}
    assert set(simulation.coordinator.federation.isolated) == {"client-07"}
    assert journalled(simulation, coordinator_records.CohortBurnt)
    assert max(fits(simulation)) == 16, "once a version"
    holders_allow_all(simulation, MINIMUM)


@pytest.mark.parametrize("groups", [("body", "head"), ("all",)])
def test_if_one_has_its_update_no_more_and_no_set_is_without_it_the_run_ends(
    groups: tuple[str, ...], tmp_path: Path
) -> None:
    """Six cannot be cut at a minimum of four, and nobody trains again for what may be opened."""
    patterns = {"body": "body.*", "head": "head.*", "all": "*"}
    named = ({"name": name, "pattern": patterns[name]} for name in groups)
    simulation = restless_federation(tmp_path, plan_for(*named, versions=4, count=6), 0, 6)
    simulation.run(lambda: simulation.versions() == dict.fromkeys(groups, 1))
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortBurnt)))
    simulation.kill("client-00")
    simulation.start("client-00")
    simulation.start("holder-3")
    simulation.run(lambda: finished(simulation))
    found = simulation.coordinator.federation
    assert (found.failure, simulation.versions()[groups[0]]) == ("TooFew", 1)
    assert "not client-00; nothing was opened" in found.finished
    assert "no other set of clients may make this version" in found.finished
    assert simulation.loop.now() < 60.0
    holders_allow_all(simulation, MINIMUM)


@pytest.mark.slow
def test_an_evaluation_that_was_burnt_is_no_other_models(tmp_path: Path) -> None:
    simulation = examined(evaluated_plan("rlwe"), tmp_path)
    found = simulation.coordinator.federation

    def begun() -> bool:
        group = simulation.coordinator.federation.groups.get(EVALUATION)
        return group is not None and group.phase is Phase.COLLECTING

    simulation.run(begun)
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortBurnt)))
    simulation.start("holder-3")
    simulation.run(lambda: finished(simulation))
    found = simulation.coordinator.federation
    assert sorted(found.trail.results) in ([4, 5], [5])
    bases = [each.members[0].base for each in cohorts(simulation, EVALUATION)]
    assert bases[0] == Base(0, 0)
    assert len(set(bases)) == len(bases), "each evaluated version has a base of its own"
    assert simulation.loop.now() < 60.0


@pytest.mark.slow
def test_groups_that_move_together_go_on_together_when_one_is_burnt(tmp_path: Path) -> None:
    names = {"name": "body", "pattern": "body.*"}, {"name": "head", "pattern": "head.*"}
    models = []
    for offends in (False, True):
        simulation = restless_federation(
            tmp_path / str(offends), plan_for(*names, versions=4), restless=0
        )
        simulation.run(lambda: simulation.versions() == {"body": 1, "head": 1})  # noqa: B023
        if offends:
            simulation.kill("holder-3")
            lies(simulation, "holder-1", small_error, times=1)
        simulation.run(lambda: finished(simulation))  # noqa: B023
        assert simulation.versions() == {"body": 4, "head": 4}
        assert len(journalled(simulation, coordinator_records.CohortBurnt)) == offends
        holders_allow_all(simulation, MINIMUM)
        models.append(simulation.model())
    versions = [each.version for each in cohorts(simulation)]
    assert versions.count(2) == 3, "one of the two was closed again"
    assert not same(*models), "half of the clients made that version"


@pytest.mark.parametrize(("counts", "most"), [((3, 2), 0), ((2, 3), 1), ((4,), 0)])
def test_the_most_that_trained_beside_the_same_models_are_summed(
    counts: tuple[int, ...], most: int
) -> None:
    receipts: list[Any] = [
        Receipt(b"", None, "", 0, b"", (), b"", (), (), 0, None, None, False, beside=bytes([kind]))  # type: ignore[arg-type]
        for kind, count in enumerate(counts)
        for _ in range(count)
    ]
    assert [r.beside for r in largest_alike(receipts)] == [bytes([most])] * counts[most]


def test_of_as_many_beside_each_model_those_that_came_first_are_summed() -> None:
    """A simulation comes to the same bits again, in whatever order Python hashes names."""
    group = GroupState("all", 0, phase=Phase.COLLECTING)
    ids = [SubmissionId(f"c{9 - number}", "all", 1) for number in range(10)]
    for at, id in enumerate(ids):
        group.receive(
            at,
            Receipt(b"", id, "", 0, b"", (), b"", (), (), 0, None, None, False, beside=bytes([at])),
        )
    assert [arrival.id for arrival in _arrivals(group, set(ids))] == ids[:1]


def test_a_one_time_key_is_forgotten_once_nobody_can_ask_for_its_update(tmp_path: Path) -> None:
    """Else whoever takes a client's memory opens all that it ever sent."""
    simulation = small_federation(small_plan("rlwe", versions=4), tmp_path)
    simulation.run(lambda: finished(simulation))
    workers = [party.worker for party in simulation.parties.values()]
    sealers = [worker._sealer for worker in workers if isinstance(worker, ClientWorker)]
    assert len(sealers) == 6
    assert max(len(sealer._kept) for sealer in sealers) <= 1
