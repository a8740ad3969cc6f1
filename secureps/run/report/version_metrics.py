"""Gathers the metrics of every version, for metrics.jsonl, charts and tables.

`Totals` adds up the parties' reports, of which a status shows only a window. A figure is identified
by (group, version, party, step, name): a report that two statuses show is counted once, and a
report of repeated work replaces the first one. `Metrics` makes a line of each published version,
and completes it when its score and late figures arrive. `Sinks` write the lines while the run goes;
those of TensorBoard and MLflow are extras, which are imported on demand.
"""

from __future__ import annotations

import importlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ConfigError
from secureps.extras import command
from secureps.messages.evaluation import VersionEvaluated, is_model_group
from secureps.messages.requests import ARRIVED, CLIP, PUBLISHED, SPENT, UP, WAITED, Telemetry
from secureps.messages.run import COORDINATOR
from secureps.store.atomic_file import replace_text
from secureps.wording import finite

SECONDS = ("training", "encryption", "network", "adding", "opening", "stepping")
"""The phases of a version, in the order of an update; their figures are NAME_seconds."""

DOWN = "bytes_down"

FIGURES = (UP, DOWN, *(f"{stage}_seconds" for stage in SECONDS))
"""The figures that are summed over the parties; parties may report others too."""

MOST_FIGURES = 1024
"""The most figures of a party for one version. Further ones are ignored, because a hostile party
could fill the memory with names of figures."""

At = tuple[str, int]
"""A group and its version."""

Known = tuple[str, int, str, int, str, float]
"""Group, version, party, step, name, value: a figure of a report."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for a client, from a round's opening to the client's update or the round's end."""

    seconds: float
    arrived: bool


class Totals:
    """All figures of a run so far; `figures` are those from which it continues."""

    def __init__(self, figures: Iterable[Known] = ()) -> None:
        self._said = Counter[tuple[At, str]]()
        self._figures: defaultdict[At, dict[tuple[str, int, str], float]] = defaultdict(dict)
        for group, version, party, step, name, value in figures:
            self._figures[group, version][party, step, name] = value
            self._said[(group, version), party] += 1

    def figures(self) -> tuple[Known, ...]:
        return tuple(
            (*at, *key, value)
            for at, figures in self._figures.items()
            for key, value in figures.items()
        )

    def add(self, reports: Iterable[Telemetry]) -> set[At]:
        """Takes the reports of a status; returns the versions that have new figures."""
        changed: set[At] = set()
        for report in reports:
            at = (report.group, report.version)
            figures = self._figures[at]
            for figure in report.figures:
                key = (report.party, report.step, figure.name)
                if key not in figures:
                    if self._said[at, report.party] == MOST_FIGURES:
                        continue
                    self._said[at, report.party] += 1
                if figures.get(key) != figure.value:
                    figures[key] = figure.value
                    changed.add(at)
        return changed

    def total(self, name: str) -> float:
        return math.fsum(
            value
            for figures in self._figures.values()
            for (_, _, at_name), value in figures.items()
            if at_name == name
        )

    def of_version(self, group: str, version: int) -> dict[str, float]:
        sums: dict[str, float] = {}
        for (_, _, name), value in sorted(self._figures.get((group, version), {}).items()):
            if name in FIGURES:
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def coordinators(self, name: str, group: str, version: int) -> float | None:
        """The coordinator's figure of a version; None if it has none, or lost it by a restart."""
        return self._figures.get((group, version), {}).get((COORDINATOR, 0, name))

    def waits(self, group: str, version: int) -> dict[str, Wait]:
        """The waits of a version's round for each invited client, by name.

        Empty for version 0, and if a restarted coordinator lost the reports.
        """
        figures = self._figures.get((group, version), {})
        return {
            party: Wait(value, bool(figures.get((party, 0, ARRIVED), 0.0)))
            for (party, _, name), value in sorted(figures.items())
            if name == WAITED
        }

    def updates(self) -> Counter[str]:
        return Counter(group for group, _ in self._arrived())

    def updates_by_party(self) -> Counter[str]:
        return Counter(party for _, party in self._arrived())

    def _arrived(self) -> Iterator[tuple[str, str]]:
        for (group, _), figures in self._figures.items():
            for party, _, name in figures:
                if name == UP and is_model_group(group):
                    yield group, party

    def ratio(self, name: str, sizes: Mapping[str, int]) -> float | None:
        """Bytes (UP or DOWN) per update against the same values as plain fp32; None before any."""
        plain = sum(4 * sizes[group] * count for group, count in self.updates().items())
        return self.total(name) / plain if plain else None


_OWN = frozenset(
    {"group", "version", "elapsed", "epsilon", "privacy", "clients", "gone", CLIP, *FIGURES}
    | {"longest_wait", "longest_wait_seconds", "waited_seconds", "missed_seconds"}
)
"""The keys of lines besides scores; a script's metric with such a name is renamed."""

