"""Every sink keeps the same numbers of the same lines; extras are asked for by name."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import ConfigError
from secureps.run.report.version_metrics import (
    Extras,
    Heading,
    JsonLines,
    MLflow,
    Sink,
    TensorBoard,
    flatten,
    open_sinks,
)
from tests.kits import extras_kit
from tests.run.report.test_version_metrics import line

HEADING = Heading(
    name="trial",
    run="trial-1",
    settings={
        "name": "trial",
        "privacy": None,
        "training": {"lr": 0.5, "steps": 3},
        "group": [{"name": "all", "clip": 16.0, "optimizer": {"name": "sgd", "betas": [0.9, 1]}}],
        "local": [],
    },
    groups=1,
    unsafe=False,
)
UNSAFE = dataclasses.replace(HEADING, unsafe=True)
SUMMARY = {
    "name": "trial",
    "score": {"measure": "accuracy", "value": 0.9},
    "members": [{"name": "ada", "epsilon": 1.5, "live": True}],
    "ratio_up": None,
    "bytes_up": 5000,
    "loss": math.inf,
}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    extras_kit.install(monkeypatch)


Scalars = dict[tuple[str, int], list[float]]
"""What a sink has, by name and version: one value, or it was written twice."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One implementation, how to open it and how to read what it has."""

    open: Callable[[Heading, Path], Sink]
    read: Callable[[Path], Scalars]
    ended: Callable[[Path], str]
    replaces: bool


def read_json(folder: Path) -> Scalars:
    scalars: Scalars = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(text)
        version = record.pop("version")
        for name, value in flatten(record):
            if isinstance(value, float) and name != "elapsed":
                scalars.setdefault((name.replace(".", "/"), version), []).append(value)
    return scalars


def events(folder: Path) -> extras_kit.EventFileWriter:
    (file,) = [f for at, f in extras_kit.EventFileWriter.files.items() if at.parent == folder]
    return file


def read_events(folder: Path) -> Scalars:
    file, scalars = events(folder), dict[tuple[str, int], list[float]]()
    assert file.flushed == len(file.events), "who looks on sees nothing"
    for event in file.events:
        for value in event.summary.value:
            scalars.setdefault((value.tag, event.step), []).append(value.simple_value)
    return scalars


def run(folder: Path) -> extras_kit.Run:
    ((_, runs),) = extras_kit.MlflowClient.stores.values()
    (only,) = runs.values()
    return only


def read_mlflow(folder: Path) -> Scalars:
    scalars: Scalars = {}
    for metric in run(folder).metrics:
        scalars.setdefault((metric.key, metric.step), []).append(metric.value)
    return scalars


CASES = {
    "json": Case(
        lambda heading, folder: JsonLines(folder / "metrics.jsonl"),
        read_json,
        lambda folder: "",
        True,
    ),
    "tensorboard": Case(
        TensorBoard,
        read_events,
        lambda folder: "closed" if events(folder).closed else "open",
        False,
    ),
    "mlflow": Case(
        lambda heading, folder: MLflow(heading, str(folder)),
        read_mlflow,
        lambda folder: run(folder).status,
        False,
    ),
}
every_sink = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_extra = pytest.mark.parametrize("case", [CASES["tensorboard"], CASES["mlflow"]])


@every_sink
def test_every_scalar_of_every_version_is_there_once(case: Case, tmp_path: Path) -> None:
    sink = case.open(HEADING, tmp_path)
    for version in (1, 2):
        sink.add(line(version=version))
    wanted = {(n, v): [value] for v in (1, 2) for n, value in line(version=v).scalars().items()}
    assert case.read(tmp_path) == wanted


@every_sink
def test_what_is_told_again_adds_what_is_new(case: Case, tmp_path: Path) -> None:
    sink = case.open(HEADING, tmp_path)
    sink.add(line(version=1, scores={}))
    sink.add(line(version=2))
    sink.add(line(version=1, figures={"bytes_up": 900.0}))
    scalars = case.read(tmp_path)
    assert scalars["accuracy", 1] == [0.75]
    assert scalars["bytes_up", 1] == [900.0 if case.replaces else 800.0]
    assert all(len(values) == 1 for values in scalars.values())


@every_sink
def test_a_run_that_broke_off_keeps_what_it_had(case: Case, tmp_path: Path) -> None:
    sink = case.open(HEADING, tmp_path)
    sink.add(line(version=1))
    sink.close(None)
    assert case.ended(tmp_path) in ("", "closed", "FAILED")
    assert {version for _, version in case.read(tmp_path)} == {1}


@every_extra
def test_the_summary_stands_at_the_last_version(case: Case, tmp_path: Path) -> None:
    sink = case.open(HEADING, tmp_path)
    sink.add(line(version=7))
    sink.add(line(version=6))
    sink.close(SUMMARY)
    found = {n: v for n, v in case.read(tmp_path).items() if n[0].startswith("summary/")}
    assert found == {
        ("summary/score.value", 7): [0.9],
        ("summary/members.ada.epsilon", 7): [1.5],
        ("summary/bytes_up", 7): [5000.0],
    }
    assert case.ended(tmp_path) in ("closed", "FINISHED")


