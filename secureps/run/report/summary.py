"""Summarizes a run: the tables at its end, and the same as JSON for programs.

Every number was measured in this run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages.evaluation import EvaluationStatus
from secureps.messages.requests import MemberStatus
from secureps.run.report.group_labels import folded
from secureps.run.report.status_tables import evaluations, ofwhat, spent
from secureps.run.report.tables import filled
from secureps.run.script.baselines import Baselines
from secureps.run.script.scoring import Score
from secureps.wording import finite, size


@dataclass(frozen=True)
class Summary:
    """The summary of a finished run.

    Args:
        finished: why it ended.
        score: of the federation's model; baselines: of the others.
        delta: None without privacy; budget: the epsilon at which each client stops; adjacency: what
            every epsilon is of, empty without privacy.
        updates: how many of each client arrived, be they part of a version or not; counted: of how
            many the costs are.
        bytes_up, bytes_down: of all clients together; the ratios are per update, to the
            same values as plain fp32; None if there was no update.
        seconds: by stage, summed over parties.
        failure: names the error that it ended with; empty if the plan foresees this end.
    """

    name: str
    finished: str
    wall_seconds: float
    versions: dict[str, int]
    score: Score | None
    baselines: Baselines
    delta: float | None
    adjacency: str
    budget: float | None
    members: tuple[MemberStatus, ...]
    bytes_up: float
    bytes_down: float
    ratio_up: float | None
    ratio_down: float | None
    seconds: dict[str, float]
    updates: dict[str, int]
    counted: int
    unsafe: bool
    evaluation: EvaluationStatus | None = None
    failure: str = ""

    def record(self) -> dict[str, Any]:
        members = [asdict(m) | {"epsilon": finite(m.epsilon)} for m in self.members]
        note = {"privacy": NO_PRIVACY} if self.unsafe else {}
        return asdict(self) | {"members": members} | note


def tables(summary: Summary) -> Iterable[Table | Text]:
    if summary.unsafe:
        yield Text(NO_PRIVACY, "bold red")
    yield _models(summary)
    own = summary.evaluation
    if own is not None and (own.results or own.skipped):
        yield from evaluations(own)
    yield _holders(summary)
    yield _costs(summary)
    for note in summary.baselines.notes:
        yield Text(f"note: {note}", "yellow")
    if summary.unsafe:
        yield Text(NO_PRIVACY, "bold red")


def _models(summary: Summary) -> Table:
    baselines = summary.baselines
    scores = [s for s in (summary.score, baselines.central, *baselines.alone.values()) if s]
    others = sorted({name for score in scores for name in score.others})
    measures = dict.fromkeys((scores[0].measure if scores else "score", *others, "loss"))
    models: dict[str, Collection[Score | None]] = {
        f"federation (version {folded(summary.versions)})": [summary.score]
    }
    how = ", without noise" if baselines.noiseless else ""
    for which, score in baselines.outer.items():
        models[f"one holder alone{how}, {which}"] = [score]
    if baselines.alone:
        models[f"one holder alone{how}, on average"] = baselines.alone.values()
    if baselines.central is not None:
        models["all data at one party, no privacy"] = [baselines.central]

    def mean(each: str, of: Collection[Score | None]) -> str:
        values = [score.metrics[each] for score in of if score and each in score.metrics]
        return f"{sum(values) / len(values):.4f}" if values else "-"

    heads = ("model", *(f"held-out {each}" for each in measures))
    rows = [(model, *(mean(each, of) for each in measures)) for model, of in models.items()]
    return filled(f"{summary.name}: {summary.finished}", heads, rows, numbers=True)


def _holders(summary: Summary) -> Table:
    private = summary.delta is not None
    rows = []
    for member in summary.members:
        alone = summary.baselines.alone.get(member.name)
        score, arrived = f"{alone.value:.4f}" if alone else "-", summary.updates.get(member.name, 0)
        charged = (spent(member), f"{summary.budget:g}") if private else ()
        rows.append((member.name, score, str(arrived), *charged))
    heads = ("holder", "alone", "arrived", *(("epsilon", "budget") if private else ()))
    title = f"data holders{ofwhat(summary.adjacency, summary.delta)}"
    return filled(title, heads, rows, numbers=True)


def _costs(summary: Summary) -> Table:
    title = f"costs of {summary.counted} updates, in {summary.wall_seconds:.1f} s"
    count, rows = max(summary.counted, 1), []
    for label, total, ratio in (
        ("bytes up", summary.bytes_up, summary.ratio_up),
        ("bytes down", summary.bytes_down, summary.ratio_down),
    ):
        times = "-" if ratio is None else f"{ratio:.2f} x"
        rows.append((label, size(total), size(total / count), times))
    for stage, seconds in summary.seconds.items():
        rows.append((f"{stage}, all parties", f"{seconds:.2f} s", f"{seconds / count:.3f} s", ""))
    return filled(title, ("what", "in all", "per update", "to plain fp32"), rows, numbers=True)
