"""Parties that may have a payload get its key; states are for shards that hold the block."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.errors import Malformed, NotReady, UnknownParty, WrongVersion
from secureps.messages import orders, requests
from secureps.policy.plan import Plan
from secureps.roles.machine import Answer
from secureps.roles.shard.state import model_key, state_key
from tests.kits.roles_kit import SHARDS, configure, make_cohort, model_blocks, works
from tests.kits.shard_kit import STATE, Desk

PEER = SHARDS[1]


def desk() -> Desk:
    """A shard with only version 4; all blocks lie on both shards."""
    made = Desk("doubled plain")
    made.order(configure(made.plan))
    commit = orders.Commit(1, "all", 4, 3, model_blocks("all", 4, 4), STATE)
    (task,) = works(made.order(commit))
    made.gathered(task)
    return made


def ask(made: Desk, sender: str, version: int = 4, **more: Any) -> Any:
    block = more.pop("block", 1)
    (answer,) = made.give(
        sender, requests.GetBlock(made.run, "all", version, block, **more)
    ).effects
    return answer


def test_anybody_pulls_from_a_replica() -> None:
    digest = model_blocks("all", 4, 4)[1]
    expected = Answer(requests.Payload(digest), attach=model_key("all", 4, 1))
    assert ask(desk(), "c0") == ask(desk(), PEER) == expected


def test_another_holder_of_the_block_gets_its_state() -> None:
    expected = Answer(requests.Payload(b""), attach=state_key("all", 4, 1))
    assert ask(desk(), PEER, state=True) == expected


@pytest.mark.parametrize("sender", ["c0", "keys"])
def test_nobody_else_does(sender: str) -> None:
    with pytest.raises(UnknownParty, match=f"{sender} does not hold block 1 of all"):
        ask(desk(), sender, state=True)


@pytest.mark.parametrize("state", [False, True])
def test_what_is_not_here(state: bool) -> None:
    with pytest.raises(NotReady, match="version 5 of all is not made yet"):
        ask(desk(), PEER, 5, state=state)
    with pytest.raises(WrongVersion, match="version 3 of all is gone"):
        ask(desk(), PEER, 3, state=state)
    with pytest.raises(Malformed, match="block 4 of all is not placed on shard-a"):
        ask(desk(), PEER, block=4, state=state)


def test_noise_of_the_shards_leaves_once_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cohort may still be burnt, and its updates summed again with other noise."""
    made, cohort = Desk().founded(), make_cohort()
    made.holding(cohort)
    made.order(orders.Prepare(1, cohort, ()))
    made.ready(1, 0)
    pulled = ask(made, "c0", 1, block=0)
    monkeypatch.setattr(Plan, "noisy_shards", True)
    with pytest.raises(NotReady, match="version 1 of all is not made yet"):
        ask(made, "c0", 1, block=0)
    assert ask(made, PEER, 1, block=0) == pulled, "another shard makes the same version"
    made.order(orders.Commit(1, "all", 1, 0))
    assert ask(made, "c0", 1, block=0) == pulled
