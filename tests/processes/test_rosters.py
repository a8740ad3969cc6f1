"""Clients come and go while a run trains, or leave by their site's terms; none is restarted."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from secureps.errors import MISCONFIGURED, UNFINISHED
from secureps.messages.orders import COME_BACK, TO_GO_ON
from secureps.messages.requests import MemberStatus
from secureps.store.keyring import load_public
from tests.kits.nursery import prepare
from tests.kits.own_keys import OwnKeys, told
from tests.kits.party_kits import give
from tests.kits.processes import ADAM, JOIN, PLAN, ROUNDS, WALKERS, Processes, plan_text

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


REFUSES = "client-01"
ALL_THREE = plan_text(ROUNDS.replace("quorum = 6", "quorum = 3\nminimum = 3") + ADAM)


class Sites(Processes):
    """Clients of `secureps join`, each with its options if it has any."""

    options: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def _client(self, name: str) -> list[str]:
        return [*JOIN, WALKERS, *self._as_client(name), *self.options.get(name, ())]


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