FEDERATED = "federated_"
"""The prefix of metrics of the federation's own evaluation."""


@dataclass(frozen=True)
class Line:
    """The metrics of one version of one group.

    Args:
        elapsed: seconds from the run's start to its publishing; virtual in a simulation.
        epsilon: the largest of all clients when it was published; infinite without privacy, None
            if a restarted coordinator lost it.
        scores: `loss` and the script's metrics, of the first model with this version.
        figures: seconds and bytes by name, summed over the parties; and the clip, if adaptive.
        waits: how long its round waited for each client.
        federated: the metrics of the federation's own evaluation.
    """

    group: str
    version: int
    elapsed: float
    epsilon: float | None
    unsafe: bool
    scores: Mapping[str, float]
    figures: Mapping[str, float]
    waits: Mapping[str, Wait]
    federated: Mapping[str, float] = field(default_factory=dict)

    @property
    def at(self) -> At:
        return self.group, self.version

    @property
    def longest(self) -> str | None:
        return max(self.waits, key=lambda client: self.waits[client].seconds, default=None)

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"group": self.group, "version": self.version}
        spent = None if self.epsilon is None else finite(self.epsilon)
        record |= {"elapsed": round(self.elapsed, 3), "epsilon": spent}
        if self.unsafe:
            record["privacy"] = NO_PRIVACY
        record |= {**self.scores, **self._federated, **self.figures}
        if self.longest is not None:
            record["longest_wait"] = self.longest
            record["longest_wait_seconds"] = round(self.waits[self.longest].seconds, 3)
            record["waited_seconds"] = self._seconds(arrived=True)
            record["missed_seconds"] = self._seconds(arrived=False)
        return record

    def scalars(self) -> dict[str, float]:
        named = {**self.scores, **self._federated, **self.figures}
        if self.epsilon is not None:
            named["epsilon"] = self.epsilon
        if self.longest is not None:
            named["longest_wait_seconds"] = round(self.waits[self.longest].seconds, 3)
        for kind, arrived in (("waited_seconds", True), ("missed_seconds", False)):
            seconds = self._seconds(arrived)
            named |= {f"{kind}/{client}": value for client, value in seconds.items()}
        return {name: value for name, value in named.items() if finite(value) is not None}

    @property
    def _federated(self) -> dict[str, float]:
        return {f"{FEDERATED}{name}": value for name, value in self.federated.items()}

    def _seconds(self, arrived: bool) -> dict[str, float]:
        return {c: round(w.seconds, 3) for c, w in self.waits.items() if w.arrived is arrived}


