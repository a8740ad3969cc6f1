"""What a key holder lets out of a sum that it decrypted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np

from secureps.crypto.sampling import SecretSeed
from secureps.messages import records
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetSum
from secureps.roles.holder.bfv import BfvHolder, OpenSum, received_key
from secureps.roles.pinned_run import Pinned
from secureps.service.holder import BfvWorker
from secureps.store.spool import MemorySpool
from tests.kits.roles_kit import ADDRESSES, HOLDER, IDENTITIES, make_placement, make_plan, make_run

PLAN = make_plan()
"""In the clear: no key is needed."""


def test_a_sum_is_let_out_as_it_is_and_not_kept() -> None:
    pinned = Pinned.of(records.RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES))
    machine, spool = cast(BfvHolder, SimpleNamespace(pinned=pinned)), MemorySpool()
    own = BfvWorker(machine, IDENTITIES[HOLDER], HOLDER, SecretSeed(bytes(32)), spool)
    total = np.arange(pinned.layout.group("all").slots(1)).astype("<i8").tobytes()
    own.keep(GetSum(pinned.run.id, "all", 0, 1), total, payload_digest(total))
    key = f"{received_key('all', 0, 1)}/{payload_digest(total).hex()}"
    made = own.work(OpenSum("all", 0, 1, key))
    assert made is not None
    assert spool.keys() == [made.header.key], "the sum itself is gone"
    assert own.fetch(made.header.key) == total
