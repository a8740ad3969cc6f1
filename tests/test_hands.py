"""What follows from a client's seed, its run and its update, and what does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from secureps.client.hands import MemberHands
from secureps.client.holdings import Holdings
from secureps.crypto.sampling import SecretSeed, Seed, UnsafeSeed
from secureps.messages import records
from secureps.policy.plan import Plan
from secureps.roles.charter import Pinned
from secureps.roles.member import Member
from secureps.roles.tasks import Aim, Contribute, SealedUpdate
from secureps.store.spool import MemorySpool
from tests.federations import Walker
from tests.roles_kit import ADDRESSES, IDENTITIES, make_placement, make_plan, make_run

CLIENT_PRIVACY: dict[str, Any] = {
    "group": [{"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}],
    "privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}
    | {"placement": "local"},
}
VALUES = 60


def hands(plan: Plan, folder: Path, seed: Seed, nonce: int = 0) -> MemberHands:
    """Those of a client in a run of this nonce, with nobody around them."""
    run = make_run(plan, nonce=bytes([nonce]) * 32)
    pinned = Pinned.of(records.RunPinned(run, make_placement(plan), ADDRESSES))
    holdings = Holdings("c0", Walker(0), IDENTITIES["c0"], seed, {}, folder)
    return MemberHands(holdings, cast(Member, SimpleNamespace(pinned=pinned)), MemorySpool())


@pytest.mark.parametrize("private", [False, True])
def test_a_secret_seed_hides_in_every_run_by_other_noise(private: bool, tmp_path: Path) -> None:
    """The same noise in two runs would be subtracted. An unsafe seed hides nothing, and repeats."""
    plan = make_plan(**CLIENT_PRIVACY) if private else make_plan()
    most = plan.weights("all").most
    for seed in (SecretSeed(bytes(range(32))), UnsafeSeed(3)):
        update, aim = np.full(VALUES, 0.01, np.float32), Aim("all", 1, 4)
        first, second = (
            hands(plan, tmp_path, seed, nonce)._on_grid(aim, 0, update, most) for nonce in (1, 2)
        )
        assert np.array_equal(first, second) is not seed.private


def contributed(own: MemberHands, weight: int, known: tuple[bytes, ...] = ()) -> SealedUpdate:
    task, update = Contribute((), (b"one",), ()), np.full(VALUES, 0.01, np.float32)
    made = own._contribution(task, Aim("all", 0, 4, known), bytes(32), update, weight)
    assert made is not None
    return made


def test_an_update_that_counts_for_more_is_another_one(tmp_path: Path) -> None:
    """Its integers are others, so that its name is another, too."""
    own = hands(make_plan(), tmp_path, SecretSeed(bytes(32)))
    light, heavy = contributed(own, 1), contributed(own, 2)
    assert light.content != heavy.content
    assert light.receipt.update != heavy.receipt.update
    assert contributed(own, 1).receipt.update == light.receipt.update
