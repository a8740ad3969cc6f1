"""`secureps join`: Flower clients as real processes, killed and all, end in the simulated model.

Apps of two of them have no network: the one of `client-01`, which is killed, and of `client-02`.
"""

from pathlib import Path

import pytest

from secureps.client.script import Script
from secureps.crypto.sampling import UnsafeSeed
from secureps.run.simulate.simulation import Cast, Simulation
from tests.kits.federations import same
from tests.kits.flower_apps import MESSAGES, initial_of, project
from tests.kits.nursery import prepare
from tests.kits.processes import JOIN, PLAN, Processes

SLOW = MESSAGES.replace("import numpy", "import time\nimport numpy").replace(
    "    seen = context", "    time.sleep(context.node_config.get('pace', 0))\n    seen = context"
)
"""Takes a while for a fit, so that it can be killed in the middle of one."""


class Joined(Processes):
    """Clients that were never written for secureps."""

    script: Path
    initial: str

    def _client(self, name: str) -> list[str]:
        number = self.clients.index(name)
        return [
            *(*JOIN, str(self.script), *self._as_client(name)),
            *("--set", f"bonus={number}", "--set", f"initial={self.initial}"),
            *(("--site", str(self.folder / "site.toml")) if number in (1, 2) else ()),
        ]


@pytest.mark.slow
def test_flower_clients_killed_and_restarted_make_the_simulated_model(tmp_path: Path) -> None:
    path = project(tmp_path, "joined", SLOW)
    script, plan = Script(path), PLAN.replace('local = ["*.count"]\n', "")
    prepare("secureps.client.flower.script")
    joined = Joined(tmp_path / "run", versions=3, plan=plan)
    joined.script, joined.pace = path, 0.3
    joined.initial = initial_of(path, tmp_path / "given" / "initial.safetensors")
    (joined.folder / "site.toml").write_text("network = false\n")
    with joined as processes:
        processes.start_all()
        processes.kill_in_turn("client-01", "client-04")
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
        assert versions == {"all": 3}
        assert "all 3 versions are made" in _ended(processes, "client-00")
        trainers = {
            name: script.make({"partition": i, "bonus": i, "initial": joined.initial})
            for i, name in enumerate(processes.clients)
        }
        simulation = Simulation(processes.plan, Cast(trainers, UnsafeSeed(3)), tmp_path / "alone")
        simulation.run()
        assert same(model, simulation.model())


def _ended(processes: Processes, name: str) -> str:
    processes.wait(lambda: "versions are made" in processes.log(name), f"{name} to end")
    return processes.log(name)
