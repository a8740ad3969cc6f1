"""Secrecy: any t of n key holders suffice, and one that lies or accuses falsely is named."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.sharing import P
from secureps.crypto.suite import key_length
from secureps.errors import Conflict, InternalError, Malformed, Oversized, UnknownParty
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.requests import Examined, OpenRefused
from secureps.messages.submission import Receipt, opening_digest
from secureps.policy.cohorts.suspicion import BELIEVED, believes, find_doubted, tally_doubts
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.status import status
from secureps.roles.holder.committee import CommitteeHolder
from secureps.run.report.status_tables import record as as_json
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import holder_names
from secureps.service.holder import CommitteeWorker
from secureps.service.log_lines import LogLines
from secureps.wire.msgpack import encode
from tests.kits.changing_roster import ChangingRoster
from tests.kits.cheats import cheats, journalled, lies, small_error, spoil_all, spoil_one, until
from tests.kits.faults_kit import FaultyNetwork
from tests.kits.federations import (
    ends,
    ends_as_unharmed,
    later,
    pinned_of,
    small_federation,
    small_plan,
)
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
