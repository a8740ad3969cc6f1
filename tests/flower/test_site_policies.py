"""A node inside Flower's engine keeps to every key of its site's policy, whatever the plan says."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from secureps.config.site_files import SiteSection
from secureps.flower import post
from secureps.messages.charge import Release
from secureps.messages.requests import Retire
from secureps.roles.member.terms import NO_REASON
from secureps.run.up.folder import client_names
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.journal import read_rows
from tests.kits.engine_apps import SEED, make_app, play, write_plan
from tests.kits.flower_grid import LocalGrid, a_task
from tests.kits.ledgers import charge

ROUNDS = 3
PRIVACY = """[privacy]
unit = "client"
placement = "local"
noise_multiplier = 5.0
delta = 1e-5
budget = 1000.0
"""


@dataclass(frozen=True)
class Kept:
    """A site's policy, and what comes of it.

    Args:
        trains: how often its node trains.
        retired: why its client takes part no more, as the coordinator hears; None: nothing.
        says: part of what the node answers beside its batch.
    """

    policy: str
    trains: int = 0
    retired: str | None = None
    says: str = ""


KEPT = {
    "minimum": Kept('minimum = 3\nreveal = "nothing"', retired=NO_REASON),
    "threshold": Kept("threshold = 2", retired=f"{NO_REASON}: threshold"),
    "plans": Kept(f'plans = ["{"0" * 64}"]\nreveal = "values"', retired="plans: the plan's digest"),
    "budget": Kept('budget = 1.5\nledger = "budget.db"', retired=""),
    "updates_per_hour": Kept(
        'updates_per_hour = 1\nledger = "updates_per_hour.db"',
        trains=1,
        retired=f"{NO_REASON}: updates_per_hour",
    ),
    "network": Kept("network = false", says="inside Flower's engine the run ships the app"),
    "scripts": Kept(f'scripts = ["{"0" * 64}"]', says="inside Flower's engine the run ships"),
}
"""By the key that each is about."""
OPEN = client_names(3)
"""Clients whose sites have no policy."""
NAMES = dict(zip(KEPT, client_names(3 + len(KEPT))[3:], strict=True))


def test_no_key_is_forgotten() -> None:
    """`evaluation` and `messages` keep messages from the app: see `test_refusals`.

    Of `records` see `test_public_numbers`.
    """
    held = {*KEPT, "ledger", "reveal"}
    assert held | {"evaluation", "messages", "records"} == set(SiteSection.model_fields)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run's folder, and its nodes by their clients' names: of each policy one, and three more."""
    folder = tmp_path_factory.mktemp("policies")
    names = (*OPEN, *NAMES.values())
    configs = [{"partition-id": k, "num-partitions": len(names)} for k in range(len(names))]
    own: list[dict[str, Any]] = [dict(each) for each in configs]
    for key, name in NAMES.items():
        site = folder / f"{key}.toml"
        site.write_text(f"{KEPT[key].policy}\n")
        own[names.index(name)] |= {
            "secureps-kit": str(folder / "run" / "kit"),
            "secureps-name": name,
            "secureps-site": str(site),
            "secureps-unsafe-seed": SEED,
        }
    # What another run took of the same records: of the budget there is no update left.
    spent = Release(NAMES["budget"], "all", 0, 100.0, 1000.0, 300.0, 1, 0.0)
    charge(BudgetLedger(folder / "budget.db"), bytes(32), spent)
    plan = write_plan(folder, more='most_examples = 32\nweighting = "uniform"')
    plan.write_text(plan.read_text().replace("range = 1.0\n", "") + PRIVACY)
    with a_task():
        grid = LocalGrid(make_app(), own)
        play(folder, grid, ROUNDS, plan)
        yield folder, dict(zip(names, grid.nodes.values(), strict=True))


@pytest.mark.parametrize("key", KEPT)
def test_a_node_keeps_to_its_sites_policy(played: tuple[Path, dict[str, Any]], key: str) -> None:
    folder, nodes = played
    kept, node = KEPT[key], nodes[NAMES[key]]
    assert node.state.get("fits", {"n": 0})["n"] == kept.trains
    said = [str(dict(reply.content[post.MARKER])) for reply in node.replies]
    assert any(kept.says in each for each in said), said
    (journal,) = folder.rglob("coordinator/journal.db")
    gone = [row.record for row in read_rows(journal) if isinstance(row.record, Retire)]
    heard = {each.reason for each in gone if each.client == NAMES[key]}
    if kept.retired is None:
        assert not heard
    elif 'reveal = "values"' in kept.policy:
        assert [each.startswith(kept.retired) for each in heard] == [True]
    else:
        assert heard == {kept.retired}


@pytest.mark.parametrize("key", ["budget", "updates_per_hour"])
def test_a_node_counts_in_its_sites_ledger(played: tuple[Path, dict[str, Any]], key: str) -> None:
    folder, nodes = played
    kit = folder / "run" / "kit"
    assert len(BudgetLedger(folder / f"{key}.db").rows()) > KEPT[key].trains
    assert not default_ledger(kit, NAMES[key]).exists()
    for name in OPEN:
        assert nodes[name].state["fits"]["n"] == ROUNDS, "a site without a policy is free"
        assert len(BudgetLedger(default_ledger(kit, name)).facts()) == ROUNDS
