"""Prints the status of a run, and the summary at its end, as tables or as JSON.

Tables fit any width: cells wrap between words, and a table whose longest words do not fit beside
each other becomes a list.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages.evaluation import EvaluationStatus, Metric, VersionEvaluated
from secureps.messages.records import describe_starts
from secureps.messages.requests import Holding, MemberStatus, ServerStatus, Status
from secureps.messages.run import STANDBY
from secureps.messages.scaling import ScalingStatus
from secureps.policy.cohorts import suspicion
from secureps.roles.shard.memory_report import MemoryUsed, memory_used
from secureps.run.report.terminal import fold_versions, move_text, reason_line, table
from secureps.wording import counted, finite, group_by_reason, named, printable, size

ROLES = {"shard": "shard", "holder": "key holder"}

_NAMES = re.compile(r"\(.*?\)")
"""The names in a reason, which differ from version to version."""

SKIPS = 6
"""The most reasons for skipped versions, and versions of each, that are shown."""

STATES = (
    "failed",
    "left out",
    "revoked",
    "gone",
    "stopped",
    "rests",
    "not known",
    "trains",
    "waits",
    "ended",
)
"""The order of clients by state; states that need the operator's attention come first."""

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from secureps.run.script.scoring import Baselines, Score


def show(status: Status, console: Console) -> None:
    for part in tables(status):
        console.print(part)


def show_json(status: Status, console: Console) -> None:
    text = json.dumps(record(status))
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def show_fitting(status: Status, console: Console) -> None:
    """Prints as much as the terminal has room for, beginning with clients in trouble."""
    room = max(console.height - 2, 1)  # leave room for a message and the cursor
    parts = list(tables(status))
    over = sum(len(console.render_lines(part)) for part in parts) - room
    if over > 0:
        parts = list(tables(status, max(len(status.members) - over - 1, 1)))
    rows = [row for part in parts for row in console.render_lines(part, pad=False)]
    for row in rows[:room]:
        text = Text.assemble(*((each.text, each.style or "") for each in row))
        console.print(text, soft_wrap=True)


def record(status: Status) -> dict[str, Any]:
    known = {h.shard: h for h in status.holdings}
    used = memory_used(status.telemetry)
    plain = asdict(replace(status, telemetry=()))
    for own in ("telemetry", "holdings", "clock"):
        del plain[own]
    return plain | {
        "run": status.run.hex(),
        "delta": status.delta if status.adjacency else None,
        "members": [asdict(m) | {"epsilon": finite(m.epsilon)} for m in status.members],
        "servers": [asdict(s) | {"state": _state_text(s, status)} for s in status.servers],
        "shards": [
            asdict(s)
            | {"blocks": held.blocks, "bytes": held.bytes}
            | {"memory": asdict(used[s.name]) if s.name in used else None}
            for s in status.shards
            for held in (known.get(s.name, Holding(s.name, 0, 0)),)
        ],
    }


