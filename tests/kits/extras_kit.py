"""Stand-ins for tensorboard and mlflow, which a development environment does not have.

They have the few names that `run.report.version_metrics` uses, with the real ones' arguments, and
keep what they are given; a manual trial against the real packages is all that can show more.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest


@dataclass
class Value:
    tag: str
    simple_value: float


@dataclass
class Summary:
    value: list[Value] = field(default_factory=list)
    hparams: dict[str, Any] = field(default_factory=dict)
    Value: ClassVar[Any] = Value


@dataclass
class Event:
    wall_time: float
    step: int
    summary: Summary


def hparams_pb(hparams: dict[str, Any], trial_id: str, start_time_secs: float) -> Summary:
    assert all(isinstance(value, bool | int | float | str) for value in hparams.values())
    return Summary(hparams=hparams)


class EventFileWriter:
    """By folder: what was written, and in what state it is."""

    files: ClassVar[dict[Path, "EventFileWriter"]] = {}

    def __init__(self, logdir: str) -> None:
        Path(logdir).mkdir(parents=True)
        self.events: list[Event] = []
        self.flushed, self.closed = 0, False
        self.files[Path(logdir)] = self

    def add_event(self, event: Event) -> None:
        assert not self.closed
        self.events.append(event)

    def flush(self) -> None:
        self.flushed = len(self.events)

    def close(self) -> None:
        self.closed = True


@dataclass
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class Param:
    key: str
    value: str


@dataclass
class Run:
    experiment: str
    name: str
    tags: dict[str, str]
    metrics: list[Metric] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    status: str = "RUNNING"


class MlflowException(Exception):
    pass


class MlflowClient:
    """One store for every URI, as long as the process lives."""

    stores: ClassVar[dict[str, tuple[dict[str, str], dict[str, Run]]]] = {}

    def __init__(self, tracking_uri: str) -> None:
        if tracking_uri.startswith("file:"):
            raise MlflowException("the filesystem backend is in maintenance mode")
        self._experiments, self.runs = self.stores.setdefault(tracking_uri, ({}, {}))

    def get_experiment_by_name(self, name: str) -> Any:
        known = name in self._experiments
        return SimpleNamespace(experiment_id=name) if known else None

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        assert name not in self._experiments
        self._experiments[name] = str(artifact_location)
        return name

    def create_run(self, experiment_id: str, run_name: str, tags: dict[str, str]) -> Any:
        id = str(len(self.runs))
        self.runs[id] = Run(experiment_id, run_name, tags)
        return SimpleNamespace(info=SimpleNamespace(run_id=id))

    def log_batch(
        self, run_id: str, metrics: tuple[Metric, ...] = (), params: tuple[Param, ...] = ()
    ) -> None:
        self.runs[run_id].metrics += metrics
        self.runs[run_id].params |= {param.key: param.value for param in params}

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status


MODULES: dict[str, dict[str, Any]] = {
    "tensorboard.compat.proto.event_pb2": {"Event": Event},
    "tensorboard.compat.proto.summary_pb2": {"Summary": Summary},
    "tensorboard.plugins.hparams.summary_v2": {"hparams_pb": hparams_pb},
    "tensorboard.summary.writer.event_file_writer": {"EventFileWriter": EventFileWriter},
    "mlflow.entities": {"Metric": Metric, "Param": Param},
    "mlflow.tracking": {"MlflowClient": MlflowClient},
    "sqlalchemy": {},
    "alembic": {},
}


def install(patch: pytest.MonkeyPatch) -> None:
    """Puts the stand-ins where `import` finds them, in place of any real ones."""
    patch.setattr(EventFileWriter, "files", {})
    patch.setattr(MlflowClient, "stores", {})
    for name, members in MODULES.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            dotted = ".".join(parts[:depth])
            if dotted not in MODULES or depth == len(parts):
                patch.setitem(sys.modules, dotted, ModuleType(dotted))
        vars(sys.modules[name]).update(members)


def remove(patch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if these were not installed."""
    for package in packages:
        for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, package, None)
