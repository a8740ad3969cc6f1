"""Secrecy: a key holder that accuses falsely is named and ends no run."""

import re
from collections import Counter
from contextlib import suppress
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.errors import InternalError
from secureps.messages import coordinator_records
from secureps.messages.requests import Examined, OpenRefused
from secureps.messages.submission import Receipt
from secureps.policy.cohorts.suspicion import BELIEVED, believes, find_doubted, tally_doubts
from secureps.roles.coordinator.status import status
from secureps.run.report.status_tables import record as as_json
from secureps.run.simulate.simulation import Simulation
from secureps.service.holder import CommitteeWorker
from secureps.service.log_lines import LogLines
from tests.kits.changing_roster import ChangingRoster
from tests.kits.cheats import cheats, journalled, spoil_one
from tests.kits.federations import ends, small_federation, small_plan
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
