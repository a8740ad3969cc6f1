"""A submission of more than 64 MiB over a link that breaks, to a shard that is killed meanwhile."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.large import Large
from benchmarks.peers.apps import vectors
from secureps.messages.submission import UPDATE, BlockHeader
from secureps.service.loop import WRITERS
from secureps.store.checkpoint import tensor_name
from tests.kits.nursery import Child, spawn
from tests.kits.relay import Relay, free_port

VALUES = 36 << 20
"""72 MiB as integers of 16 bits."""
BLOCKS = 9
"""As few as their longest allows."""
BLOCK = 2 * VALUES // BLOCKS
BREAKS = 20 << 20
"""Bytes after which a connection is cut."""
RATE = 48 << 20
"""Bytes a second: an upload takes a moment in which something may happen."""
TWICE = 16 << 20
"""The most that a sender has given to connections that break, and that never arrived."""


class Forked(Large):
    """A federation of whose times nobody asks: its parties are forks."""

    def _begin(self, command: list[str], log: Path) -> Child:
        return spawn(command, self.folder, log, self.environment)


def test_an_upload_goes_on_over_breaks_and_after_a_kill_of_the_shard(tmp_path: Path) -> None:
    port = free_port()
    relay = Relay(f"127.0.0.1:{port}", cut=BREAKS, rate=RATE)
    with Forked(tmp_path, "plain", VALUES, clients=1, versions=1, shards=1) as parties:
        spool = tmp_path / "shard-0" / "spool"
        parties.settings["shard-0"] = f'listen = "127.0.0.1:{port}"\nadvertise = "{relay.address}"'
        parties.hold.touch()
        parties.start_all()
        parties.committed(0)
        before, connections = relay.up, relay.connections
        parties.hold.unlink()
        parties.wait(lambda: len([*spool.glob("update~*")]) >= 3 + WRITERS, "durable blocks")
        known = parties.journal("shard-0", BlockHeader)  # which kills it
        durable, sent = sum(each.purpose == UPDATE for each in known), relay.up
        assert 3 <= durable < BLOCKS, "the kill came too late"
        parties.start("shard-0")
        parties.committed(1)
        assert relay.up - sent <= (BLOCKS - durable) * BLOCK + TWICE, (
            "durable blocks are sent again"
        )
        assert relay.up - before >= BLOCKS * BLOCK
        assert relay.connections > connections + 2, "nothing broke"
        made = load_file(tmp_path / "shard-0" / "states" / "all-000001.safetensors")
    relay.close()
    expected = vectors.update(0, VALUES)
    values = np.concatenate([made[tensor_name("all", block)] for block in range(BLOCKS)])
    assert float(np.abs(values - expected).max()) < 2.0**-15