def split_scores(record: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Splits a line's record into scores of the script and of the federation's evaluation."""
    found = {name: value for name, value in record.items() if name not in _OWN}
    own = {
        name.removeprefix(FEDERATED): found.pop(name)
        for name in [*found]
        if name.startswith(FEDERATED)
    }
    return found, own


@dataclass(frozen=True)
class Gathered:
    """The metrics of a run so far, from which `Metrics` continue when it is resumed.

    Args:
        lines: (group, version, elapsed, epsilon), in the order of publishing.
        scores: (group, version, scores).
        figures: those of `Totals`.
        seconds: how long the run has been played.
    """

    lines: tuple[tuple[str, int, float, float | None], ...] = ()
    scores: tuple[tuple[str, int, Mapping[str, float]], ...] = ()
    figures: tuple[Known, ...] = ()
    seconds: float = 0.0


Tell = Callable[[Line], None]


class Metrics:
    """Gathers the lines of a run.

    Args:
        tell: gets each line, and again each time more of it is known.
        figures: the names of figures that lines have.
        before: the metrics of an earlier play of the run, whose lines are told first.
    """

    def __init__(
        self,
        tell: Tell,
        unsafe: bool,
        figures: tuple[str, ...] = FIGURES,
        before: Gathered | None = None,
    ) -> None:
        self._tell = tell
        self._unsafe = unsafe
        self._figures = figures
        self._lines: dict[At, Line] = {}
        self._scores: dict[At, Mapping[str, float]] = {}
        self._federated: dict[At, Mapping[str, float]] = {}
        self._due: dict[At, None] = {}
        before = before if before is not None else Gathered()
        self.totals = Totals(before.figures)
        for group, version, scores in before.scores:
            self._scores[group, version] = scores
        for group, version, elapsed, epsilon in before.lines:
            self.publish(group, version, elapsed, epsilon)

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(self._complete(line) for line in self._lines.values())

    @property
    def gathered(self) -> Gathered:
        """The state from which other `Metrics` continue, without figures given to `publish`."""
        return Gathered(
            tuple((*at, line.elapsed, line.epsilon) for at, line in self._lines.items()),
            tuple((*at, scores) for at, scores in self._scores.items()),
            self.totals.figures(),
        )

    def take(self, reports: Iterable[Telemetry]) -> None:
        self._due |= dict.fromkeys(sorted(self.totals.add(reports) & self._lines.keys()))

    def settle(self) -> None:
        """Sends the sinks every new or changed line.

        Call it some time after a version was published, because reports are still on their way
        then, and some sinks cannot replace a line.
        """
        for at in self._due:
            self._tell(self._complete(self._lines[at]))
        self._due.clear()

    def publish(
        self,
        group: str,
        version: int,
        elapsed: float,
        epsilon: float | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Adds a published version; a known one stays as it is.

        `elapsed` and `epsilon` are estimates, which the coordinator's reports replace.
        """
        if (group, version) in self._lines:
            return  # known from an earlier play
        line = Line(group, version, elapsed, epsilon, self._unsafe, {}, figures or {}, {})
        self._lines[line.at] = line
        self._due[line.at] = None

    def add_scores(self, versions: Mapping[str, int], scores: Mapping[str, float]) -> None:
        """Adds the scores of the model of these versions, which may be published later."""
        scores = {f"held_out_{n}" if n in _OWN else n: value for n, value in scores.items()}
        for at in versions.items() - self._scores.keys():
            self._scores[at] = scores
            if at in self._lines:
                self._due[at] = None

    def add_evaluations(self, results: Iterable[VersionEvaluated], groups: Iterable[str]) -> None:
        """Adds the federation's own evaluations; each is of one version of every group."""
        for result in results:
            values = {metric.name: metric.value for metric in result.metrics}
            for at in [(group, result.version) for group in groups]:
                if self._federated.get(at) != values:
                    self._federated[at] = values
                    if at in self._lines:
                        self._due[at] = None

    def _complete(self, line: Line) -> Line:
        sums = self.totals.of_version(*line.at)
        reported = {name: sums[name] for name in self._figures if name in sums}
        published, clip, spent = (
            self.totals.coordinators(name, *line.at) for name in (PUBLISHED, CLIP, SPENT)
        )
        adaptive = {} if clip is None else {CLIP: clip}
        return replace(
            line,
            elapsed=line.elapsed if published is None else published,
            epsilon=line.epsilon if spent is None else spent,
            scores=self._scores.get(line.at, {}),
            figures={**line.figures, **reported, **adaptive},
            waits=self.totals.waits(*line.at),
            federated=self._federated.get(line.at, {}),
        )


Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes the lines of one run."""

    def add(self, line: Line) -> None:
        """Takes the line of a published version.

        The line may come again with more values: new ones are added, and known ones are replaced
        if the sink can do so.
        """

    def close(self, summary: Record | None) -> None:
        """Takes the run's summary, or None if the run was interrupted, and closes."""


class JsonLines:
    """A file with one line for every version of every group, in the order of publishing.

    It replaces the file of an earlier play, whose lines come again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[At, str] = {}

    def add(self, line: Line) -> None:
        append = bool(self._lines) and line.at not in self._lines
        self._lines[line.at] = json.dumps(line.record()) + "\n"
        if append:  # a run may have many thousands of versions
            with self._path.open("a") as file:
                file.write(self._lines[line.at])
        else:
            replace_text(self._path, "".join(self._lines.values()))

    def close(self, summary: Record | None) -> None:
        """Does nothing: every line is written already."""


class Sinks:
    """The sinks of a run, in a `with`; one that fails is dropped with a warning."""

    def __init__(self, sinks: tuple[Sink, ...], warn: Callable[[str], None]) -> None:
        self._open = list(sinks)
        self._warn = warn

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(None)

    def add(self, line: Line) -> None:
        self._each(lambda sink: sink.add(line))

    def close(self, summary: Record | None) -> None:
        self._each(lambda sink: sink.close(summary))
        self._open.clear()

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in tuple(self._open):
            try:
                do(sink)
            except Exception as error:  # packages, disks and servers raise any error
                self._open.remove(sink)
                what = f"{type(error).__name__}: {error}"
                self._warn(f"{type(sink).__name__} gets no more lines of this run: {what}")


# --- TensorBoard and MLflow --------------------------------------------------------


@dataclass(frozen=True)
class Extras:
    """The sinks that the operator asks for besides JSON lines.

    Args:
        tensorboard: the folder of all runs; the events of this run go to a folder in it.
        mlflow: a folder, which gets a SQLite database, or any tracking URI of MLflow.
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
        """Raises ConfigError if a package is missing, or the folder has another run's events."""
        if self.tensorboard is not None:
            _import("tensorboard", "tensorboard.summary.writer.event_file_writer")
            run = _events_folder(heading, self.tensorboard)
            if run.exists():
                raise ConfigError(f"--tensorboard: {run} has another run's events; remove it first")
        if self.mlflow is not None:
            _import("mlflow", "mlflow.tracking", "sqlalchemy", "alembic")


@dataclass(frozen=True)
class Heading:
    """The name and the settings of a run, for its charts.

    Args:
        name: of the plan or scenario.
        run: distinguishes this run from others of the plan.
        settings: those of the plan or scenario, nested as in its file.
        groups: the number of groups of the plan.
    """

    name: str
    run: str
    settings: Record
    groups: int
    unsafe: bool

    @property
    def parameters(self) -> dict[str, Any]:
        mark = {"privacy": NO_PRIVACY} if self.unsafe else {}
        return dict(flatten(self.settings)) | mark


def open_sinks(heading: Heading, metrics: Path, extras: Extras) -> tuple[Sink, ...]:
    sinks: list[Sink] = [JsonLines(metrics)]
    try:
        if extras.tensorboard is not None:
            extra = "tensorboard"
            sinks.append(TensorBoard(heading, extras.tensorboard))
        if extras.mlflow is not None:
            extra = "mlflow"
            sinks.append(MLflow(heading, extras.mlflow))
    except Exception as error:  # every package and every store has its own
        raise ConfigError(f"--{extra}: {error}") from None
    return tuple(sinks)


def _import(extra: str, *modules: str) -> None:
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"--{extra}: {error}; {command(extra)}") from None