@every_extra
def test_several_groups_have_charts_of_their_own(case: Case, tmp_path: Path) -> None:
    sink = case.open(dataclasses.replace(HEADING, groups=2), tmp_path)
    sink.add(line(group="body", version=1, waits={}))
    sink.add(line(group="head", version=1, waits={}))
    names = {name for name, _ in case.read(tmp_path)}
    assert names == {f"{g}/{n}" for g in ("body", "head") for n in line(waits={}).scalars()}


def test_settings_are_parameters_by_their_dotted_names(tmp_path: Path) -> None:
    wanted = {
        "name": "trial",
        "training.lr": 0.5,
        "training.steps": 3,
        "group.all.name": "all",
        "group.all.clip": 16.0,
        "group.all.optimizer.name": "sgd",
        "group.all.optimizer.betas": "0.9, 1",
        "local": "",
    }
    TensorBoard(HEADING, tmp_path)
    MLflow(HEADING, str(tmp_path))
    assert events(tmp_path).events[0].summary.hparams == wanted
    assert run(tmp_path).params == {name: str(value) for name, value in wanted.items()}


def test_time_is_the_runs(tmp_path: Path) -> None:
    """So that virtual seconds are seconds on the axis."""
    board, flow = TensorBoard(HEADING, tmp_path), MLflow(HEADING, str(tmp_path))
    for sink in (board, flow):
        sink.add(line(version=1, elapsed=0.0))
        sink.add(line(version=2, elapsed=86400.0))
    first, last = (e.wall_time for e in events(tmp_path).events if e.summary.value)
    assert last - first == 86400.0
    stamps = {metric.timestamp for metric in run(tmp_path).metrics}
    assert max(stamps) - min(stamps) == 86_400_000


def test_no_privacy_is_said_wherever_a_run_has_a_name(tmp_path: Path) -> None:
    TensorBoard(UNSAFE, tmp_path)
    MLflow(UNSAFE, str(tmp_path))
    (folder,) = extras_kit.EventFileWriter.files
    assert folder.name == "trial-1-unsafe-seed-no-privacy"
    assert events(tmp_path).events[0].summary.hparams["privacy"] == "unsafe seed: no privacy"
    assert run(tmp_path).name == "trial-1 (unsafe seed: no privacy)"
    assert run(tmp_path).tags == {"privacy": "unsafe seed: no privacy"}
    assert run(tmp_path).params["privacy"] == "unsafe seed: no privacy"


def test_runs_of_a_plan_are_one_experiment_in_a_database(tmp_path: Path) -> None:
    for name in ("a", "b"):
        MLflow(dataclasses.replace(HEADING, run=name), str(tmp_path / "new"))
    ((uri, (experiments, runs)),) = extras_kit.MlflowClient.stores.items()
    assert uri == f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}"
    assert (tmp_path / "new").is_dir()
    assert experiments == {"trial": (tmp_path / "new" / "artifacts").as_uri()}
    assert [r.name for r in runs.values()] == ["a", "b"]


def test_a_uri_is_left_as_it_is(tmp_path: Path) -> None:
    MLflow(HEADING, "http://127.0.0.1:5000")
    ((uri, (experiments, _)),) = extras_kit.MlflowClient.stores.items()
    assert (uri, experiments) == ("http://127.0.0.1:5000", {"trial": "None"})


@pytest.mark.parametrize(
    ("absent", "extras", "reason"),
    [
        (
            "tensorboard",
            Extras(tensorboard=Path("tb")),
            r"--tensorboard: .*tensorboard.*; pip install 'secureps\[tensorboard\]'",
        ),
        ("mlflow", Extras(mlflow="ml"), r"--mlflow: .*; pip install 'secureps\[mlflow\]'"),
        ("sqlalchemy", Extras(mlflow="ml"), r"--mlflow: .*; pip install 'secureps\[mlflow\]'"),
    ],
)
def test_a_package_that_is_not_installed_is_named_before_anything_is_made(
    absent: str, extras: Extras, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras_kit.remove(monkeypatch, absent)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        extras.require(HEADING)
    Extras().require(HEADING)
    assert not any(tmp_path.iterdir())


def test_another_runs_events_are_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "trial-1").mkdir()
    with pytest.raises(ConfigError, match="trial-1 has another run's events; remove it first"):
        Extras(tensorboard=tmp_path).require(HEADING)
    Extras(tensorboard=tmp_path).require(UNSAFE)


def test_what_a_package_refuses_is_the_operators_to_mend(tmp_path: Path) -> None:
    extras: Any = Extras(mlflow="file:/somewhere")
    with pytest.raises(ConfigError, match="--mlflow: the filesystem backend is in maintenance"):
        open_sinks(HEADING, tmp_path / "metrics.jsonl", extras)