def _printable(value: Any) -> Any:
    """Removes control characters from all texts in a value, which could steer the terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _printable(getattr(value, f.name)) for f in fields(value)})
    return value


def tables(status: Status, clients: int | None = None) -> Iterable[WordTable | Text]:
    used = memory_used(status.telemetry)
    status = _printable(replace(status, telemetry=()))  # the coordinator may be hostile
    if not status.run:
        here = ", ".join(server.name for server in status.servers if server.registered)
        yield Text(f"{reason_line(status.groups)} (registered: {here or 'nobody'})")
        yield from _server_tables(status, used)
        return
    started = describe_starts(status.incarnation) or "running"
    yield Text(f"run {status.run.hex()[:16]}: {status.finished or status.paused or started}")
    heads, rows = table(status.groups)
    yield WordTable("groups" if len(rows) > 1 else "the model", heads, rows)
    if told := cohort_sizes(status):
        yield Text(told)
    if status.evaluation is not None:
        own = status.evaluation
        if not status.finished:
            yield Text(f"evaluation {own.step}: {own.reason}")
        if own.results or own.skipped:
            yield from evaluation_parts(own)
    yield WordTable(
        f"clients{epsilon_title(status.adjacency, status.delta)}",
        ("client", "state", "updates", "charges", "epsilon"),
        list(_client_rows(status.members, clients)),
    )
    if status.move is not None:
        yield Text(move_text(status.move), "cyan")
    if status.scaling is not None:
        yield Text("\n".join(scaling_lines(status.scaling)))
    yield from _server_tables(status, used)


def cohort_sizes(status: Status) -> str:
    """Says how many clients the newest version of each group has; empty before any version."""
    made = {each.group: each for each in status.steps if each.committed is not None}
    known = [made[group.name] for group in status.groups if group.name in made]
    told = {each.group: f"of {counted(each.members, 'client')}" for each in known}
    if len(told) == 1:
        return f"version {known[0].version} is {next(iter(told.values()))}"
    return f"newest versions: {group_by_reason(told)}" if told else ""


def scaling_lines(own: ScalingStatus) -> Iterator[str]:
    yield f"scaling by {own.policy}: {own.off or 'on'}"
    if own.loads:
        came = (f"{each.shard} {size(each.bytes_per_second)}/s" for each in own.loads)
        yield f"  came to {', '.join(came)}"
    if own.steps:
        yield f"  {own.reward:.3g} updates/s that count, {own.lost:.0%} lost"
    for step in own.steps:
        yield f"  at {step.at:.0f} s: {step.what}: {step.reason}"


def _client_rows(
    members: tuple[MemberStatus, ...], most: int | None
) -> Iterable[tuple[str, str, str, str, str]]:
    shown, rest = members, members[:0]
    if most is not None and len(members) > most:
        order = sorted(members, key=lambda m: STATES.index(state_word(m.state)))
        shown, rest = tuple(order[:most]), tuple(order[most:])
    for each in sorted(shown, key=lambda m: m.name):
        counts = (str(each.submissions), str(each.charges))
        yield each.name, each.state, *counts, epsilon_text(each)
    if rest:
        states = Counter(state_word(each.state) for each in rest)
        told = ", ".join(f"{states[state]} {state}" for state in STATES if state in states)
        yield f"{len(rest)} more", told, "", "", ""


def state_word(state: str) -> str:
    return state.partition(":")[0]


def _server_tables(status: Status, used: Mapping[str, MemoryUsed]) -> Iterable[WordTable]:
    if not status.servers and not status.shards:
        return  # the status was read from a journal, before any shard had registered
    yield WordTable("servers", ("server", "role", "state"), list(_server_rows(status)))
    held = {h.shard: (str(h.blocks), size(h.bytes)) for h in status.holdings}
    none = ("0", size(0)) if held else ("-", "-")  # for a spare shard, or before there are blocks
    yield WordTable(
        "shards",
        ("shard", "address", "weight", "blocks", "of the model"),
        [(s.name, s.advertise, f"{s.weight:g}", *held.get(s.name, none)) for s in status.shards],
    )
    if limited := [(s.name, used[s.name].told) for s in status.shards if s.name in used]:
        yield WordTable("values and optimizer state in memory", ("shard", "at its newest"), limited)


def _server_rows(status: Status) -> Iterator[tuple[str, str, str]]:
    rows = dict[tuple[str, ...], list[str]]()
    for each in status.servers:
        alone = () if each.trouble else (each.name,)
        role = ROLES.get(each.role, each.role)
        rows.setdefault((role, _state_text(each, status), *alone), []).append(each.name)
    for (role, state, *_), names in rows.items():
        yield ", ".join(names), role, state


def _state_text(server: ServerStatus, status: Status) -> str:
    state = "live" if server.live else "away" if server.registered else "awaited"
    if status.has_ended(server):
        state = "ended"
    if server.name == STANDBY:
        state = "follows" if server.live else "away: it cannot take over"
    state += f"; {suspicion.accusation(server.accuses)}" if server.accuses else ""
    return f"{state}; {server.trouble}" if server.trouble else state


def epsilon_title(adjacency: str, delta: float | None) -> str:
    """The end of a title that explains epsilons; empty without privacy."""
    return f"; epsilon (delta {delta:g}) is of {adjacency}" if adjacency else ""


def evaluation_parts(own: EvaluationStatus) -> Iterable[WordTable | Text]:
    """Shows the newest and the best evaluation, with +- noise, and why versions were skipped."""
    title = f"the federation's own evaluation, {counted(len(own.results), 'version')}"
    if own.results:
        newest, noise = own.results[-1], {metric.name: metric.value for metric in own.noise}
        judged = [("newest", newest)]
        judged += [("best", result) for result in own.results if result.version == own.best]
        yield WordTable(
            title,
            ("", "version", *(metric.name for metric in newest.metrics)),
            [
                (label, str(result.version), *_metric_cells(result, newest, noise))
                for label, result in judged
            ],
        )
    else:
        yield Text(title, "yellow")
    for text in skip_lines(own):
        yield Text(text, "yellow")


def skip_lines(own: EvaluationStatus) -> Iterator[str]:
    alike = groupby(own.skipped, lambda each: _NAMES.sub("", each.reason))
    reasons = [list(run) for _, run in alike]
    if earlier := sum(map(len, reasons[:-SKIPS])):
        yield f"skipped: {earlier} versions before these"
    for run in reasons[-SKIPS:]:
        why = run[0].reason
        text = f"skipped: version {named([str(each.version) for each in run], SKIPS)}"
        yield f"{text}: {why}" if why else text


def _metric_cells(
    result: VersionEvaluated, as_in: VersionEvaluated, noise: Mapping[str, float]
) -> Iterator[str]:
    """Cells of a result for the metrics of another one; a metric that is missing stays empty."""
    own = {metric.name: metric for metric in result.metrics}
    for name in (metric.name for metric in as_in.metrics):
        yield _metric_text(own[name], noise) if name in own else ""


def _metric_text(metric: Metric, noise: Mapping[str, float]) -> str:
    """A metric's value; if it has noise, rounded to its standard deviation, which is shown too."""
    if metric.name not in noise:
        return f"{metric.value:.4f}"
    deviation = noise[metric.name]
    digits = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{metric.value:.{digits}f} +- {deviation:.{digits}f}"


