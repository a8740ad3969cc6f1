"""The tables of docs/robustness.md, by the code and by what `python -m tests.chaos` played last.

python -m tests.chaos --first 1200000 --seeds 300 --out benchmarks/results/chaos.json
python -m tests.chaos.report                        writes them into the page
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from secureps.roles.coordinator.group import TRANSITIONS
from tests.chaos import schedule
from tests.chaos.kinds import KNOWN, all_kinds
from tests.chaos.plans import VERSIONS
from tests.chaos.real import schedule as real
from tests.kits.nursery import ROOT

PAGE = ROOT / "docs" / "robustness.md"
RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
BEGIN, END = "<!-- chaos: begin -->\n", "<!-- chaos: end -->\n"

Kinds = tuple[str, ...]
FAMILIES: tuple[tuple[str, Kinds, Kinds], ...] = (
    ("a process dies, its disk forgets what was not synced", schedule.DEATHS, ("kill",)),
    ("a disk is emptied, goes back, or rots", (*schedule.LOSSES, schedule.ROTS), real.LOSSES),
    ("a disk, files or memory run out", ("full",), ("full", "files", "memory")),
    ("a process stands still, a clock leaps", ("pause", "jump"), ("stop",)),
    (
        "a line is cut; messages are lost, repeated, late",
        ("part", *schedule.MESSAGES),
        (*real.ONE_WAY, *real.LINKS),
    ),
    ("clients or key holders cheat", schedule.CHEATS, ()),
    ("the roster changes", schedule.ROSTERS, ("renewed",)),
    ("a standby takes over", schedule.TAKEOVERS, schedule.TAKEOVERS),
    ("shards come and go", schedule.MOVES, schedule.MOVES),
    ("operators act, observers ask", (*schedule.ACTS, schedule.ASKS), ()),
    ("data holders act", schedule.OWN_ACTS, ()),
)
"""Kinds of faults that are alike: simulated, and of real processes."""


def tables() -> str:
    """What is played, and what came of it."""
    played: dict[str, Any] = json.loads(RESULTS.read_text())
    lines = [
        "| what goes wrong | simulated faults | times | faults of real processes |",
        "|---|---|---|---|",
        *(_row(*family, played["faults"]) for family in FAMILIES),
        "",
        f"- **Federations**: {len(schedule.SETTINGS)} plans and variants, {VERSIONS} versions, "
        f"{schedule.CLIENTS} clients, {schedule.SHARDS} shards and up to {schedule.HOLDERS} key "
        f"holders; of real processes {len(real.SETTINGS)} plans of {real.VERSIONS} versions and "
        f"{real.CLIENTS} clients.",
        _covered({kind.partition(" ")[2] for kind in played["kinds"]}),
        _outcome(
            **{name: played[name] for name in ("version", "first", "seeds", "broke", "whole")}
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(what: str, simulated: Kinds, others: Kinds, planted: Mapping[str, int]) -> str:
    names = (", ".join(f"`{each}`" for each in kinds) or "-" for kinds in (simulated, others))
    number = sum(planted.get(each, 0) for each in simulated)
    return f"| {what} | {next(names)} | {number} | {next(names)} |"


def _covered(met: Collection[str]) -> str:
    kinds = all_kinds()
    return (
        f"- **Covered**: a group of parameters changes its state in {len(TRANSITIONS)} ways, and a "
        f"test shows each. Of {len(kinds)} kinds of messages, tasks and orders these seeds met "
        f"{sum(each in met for each in kinds)}; {len(KNOWN)} of the others cannot come up here."
    )


def _outcome(version: str, first: int, seeds: int, broke: Sequence[int], whole: int) -> str:
    named = f" ({', '.join(map(str, broke))})" if broke else ""
    return (
        f"- **Outcome**: of {seeds} seeds from {first:,} on, version {version}, {len(broke)} broke "
        f"a promise{named}. {whole} runs made all versions; {seeds - len(broke) - whole} could "
        "not, and said why."
    )


def page() -> str:
    """The page with its tables made anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{tables()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
