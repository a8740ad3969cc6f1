"""Sinks for programs that draw charts: TensorBoard and MLflow.

Each is an extra of this package, and imported when it is asked for.
"""

from __future__ import annotations

import importlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ConfigError
from secureps.extras import command
from secureps.run.report.version_metrics import At, JsonLines, Line, Record, Sink

METRICS_AT_A_TIME, PARAMETERS_AT_A_TIME = 1000, 100
"""The most metrics that MLflow takes in one batch."""


@dataclass(frozen=True)
class Extras:
    """The sinks that are asked for besides JSON lines.

    Args:
        tensorboard: the folder of all runs; this one's events go to a folder in it.
        mlflow: a folder, for a SQLite database in it, or any tracking URI of MLflow.
    """

    tensorboard: Path | None = None
    mlflow: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        given = (("--tensorboard", self.tensorboard), ("--mlflow", self.mlflow))
        return tuple(word for name, at in given if at is not None for word in (name, str(at)))

    def absolute(self) -> Extras:
        tensorboard, mlflow = self.tensorboard, self.mlflow
        if mlflow is not None and _is_folder(mlflow):
            mlflow = str(Path(mlflow).resolve())
        return Extras(None if tensorboard is None else tensorboard.resolve(), mlflow)

    def require(self, heading: Heading) -> None:
        """Raises ConfigError if a package is absent, or another run's events are in the way."""
        if self.tensorboard is not None:
            _import("tensorboard", "tensorboard.summary.writer.event_file_writer")
            run = _events(heading, self.tensorboard)
            if run.exists():
                raise ConfigError(f"--tensorboard: {run} has another run's events; remove it first")
        if self.mlflow is not None:
            _import("mlflow", "mlflow.tracking", "sqlalchemy", "alembic")


@dataclass(frozen=True)
class Heading:
    """The name and the settings of a run, for its charts.

    Args:
        name: of the plan or scenario; run: of this one among its runs.
        settings: what was chosen before it began, nested as in its file.
        groups: how many the plan has.
    """

    name: str
    run: str
    settings: Record
    groups: int
    unsafe: bool

    @property
    def parameters(self) -> dict[str, Any]:
        mark = {"privacy": NO_PRIVACY} if self.unsafe else {}
        return dict(leaves(self.settings)) | mark


def open_sinks(heading: Heading, metrics: Path, extras: Extras) -> tuple[Sink, ...]:
    extras.require(heading)
    sinks: list[Sink] = [JsonLines(metrics)]
    folder, where = extras.tensorboard, extras.mlflow
    if folder is not None:
        sinks.append(_open_sink("tensorboard", lambda: TensorBoard(heading, folder)))
    if where is not None:
        sinks.append(_open_sink("mlflow", lambda: MLflow(heading, where)))
    return tuple(sinks)


def _open_sink(extra: str, make: Callable[[], Sink]) -> Sink:
    try:
        return make()
    except Exception as error:  # every package and every store has its own
        raise ConfigError(f"--{extra}: {error}") from None


def _import(extra: str, *modules: str) -> None:
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"--{extra}: {error}; {command(extra)}") from None


def _events(heading: Heading, folder: Path) -> Path:
    """A run's folder: its name is all that TensorBoard shows beside every chart."""
    mark = f"-{'-'.join(NO_PRIVACY.replace(':', '').split())}" if heading.unsafe else ""
    return folder / f"{heading.run}{mark}"


class Tracker(ABC):
    """A sink of numbers that are written once; of several groups their names come first."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._known: set[tuple[At, str]] = set()
        self._end = (0.0, 0)
        """Elapsed seconds and version of the newest line: where a summary goes."""

    def add(self, line: Line) -> None:
        self._end = max(self._end, (line.elapsed, line.version))
        fresh = {n: v for n, v in line.scalars().items() if (line.at, n) not in self._known}
        self._known |= {(line.at, name) for name in fresh}
        named = {f"{line.group}/{n}" if self._groups > 1 else n: v for n, v in fresh.items()}
        self._write(line.elapsed, line.version, named)

    def close(self, summary: Record | None) -> None:
        if summary is not None:
            self._write(*self._end, _numbers(summary))
        self._finish(summary is not None)

    @abstractmethod
    def _write(self, elapsed: float, version: int, scalars: dict[str, float]) -> None: ...

    @abstractmethod
    def _finish(self, whole: bool) -> None:
        """Ends the run's charts; it broke off unless it is `whole`."""


