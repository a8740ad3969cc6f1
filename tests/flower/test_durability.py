"""Who waits for the disk inside Flower's engine: all that are deployed, whatever a run says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from flwr.app import Message

from secureps.client.flower.trainer import FlowerModel
from secureps.errors import ConfigError
from secureps.flower import aggregator, post, simulated_holder
from secureps.flower.aggregator import Holders, simulated_kit
from secureps.flower.post import FORM, ModelForm
from secureps.policy.plan import load_plan
from secureps.run.up.folder import holder_names
from secureps.store import durability
from tests.kits.engine_apps import make_app, write_plan
from tests.kits.flower_grid import LocalGrid

PARTITION: dict[str, Any] = {"partition-id": 0, "num-partitions": 3}
OWN = {"secureps-kit": "/srv/kit", "secureps-name": "north"}
SIMULATES: dict[str, str | int] = {
    "kit": "/run/kit",
    "unsafe-seed": 5,
    "simulated": 1,
    "durable": 0,
}
"""What a ServerApp may say that would have nodes wait for nothing."""


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each wave of a node waits for the disk."""
    found = list[bool]()

    def noting(*given: object) -> tuple[bytes, str]:
        found.append(durability.must_wait())
        return b"", ""

    monkeypatch.setattr("secureps.flower.mod.play_as_client", noting)
    return found


@pytest.mark.parametrize(
    ("config", "waits"), [(PARTITION, False), (PARTITION | OWN, True), (OWN, True)]
)
def test_a_node_that_somebody_deploys_waits_whatever_its_run_says(
    config: Mapping[str, Any], waits: bool, waited: list[bool]
) -> None:
    form = ModelForm(FlowerModel({"values": np.zeros(3, np.float32)}, False)).to_json()
    content = post.pack(post.Parcel({**SIMULATES, FORM: form}, b"a batch"))
    grid = LocalGrid(make_app(), [dict(config)])
    (reply,) = grid.send_and_receive([Message(content, 10, "train")])
    assert dict(reply.content[post.MARKER]) == {"wave": 1}
    assert waited == [waits]
    assert durability.must_wait()


@pytest.mark.parametrize("simulated", [True, False])
def test_key_holders_are_a_simulations_program_in_a_simulation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    supervisor = MagicMock()
    monkeypatch.setattr(aggregator, "Supervisor", lambda logs: supervisor)
    plan = load_plan(write_plan(tmp_path, "rlwe"))
    kit = simulated_kit(tmp_path, plan, 3)
    with Holders(plan, tmp_path, kit, "127.0.0.1:1", simulated):
        pass
    started = [call.args[0] for call in supervisor.start.call_args_list]
    assert [each.name for each in started] == list(holder_names(3))
    for each in started:
        assert ("secureps.flower.simulated_holder" in each.arguments) == simulated
        assert (each.arguments[-4:-1] == ("serve", "keyholder", "--config")) != simulated
        assert Path(each.arguments[-1]).is_file()


# --- the program of a simulation's key holders ----------------------------------------


def test_it_waits_for_no_disk_and_says_what_ended_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    served = list[tuple[str, Path, bool]]()

    def serve(role: str, config: Path) -> None:
        served.append((role, config, durability.must_wait()))
        raise ConfigError("another party's file")

    monkeypatch.setattr(simulated_holder, "serve", serve)
    with pytest.raises(SystemExit) as ended:
        simulated_holder.main(tmp_path / "holder-0.toml")
    assert served == [("keyholder", tmp_path / "holder-0.toml", False)]
    assert ended.value.code == 78
    assert capsys.readouterr().err == "error: another party's file (this side's fault)\n"
    assert durability.must_wait()
