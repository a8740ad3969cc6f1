"""Shards come and go while a run of processes trains: the model is that of a run without."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from secureps.errors import Refused, UnknownParty
from secureps.messages.acts import Act
from secureps.messages.coordinator_records import CohortBurnt
from secureps.messages.requests import ServerStatus, Status
from secureps.run.status_client import StatusClient
from tests.kits.federations import same, unharmed
from tests.kits.own_keys import secureps
from tests.kits.party_kits import give
from tests.kits.processes import Processes

NEW, FULL, GONE, LAST = "shard-2", "shard-1", "shard-0", 1000


class Resharding(Processes):
    """NEW makes its own keys while the run trains; one folder has those of all others."""

    def kit(self, name: str) -> Path:
        return self.folder / NEW / "kit" if name == NEW else super().kit(name)

    def admit(self) -> None:
        """NEW asks for a certificate, the issuer puts it on the roster, and it starts."""
        own, issuer = self.kit(NEW), self.kit("coordinator")
        made = secureps("keys", "request", own, "--role", "shard", "--name", NEW)
        assert made.returncode == 0, made.stderr
        told = made.stdout.split("fingerprint ")[1].split()[0]
        asked = own / "requests" / f"{NEW}.json"
        done = secureps("roster", "add", issuer, asked, "--fingerprint", told)
        assert f"shard {NEW}: approved" in done.stdout, done.stderr
        give(issuer, own)
        self.wait(lambda: "goes by roster" in self.log("coordinator"), "the new roster")
        self.start(NEW)
        self.wait(lambda: self.here(NEW), f"{NEW} to be there")

    def server_of(self, name: str) -> ServerStatus | None:
        status = self.status()
        servers = () if status is None else status.servers
        return next((each for each in servers if each.name == name), None)

    def here(self, name: str) -> bool:
        server = self.server_of(name)
        return server is not None and server.live

    def seen(self) -> Status:
        self.wait(lambda: self.status() is not None, "the coordinator")
        found = self.status()
        assert found is not None
        return found

    @property
    def held(self) -> dict[str, int]:
        """How many blocks each shard holds; the others none."""
        return {each.shard: each.blocks for each in self.seen().holdings if each.blocks}

    def makes(self, more: int = 2) -> None:
        """So many versions are made from now on."""
        known = min(group.version for group in self.seen().groups)
        self.wait(lambda: self.reached(known + more), f"{more} more versions")

    def asked(self, what: str, name: str) -> subprocess.CompletedProcess[str]:
        """`secureps shards`, as an operator says it."""
        own = ("--server", self.server, "--kit", self.kit("coordinator"), "--reason", "a test")
        return secureps("shards", what, name, *own)

    def moves(self, what: str, name: str) -> str:
        """The same, to its end; the last line."""
        done = self.asked(what, name)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    def same_as_without(self) -> bool:
        """Whether its model, at whichever version, is that of a run in which nothing moves."""
        versions, model = self.model()
        return same(model, unharmed("rlwe", versions=versions["all"])[0])


@pytest.mark.timeout(300)
def test_a_shard_comes_and_holds_nothing_and_what_is_not_possible_is_said(tmp_path: Path) -> None:
    with Resharding(tmp_path, "rlwe", versions=LAST) as parties:
        parties.pace = 0.2
        parties.start_all()
        parties.wait(lambda: parties.reached(1), "version 1")
        before = parties.held
        assert parties.server_of(NEW) is None
        parties.admit()
        parties.makes()
        assert parties.held == before
        parties.kill(NEW)
        parties.wait(lambda: not parties.here(NEW), f"{NEW} to be away")
        parties.makes()
        assert all(NEW not in group.reason for group in parties.seen().groups)
        parties.start(NEW)
        parties.wait(lambda: parties.here(NEW), f"{NEW} to be back")
        own = parties.observer()
        for act in (
            Act("add-shard", "nobody"),
            Act("add-shard", "client-00"),
            Act("drain-shard", "holder-0"),
            Act("remove-shard", "coordinator"),
            Act("remove-shard", "../shard-0"),
        ):
            with pytest.raises((Refused, UnknownParty)):
                own.act(act)
        done = parties.asked("drain", "nobody")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        refused_to_others(parties)
        parties.makes()
        assert parties.held == before
        assert parties.same_as_without()
        assert parties.alive(NEW)


def refused_to_others(parties: Resharding) -> None:
    """Whoever has another key than the coordinator's has nobody's blocks moved."""
    for name in ("client-00", "holder-0", GONE, NEW):
        theirs = StatusClient(parties.kit(name), name, parties.server)
        try:
            with pytest.raises(UnknownParty, match="sends no Act to the coordinator"):
                theirs.act(Act("drain-shard", GONE))
        finally:
            theirs.close()


@pytest.mark.timeout(300)
def test_shards_come_and_go_and_the_model_is_that_of_a_run_without(tmp_path: Path) -> None:
    with Resharding(tmp_path, "rlwe", versions=LAST) as parties:
        parties.pace = 0.2
        parties.start_all()
        parties.wait(lambda: parties.reached(1), "version 1")
        whole, own = sum(parties.held.values()), parties.observer()
        parties.admit()
        assert parties.moves("add", NEW).startswith(f"{NEW} holds 1 block, ")
        assert parties.held[NEW] == 1
        assert sum(parties.held.values()) == whole
        parties.makes()
        assert parties.moves("drain", FULL).startswith(f"{FULL} holds nothing: it may be stopped")
        assert parties.held.keys() == {GONE, NEW}
        parties.kill(FULL)  # nobody needs it
        parties.makes()
        parties.start(FULL)
        parties.wait(lambda: parties.here(FULL), f"{FULL} to be back")
        own.act(Act("drain-shard", FULL))  # it is so already
        assert parties.moves("add", FULL).startswith(f"{FULL} holds 1 block, ")
        assert parties.moves("remove", GONE).startswith(f"{GONE} has left the run: stop its")
        own.act(Act("remove-shard", GONE))  # it is so already
        assert parties.held.keys() == {FULL, NEW}
        assert sum(parties.held.values()) == whole
        parties.moves("drain", FULL)
        for what in ("drain", "remove"):
            done = parties.asked(what, NEW)
            assert (done.returncode, done.stdout) == (1, ""), "the last shard stays"
        for name in ("coordinator", NEW, "client-00"):  # what they know is in their journals
            parties.kill(name)
            parties.start(name)
        parties.makes()
        assert parties.held == {NEW: whole}
        assert parties.same_as_without()
        assert parties.journal("coordinator", CohortBurnt) == []
