"""PROJECT_NAME can be played, and its holders learn together. Run it by `pytest`."""

from __future__ import annotations

from pathlib import Path

import secureps as ps

PLAN = Path(__file__).parent / "plan.toml"


def test_the_plan_can_be_played() -> None:
    """`ps.check` raises an error if the plan or its script is wrong."""
    ps.check(PLAN, run_script=True)


def test_holders_learn_together(tmp_path: Path) -> None:
    """Their model classifies held-out records; all parties run on this machine meanwhile."""
    result = ps.up(PLAN, tmp_path / "run", quiet=True)
    assert result.score["accuracy"] > 0.8
