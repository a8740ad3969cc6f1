"""Updates that are made small before they are rounded: the same bits everywhere, and fewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.policy.plan import Plan
from tests.kits.federations import (
    Tensors,
    events_of,
    finished,
    killed_at,
    same,
    small_federation,
    small_plan,
)

RULE = {"quorum": 6, "deadline": 10.0}
THIN = ({"name": "support", "one_in": 4}, "rotate", "round")
CHAINS: dict[str, dict[str, Any]] = {
    "support": {"codec": [THIN[0]], "clip": 3.0, "range": 1.0, "bits": 16},
    "rotate": {"codec": ["rotate"], "clip": 3.0, "range": 1.0, "bits": 16},
    "thin": {"codec": THIN, "clip": 2.0, "bits": 4},
    "fed back": {"codec": THIN, "clip": 2.0, "bits": 4, "feedback": True},
}


def plan(cipher: str = "plain", chain: str = "fed back", **more: Any) -> Plan:
    group = CHAINS[chain] | {"most_examples": 32, "rule": RULE}
    return small_plan(cipher, **({"group": [group], "versions": 3} | more))


def played(folder: Path, own: Plan) -> Tensors:
    simulation = small_federation(own, folder)
    simulation.run(lambda: finished(simulation))
    assert simulation.versions() == {"all": own.section.versions}
    return simulation.model()


@pytest.mark.parametrize("chain", CHAINS)
def test_the_same_bits_under_every_cipher(chain: str, tmp_path: Path) -> None:
    first = played(tmp_path / "plain", plan(chain=chain))
    for cipher in ("rlwe", "bfv"):
        assert same(first, played(tmp_path / cipher, plan(cipher, chain)))


@pytest.mark.parametrize("party", ["client-02", "shard-0", "coordinator"])
def test_the_same_bits_whoever_is_killed_and_whenever(party: str, tmp_path: Path) -> None:
    own = plan(versions=2)
    whole = small_federation(own, tmp_path / "whole")
    events = events_of(whole)
    for moment in range(1, events, max(1, events // 12)):
        broken = small_federation(own, tmp_path / str(moment))
        killed_at(broken, party, moment)
        assert same(broken.model(), whole.model())
