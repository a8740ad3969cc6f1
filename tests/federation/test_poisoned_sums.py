"""Safety: no model is made of sums that clipped updates cannot come to."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secureps.client.trainer import FitConfig, FitResult
from secureps.client.update import Integers
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import (
    clients_of,
    cohorts,
    flip_and_scale_up,
    journalled,
    poisons,
    scale_up,
    send_the_most,
)
from tests.kits.federations import Tensors, Walker, small_federation, small_plan
from tests.kits.privacy_kit import PRIVACY

Change = Callable[[Integers, int], Integers]
CLIENTS, MINIMUM, POISONER = 8, 3, "client-05"
ROUNDS = {"quorum": CLIENTS, "minimum": MINIMUM, "deadline": 10.0, "extensions": 1}
BUFFERED = {"name": "buffered", "buffer": 6, "minimum": MINIMUM, "deadline": 10.0, "power": 0.0}
NOISE = PRIVACY | {"placement": "local"}
THIN = [{"name": "support", "one_in": 2}, {"name": "rotate"}, {"name": "round"}]
FOLLOWING = [{"name": "rotate"}, {"name": "round", "length": "mean_norm"}]


def plan_for(
    cipher: str = "rlwe", rule: Any = ROUNDS, group: Any = None, versions: int = 12, **more: Any
) -> Plan:
    own = {"clip": 0.5, "bound": "clip", "rule": rule} | (group or {})
    return small_plan(cipher, versions=versions, capacity=32, group=[own], **more)


def federation(folder: Path, plan: Plan) -> Simulation:
    return small_federation(plan, folder, clients=CLIENTS)


MODES: dict[str, dict[str, Any]] = {
    "in rounds": {},
    "without rounds": {"rule": BUFFERED},
    "in the clear": {"cipher": "plain"},
    "a codec": {"group": {"bits": 8, "codec": THIN, "feedback": True}},
    "a moving range": {"group": {"bits": 12, "codec": FOLLOWING}},
    "noise by each client": {"privacy": NOISE},
    "noise that counts by weight": {"rule": BUFFERED | {"power": 0.5}, "privacy": NOISE},
    "noise by the shards": {"privacy": NOISE | {"placement": "aggregator"}},
}


SMALL_GRIDS = {"a codec", "a moving range"}
"""Their grids end at three clips, and what lies beyond is cut off where it is added up."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_honest_sums_are_within_the_bound(mode: str, tmp_path: Path) -> None:
    simulation = federation(tmp_path, plan_for(**MODES[mode]))
    simulation.run()
    assert simulation.versions() == {"all": 12}
    assert not journalled(simulation, records.CohortBurnt)
    measured = journalled(simulation, requests.Prepared)
    assert all(square > 0 for made in measured if made.version for square in made.squares)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in SMALL_GRIDS])
@pytest.mark.parametrize("change", [scale_up, flip_and_scale_up, send_the_most])
def test_who_sends_too_much_changes_no_model_and_is_left_out(
    change: Change, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(monkeypatch, POISONER, change)
    simulation = federation(tmp_path, plan_for(**MODES[mode], versions=400))
    simulation.run(lambda: bool(simulation.coordinator.federation.isolated))
    assert set(simulation.coordinator.federation.isolated) == {POISONER}
    burnt = {record.number: record for record in journalled(simulation, records.CohortBurnt)}
    assert all("a member sent something else" in record.reason for record in burnt.values())
    told = any("its sum is too long" in record.reason for record in burnt.values())
    assert told == (mode == "noise by the shards"), (
        "with other noise the length is a second release"
    )
    made = [cohort for cohort in cohorts(simulation) if cohort.number not in burnt]
    assert simulation.versions()["all"] >= 1
    assert not any(POISONER in clients_of(cohort) for cohort in made)


@pytest.mark.slow
def test_too_few_to_be_divided_make_no_version_and_the_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(monkeypatch, POISONER, scale_up)
    plan = plan_for(rule=ROUNDS | {"minimum": 5})
    simulation = federation(tmp_path, plan)
    simulation.run()
    assert simulation.versions() == {"all": 0}
    reason = simulation.coordinator.federation.finished
    assert "a member sent something else; no other set of clients may make this version" in reason
    assert "suspected: client-00" in reason


class Growing(Walker):
    """One client says from its third training on that it has thirty times the records."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        result = super().fit(parameters, config)
        grown = self._number == 5 and self.fits > 2
        return dataclasses.replace(result, examples=30 if grown else 1)


def test_a_public_number_that_grows_tenfold_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="secureps")
    plan = plan_for("plain", group={"most_examples": 32, "weighting": "examples"}, versions=5)
    small_federation(plan, tmp_path, clients=CLIENTS, kind=Growing).run()
    text = f"{POISONER} counts by 30 examples, and counted by 1 before: ask why"
    assert [text in line for line in caplog.messages].count(True) == 1
