"""`secureps check`: a plan in a page, before anybody runs it.

What must not live here: what the numbers are (`policy.explanation`), and why a plan is
refused (`policy.plan`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from secureps.client.hands import schema_of
from secureps.client.script import Script, refuse_privacy
from secureps.errors import ConfigError
from secureps.messages.schema import Schema
from secureps.policy.explanation import Explanation, Price, explain
from secureps.policy.plan import Plan, load_plan
from secureps.run.progress import size
from secureps.run.serve import initial_schema


def check(path: Path, values: int | None = None) -> Explanation:
    """Reads a plan, refuses it or explains it.

    Args:
        path: the plan's file.
        values: of the model, where the plan has one group; default: of the plan's `initial`
            file, or of the model that its [federation] script makes.

    Raises:
        ConfigError, PlanRefused: the plan is unsound; or nothing says how large the model is.
    """
    plan = load_plan(path)
    federation = plan.section.federation
    if federation is not None:
        refuse_privacy(path.parent / federation.script, plan)
    return explain(plan, _sizes(plan, path, values))


def _sizes(plan: Plan, path: Path, values: int | None) -> dict[str, int]:
    if values is not None:
        if len(plan.groups) != 1:
            raise ConfigError(f"--values: {path} has {len(plan.groups)} groups; name a script")
        (group,) = plan.groups
        return {group: values + (plan.adaptive(group) is not None)}
    return {group.name: group.size for group in plan.layout(_schema(plan, path)).groups}


def _schema(plan: Plan, path: Path) -> Schema:
    initial = initial_schema(plan)
    if initial is not None:
        return initial
    federation = plan.section.federation
    if federation is None:
        raise ConfigError(
            f"{path} names neither an initial file nor a script: give the model's size by --values"
        )
    script = Script(path.parent / federation.script)
    own = {"partition": 0, "partitions": federation.clients}
    settings = {key: str(value) for key, value in {**federation.settings, **own}.items()}
    return schema_of(script.make(settings).parameters(0))


def record(explanation: Explanation) -> dict[str, Any]:
    """Plain values for JSON; infinity, which JSON has not, becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    made: dict[str, Any] = plain(asdict(explanation))
    return made


def tables(explanation: Explanation) -> Iterable[Table | Text]:
    """The page."""
    yield Text(
        f"{explanation.name}: sound. {explanation.versions} versions under {explanation.cipher}, "
        f"{explanation.shards} shards.",
        "bold",
    )
    yield _table(
        "who sees what",
        ("role", "sees", "never sees"),
        [(s.role, s.sees, s.never) for s in explanation.sights],
    )
    yield Text(f"Who can open a single update: {explanation.collusion}.")
    yield Text()
    yield _price(explanation.price)
    yield _table(
        "what it costs",
        ("group", "values", "blocks", "bits", "cohort", "up per update", "to fp32", "down at most"),
        [
            (
                group.name,
                f"{group.values:,}",
                str(group.blocks),
                str(group.bits),
                f"{group.cohort[0]} to {group.cohort[1]}",
                size(group.bytes_up),
                f"{group.ratio:.2f} x",
                size(group.bytes_down),
            )
            for group in explanation.groups
        ],
    )
    yield Text(
        f"Each shard keeps {size(explanation.shard_state)} of model and optimizer in memory, and "
        f"up to {size(explanation.shard_spool)} of updates on disk while a cohort is open."
    )
    for remark in explanation.remarks:
        yield Text(f"note: {remark}", "yellow")


def _price(price: Price | None) -> Table | Text:
    if price is None:
        return Text("privacy: none")
    noise = ", ".join(f"{value:.3g} in {name}" for name, value in price.noise.items())
    return _table(
        "what privacy spends",
        ("what", "how much"),
        [
            ("protected", price.unit),
            ("epsilon of one version", f"{price.epsilon_version:.3f} (delta {price.delta:g})"),
            ("epsilon of the run", f"{price.epsilon_run:.3f}"),
            ("budget", f"{price.budget:g}: enough for {price.versions} versions"),
            ("noise on a mean value, smallest cohort", f"{noise} (in clip / sqrt(values))"),
        ],
    )


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
