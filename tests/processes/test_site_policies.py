"""Sites with a policy beside others, as real processes: one refuses the plan, another one rests."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.messages.member_records import BudgetCharged, UpdateReleased
from secureps.messages.requests import Retire, Submit
from secureps.store.budget import BudgetLedger
from tests.kits.command import INSECURE
from tests.kits.nursery import ROOT, prepare
from tests.kits.processes import ADAM, ROUNDS, Processes, plan_text

PLAN = plan_text(ROUNDS.replace("quorum = 6", "quorum = 5") + ADAM)
REFUSES, RESTS = "client-01", "client-03"


class Sites(Processes):
    """Clients of `secureps join`, each with its site's policy if it has one."""

    def _client(self, name: str) -> list[str]:
        number, site = self.clients.index(name), self.folder / f"{name}-site.toml"
        return [
            *("-m", "secureps", "join", str(ROOT / "tests" / "kits" / "walker_client.py")),
            *("--server", self.server, "--kit", str(self.folder / "kit"), "--name", name),
            *("--state", str(self.folder / name), "--unsafe-seed", "3", INSECURE),
            *("--set", f"partition={number}", "--set", f"pace={self.pace}"),
            *(("--site", str(site)) if site.exists() else ()),
        ]


@pytest.mark.timeout(300)
def test_who_refuses_and_who_rests_hold_nobody_up(tmp_path: Path) -> None:
    prepare("secureps.client.script")
    with Sites(tmp_path / "run", "rlwe", clients=7, plan=PLAN) as processes:
        refuses = processes.folder / f"{REFUSES}-site.toml"
        refuses.write_text('threshold = 4\nreveal = "keys"\n')
        rests = processes.folder / f"{RESTS}-site.toml"
        rests.write_text('updates_per_hour = 1\nledger = "rests.db"\nreveal = "nothing"\n')
        processes.start_all()
        processes.wait(processes.finished, "the end")
        assert processes.model()[0] == {"all": 4}
        status = processes.status()
        assert status is not None
        states = {member.name: member.state for member in status.members}
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
