"""Sites with a policy beside others, as real processes: one refuses the plan, another one rests."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from secureps.errors import MISCONFIGURED, UNFINISHED
from secureps.messages.member_records import BudgetCharged, UpdateReleased
from secureps.messages.orders import COME_BACK, TO_GO_ON
from secureps.messages.requests import Retire, Submit
from secureps.store.budget import BudgetLedger
from tests.kits.nursery import prepare
from tests.kits.processes import ADAM, JOIN, ROUNDS, WALKERS, Processes, plan_text

PLAN = plan_text(ROUNDS.replace("quorum = 6", "quorum = 5") + ADAM)
REFUSES, RESTS = "client-01", "client-03"
ALL_THREE = plan_text(ROUNDS.replace("quorum = 6", "quorum = 3\nminimum = 3") + ADAM)


class Sites(Processes):
    """Clients of `secureps join`, each with its site's policy and options if it has any."""

    options: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def _client(self, name: str) -> list[str]:
        site = self.folder / f"{name}-site.toml"
        given = ("--site", str(site)) if site.exists() else ()
        return [*JOIN, WALKERS, *self._as_client(name), *given, *self.options.get(name, ())]


@pytest.mark.timeout(300)
def test_who_refuses_and_who_rests_hold_nobody_up(tmp_path: Path) -> None:
    prepare("secureps.client.runner")
    with Sites(tmp_path / "run", "rlwe", clients=7, plan=PLAN) as processes:
        refuses = processes.folder / f"{REFUSES}-site.toml"
        refuses.write_text('threshold = 4\nreveal = "keys"\n')
        rests = processes.folder / f"{RESTS}-site.toml"
        rests.write_text('updates_per_hour = 1\nledger = "rests.db"\nreveal = "nothing"\n')
        processes.start_all()
        processes.wait(processes.finished, "the end")
        assert processes.model()[0] == {"all": 4}
        states = {member.name: member.state for member in processes.seen.members}
        assert states[REFUSES] == "stopped: by its own terms: threshold"
        assert "4: ask for a plan with cipher.threshold = 4 or more" in processes.log(REFUSES)
        assert "updates_per_hour" in processes.log(RESTS)
        on_record = [row for _, row in BudgetLedger(processes.folder / "rests.db").rows()]
        assert [type(row) for row in on_record] == [BudgetCharged, UpdateReleased]
        said = "takes part no more: by its own terms: threshold"
        assert f"{REFUSES} {said}" in processes.log("coordinator")
        retired = processes.journal("coordinator", Retire, Submit)
        gone = [each for each in retired if isinstance(each, Retire)]
        assert Retire(REFUSES, "by its own terms: threshold") in gone
        assert Retire(RESTS, "by its own terms", returns=True) in gone
        sent = {r.receipt.id.client for r in retired if isinstance(r, Submit)}
        assert REFUSES not in sent


@pytest.mark.timeout(120)
def test_a_run_that_one_of_three_leaves_fails_for_the_others_until_it_is_begun_again(
    tmp_path: Path,
) -> None:
    """They hear whom it lacks, why, and what to do, and end with a status that says so."""
    prepare("secureps.client.runner")
    with Sites(tmp_path / "run", "plain", clients=3, versions=1, plan=ALL_THREE) as processes:
        processes.options = {REFUSES: ("--budget", "8")}
        processes.start_all()
        others = [name for name in processes.clients if name != REFUSES]
        assert processes.exit_status(REFUSES) == MISCONFIGURED
        assert [processes.exit_status(name) for name in others] == [UNFINISHED] * 2
        said = (
            "too few clients are left for version 1 of all: takes part no more: by its own "
            f"terms: budget ({REFUSES})"
        )
        for name in others:
            last = processes.log(name).splitlines()[-1]
            assert last == f"error: {said}{COME_BACK} (the members' fault)"
        assert f"the run failed: {said}{TO_GO_ON}" in processes.log("coordinator")

        processes.options = {}
        processes.start(REFUSES)
        assert processes.exit_status(REFUSES) == UNFINISHED, "it is back, and the run has failed"
        processes.stop("coordinator")
        for name in ("coordinator", *processes.clients):
            processes.start(name)
        assert [processes.exit_status(name) for name in processes.clients] == [0] * 3
        assert "1 version is made" in processes.log(others[0])
