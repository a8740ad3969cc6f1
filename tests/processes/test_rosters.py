"""Clients come and go while a run trains, and nobody is restarted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.messages.requests import MemberStatus
from secureps.store.keyring import load_public
from tests.kits.own_keys import OwnKeys, told
from tests.kits.party_kits import give
from tests.kits.processes import PLAN

NEW, GONE, LAST = "client-06", "client-00", 1000
LOST, INSTEAD = "holder-1", "holder-9"


class Changing(OwnKeys):
    def parties(self) -> Iterator[str]:
        return (name for name in super().parties() if name != NEW)

    def add(self) -> None:
        options = ("--fingerprint", self.request(NEW))
        asked = self.kit(NEW) / "requests" / f"{NEW}.json"
        assert f"client {NEW}: approved" in told("roster", "add", self.issuer, asked, *options)
        give(self.issuer, self.kit(NEW))

    def replace(self, lost: str, new: str) -> None:
        options = ("--fingerprint", self.request(new))
        asked = self.kit(new) / "requests" / f"{new}.json"
        said = told("roster", "replace-holder", self.issuer, lost, asked, *options)
        assert f"holder {new} in place of {lost}" in said
        give(self.issuer, self.kit(new))

    def member(self, name: str) -> MemberStatus | None:
        status = self.status()
        members = () if status is None else status.members
        return next((each for each in members if each.name == name), None)

    def included(self, name: str) -> int:
        member = self.member(name)
        return 0 if member is None else member.submissions


@pytest.mark.timeout(300)
def test_a_client_comes_and_one_goes_while_a_run_trains(tmp_path: Path) -> None:
    plan = PLAN.replace("shards = 2", "shards = 2\nnewcomers_wait = 0.0")
    with Changing(tmp_path, "rlwe", clients=7, versions=LAST, plan=plan) as parties:
        parties.pace = 0.4  # versions that nobody waits for cost what others do
        parties.start_all(clients=6)
        parties.wait(lambda: parties.reached(1), "version 1")
        parties.add()
        give(parties.issuer, parties.kit("coordinator"))  # and nobody else's kit
        parties.wait(lambda: "goes by roster" in parties.log("coordinator"), "the new roster")
        parties.start(NEW)
        parties.wait(lambda: parties.included(NEW) >= 1, f"an update of {NEW}")
        told("roster", "revoke", parties.issuer, GONE)
        give(parties.issuer, parties.kit("coordinator"))
        parties.wait(lambda: not parties.alive(GONE), f"the end of {GONE}")
        assert f"{GONE} is on the roster no more" in parties.log(GONE)
        known = parties.included(GONE)
        later = parties.included(NEW) + 2
        parties.wait(lambda: parties.included(NEW) >= later, "two more versions")
        gone = parties.member(GONE)
        assert gone is not None
        assert (gone.submissions, gone.state) == (known, "revoked")
        parties.kill("shard-0")  # whose own kit never knew of it
        assert NEW not in load_public(parties.kit("shard-0")).roster
        parties.start("shard-0")
        later = parties.included(NEW) + 2
        parties.wait(lambda: parties.included(NEW) >= later, "two more versions")
        # A key holder is lost for good. With the one that comes, another may be away again.
        parties.kill(LOST)
        parties.replace(LOST, INSTEAD)
        give(parties.issuer, parties.kit("coordinator"))
        wanted = f"sealed for other key holders: {INSTEAD} in place of {LOST}"
        parties.wait(lambda: wanted in parties.log("coordinator"), "other key holders")
        parties.start(INSTEAD)
        later = parties.included(NEW) + 2
        parties.wait(lambda: parties.included(NEW) >= later, "two more versions")
        parties.kill("holder-0")
        later = parties.included(NEW) + 2
        parties.wait(lambda: parties.included(NEW) >= later, "two more versions")
        # Whoever has its key may still connect, and is refused whatever it asks.
        parties.start(GONE)
        parties.wait(lambda: not parties.alive(GONE), f"the end of {GONE} once more")
        assert "nobody named 'client-00' is on the roster" in parties.log(GONE)
