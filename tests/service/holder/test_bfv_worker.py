"""What a key holder lets out of a sum that it decrypted, and what not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from secureps.crypto.sampling import SecretSeed
from secureps.errors import Malformed
from secureps.messages import records
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetSum
from secureps.roles.holder.bfv import BfvHolder, received_key
from secureps.roles.holder.tasks import OpenSum
from secureps.roles.pinned_run import Pinned
from secureps.service.holder.bfv_worker import BfvWorker
from secureps.store.spool import MemorySpool
from tests.kits.roles_kit import ADDRESSES, HOLDER, IDENTITIES, make_placement, make_plan, make_run

PLAN = make_plan()
"""In the clear: what is judged is the same, and no key is needed."""
MOST = PLAN.weights("all").most


def opened(weight: int, members: int = 3) -> bytes:
    """What becomes of a sum of so many members in whose first slot such a weight stands."""
    pinned = Pinned.of(records.RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES))
    machine, spool = cast(BfvHolder, SimpleNamespace(pinned=pinned)), MemorySpool()
    own = BfvWorker(machine, IDENTITIES[HOLDER], HOLDER, SecretSeed(bytes(32)), spool)
    sums = np.full(pinned.layout.group("all").slots(1), 5, np.int64)
    sums[0] = weight
    total = sums.astype("<i8").tobytes()
    own.keep(GetSum(pinned.run.id, "all", 0, 1), total, payload_digest(total))
    key = f"{received_key('all', 0, 1)}/{payload_digest(total).hex()}"
    made = own.work(OpenSum("all", 0, 1, key, members))
    assert made is not None
    assert spool.keys() == [made.header.key], "the sum itself is gone"
    return own.fetch(made.header.key)


@pytest.mark.parametrize("weight", [3, 4, MOST, 3 * MOST])
def test_a_sum_of_members_who_keep_to_the_plan_is_let_out_as_it_is(weight: int) -> None:
    found = np.frombuffer(opened(weight), "<i8")
    assert (found[0], set(found[1:])) == (weight, {5})


@pytest.mark.parametrize("weight", [0, 1, 2, 3 * MOST + 1])
def test_weights_that_no_members_can_have_are_not_let_out(weight: int) -> None:
    """Each weighs 1 at least, and no more than the heaviest."""
    with pytest.raises(Malformed, match=f"the weights of 3 members add up to {weight} of"):
        opened(weight)
