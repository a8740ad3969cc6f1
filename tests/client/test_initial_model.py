"""Who was given the file of version 0 takes part in no run that is founded on another one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.initial_model import conform, initial_digest, refuse_other_start, schema_of
from secureps.client.script import Script
from secureps.client.trainer import FitResult, convert_fit
from secureps.errors import WrongRun, WrongShape
from secureps.messages.encoding import file_digest
from secureps.messages.run import TensorSpec
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.roles.machine import Halt
from secureps.roles.member.terms import MemberSettings
from secureps.run.up.folder import client_names
from secureps.store.checkpoint import write_state
from tests.kits.federations import small_federation, small_plan
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
        trainers = [
            script.make({"initial": str(files[kind]), "bonus": 0})
            for kind in (founder, *["agreed"] * 5)
        ]
        assert initial_digest(trainers[1]) == digest
        plan = small_plan(local=[], training={"lr": 0.5}, versions=1)
        simulation = small_federation(plan, tmp_path / founder, kind=trainers.__getitem__)
        others = [simulation.parties[name].halted for name in client_names(6)[1:]]
        simulation.run(lambda: all(each.done() for each in others))
        return [each.result() for each in others]

    digest = file_digest(files["agreed"].read_bytes()).hex()
    assert {halt.error for halt in play("agreed")} == {None}
    for halt in play("other"):
        assert halt.error is WrongRun
        assert "version 0 of the run is not the model of the file" in halt.reason


RUN = schema_of({"n": np.zeros(2, np.int64), "on": np.zeros(2, bool), "w": np.zeros(2, np.float32)})
WHOLE = {"n": np.array([1, 2]), "on": np.array([1, 0]), "w": np.array([1.5, 2])}


def fitted(tensors: dict[str, Any], ties: dict[str, str] | None = None) -> dict[str, Any]:
    """What a client takes of a training that returned these."""
    result = convert_fit(FitResult(tensors, 1, {}, 1))
    return conform(result, RUN, ties or {}).parameters


def test_a_trained_model_is_cast_to_the_types_of_the_runs() -> None:
    made = fitted({"n": [1.0, 2.0], "on": [1, 0], "w": [1.5, 2]})
    assert {name: each.dtype.name for name, each in made.items()} == {
        "n": "int64", "on": "bool", "w": "float32",
    }  # fmt: skip
    assert {name: each.tolist() for name, each in made.items()} == {
        "n": [1, 2], "on": [True, False], "w": [1.5, 2.0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n": [1.5, 2.0]}, "n is float64, and the run's int64 cannot hold its values"),
        ({"n": [1.0, np.nan]}, "n is float64, and the run's int64 cannot hold its values"),
        ({"on": [0, 2]}, "on is int64, and the run's bool cannot hold its values"),
        ({"w": np.zeros(3)}, r"w is float64\[3\], the run's is float32\[2\]"),
        ({"w": np.zeros(2, np.complex64)}, r"w is complex64\[2\], the run's is float32\[2\]"),
        ({"more": np.zeros(2)}, "more is not in the run's model"),
    ],
)
def test_what_the_run_cannot_hold_is_refused_by_its_tensor(
    change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(WrongShape, match=reason):
        fitted({**WHOLE, **change})
    with pytest.raises(WrongShape, match="n is missing"):
        fitted({name: each for name, each in WHOLE.items() if name != "n"})


def test_one_tensor_of_two_names_comes_back_once() -> None:
    ties = {"head": "w"}
    made = fitted({**WHOLE, "head": WHOLE["w"].copy()}, ties)
    assert sorted(made) == ["n", "on", "w"]
    assert sorted(fitted(WHOLE, ties)) == ["n", "on", "w"], "or under one of them"
    reason = "head and w are two names of one tensor \\(tied\\), and came back different"
    with pytest.raises(WrongShape, match=reason):
        fitted({**WHOLE, "head": WHOLE["w"] + 1}, ties)
    with pytest.raises(WrongShape, match=r"tied\(\) names tail, and there is no such tensor"):
        schema_of(WHOLE, {"tail": "w"})
