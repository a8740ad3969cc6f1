"""What a server's file, plan or kit may not say is refused before anything is served."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.errors import ConfigError, KitError, PlanRefused
from secureps.messages.records import RunPinned
from secureps.policy.plan import load_plan
from secureps.roles.machine import Halt
from secureps.run import serve as module
from secureps.run.serve import serve
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import SqliteJournal
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

PLAN = """
name = "trial"
versions = 1
[cipher]
name = "{cipher}"
capacity = 8
[[group]]
bits = 12
rule = {{ quorum = 6 }}
"""


def folder(tmp_path: Path, kit: str, plan: str, holders: int) -> Path:
    """A coordinator's configuration, with a kit that was made for the cipher `kit`."""
    (tmp_path / "kit.toml").write_text(PLAN.format(cipher=kit))
    (tmp_path / "plan.toml").write_text(PLAN.format(cipher=plan))
    create_kit(tmp_path / "kit", load_plan(tmp_path / "kit.toml").cipher_parameters)
    issue(tmp_path / "kit", "coordinator", "coordinator")
    for i in range(holders):
        issue(tmp_path / "kit", "holder", f"holder-{i}")
    config = tmp_path / "coordinator.toml"
    config.write_text(
        'name = "coordinator"\nkit = "kit"\nstate = "state"\nplan = "plan.toml"\n'
        'checkpoints = "checkpoints"\n'
    )
    return config


@pytest.mark.parametrize(
    ("kit", "plan", "holders", "reason"),
    [
        ("rlwe", "rlwe", 3, "the plan has 4 key holders, and the kit keys of 3: have the missing"),
        ("rlwe", "rlwe", 5, "the plan has 4 key holders, and the kit keys of 5: take off"),
        ("rlwe", "bfv", 1, "made for another cipher than the plan's: its holders have rlwe keys"),
        ("plain", "rlwe", 4, "made for another cipher than the plan's: its holders have no keys"),
        ("rlwe", "plain", 4, "made for another cipher than the plan's"),
    ],
)
def test_a_coordinator_starts_with_a_kit_for_its_plan_alone(
    tmp_path: Path, kit: str, plan: str, holders: int, reason: str
) -> None:
    config = folder(tmp_path, kit, plan, holders)
    with pytest.raises(KitError, match=reason):
        serve("coordinator", config)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("holders", [3, 5])
def test_a_coordinator_of_a_run_comes_back_whoever_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holders: int
) -> None:
    config, served = folder(tmp_path, "rlwe", "rlwe", holders), list[Any]()

    def run(*own: Any) -> Halt:
        served.append(own)
        return Halt("over")

    monkeypatch.setattr(module, "_run", run)
    (tmp_path / "state").mkdir(mode=0o700)
    plan = make_plan("rlwe")
    pinned = RunPinned(make_run(plan), make_placement(plan), ADDRESSES)
    with closing(SqliteJournal(tmp_path / "state" / "journal.db")) as journal:
        with pytest.raises(KitError, match=f"the kit keys of {holders}"):
            serve("coordinator", config)
        journal.append(0.0, [pinned])
    serve("coordinator", config)
    assert len(served) == 1


def test_a_holder_starts_with_a_key_alone(tmp_path: Path) -> None:
    folder(tmp_path, "plain", "plain", 1)
    config = tmp_path / "holder-0.toml"
    config.write_text(
        'name = "holder-0"\nkit = "kit"\nstate = "state"\ncoordinator = "127.0.0.1:9"\n'
    )
    with pytest.raises(KitError, match="has no cipher key of a holder called holder-0"):
        serve("keyholder", config)


SMALL = """
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


def served(folder: Path, name: str) -> Path:
    create_kit(folder / "kit", CipherParameters("plain", 8, 14))
    issue(folder / "kit", "coordinator", "coordinator")
    issue(folder / "kit", "shard", "shard-0")
    issue(folder / "kit", "holder", "holder-0")
    (folder / "plan.toml").write_text(SMALL)
    lines = (f'name = "{name}"', 'kit = "kit"', f'state = "{name}"', 'coordinator = "127.0.0.1:1"')
    path = folder / f"{name}.toml"
    more = 'plan = "plan.toml"\ncheckpoints = "checkpoints"\n'
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def test_a_name_serves_in_its_own_role(tmp_path: Path) -> None:
    path = served(tmp_path, "shard-0")
    told = r"shard-0 is a shard's and not a holder's; on the roster as holder: holder-0"
    with pytest.raises(ConfigError, match=told):
        serve("keyholder", path)
    assert not (tmp_path / "shard-0").exists()


def test_a_coordinator_founds_no_run_whose_budget_is_too_small(tmp_path: Path) -> None:
    path = served(tmp_path, "coordinator")
    with pytest.raises(PlanRefused, match=r"plan\.toml: privacy\.budget: 0\.01 allows no version"):
        serve("coordinator", path)
    assert not (tmp_path / "coordinator").exists()


def test_a_coordinator_alone_has_a_standby_that_knows_whom_it_follows(tmp_path: Path) -> None:
    config = folder(tmp_path, "plain", "plain", 0)
    issue(tmp_path / "kit", "shard", "shard-0")
    (tmp_path / "shard.toml").write_text('name = "shard-0"\nkit = "kit"\nstate = "s"\n')
    with pytest.raises(ConfigError, match="a shard has no standby: --standby is for a coord"):
        serve("shard", tmp_path / "shard.toml", standby=True)
    with pytest.raises(ConfigError, match="coordinator that it follows is missing"):
        serve("coordinator", config, standby=True)


def test_a_server_is_pinned_to_a_node_that_is_there_before_anything_else(tmp_path: Path) -> None:
    """Nothing of it is there yet: neither its kit nor its state."""
    config = tmp_path / "shard-0.toml"
    config.write_text('name = "shard-0"\nkit = "kit"\nstate = "state"\npin = "999"\n')
    with pytest.raises(ConfigError) as caught:
        serve("shard", config)
    assert str(caught.value).startswith(f"{config}: pin: there is no NUMA node 999: ")
    config.write_text('name = "shard-0"\nkit = "kit"\nstate = "state"\npin = "both"\n')
    with pytest.raises(ConfigError, match="pin: must be auto, off, or the number of a NUMA node"):
        serve("shard", config)
