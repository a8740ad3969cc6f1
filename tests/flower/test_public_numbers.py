"""A node inside Flower's engine counts by its site's number, and publishes no other."""

from __future__ import annotations

from pathlib import Path

from secureps.messages.requests import Submit
from secureps.messages.submission import UPDATE
from secureps.store.journal import read_rows
from tests.flower.test_strategy import CLIENTS, SEED, play
from tests.kits.engine_apps import make_app, write_plan
from tests.kits.flower_grid import LocalGrid, a_task


def test_a_node_publishes_its_sites_number_and_others_their_own(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("records = 17\n")
    configs = [{"partition-id": k, "num-partitions": CLIENTS} for k in range(CLIENTS)]
    own: dict[str, int | str] = {
        "secureps-kit": str(tmp_path / "run" / "kit"),
        "secureps-name": "client-01",
        "secureps-site": str(tmp_path / "site.toml"),
        "secureps-unsafe-seed": SEED,
    }
    nodes = [{**config, **(own if k == 1 else {})} for k, config in enumerate(configs)]
    with a_task():
        play(tmp_path, LocalGrid(make_app(), nodes), 1, write_plan(tmp_path, clients=CLIENTS))
    (journal,) = tmp_path.rglob("coordinator/journal.db")
    receipts = [row.record.receipt for row in read_rows(journal) if isinstance(row.record, Submit)]
    counted = {each.id.client: each.examples for each in receipts if each.purpose == UPDATE}
    assert counted == {"client-00": 10, "client-01": 17, "client-02": 12}
