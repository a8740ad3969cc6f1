"""What a server's file may not say is refused before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.errors import ConfigError, PlanRefused
from secureps.run.serve import serve
from secureps.store.keyring import create_kit, issue

PLAN = """
name = "small"
versions = 3
cipher = { name = "plain" }
[[group]]
rule = { quorum = 6 }
weighting = "uniform"
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 1e-5
budget = 0.01
"""


def config(folder: Path, name: str) -> Path:
    create_kit(folder / "kit", CipherParameters("plain", 8, 14))
    issue(folder / "kit", "coordinator", "coordinator")
    issue(folder / "kit", "shard", "shard-0")
    issue(folder / "kit", "holder", "holder-0")
    (folder / "plan.toml").write_text(PLAN)
    lines = (f'name = "{name}"', 'kit = "kit"', f'state = "{name}"', 'coordinator = "127.0.0.1:1"')
    path = folder / f"{name}.toml"
    more = 'plan = "plan.toml"\ncheckpoints = "checkpoints"\n'
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def test_a_name_serves_in_its_own_role(tmp_path: Path) -> None:
    path = config(tmp_path, "shard-0")
    told = r"shard-0 is a shard's and not a holder's; on the roster as holder: holder-0"
    with pytest.raises(ConfigError, match=told):
        serve("keyholder", path)
    assert not (tmp_path / "shard-0").exists()


def test_a_coordinator_founds_no_run_whose_budget_is_too_small(tmp_path: Path) -> None:
    path = config(tmp_path, "coordinator")
    with pytest.raises(PlanRefused, match=r"plan\.toml: privacy\.budget: 0\.01 allows no version"):
        serve("coordinator", path)
    assert not (tmp_path / "coordinator").exists()