def _events_folder(heading: Heading, folder: Path) -> Path:
    """The folder of a run; TensorBoard shows only its name, so it says if the seed is unsafe."""
    mark = f"-{'-'.join(NO_PRIVACY.replace(':', '').split())}" if heading.unsafe else ""
    return folder / f"{heading.run}{mark}"


class Tracker(ABC):
    """A sink that writes each number once; names begin with the group if there are several."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._known: set[tuple[At, str]] = set()
        self._end = (0.0, 0)
        """Elapsed seconds and version of the newest line, at which the summary is written."""

    def add(self, line: Line) -> None:
        self._end = max(self._end, (line.elapsed, line.version))
        fresh = {n: v for n, v in line.scalars().items() if (line.at, n) not in self._known}
        self._known |= {(line.at, name) for name in fresh}
        named = {f"{line.group}/{n}" if self._groups > 1 else n: v for n, v in fresh.items()}
        self._write(line.elapsed, line.version, named)

    def close(self, summary: Record | None) -> None:
        if summary is not None:
            self._write(*self._end, _summary_numbers(summary))
        self._finish(summary is not None)

    @abstractmethod
    def _write(self, elapsed: float, version: int, scalars: dict[str, float]) -> None: ...

    @abstractmethod
    def _finish(self, whole: bool) -> None:
        """Ends the run's charts; without `whole` the run was interrupted."""


class TensorBoard(Tracker):
    """Writes scalars by version, and settings for the HParams tab, as event files in `folder`.

    The wall time of events is that of the run, so that "relative" shows virtual seconds in a
    simulation.
    """

    def __init__(self, heading: Heading, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        super().__init__(heading.groups)
        self._event, self._summary = Event, Summary
        self._began = time.time()
        run = _events_folder(heading, folder)
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
    """Writes one run of the MLflow experiment with the plan's name.

    `where` is a folder or a tracking URI; each write waits for the answer of an MLflow server.
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
        self._client.log_batch(self._run, params=parameters)

    def _finish(self, whole: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if whole else "FAILED")

    def _write(self, elapsed: float, version: int, scalars: dict[str, float]) -> None:
        at = int(1000 * (self._began + elapsed))
        metrics = [self._metric(name, value, at, version) for name, value in scalars.items()]
        self._client.log_batch(self._run, metrics=metrics)


def flatten(record: Record) -> Iterator[tuple[str, Any]]:
    """Yields the plain values of a nested record by dotted names; list items by their `name`."""
    for key, value in record.items():
        if isinstance(value, list | tuple):
            if value and all(isinstance(item, dict) and "name" in item for item in value):
                value = {item["name"]: item for item in value}
            else:
                value = ", ".join(str(item) for item in value)
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", leaf) for name, leaf in flatten(value))
        elif value is not None:
            yield key, value


def _summary_numbers(summary: Record) -> dict[str, float]:
    return {
        f"summary/{name}": float(value)
        for name, value in flatten(summary)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _find_places(where: str) -> tuple[str, str | None]:
    """The tracking URI, and the place of artifacts if `where` is a folder.

    A folder gets a database, because MLflow refuses plain folders of runs.
    """
    if not _is_folder(where):
        return where, None
    folder = Path(where).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _is_folder(where: str) -> bool:
    return ":" not in where and where != "databricks"
