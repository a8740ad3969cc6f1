"""Shards come, go and move while real processes train."""

import io
import json
import socket
import time
from pathlib import Path

import pytest
from rich.console import Console

from secureps.errors import Refused, UnknownParty
from secureps.messages import orders, requests
from secureps.messages.acts import Act
from secureps.messages.coordinator_records import CohortBurnt
from secureps.messages.run import ShardAddress
from secureps.messages.scaling import ScalingDecided
from secureps.run.act import follow
from tests.kits.command import Printed, typed
from tests.kits.federations import same, unharmed
from tests.kits.own_keys import told
from tests.kits.party_kits import give
from tests.kits.processes import ADAM, ROUNDS, Processes, plan_text
from tests.kits.roles_kit import SCHEMA, World, make_plan, orders_of

NEW, FULL, GONE, LAST = "shard-2", "shard-1", "shard-0", 1000


class Resharding(Processes):
    """NEW makes its own keys while the run trains; one folder has those of all others."""

    def kit(self, name: str) -> Path:
        return self.folder / NEW / "kit" if name == NEW else super().kit(name)

    def admit(self) -> None:
        own, issuer = self.kit(NEW), self.kit("coordinator")
        made = told("keys", "request", own, "--role", "shard", "--name", NEW)
        asked = own / "requests" / f"{NEW}.json"
        given = ("--fingerprint", made.split("fingerprint ")[1].split()[0])
        assert f"shard {NEW}: approved" in told("roster", "add", issuer, asked, *given)
        give(issuer, own)
        self.wait(lambda: "goes by roster" in self.log("coordinator"), "the new roster")
        self.start(NEW)
        self.wait(lambda: self.live(NEW), f"{NEW} to be there")

    @property
    def held(self) -> dict[str, int]:
        return {each.shard: each.blocks for each in self.seen.holdings if each.blocks}

    def makes(self, more: int = 2) -> None:
        known = min(group.version for group in self.seen.groups)
        self.wait(lambda: self.reached(known + more), f"{more} more versions")

    def asked(self, what: str, name: str, status: int = 0) -> Printed:
        own = ("--server", self.server, "--kit", self.kit("coordinator"), "--reason", "a test")
        return typed("shards", what, name, *own, status=status)

    def moves(self, what: str, name: str) -> str:
        self.observer().act(act := Act(f"{what}-shard", name, "a test"))
        return follow(self.observer().status, act, Console(file=io.StringIO()))

    def same_as_without(self) -> bool:
        """Whether its model, at whichever version, is that of a run in which nothing moves."""
        versions, model = self.model()
        return same(model, unharmed("plain", versions=versions["all"])[0])


NONSENSE = (
    Act("add-shard", "nobody"),
    Act("add-shard", "client-00"),
    Act("drain-shard", "holder-0"),
    Act("remove-shard", "coordinator"),
    Act("remove-shard", "../shard-0"),
    Act("drain-shard", "x" * 5000),
)


@pytest.mark.timeout(300)
def test_shards_come_and_go_and_the_model_is_that_of_a_run_without(tmp_path: Path) -> None:
    with Resharding(tmp_path, "rlwe", versions=LAST) as parties:
        parties.pace = 0.4
        parties.start_all()
        parties.wait(lambda: parties.reached(1), "version 1")
        before, own = parties.held, parties.observer()
        whole = sum(before.values())
        parties.admit()
        parties.makes(1)
        for act in NONSENSE:
            with pytest.raises((Refused, UnknownParty)):
                own.act(act)
        assert parties.held == before, "it is there, and holds nothing"
        added = parties.asked("add", NEW)
        assert added.err == ""
        assert added.out.splitlines()[-1].startswith(f"{NEW} holds 1 block, ")
        assert parties.held[NEW] == 1
        assert sum(parties.held.values()) == whole
        parties.makes()
        assert parties.moves("drain", FULL).startswith(f"{FULL} holds nothing: it may be stopped")
        assert parties.held.keys() == {GONE, NEW}
        parties.kill(FULL)  # nobody needs it
        parties.makes()
        parties.start(FULL)
        parties.wait(lambda: parties.live(FULL), f"{FULL} to be back")
        own.act(Act("drain-shard", FULL))  # it is so already
        assert parties.moves("add", FULL).startswith(f"{FULL} holds 1 block, ")
        assert parties.moves("remove", GONE).startswith(f"{GONE} has left the run, and ")
        parties.wait(lambda: not parties.alive(GONE), f"the end of {GONE}")
        own.act(Act("remove-shard", GONE))  # it is so already
        assert parties.held.keys() == {FULL, NEW}
        assert sum(parties.held.values()) == whole
        parties.moves("drain", FULL)
        done = parties.asked("remove", NEW, status=1)
        assert done.out == "", "the last shard stays"
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        with pytest.raises(Refused):
            own.act(Act("drain-shard", NEW))
        for name in ("coordinator", NEW, "client-00"):  # what they know is in their journals
            parties.kill(name)
            parties.start(name)
        parties.makes()
        assert parties.held == {NEW: whole}
        assert parties.same_as_without()
        assert parties.journal("coordinator", CohortBurnt) == []


