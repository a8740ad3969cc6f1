"""Without rounds a run ends in the same bits, and a compacted journal in the same state."""

from pathlib import Path
from typing import Any

import pytest

from secureps.messages import member_records
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.submission import Outcome
from tests.kits.cheats import journalled
from tests.kits.federations import FEWER, OF_RECORDS, same, small_federation, small_plan, unharmed
from tests.kits.folding import differing
from tests.kits.streams import ASYNC, stream, stream_plan


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "ssp", "slack": 0, "minimum": 6},
        {"name": "buffered", "buffer": 6, "minimum": 6, "max_staleness": 0},
    ],
    ids=["ssp with s = 0", "FedBuff of all"],
)
def test_without_staleness_it_is_the_synchronous_model(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    simulation = stream(stream_plan("plain", rule), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed()[0])


CODEC = [{"name": "support", "one_in": 4}, "rotate"]


def test_every_update_is_a_version_of_the_classical_server_whatever_its_support(
    tmp_path: Path,
) -> None:
    group = {"clip": 3.0, "range": 1.0, "most_examples": 32, "rule": ASYNC, "codec": CODEC}
    simulation = stream(stream_plan("plain", ASYNC, versions=20, group=[group]), tmp_path)
    simulation.run()
    assert simulation.versions() == {"all": 20}
    assert [len(c.cohort.members) for c in journalled(simulation, CohortClosed)] == [1] * 20
    settled = [
        record
        for name in simulation._stores
        if name.startswith("client")
        for record in journalled(simulation, member_records.SubmissionSettled, name)
    ]
    dropped = [record for record in settled if record.outcome == Outcome.DROPPED]
    assert len(dropped) <= 6  # those that were being made when the run ended


RULES: dict[str, dict[str, Any]] = {
    "ssp": {"name": "ssp", "slack": 2},
    "buffered": {"name": "buffered", "buffer": 5, "max_staleness": 4, "deadline": 1e6},
    "priority": {
        "name": "priority",
        "buffer": 5,
        "pool": 6,
        "max_staleness": 4,
        "ageing": 1000.0,
        "deadline": 1e6,
    },
}
ROUNDS: dict[str, dict[str, Any]] = {
    "plain": {"cipher": "plain", "checkpoint_every": 2},
    "bfv": {"cipher": "bfv"},
    "committee": {"cipher": "rlwe-2-of-3", "checkpoint_every": 1, **OF_RECORDS},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROUNDS)
def test_a_fold_stands_for_rows_of_rounds(kind: str, tmp_path: Path) -> None:
    plan = small_plan(**ROUNDS[kind], clients=FEWER)
    simulation = small_federation(plan, tmp_path, clients=FEWER)
    simulation.run()
    assert not differing(simulation, seed=1, points=6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_fold_stands_for_rows_of_streams(rule: str, tmp_path: Path) -> None:
    simulation = stream(stream_plan("rlwe", RULES[rule]), tmp_path, 6)
    simulation.run()
    assert not differing(simulation, seed=2, points=4)
