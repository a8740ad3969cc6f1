"""Who was given the file of version 0 takes part in no run that is founded on another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.initial_model import (
    initial_digest,
    refuse_other_start,
    schema_of,
)
from secureps.client.script import Script
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import WrongRun, WrongShape
from secureps.messages.encoding import file_digest
from secureps.messages.schema import TensorSpec
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.roles.machine import Halt
from secureps.roles.member.settings import MemberSettings
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.store.checkpoint import write_state
from tests.kits.federations import small_plan
from tests.kits.flower_apps import MESSAGES, write
from tests.kits.member_kit import PLAN, Client
from tests.kits.roles_kit import ROSTER, SCHEMA

OURS, OTHER = "ab" * 32, "cd" * 32


def given(plan_names: str, was_given: str) -> Client:
    section = PLAN.section.model_copy(update={"initial": "/initial.safetensors"})
    plan = Plan(section, plan_names) if plan_names else PLAN
    return Client(plan, kit=MemberSettings("c0", ROSTER, SCHEMA, initial=was_given))


def test_a_run_founded_on_another_file_is_refused_on_joining() -> None:
    step = given(OTHER, OURS).welcome()
    (halt,) = [each for each in step.effects if isinstance(each, Halt)]
    assert (halt.error, step.records) == (WrongRun, [])
    assert "founded on another file than the one that this client was given" in halt.reason
    for plan_names, was_given in ((OURS, OURS), (OURS, ""), ("", OURS)):
        assert len(given(plan_names, was_given).welcome().records) == 1


def test_nor_is_it_taken_up_again_with_another_file() -> None:
    journal = tuple(given(OURS, OURS).welcome().records)
    kit = MemberSettings("c0", ROSTER, SCHEMA, initial=OTHER)
    back = Client(given(OURS, OURS).plan, journal, kit)
    (halt,) = [each for each in back.welcome().effects if isinstance(each, Halt)]
    assert halt.error is WrongRun


@pytest.mark.parametrize("at", [0, 3, 4, 5])
def test_one_value_of_any_block_is_another_model(at: int) -> None:
    """A founder may change what no other block shows."""
    group = GroupLayout("all", (TensorSpec("w", (2, 3), "float32"),), 6, 4)
    initial = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    served = np.arange(6, dtype=np.float32)
    refuse_other_start(group, initial, [served[:4], served[4:]])
    served[at] += 1
    with pytest.raises(WrongRun, match="nothing was trained"):
        refuse_other_start(group, initial, [served[:4], served[4:]])


def test_a_served_version_0_that_is_not_the_files_is_refused(tmp_path: Path) -> None:
    """The plan names no file, and whoever founds the run was given another one than the rest."""
    script = Script(write(tmp_path, MESSAGES))
    files = {kind: tmp_path / f"{kind}.safetensors" for kind in ("agreed", "other")}
    for kind, file in files.items():
        write_state(file, {"w": np.full((2, 3), float(kind == "other"), np.float32)}, {})

    def play(founder: str) -> list[Halt]:
        """How all but the founder end."""
        names = client_names(6)
        trainers = {
            name: script.make({"initial": str(files["agreed" if i else founder]), "bonus": 0})
            for i, name in enumerate(names)
        }
        assert initial_digest(trainers[names[1]]) == digest
        plan = small_plan(local=[], training={"lr": 0.5}, versions=1)
        simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path / founder)
        others = [simulation.parties[name].halted for name in names[1:]]
        simulation.run(lambda: all(each.done() for each in others))
        return [each.result() for each in others]

    digest = file_digest(files["agreed"].read_bytes()).hex()
    assert {halt.error for halt in play("agreed")} == {None}
    for halt in play("other"):
        assert halt.error is WrongRun
        assert "version 0 of the run is not the model of the file" in halt.reason


@pytest.mark.parametrize("model", [[np.zeros(3)], None])
def test_a_model_that_is_no_dict_is_said_to_be_none(model: Any) -> None:
    kind = type(model).__name__
    with pytest.raises(WrongShape, match=f"it is a {kind}, and must be a dict of NumPy arrays"):
        schema_of(model)
