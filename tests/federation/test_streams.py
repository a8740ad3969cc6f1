"""Without rounds too, a run ends in the same bits under every cipher."""

from pathlib import Path
from typing import Any

import pytest

from secureps.messages import member_records
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.submission import Outcome
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import journalled
from tests.kits.federations import Tensors, same, unharmed
from tests.kits.streams import ASYNC, BUFFERED, PRIORITY, stream, stream_plan


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


EVERY = 3
CODEC = [{"name": "support", "one_in": 4, "every": EVERY}, "rotate"]
FEW = BUFFERED | {"buffer": 4, "minimum": 2, "deadline": 2.0}
RULES = [FEW, PRIORITY | {"minimum": 4}]


def plan(cipher: str, rule: dict[str, Any] = FEW, versions: int = 9, **own: Any) -> Plan:
    group = {"clip": 3.0, "range": 1.0, "most_examples": 32, "rule": rule, "codec": CODEC}
    return stream_plan(cipher, rule, versions=versions, group=[group | own])


def dropped(simulation: Simulation) -> int:
    return sum(
        record.outcome == Outcome.DROPPED
        for name in simulation._stores
        if name.startswith("client")
        for record in journalled(simulation, member_records.SubmissionSettled, name)
    )


def supports(simulation: Simulation) -> list[set[int]]:
    return [
        {m.version // EVERY for m in each.cohort.members}
        for each in journalled(simulation, CohortClosed)
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["name"])
def test_the_same_model_in_the_clear_and_sealed_and_one_support_a_cohort(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    models: list[Tensors] = []
    for cipher in ("plain", "rlwe"):
        simulation = stream(plan(cipher, rule), tmp_path / cipher, 9)
        simulation.run()
        assert simulation.versions() == {"all": 9}
        models.append(simulation.model())
        own = supports(simulation)
        assert all(len(each) == 1 for each in own)
        assert {min(each) for each in own} >= {0, 1, 2}
        older = [
            c
            for c, s in zip(journalled(simulation, CohortClosed), own)
            if (c.cohort.version - 1) // EVERY not in s
        ]
        assert older or dropped(simulation), "borders were met"
    assert same(models[0], models[1])


def test_every_update_is_a_version_of_the_classical_server_whatever_its_support(
    tmp_path: Path,
) -> None:
    simulation = stream(plan("plain", ASYNC, versions=20), tmp_path)
    simulation.run()
    assert simulation.versions() == {"all": 20}
    assert [len(c.cohort.members) for c in journalled(simulation, CohortClosed)] == [1] * 20
    assert dropped(simulation) <= 6  # those that were being made when the run ended
