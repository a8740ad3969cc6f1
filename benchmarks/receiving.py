"""What a shard pays to take in blocks of 64 MB: CPU of its process, the sender is another.

`python -m benchmarks.receiving [TREE]`: with the folder of another version of this project the two
take turns, which is how they compare on a machine that others use. The endpoint checks the digest
and writes the block, as a shard does; "wire" is without both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.report import Row, report
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import AskBlock, Noted, PutBlock, Stored
from secureps.messages.submission import BlockHeader
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.grpc.servers import ShardServer

BLOCK = 64_000_000
BLOCKS, TURNS = 4, 5
OWN = Path(__file__).parent.parent


class _Shard:
    """Takes every block."""

    run = b""

    def __init__(self, spool: DiskSpool | None) -> None:
        self._spool = spool
        self._worker = ThreadPoolExecutor(1)

    def request(self, sender: str, message: Any) -> Future[Any]:
        return self._worker.submit(self._answer, message)

    def subscribe(self, *_: Any) -> Any:
        raise AssertionError("nobody watches a shard")

    def _answer(self, message: Any) -> Any:
        if isinstance(message, AskBlock):
            return Stored(message.header.digest, 0)
        if not isinstance(message, PutBlock):
            return Noted()
        if self._spool is not None:
            assert payload_digest(message.payload) == message.header.digest
            self._spool.put(message.header.key, message.payload)
        return Stored(message.header.digest)


def _serve(kept: bool) -> None:
    """Prints CPU seconds for each GB of the blocks that a sender of its own sends."""
    with tempfile.TemporaryDirectory(prefix="secureps-receiving-") as folder:
        shard = _Shard(DiskSpool(folder) if kept else None)
        server = ShardServer(
            PLAINTEXT, "shard-0", shard, "127.0.0.1:0", lambda *_: None, 4 * BLOCK, BLOCK
        )
        server.start()
        sender = [sys.executable, __file__, "send", str(server.port)]
        with subprocess.Popen(sender, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()  # one block has gone: all is imported, connected, mapped
            began = time.process_time()
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            print((time.process_time() - began) / (BLOCKS * BLOCK / 1e9))
            process.stdin.close()
        server.stop(0)


def _send(port: str) -> None:
    transport = GrpcTransport(PLAINTEXT, "a", lambda _: bytes(64), {"shard-0": f"127.0.0.1:{port}"})
    payload = os.urandom(BLOCK)
    digest = payload_digest(payload)
    for sequence in range(BLOCKS + 1):
        header = BlockHeader(bytes(32), "a", "update", "all", sequence, 0, BLOCK, digest)
        transport.call("shard-0", PutBlock(header, payload)).result()
        if sequence == 0:
            print("ready", flush=True)
            sys.stdin.readline()
    print("done", flush=True)
    transport.close()


def _once(tree: Path, what: str) -> float:
    """Of the code in a tree, by this benchmark."""
    path = os.pathsep.join(map(str, (tree, OWN)))
    command = [sys.executable, __file__, what]
    around = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return float(subprocess.run(command, env=around, check=True, stdout=subprocess.PIPE).stdout)


def measure(trees: Sequence[Path], turns: int = TURNS) -> Sequence[Row]:
    """A row for every tree and part."""
    rows: list[Row] = []
    for what in ("wire", "kept"):
        seconds: dict[Path, list[float]] = {tree: [] for tree in trees}
        for _ in range(turns):
            for tree in trees:
                seconds[tree].append(_once(tree, what))
        first = statistics.median(seconds[trees[0]])
        for tree, found in seconds.items():
            rows.append(
                {
                    "code": "this" if tree == OWN else "the other",
                    "what": what,
                    "CPU s/GB": statistics.median(found),
                    "least": min(found),
                    "most": max(found),
                    "to this": statistics.median(found) / first,
                }
            )
    return rows


def main() -> None:
    match sys.argv[1:]:
        case ["send", port]:
            _send(port)
        case ["wire" | "kept" as what]:
            _serve(what == "kept")
        case others:
            trees = [OWN, *(Path(other).resolve() for other in others)]
            report("receiving", f"A shard takes in blocks of {BLOCK // 10**6} MB", measure(trees))


if __name__ == "__main__":
    main()
