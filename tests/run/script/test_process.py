"""A script in a process of its own: whatever it does there is one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from secureps.errors import PlanRefused, ScriptFailed
from secureps.run.script.process import ScriptProcess, assign, script_process
from secureps.run.script.scoring import Score
from tests.kits.federations import Tensors, small_plan
from tests.kits.nursery import supervise_children

pytestmark = pytest.mark.slow

SCRIPT = """
import os
import numpy as np
from secureps.client.trainer import EvaluateResult, FitResult

class Holder:
    def __init__(self, settings): self.step = settings["step"]
    def parameters(self, seed):
        return {"w": np.full(2, 0.5, np.float32), "n": np.zeros((), np.int64)}
    def fit(self, parameters, config):
        return FitResult({**parameters, "w": parameters["w"] + np.float32(self.step)}, 1, {}, 1)
    def evaluate(self, parameters):
        return EvaluateResult(1.0, 4, {"accuracy": float(parameters["w"][0])})

def make(settings):
    return Holder(settings)

def make_evaluator(settings):
    return Holder({"step": 0.0})

def central(settings):
    return EvaluateResult(0.5, 4, {"accuracy": 0.9})
"""
MODEL: Tensors = {"w": np.full(2, 0.25, np.float32), "n": np.array(3)}


@pytest.fixture(autouse=True)
def _quickly_started(monkeypatch: pytest.MonkeyPatch) -> None:
    supervise_children(monkeypatch, "secureps.run.script.scoring")


@contextmanager
def hosted(tmp_path: Path, code: str, **plan: object) -> Iterator[ScriptProcess]:
    script = tmp_path / "holder.py"
    script.write_text(code)
    made = small_plan(**{"local": [], "versions": 2, **plan})  # type: ignore[arg-type]
    holders = {"a": {"step": 0.125}, "b": {"step": 0.25}}
    assignment = assign(script, made, holders, {"best": 1}, {}, 3, {})
    with script_process(assignment, tmp_path / "logs", {}) as process:
        yield process


def breaking(function: str, how: str) -> str:
    if function == "its import":
        return SCRIPT + how + "\n"
    name = function.partition("(")[0]
    head, found, rest = SCRIPT.partition(f"def {name}(")
    first, line, rest = rest.partition("\n")
    indent = "        " if "self" in first else "    "
    return f"{head}{found}{first}{line}{indent}{how}\n{rest}"


def test_it_is_asked_for_all_that_up_and_check_want(tmp_path: Path) -> None:
    with hosted(tmp_path, SCRIPT) as script:
        schema, kinds = script.look()
        specs = [(spec.name, spec.shape, spec.dtype) for spec in schema.tensors]
        assert specs == [("n", (), "int64"), ("w", (2,), "float32")]
        assert kinds == {}
        assert script.score(MODEL) == Score("accuracy", 0.25, 1.0, 4)
        assert (script.note, script.failed) == ("", "")
        said: list[str] = []
        done = script.baselines(2, MODEL, said.append)
        assert done.alone == {
            "a": Score("accuracy", 0.5, 1.0, 4),
            "b": Score("accuracy", 0.75, 1.0, 4),
        }
        assert done.central == Score("accuracy", 0.9, 0.5, 4)
        assert done.notes == ()
        trained = ("a alone", "b alone", "centrally, without privacy")
        assert said == [f"for comparison, trains {who}" for who in trained]


ENDS = [
    ("os.abort()", r"signal SIGABRT in holder\.py:\d+"),
    ("os._exit(3)", "exit status 3"),
    ("os._exit(0)", "exit status 0"),
]


@pytest.mark.parametrize("function", ["its import", "make(settings)", "parameters"])
@pytest.mark.parametrize(("how", "told"), ENDS[:2])
def test_what_ends_the_process_is_told(tmp_path: Path, function: str, how: str, told: str) -> None:
    said = rf"^holder\.py: the process it ran in died with {told}.*; see .*script\.log$"
    code = breaking(function, how)
    with hosted(tmp_path, code) as script, pytest.raises(ScriptFailed, match=said):
        script.look()
    assert not left(tmp_path)


def test_a_model_that_the_plan_cannot_train_is_refused(tmp_path: Path) -> None:
    refuse = "    def refuse_settings(self, *given): raise PlanRefused('no such layer')\n"
    code = "from secureps.errors import PlanRefused\n" + SCRIPT.replace(
        "    def parameters", f"{refuse}    def parameters"
    )
    with hosted(tmp_path, code) as script, pytest.raises(PlanRefused, match="no such layer"):
        script.look()


@pytest.mark.parametrize("local", [["n"], ["n", "w"]])
def test_a_model_that_begins_with_no_number_is_refused_unless_it_stays(
    local: list[str], tmp_path: Path
) -> None:
    head = SCRIPT.replace(
        '"w": np.full(2, 0.5', '"v": np.ones(1, np.float32), "w": np.full(2, np.nan'
    )
    with hosted(tmp_path, head, local=local) as script:
        if "w" in local:
            assert script.look()[0].tensors
            return
        with pytest.raises(
            ScriptFailed,
            match="parameters returned: tensor 'w' has values that are NaN, infinite or too large",
        ):
            script.look()


@pytest.mark.parametrize(("how", "told"), ENDS)
def test_an_evaluation_that_ends_its_process_ends_no_run(
    tmp_path: Path, how: str, told: str
) -> None:
    with hosted(tmp_path, breaking("evaluate", how)) as script:
        script.look()
        assert script.score(MODEL) is None
        assert re.search(told, script.failed)
        first = script.failed
        assert script.note.startswith("no held-out score: holder.py: the process it ran in died")
        assert script.score(MODEL) is None
        assert script.failed == first
        done = script.baselines(2, MODEL, lambda text: None)
        assert (done.alone, done.central) == ({}, None)
        assert "nothing is compared: holder.py: the process it ran in died" in done.notes[0]


def test_an_evaluator_that_cannot_be_made_ends_no_run(tmp_path: Path) -> None:
    with hosted(tmp_path, breaking("make_evaluator(", "os.abort()")) as script:
        script.look()
        assert script.score(MODEL) is None
        assert "the process it ran in died with signal SIGABRT in holder.py" in script.note


def test_a_run_client_that_nothing_guards_joins_nothing(tmp_path: Path) -> None:
    tail = "\nfrom secureps.run.own_script import run_client\nrun_client(make)\n"
    with hosted(tmp_path, SCRIPT + tail) as script:
        assert [spec.name for spec in script.look()[0].tensors] == ["n", "w"]


def left(tmp_path: Path) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    return [each for each in every if str(tmp_path) in " ".join(each.info["cmdline"] or [])]
