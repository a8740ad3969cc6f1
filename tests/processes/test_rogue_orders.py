"""A rogue coordinator before a shard that is a process: what it has opened, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.errors import NotReady
from secureps.messages.requests import GetBlock, Prepared
from secureps.messages.submission import Held
from tests.kits.committee_kit import SHARD
from tests.kits.rogue import MINIMUM, RogueShard


def test_a_shard_opens_no_cohort_that_is_smaller_than_the_plans(tmp_path: Path) -> None:
    """In the clear: the coordinator alone would read one client's update out of the model. The same
    orders for a large enough cohort are carried out."""
    with RogueShard(tmp_path) as run:
        sent = [run.send(client) for client in run.clients[: MINIMUM + 1]]
        pull = GetBlock(run.site.run.id, "all", 1, 0)
        hold, prepare = run.orders(sent, 2)
        for number, few in enumerate((sent[:1], sent[: MINIMUM - 1])):
            for order in run.orders(few, number):
                run.rogue.tell(SHARD, order)
        run.rogue.tell(SHARD, hold)
        held = run.rogue.hear(SHARD, Held, Prepared)
        assert (type(held), held.cohort) == (Held, 2), "and nothing was said of the others"
        for clients in (1, MINIMUM - 1):
            for kind in ("Hold", "Prepare"):
                said = f"{kind}: a cohort of {clients} clients, and {MINIMUM} or more are opened"
                assert said in run.processes.log(SHARD)
        with pytest.raises(NotReady, match="version 1 of all is not made yet"):
            run.ask(run.clients[0], pull)
        run.rogue.tell(SHARD, prepare)
        made = run.rogue.hear(SHARD, Held, Prepared)
        assert (type(made), made.version) == (Prepared, 1)
        assert run.ask(run.clients[0], pull).payload
