"""A site behind an HTTP proxy that cuts connections sends 72 MiB, to a shard that is killed."""

import os
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.large import Large
from benchmarks.peers.apps import vectors
from secureps.messages.submission import UPDATE, BlockHeader
from secureps.service.loop import WRITERS
from secureps.store.checkpoint import tensor_name
from tests.kits.nursery import Child, spawn
from tests.kits.relay import ConnectProxy, refusal

COORDINATOR, SHARD = "ps.study.example:443", "shard-0.study.example:443"
USER = "site:s3cret"
VALUES = 36 << 20
BLOCKS = 9
"""As few as their longest allows."""
UPDATE_BYTES = 2 * VALUES
"""Of an update, as integers of 16 bits."""
CUT = 5 << 20
"""Bytes after which the proxy ends a connection: no block gets through at once."""
RATE = 48 << 20
"""Bytes a second: an upload takes a moment in which something may happen."""
TWICE = 2 << 20
"""The most that a sender has given to a connection that breaks, and that never arrived."""


class Behind(Large):
    """A federation whose clients are behind a proxy, and know the servers only by its names."""

    proxy: ConnectProxy
    user = "site:wr0ng"

    def _client(self, name: str) -> list[str]:
        return [COORDINATOR if word == self.server else word for word in super()._client(name)]

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        around = {name: each for name, each in os.environ.items() if "proxy" not in name.lower()}
        if log.stem in self.clients:
            around["https_proxy"] = f"http://{self.user}@{self.proxy.address}"
        return spawn(command, self.folder, log, {**around, **self.environment})


def test_a_client_behind_a_proxy_that_cuts_its_upload_makes_the_model(tmp_path: Path) -> None:
    parties = Behind(tmp_path, "plain", VALUES, clients=1, versions=1, shards=1, insecure=False)
    parties.settings["shard-0"] = f'advertise = "{SHARD}"'
    places = {COORDINATOR: "coordinator", SHARD: "shard-0"}
    servers = {
        there: (lambda name=name: (tmp_path / name / "address").read_text().strip())
        for there, name in places.items()
    }
    spool = tmp_path / "shard-0" / "spool"
    with ConnectProxy(servers, USER, CUT, rate=RATE) as proxy, parties:
        parties.proxy = proxy
        (client,) = parties.clients
        parties.hold.touch()
        parties.start_all()
        assert parties.exit_status(client) == 78, "it went on with a wrong password"
        assert "(407): https_proxy=http://NAME:PASSWORD@HOST:PORT (this side's fault)" in (
            parties.log(client)
        )
        assert len(proxy.asked) == 1, "it tried a wrong password again, which locks accounts"
        parties.user, proxy.answer = USER, refusal(502)
        parties.start(client)
        waits = f"coordinator at {COORDINATOR} through the proxy {proxy.address}: the proxy cannot"
        parties.wait(lambda: waits in parties.log(client), "the client to wait for the servers")
        proxy.answer = None
        parties.committed(0)
        before, cuts = proxy.up, proxy.cuts
        parties.hold.unlink()
        parties.wait(lambda: len([*spool.glob("update~*")]) >= 3 + WRITERS, "durable blocks")
        known = parties.journal("shard-0", BlockHeader)  # which kills it
        durable, sent, then = sum(h.purpose == UPDATE for h in known), proxy.up, proxy.cuts
        assert 3 <= durable < BLOCKS, "the kill came too late"
        parties.start("shard-0")
        parties.committed(1)
        again = (proxy.cuts - then + 1) * TWICE
        left = (BLOCKS - durable) * UPDATE_BYTES // BLOCKS
        assert proxy.up - sent <= left + again, "durable blocks are sent again"
        assert parties.exit_status(client) == 0, parties.log(client)
        assert set(proxy.asked) == {COORDINATOR, SHARD}
        assert proxy.cuts - cuts >= UPDATE_BYTES // CUT
        assert proxy.up - before > UPDATE_BYTES
        made = load_file(tmp_path / "shard-0" / "states" / "all-000001.safetensors")
    values = np.concatenate([made[tensor_name("all", block)] for block in range(BLOCKS)])
    assert float(np.abs(values - vectors.update(0, VALUES)).max()) < 2.0**-15
    for path in tmp_path.rglob("*.log"):
        assert "s3cret" not in path.read_text()
        assert "wr0ng" not in path.read_text()
