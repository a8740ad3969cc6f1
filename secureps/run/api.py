"""`secureps up`, `simulate` and `check` as Python functions, for scripts and notebooks.

They print plain lines instead of a live panel, and return the results.
"""

from __future__ import annotations

import html
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from secureps.arguments import check_types
from secureps.client.trainer import Parameters
from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ConfigError
from secureps.policy.explain.explanation import Explanation
from secureps.run.check import Permit, record, tables
from secureps.run.check import check as examine
from secureps.run.options import ENVIRONMENT
from secureps.run.script.scoring import Score
from secureps.run.up.folder import METRICS, RunFolder
from secureps.run.up.programs import Order
from secureps.store.checkpoint import read_state
from secureps.store.keyring import refuse_unsafe

COLUMNS = 100
"""The width of a checked plan as text."""


@dataclass(frozen=True)
class RunResult:
    """The result of a finished run.

    Args:
        name: the name of the plan or scenario.
        folder: the folder with everything that the run wrote.
        finished: the reason why the run ended.
        versions: the last version of every group.
        seconds: from start to end; virtual seconds if the run was simulated.
        score: loss and metrics of the last model on held-out records; empty if it has no score.
        epsilon: the most that any client spent; None without privacy. Under an unsafe seed nothing
            is private: it is infinite, or, in a simulation, what a secret seed would have spent.
        unsafe: whether the seed was unsafe.
        history: the lines of metrics.jsonl: metrics of each version of each group, in the order of
            publishing.
        figures: charts, as PNG files.

    Examples:
        >>> result = ps.simulate("scenario.toml", quiet=True)
        >>> result.versions, len(result.history)
        ({'all': 3}, 4)
        >>> again = ps.RunResult.read(result.folder)
        >>> again == result
        True
    """

    name: str
    folder: Path
    finished: str
    versions: Mapping[str, int]
    seconds: float
    score: Mapping[str, float]
    epsilon: float | None
    unsafe: bool
    history: tuple[Mapping[str, Any], ...] = field(repr=False)
    figures: tuple[Path, ...] = field(repr=False)

    @classmethod
    def read(cls, folder: Path | str) -> RunResult:
        """Reads the result of a finished run from its folder.

        Raises:
            ConfigError: no run has finished there.
        """
        folder = Path(folder).resolve()
        here = next((each for each in (folder / "report", folder) if _summary(each).exists()), None)
        if here is None:
            raise ConfigError(f"{folder}: no run has ended here: there is no summary.json")
        summary = json.loads(_summary(here).read_text())
        judged, lines = summary["score"], (here / METRICS).read_text().splitlines()
        return cls(
            name=summary["name"],
            folder=folder,
            finished=summary["finished"],
            versions=summary["versions"],
            seconds=summary.get("wall_seconds", summary.get("virtual_seconds")),
            score=Score(**judged).metrics if judged else {},
            epsilon=_epsilon(summary),
            unsafe=summary["unsafe"],
            history=tuple(json.loads(line) for line in lines),
            figures=tuple(sorted(here.glob("*.png"))),
        )

    @property
    def model_path(self) -> Path:
        return RunFolder(self.folder).model

    def model(self) -> Parameters:
        """Reads the last model: a new array for every tensor, by name.

        Raises:
            DamagedStore: the file is missing or damaged.
        """
        return dict(read_state(self.model_path)[0])

    def __str__(self) -> str:
        return "\n".join(f"{label}: {value}" for label, value in self._facts())

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(value)}</td></tr>"
            for label, value in self._facts()
        )
        return f"<table>{''.join(rows)}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        versions = ", ".join(f"{group} {version}" for group, version in self.versions.items())
        score = ", ".join(f"{name} {value:.4f}" for name, value in self.score.items())
        spent = None
        if self.epsilon is not None and (math.isfinite(self.epsilon) or not self.unsafe):
            secret = ", had the seed been secret" if self.unsafe else ""
            spent = f"{self.epsilon:.3f}{secret}"
        facts = {
            "run": self.name,
            "finished": self.finished,
            "versions": versions,
            "seconds": f"{self.seconds:.1f}",
            "held-out score": score,
            "epsilon spent": spent,
            "privacy": NO_PRIVACY if self.unsafe else None,
            "folder": str(self.folder),
        }
        return [(label, value) for label, value in facts.items() if value]


