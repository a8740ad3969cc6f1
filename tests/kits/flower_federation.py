"""A deployment of Flower's whose app is private: each party has a kit of its own, as it should."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from secureps.flower.aggregator import simulated_kit
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.run.up.folder import client_names, holder_names, shard_names
from tests.kits.flower_deployment import Deployment, free_port
from tests.kits.party_kits import part
from tests.kits.users import playable

SEED = 5
"""Of what nodes draw: every run comes to the same bits."""


APP = 47_002
"""User and group of SuperNodes of key holders, where there are two users: it needs no name."""


class PrivateDeployment(Deployment):
    """Key holders are processes beside it, which dial the ServerApp or are nodes of its.

    Args:
        plan: of the run.
        nodes: of clients.
        holders_as_nodes: each key holder has a SuperNode too; as root, of another user than it is.
    """

    def __init__(
        self, folder: Path, nodes: int, plan: Path, holders_as_nodes: bool = False
    ) -> None:
        read = load_plan(plan)
        self.holders = holder_names(read.holders)
        self.clients = nodes
        self._relayed = holders_as_nodes
        super().__init__(folder, nodes + holders_as_nodes * len(self.holders), self._own)
        self._names = client_names(nodes)
        self._minimum = min(read.bounds(group).minimum for group in read.all_groups)
        self._all = simulated_kit(folder, read, nodes)
        self.listen = f"127.0.0.1:{free_port()}"
        shards = shard_names(read.section.shards)
        self.server_kit = part(self._all, folder / "kits" / "server", COORDINATOR, *shards)
        for name in (*self.holders, *self._names):
            part(self._all, folder / "kits" / name, name)

    def _own(self, number: int) -> Mapping[str, str]:
        partitions = {"num-partitions": str(self.clients)}
        if number >= self.clients:
            return partitions | {"secureps-holder": f'"{self.socket(number)}"'}
        name = client_names(self.clients)[number]
        kit = self.folder / "kits" / name
        told = {"secureps-kit": f'"{kit}"', "secureps-name": f'"{name}"'}
        return partitions | told | {"secureps-unsafe-seed": str(SEED)}

    # --- key holders as nodes ------------------------------------------------------

    def socket(self, number: int) -> Path:
        """Of the key holder whose SuperNode has this number."""
        return self.home(number) / "run" / "waves"

    def home(self, number: int) -> Path:
        """A folder of that SuperNode's own."""
        return self.folder / f"home-{number}"

    def _user(self, number: int) -> tuple[Sequence[str], Mapping[str, str]]:
        if number < self.clients:
            return (), {}
        home, key = self.home(number), self.folder / f"node-{number}.key"
        (home / "run").mkdir(parents=True, exist_ok=True)
        told = {"FLWR_HOME": str(home), "HOME": str(home)}
        if not playable(APP):
            return (), told
        for path in (home, key):
            os.chown(path, APP, APP)
        os.chown(home / "run", 0, APP)
        (home / "run").chmod(0o2750)  # the socket in it is that group's
        return as_user(APP), told

    @property
    def said(self) -> dict[str, object]:
        """What the app's SecureFedAvg is told."""
        own: dict[str, object] = {"kit": str(self.server_kit), "run": str(self.folder / "run")}
        return own | ({"holders": "nodes"} if self._relayed else {"listen": self.listen})

    def __enter__(self) -> Self:
        super().__enter__()
        for name in self.holders:
            self.start_holder(name)
        return self

    def start_holder(self, name: str) -> None:
        """Starts a key holder, or starts it again where it was."""
        config = self.folder / f"{name}.toml"
        kit, state = self.folder / "kits" / name, self.folder / name
        way = f'coordinator = "{self.listen}"'
        if self._relayed:
            path = self.socket(self.clients + self.holders.index(name))
            test = str(not playable(APP)).lower()
            way = f'socket = "{path}"\ninsecure_for_tests = {test}'
        config.touch(0o600)
        config.write_text(
            f'name = "{name}"\nkit = "{kit}"\nstate = "{state}"\nminimum = {self._minimum}\n{way}\n'
        )
        program = [sys.executable, "-m", "secureps", "serve", "keyholder"]
        self._begin(name, [*program, "--config", str(config)])


def as_user(user: int) -> list[str]:
    """What a command of another user begins with; root alone may say it.

    Where others may not come to this interpreter, they do in a mount namespace of their own.
    """
    python = Path(sys.base_prefix).resolve()
    closed = [each for each in reversed(python.parents) if not each.stat().st_mode & 0o001]
    script = 'exec "$@"'
    if closed:
        script = (
            f"mount --bind {python} /mnt && mount -t tmpfs -o mode=755 none {closed[0]} && "
            f'mkdir -p {python} && mount --move /mnt {python} && exec "$@"'
        )
    own = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    return ["unshare", "--mount", "sh", "-c", script, "sh", *own]
