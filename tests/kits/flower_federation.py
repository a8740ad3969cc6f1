"""A deployment of Flower's whose app is private: each party has a kit of its own, as it should."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from secureps.flower.federation import simulated_kit
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.run.party_names import client_names, holder_names, shard_names
from tests.kits.flower_deployment import Deployment, free_port

SEED = 5
"""Of what nodes draw: every run comes to the same bits."""


class PrivateDeployment(Deployment):
    """Key holders are processes beside it, which dial the ServerApp.

    Args:
        plan: of the run.
    """

    def __init__(self, folder: Path, nodes: int, plan: Path) -> None:
        super().__init__(folder, nodes, self._own)
        read = load_plan(plan)
        self.holders = holder_names(read.holders)
        self._names = client_names(nodes)
        self._minimum = min(read.bounds(group).minimum for group in read.all_groups)
        self._all = simulated_kit(folder, read, nodes)
        self.listen = f"127.0.0.1:{free_port()}"
        self.server_kit = self._kit("server", COORDINATOR, *shard_names(read.section.shards))
        for name in (*self.holders, *self._names):
            self._kit(name, name)

    def _kit(self, home: str, *parties: str) -> Path:
        """A folder with the private keys of these parties, and of no other."""
        kit = self.folder / "kits" / home
        shutil.copytree(self._all / "public", kit / "public")
        for name in parties:
            shutil.copytree(self._all / "private" / name, kit / "private" / name)
        return kit

    def _own(self, number: int) -> Mapping[str, str]:
        name = client_names(self.nodes)[number]
        kit = self.folder / "kits" / name
        told = {"secureps-kit": f'"{kit}"', "secureps-name": f'"{name}"'}
        return told | {"secureps-unsafe-seed": str(SEED)}

    @property
    def said(self) -> dict[str, object]:
        """What the app's SecureFedAvg is told."""
        own: dict[str, object] = {"kit": str(self.server_kit), "run": str(self.folder / "run")}
        return own | {"listen": self.listen}

    def __enter__(self) -> Self:
        super().__enter__()
        for name in self.holders:
            self.start_holder(name)
        return self

    def start_holder(self, name: str) -> None:
        """Starts a key holder, or starts it again where it was."""
        config = self.folder / f"{name}.toml"
        kit, state = self.folder / "kits" / name, self.folder / name
        config.write_text(
            f'name = "{name}"\nkit = "{kit}"\nstate = "{state}"\ncoordinator = "{self.listen}"\n'
            f"minimum = {self._minimum}\n"
        )
        program = [sys.executable, "-m", "secureps", "serve", "keyholder"]
        self._begin(name, [*program, "--config", str(config)])