def epsilon_text(member: MemberStatus) -> str:
    if member.unsafe:
        return NO_PRIVACY
    return "no privacy" if math.isinf(member.epsilon) else f"{member.epsilon:.3f}"


# --- tables that fit narrow terminals ----------------------------------------------


class WordTable:
    """A table that never cuts words, with a heading that may be wider than the table.

    With `numbers` all columns but the first are right-aligned.
    """

    def __init__(
        self,
        heading: str,
        heads: Iterable[str],
        rows: Iterable[Iterable[str]],
        numbers: bool = False,
    ) -> None:
        self.heading, self.heads, self.numbers = heading, tuple(heads), numbers
        self.rows = [tuple(row) for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.heading, "table.title")
        columns = list(zip(self.heads, *self.rows, strict=True))
        words = [max(map(cell_len, " ".join(cells).split()), default=0) for cells in columns]
        lines = [max(map(cell_len, "\n".join(cells).splitlines()), default=0) for cells in columns]
        borders = 1 + 3 * len(columns)
        room = options.max_width - borders - sum(words)
        if room < 0:
            yield from self._list_rows()
            return
        table, missing = Table(), [line - word for line, word in zip(lines, words)]
        given = dict.fromkeys(range(len(columns)), 0)
        for place, k in enumerate(sorted(given, key=missing.__getitem__)):  # small needs first
            given[k] = min(missing[k], room // (len(columns) - place))
            room -= given[k]
        for k, head in enumerate(self.heads):
            justify: JustifyMethod = "right" if self.numbers and k else "left"
            table.add_column(
                Text(head), width=words[k] + given[k], overflow="fold", justify=justify
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        yield table

    def _list_rows(self) -> Iterator[Text]:
        for first, *cells in self.rows:
            yield Text(f"{self.heads[0]}: {first}" if self.heads[0] else first)
            for head, cell in zip(self.heads[1:], cells):
                if cell:
                    yield Text(f"  {head}: {cell}")


# --- the summary at a run's end ----------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """The summary of a finished run.

    Args:
        finished: why it ended.
        score: of the federation's model.
        baselines: the scores of other models, and all notes about the run.
        delta: None without privacy.
        adjacency: what every epsilon protects; empty without privacy.
        budget: the epsilon at which each client stops.
        updates: how many updates of each client arrived, also those that are in no version.
        counted: the number of updates that the costs include.
        bytes_up, bytes_down: of all clients together.
        ratio_up, ratio_down: bytes per update, relative to plain fp32; None without updates, or if
            no model was written.
        seconds: by stage, summed over parties.
        failure: the name of the error that ended it; empty if the plan foresees this end.
        totals: of sums, by tensor (`describe_total`).
    """

    name: str
    finished: str
    versions: dict[str, int]
    score: Score | None
    baselines: Baselines
    delta: float | None
    adjacency: str
    budget: float | None
    members: tuple[MemberStatus, ...]
    bytes_up: float
    bytes_down: float
    seconds: dict[str, float]
    updates: dict[str, int]
    counted: int
    unsafe: bool
    wall_seconds: float = 0.0
    ratio_up: float | None = None
    ratio_down: float | None = None
    evaluation: EvaluationStatus | None = None
    failure: str = ""
    totals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        members = [asdict(m) | {"epsilon": finite(m.epsilon)} for m in self.members]
        note = {"privacy": NO_PRIVACY} if self.unsafe else {}
        return asdict(self) | {"members": members} | note


def summary_tables(summary: Summary) -> Iterable[WordTable | Text]:
    if summary.unsafe:
        yield Text(NO_PRIVACY, "bold red")
    yield _models(summary)
    if summary.totals:
        yield _totals(summary)
    own = summary.evaluation
    if own is not None and (own.results or own.skipped):
        yield from evaluation_parts(own)
    if own is not None and own.results and summary.score is not None:
        judge = own.results[-1].by
        whose = f"what {judge} found" if judge else "the mean of what its clients found, each"
        yield Text(
            'These are two scores: "held-out" is the script\'s, on records that it reads on this '
            f"machine; the federation's own is {whose} on held-out records of its own."
        )
    yield _holders(summary)
    yield _costs(summary)
    for note in summary.baselines.notes:
        yield Text(f"note: {note}", "yellow")
    if summary.unsafe:
        yield Text(NO_PRIVACY, "bold red")


TOTALS = 24
"""The most values of a tensor that are shown of its total."""


def describe_total(array: NDArray[Any], clients: int | None = None) -> dict[str, Any]:
    """Describes the total of a tensor over `clients` (None: unknown), with its first values."""
    values = tuple(array.reshape(-1)[:TOTALS].tolist())
    return {"shape": array.shape, "count": array.size, "values": values, "clients": clients}


def _totals(summary: Summary) -> WordTable:
    """Shows the newest totals of sums, a row for each tensor; of long ones the first values."""
    rows = []
    for name, total in summary.totals.items():
        told = " ".join(f"{value:,.10g}" for value in total["values"])
        more = total["count"] - len(total["values"])
        told += f" and {more:,} more values, all in model.safetensors" if more else ""
        shape = " x ".join(map(str, total["shape"])) or "one value"
        clients = "unknown" if total["clients"] is None else str(total["clients"])
        rows.append((name, shape, clients, told))
    how = "exact totals" if summary.delta is None else "totals with the plan's noise"
    heads = ("tensor", "shape", "over clients", "total")
    return WordTable(f"{how}, of the newest version", heads, rows)


def _models(summary: Summary) -> WordTable | Text:
    baselines, newest = summary.baselines, fold_versions(summary.versions)
    scores = [s for s in (summary.score, baselines.central, *baselines.alone.values()) if s]
    if not scores:
        return Text(f"{summary.name}: {summary.finished} (version {newest})")
    others = sorted({name for score in scores for name in score.others})
    measures = dict.fromkeys((scores[0].measure, *others, "loss"))
    models: dict[str, Collection[Score | None]] = {
        f"federation (version {newest})": [summary.score]
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
    return WordTable(f"{summary.name}: {summary.finished}", heads, rows, numbers=True)


def _holders(summary: Summary) -> WordTable:
    private = summary.delta is not None
    rows = []
    for member in summary.members:
        alone = summary.baselines.alone.get(member.name)
        score = (f"{alone.value:.4f}" if alone else "-",) if summary.baselines.alone else ()
        charged = (epsilon_text(member), f"{summary.budget:g}") if private else ()
        arrived = str(summary.updates.get(member.name, 0))
        rows.append((member.name, *score, arrived, *charged))
    compared = ("alone",) if summary.baselines.alone else ()
    heads = ("holder", *compared, "arrived", *(("epsilon", "budget") if private else ()))
    title = f"data holders{epsilon_title(summary.adjacency, summary.delta)}"
    return WordTable(title, heads, rows, numbers=True)


def _costs(summary: Summary) -> WordTable:
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
    return WordTable(title, ("what", "in all", "per update", "to plain fp32"), rows, numbers=True)