def test_who_joined_before_and_watches_after_the_move_hears_of_it() -> None:
    world = World(make_plan("bfv"))
    world.servers()
    world.enter("c0")
    world.give("c1", requests.Join("c1", SCHEMA))
    seen = world.federation.incarnation
    world.give("shard-a", requests.Register("shard-a", "elsewhere:9", 1.0, seen))
    moved = ShardAddress("shard-a", "elsewhere:9", 1.0), ShardAddress("shard-b", "shard-b:1", 1.0)
    step = world.give("c1", requests.Subscribe("c1", ()))
    found = [o.shards for o in orders_of(step, "c1") if isinstance(o, orders.Configure)]
    assert found == [moved]


def test_a_run_goes_on_with_a_shard_on_another_port(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", "plain") as processes, socket.socket() as taken:
        processes.pace = 0.15
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("shard-0")
        before = tmp_path / "run" / "shard-0" / "address"
        host, _, port = before.read_text().strip().rpartition(":")
        before.unlink()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))  # nobody answers there any more, nor listens
        processes.start("shard-0")
        processes.wait(processes.finished, "the end")
        assert before.read_text().strip() != f"{host}:{port}"
        assert same(processes.model()[1], unharmed()[0])


SCALING = """
[scaling]
policy = "rule"
every = 1.0
most_shards = 3
"""


def plan() -> str:
    """Two shards hold the model at first, and a third one is there."""
    return plan_text(ROUNDS + ADAM) + SCALING


class Scaled(Processes):
    @property
    def held(self) -> set[str]:
        return {each.shard for each in self.seen.holdings if each.blocks}

    def steps(self) -> list[str]:
        scaling = self.seen.scaling
        assert scaling is not None
        return [step.what for step in scaling.steps]

    def training(self, pace: float) -> None:
        self.pace = pace
        for name in self.clients:
            self.kill(name)
            self.start(name)


@pytest.mark.timeout(300)
def test_a_shard_comes_and_goes_as_the_load_does(tmp_path: Path) -> None:
    with Scaled(tmp_path, "plain", versions=100_000, plan=plan()) as parties:
        parties.pace = 8.0  # of which shards take a tenth on no machine, however loaded
        parties.start_all()
        parties.wait(lambda: parties.reached(1), "version 1")
        assert len(parties.held) == 2, "whichever came first"
        parties.wait(lambda: len(parties.held) == 1, "a shard to go, and then no other")
        parties.training(0.0)
        parties.wait(lambda: len(parties.held) > 1, "a shard to come")
        parties.kill("coordinator")  # what it has decided is on record
        parties.start("coordinator")
        parties.wait(lambda: parties.status() is not None, "the coordinator")
        own = ("--server", parties.server, "--kit", parties.kit("coordinator"))
        off = told("act", "scaling-off", *own, "--reason", "a test")
        assert off.startswith("nothing follows the load any more"), off
        shown = json.loads(told("status", "--json", "--name", "coordinator", *own))["scaling"]
        assert shown["off"] == "switched off by the operator, a test"
        parties.wait(lambda: parties.seen.move is None, "the end of what was begun")
        version, held = min(g.version for g in parties.seen.groups), parties.held
        # more than the three, and the second, after which there was a decision before
        until = time.monotonic() + 2.0
        parties.wait(
            lambda: parties.reached(version + 9) and time.monotonic() > until,
            "versions after that, and seconds",
        )
        assert parties.held == held
        versions, model = parties.model()
        assert same(model, unharmed("plain", versions=versions["all"])[0])
        decided = parties.journal("coordinator", ScalingDecided, Act)
        deeds = [each for each in decided if isinstance(each, ScalingDecided) and each.what]
        assert [each.what for each in deeds][:1] == ["drain-shard"]
        assert "add-shard" in [each.what for each in deeds]
        assert all("% of a version is spent on shards" in each.reason for each in deeds)
        assert decided[-1] == Act("scaling-off", "", "a test")