@dataclass(frozen=True)
class PlanCheck:
    """A sound plan, explained; its text is what `secureps check` prints.

    Examples:
        >>> checked = ps.check("plan.toml", run_script=True)
        >>> str(checked).splitlines()[0]
        'line: sound. 3 versions under rlwe, 1 shard.'
        >>> checked.record()["name"]
        'line'
    """

    explanation: Explanation

    def record(self) -> dict[str, Any]:
        """Plain values, as `secureps check --json` prints them."""
        return record(self.explanation)

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=COLUMNS, force_terminal=False, force_jupyter=False)
        with console.capture() as page:
            for part in tables(self.explanation):
                console.print(part)
        return page.get()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@check_types
def check(
    plan: Path | str,
    values: int | Mapping[str, int] | None = None,
    *,
    schema: Path | str | None = None,
    run_script: bool = False,
    fetch: bool = False,
    epsilon: float | None = None,
) -> PlanCheck:
    """Explains who sees what in a plan and what privacy and bytes it costs, or refuses the plan.

    By default the plan is only read, and nothing of it runs. Costs that depend on the model's size
    are unknown unless an argument gives the size.

    Args:
        plan: the file of a plan or a scenario.
        values: the number of values of the model, or of each of its groups by name.
        schema: a JSON file of the model's tensors, names and shapes, in place of `values`.
        run_script: run the plan's script in a process of its own, to see its model.
        fetch: fetch the plan's `initial` if it lies on another machine.
        epsilon: what a client may spend. The plan is explained with the least noise for it, or, if
            the plan states its noise, with the most versions.

    Raises:
        ConfigError, PlanRefused: the plan is unsound; says why.

    Examples:
        >>> print(ps.check("plan.toml", run_script=True))
        line: sound. 3 versions under rlwe, 1 shard.
        ...
    """
    of_model = None if schema is None else Path(schema)
    permit = Permit(run_script, fetch)
    found = examine(Path(plan), values, schema=of_model, permit=permit, epsilon=epsilon)
    return PlanCheck(found)


@check_types
def up(
    plan: Path | str,
    out: Path | str | None = None,
    *,
    unsafe_seed: int | None = None,
    insecure_for_tests: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Plays a plan's whole federation on this machine, each party a process of its own.

    Returns when the run has finished. No process is left, also after Ctrl-C or an error;
    `secureps resume FOLDER` continues a run that was stopped.

    Args:
        plan: the file of a plan with a [federation].
        out: the run's folder; default: runs/NAME-DATE-TIME.
        unsafe_seed: makes the run repeatable, and noise and encryption worthless; needs
            `insecure_for_tests`.
        quiet: print nothing.

    Raises:
        ConfigError, PlanRefused: the plan cannot be played.
        OperatorError: a process died too often.
        SecurepsError: something else ended the run.

    Examples:
        >>> result = ps.up("plan.toml", quiet=True)
        >>> result.versions
        {'all': 3}
        >>> sorted(result.model())
        ['height', 'slope']
    """
    from secureps.run.up.up import up as play_here

    refuse_unsafe(unsafe_seed, insecure_for_tests)
    console = Console(force_terminal=sys.stdout.isatty(), force_jupyter=False, quiet=quiet)
    folder = None if out is None else Path(out)
    environment = {**ENVIRONMENT, **os.environ}
    return RunResult.read(play_here(Order(Path(plan), folder, unsafe_seed, environment), console))


@check_types
def simulate(
    scenario: Path | str, out: Path | str | None = None, *, quiet: bool = False
) -> RunResult:
    """Plays a scenario's many clients, delays and faults in virtual time, in this process.

    The same scenario gives the same model, bit for bit, on the same number of threads: set
    OMP_NUM_THREADS=1 before NumPy or torch is imported for the bits of `secureps simulate`. Noise
    is seeded: no privacy.

    Args:
        scenario: the scenario's file.
        out: the report's folder, which must be empty; default: runs/NAME.
        quiet: print nothing.

    Raises:
        ConfigError: the folder is not empty, or the scenario is wrong.
        SecurepsError: something ended the run early.

    Examples:
        >>> result = ps.simulate("scenario.toml", quiet=True)
        >>> print(result)
        run: line
        finished: ...
        versions: all 3
        seconds: ...
        held-out score: loss ...
        privacy: unsafe seed: no privacy
        folder: ...
        >>> sorted(result.model())
        ['height', 'slope']
    """
    from secureps.run.simulate.simulation import simulate as play

    folder = None if out is None else Path(out)
    return RunResult.read(play(Path(scenario), folder, (lambda line: None) if quiet else print))


def _summary(report: Path) -> Path:
    return report / "summary.json"


def _epsilon(summary: Mapping[str, Any]) -> float | None:
    if not summary["adjacency"]:
        return None
    members = summary.get("members")
    spent = [m["epsilon"] for m in members] if members is not None else [summary["epsilon"]]
    return math.inf if None in spent else max(spent, default=0.0)
