"""Members of real processes that share their one-time keys badly, and what others make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.messages.charge import Release
from secureps.messages.coordinator_records import (
    CohortBurnt,
    CohortClosed,
    LiarsNamed,
    OpeningFailed,
    RoundGivenUp,
)
from secureps.messages.holder_records import CohortReleased
from secureps.messages.requests import Examined, OpenRefused, Submit
from tests.kits.cheats import cheats, spoil_all
from tests.kits.federations import Tensors, same, small_federation, small_plan
from tests.kits.processes import ROUNDS, Processes, plan_text

CHEATS = {
    1: ("client-01", "garbage", "an envelope does not open"),
    2: ("client-02", "replayed", "an envelope does not open"),
    3: ("client-03", "swapped", "an envelope does not open"),
    4: ("client-04", "inconsistent", "not, at holder-"),
}
"""Who cheats for a version, how, and what a holder finds."""
VERSIONS = 6


def without_the_cheats(folder: Path) -> Tensors:
    """The model if each of these versions lacks the one update that is left out."""
    simulation = small_federation(small_plan("rlwe", versions=VERSIONS), folder)
    for version, (client, _, _) in CHEATS.items():
        simulation.run(lambda: simulation.versions() == {"all": version - 1})  # noqa: B023
        cheats(simulation, client, spoil_all)
    simulation.run()
    return simulation.model()


@pytest.mark.timeout(600)
def test_bad_envelopes_are_named_and_left_out_and_nothing_else_is_lost(tmp_path: Path) -> None:
    """A truncated one is refused at the door: its client may send again, and here it does."""
    faults = {client: (f"{kind}@{v}",) for v, (client, kind, _) in CHEATS.items()}
    faults["client-05"] = ("truncated@5",)
    with Processes(tmp_path / "run", "rlwe", versions=VERSIONS) as processes:
        processes.start_all(faults=faults)
        refused = "an envelope has 1328 bytes, not 1327"
        processes.wait(lambda: refused in processes.log("client-05"), "the refusal")
        processes.wait(lambda: waits_for(processes) == "client-05", "the others")
        processes.kill("client-05")
        processes.start("client-05")
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
        flaws = [r for r in processes.journal("coordinator", Examined) if r.flaw]
        closed = [record.cohort for record in processes.journal("coordinator", CohortClosed)]
        received = [record.receipt for record in processes.journal("coordinator", Submit)]
        burnt = (CohortBurnt, RoundGivenUp, OpeningFailed, OpenRefused)
        assert processes.journal("coordinator", *burnt) == []
        log = processes.log("coordinator")
    assert versions == {"all": VERSIONS}
    assert same(model, without_the_cheats(tmp_path / "simulation"))
    assert [record.id.client for record in flaws] == [client for client, _, _ in CHEATS.values()]
    for record, (_, _, text) in zip(flaws, CHEATS.values(), strict=True):
        assert text in record.flaw
        assert f"{record.id} is dropped: {record.holder} found a flaw: {record.flaw}" in log
    updates = {receipt.id: receipt.version + 1 for receipt in received if receipt.version >= 0}
    assert len(closed) == VERSIONS
    for cohort in closed:
        sent = {id for id, version in updates.items() if version == cohort.version}
        left_out = {r.id for r in flaws if updates[r.id] == cohort.version}
        assert len(sent) == 6
        assert len(left_out) == (cohort.version in CHEATS)
        assert {member.id for member in cohort.members} == sent - left_out


def waits_for(processes: Processes) -> str:
    """The one member that a round still waits for; empty if it is not one."""
    status = processes.status()
    reason = "" if status is None else status.groups[0].reason
    return reason.rpartition("waits for ")[2] if "5 of 6 have arrived" in reason else ""


UNIFORM = """clip = 1.0
bits = 16
weighting = "uniform"
"""
PRIVACY = """[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 1e-5
budget = 500.0
"""


@pytest.mark.timeout(600)
def test_a_cohort_that_a_member_spoils_is_burnt_and_charged_and_never_summed_again(
    tmp_path: Path,
) -> None:
    """Its envelopes and commitments fit together: only the opening shows that its key is another.

    What comes after the burnt cohort is not looked at but for the submissions in it.
    """
    plan = plan_text(ROUNDS + PRIVACY, UNIFORM)
    with Processes(tmp_path / "run", "rlwe", versions=3, plan=plan) as processes:
        processes.start_all(faults={"client-05": ("wrong-key@2",)})
        processes.wait(lambda: "is burnt" in processes.log("coordinator"), "the burnt cohort")
        processes.wait(lambda: went_on(processes), "another cohort")
        kinds = (CohortBurnt, CohortClosed, OpeningFailed, Release, LiarsNamed)
        story = processes.journal("coordinator", *kinds)
        burnt = next(record for record in story if isinstance(record, CohortBurnt))
        closed = [record.cohort for record in story if isinstance(record, CohortClosed)]
        (cohort,) = [each for each in closed if each.number == burnt.number]
        ids = {member.id for member in cohort.members}
        released = [
            record.cohort
            for holder in processes.holders
            for record in processes.journal(holder, CohortReleased)
        ]
    assert burnt.reason == "no 3 of 4 answers open it: 4 answers fit together"
    assert cohort.version == 2
    assert {id.client for id in ids} == set(processes.clients)
    charged = story[: story.index(burnt)]
    spent = {r.party for r in charged if isinstance(r, Release) and r.version == 1}
    assert spent == set(processes.clients)
    failed = [r for r in story if isinstance(r, OpeningFailed) and r.number == burnt.number]
    assert len(failed) == 1, "one sum of keys, tried once"
    assert not [r for r in story if isinstance(r, LiarsNamed)], "every holder is cleared"
    for other in (*closed, *released):
        summed = ids & {member.id for member in other.members}
        assert other == cohort or not summed
    assert released.count(cohort) == len(processes.holders)


def went_on(processes: Processes) -> bool:
    """Whether a cohort was closed after the burnt one, or the run is over."""
    _, _, after = processes.log("coordinator").partition("is burnt")
    return " closed: " in after or processes.finished()
