"""Which blocks a shard accepts: from authors as the primary, and from other holders."""

from __future__ import annotations

import dataclasses

import pytest

from secureps.errors import NotReady, UnknownParty
from secureps.messages import requests
from tests.kits.roles_kit import SHARDS, configure
from tests.kits.shard_kit import Desk, doubled

PEER = SHARDS[1]
MINE, OTHERS = 0, 1
"""A block of which shard-a is the primary, and one of which it has the copy."""


@pytest.mark.parametrize("block", [MINE, OTHERS])
def test_only_holders_of_a_block_pass_it_on(block: int) -> None:
    made = doubled()
    header = made.header(block=block)
    with pytest.raises(UnknownParty, match="c1 sends a block of c0; send your own"):
        made.shard.inspect("c1", requests.PutBlock(header))
    alone = Desk("plain")
    alone.order(configure(alone.plan))
    with pytest.raises(NotReady, match="one of shard-b and shard-a does not hold it"):
        alone.shard.inspect(PEER, requests.PutBlock(alone.header(block=0)))


def test_an_author_sends_to_the_primary_that_both_know() -> None:
    """The primary has left: the client knows the next placement, and the shard does not yet."""
    text = (
        "shard-a holds a copy of block 1 of all, and by the placement that it knows shard-b takes"
    )
    made = doubled()
    block = requests.PutBlock(made.header(block=OTHERS))
    with pytest.raises(NotReady, match=text) as refusal:
        made.shard.inspect("c0", block)
    assert refusal.value.retry_after is not None
    known = configure(made.plan)
    made.order(dataclasses.replace(known, placement=known.placement.without(PEER)))
    assert made.shard.inspect("c0", block)
