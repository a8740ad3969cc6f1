"""What docs/operations.md says of bytes is what `secureps check` computes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import slow_line
from benchmarks.slow_client import SHAPE
from secureps.run.cli import app
from secureps.wording import size
from tests.kits.command import said
from tests.kits.documented import OPERATIONS

PAGE = " ".join(OPERATIONS.read_text().split())


def checked(folder: Path, plan: str, values: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a group costs, and what a shard needs."""
    path = folder / "plan.toml"
    path.write_text(plan)
    found = json.loads(said(app, "check", path, "--values", str(values), "--json"))
    (group,) = found["groups"]
    return group, found["shard"]


def test_the_worked_example(tmp_path: Path) -> None:
    found = re.search(r"cat > plan\.toml <<'END'\n(.*?)END\n", OPERATIONS.read_text(), re.DOTALL)
    assert found is not None
    group, shard = checked(tmp_path, found.group(1), 1_000_000)
    said = (
        f"(`--values 1000000`) {size(group['bytes_up'])} up an update, "
        f"{size(group['bytes_down'])} down a version, and on the shard's disk "
        f"{size(shard['disk'])} of updates while a cohort of four is open"
    )
    assert said in PAGE
    assert group["cohort"][1] == 4


def test_the_slow_line(tmp_path: Path) -> None:
    plan = slow_line._PLAN.format(quorum=3, deadline=60.0).format(versions=5, cipher="rlwe")
    values = SHAPE[0] * SHAPE[1]
    group, _ = checked(tmp_path, plan, values)
    found = re.search(r"([\d,]+) values under `rlwe`: ([\d.]+) MB up and ([\d.]+) MB down", PAGE)
    assert found is not None
    assert int(found.group(1).replace(",", "")) == values
    # the receipt, envelopes and headers are on the line too
    assert float(found.group(2)) == pytest.approx(group["bytes_up"] / 1e6, rel=0.03)
    assert float(found.group(3)) == pytest.approx(group["bytes_down"] / 1e6, rel=0.03)
    (seconds,) = re.findall(r"which the line takes ([\d.]+) seconds for", PAGE)
    both = (group["bytes_up"] + group["bytes_down"]) * 8 / 1e6
    assert float(seconds) == pytest.approx(both, rel=0.05), "of one Mbit each"