class TensorBoard(Tracker):
    """Scalars over versions, and the settings for its HParams tab, as event files in `folder`.

    Its wall clock is the run's: under virtual time, "relative" is virtual seconds.
    """

    def __init__(self, heading: Heading, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        super().__init__(heading.groups)
        self._event, self._summary = Event, Summary
        self._began = time.time()
        run = _events(heading, folder)
        self._file = EventFileWriter(str(run))
        self._append(0.0, 0, hparams_pb(heading.parameters, run.name, self._began))

    def _write(self, elapsed: float, version: int, scalars: dict[str, float]) -> None:
        if scalars:
            values = [self._summary.Value(tag=n, simple_value=v) for n, v in scalars.items()]
            self._append(elapsed, version, self._summary(value=values))

    def _finish(self, whole: bool) -> None:
        self._file.close()

    def _append(self, elapsed: float, version: int, summary: Any) -> None:
        wall = self._began + elapsed
        self._file.add_event(self._event(wall_time=wall, step=version, summary=summary))
        self._file.flush()


class MLflow(Tracker):
    """A sink of MLflow: one run of the experiment that has the plan's name.

    Args:
        where: a folder or a tracking URI. Writing waits for a server's answer, if it is one.
    """

    def __init__(self, heading: Heading, where: str) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        super().__init__(heading.groups)
        self._metric, self._began = Metric, time.time()
        tags = {"privacy": NO_PRIVACY} if heading.unsafe else {}
        run = f"{heading.run} ({NO_PRIVACY})" if heading.unsafe else heading.run
        uri, artifacts = _find_places(where)
        self._client = MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(heading.name)
        id = (
            known.experiment_id
            if known
            else self._client.create_experiment(heading.name, artifact_location=artifacts)
        )
        self._run: str = self._client.create_run(id, run_name=run, tags=tags).info.run_id
        parameters = [Param(name, str(value)) for name, value in heading.parameters.items()]
        for some in _batches(parameters, PARAMETERS_AT_A_TIME):
            self._client.log_batch(self._run, params=some)

    def _finish(self, whole: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if whole else "FAILED")

    def _write(self, elapsed: float, version: int, scalars: dict[str, float]) -> None:
        at = int(1000 * (self._began + elapsed))
        metrics = [self._metric(name, value, at, version) for name, value in scalars.items()]
        for some in _batches(metrics, METRICS_AT_A_TIME):
            self._client.log_batch(self._run, metrics=some)


def leaves(record: Record) -> Iterator[tuple[str, Any]]:
    """Every plain value of a nested record by its dotted name; named items by their names."""
    for key, value in record.items():
        if isinstance(value, list | tuple):
            if value and all(isinstance(item, dict) and "name" in item for item in value):
                value = {item["name"]: item for item in value}
            else:
                value = ", ".join(str(item) for item in value)
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", leaf) for name, leaf in leaves(value))
        elif value is not None:
            yield key, value


def _numbers(summary: Record) -> dict[str, float]:
    return {
        f"summary/{name}": float(value)
        for name, value in leaves(summary)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _find_places(where: str) -> tuple[str, str | None]:
    """Tracking URI, and where artifacts would go if that is ours to say.

    A folder gets a database: MLflow's plain folders are in maintenance mode, and refused.
    """
    if not _is_folder(where):
        return where, None
    folder = Path(where).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _is_folder(where: str) -> bool:
    return ":" not in where and where != "databricks"


def _batches(items: list[Any], most: int) -> Iterable[list[Any]]:
    return (items[at : at + most] for at in range(0, len(items), most))
