"""Shards come and go by themselves in a run of processes, and no more once that is switched off."""

import json
import time
from pathlib import Path

import pytest

from secureps.messages.acts import Act
from secureps.messages.scaling import ScalingDecided
from tests.kits.federations import same, unharmed
from tests.kits.own_keys import told
from tests.kits.processes import ADAM, ROUNDS, Processes, plan_text

SCALING = """
[scaling]
policy = "rule"
balance = false
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
        parties.pace = 3.0  # of which shards take a tenth nowhere
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
