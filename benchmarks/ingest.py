"""How fast a shard takes submissions in, durably, beside what gRPC alone carries on this machine.

Five clients have sealed, and the one shard is stopped; when it goes on, all of them send at once,
until the coordinator has every receipt: a client gives its own when all of its blocks are durable.
Beside it, in the same run, as many processes stream as many bytes to one that keeps nothing, and
to one that does the least that durability asks for: it digests a stream, writes it and syncs it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from benchmarks.large import Large
from benchmarks.peers.apps.grpc_party import OPTIONS, pieces
from benchmarks.report import Row, report
from benchmarks.still_client import waiting_mark
from secureps.messages.encoding import payload_digest

CLIENTS, TURNS = 5, 3
VALUES = 10_000_000
RESTS = 1.0
"""Seconds in which clients that have nothing to do spend nothing."""
IDLE = 0.015
"""Seconds of CPU that are nothing: the kernel counts in hundredths."""


def taken_in(folder: Path, cipher: str, values: int, turns: int) -> tuple[list[float], int]:
    """Bytes a second that a shard takes in, by turn; and the bytes of a client's update."""
    seconds: list[float] = []
    with Large(folder, cipher, values, CLIENTS, turns + 2, shards=1) as parties:
        marks = [waiting_mark(parties.hold, number) for number in range(CLIENTS)]
        parties.hold.touch()
        parties.start_all()
        for version in range(1, turns + 1):
            parties.committed(version - 1)
            parties.wait(lambda: all(mark.exists() for mark in marks), "clients to pull")
            os.kill(parties.pid("shard-0"), signal.SIGSTOP)
            parties.hold.unlink()
            parties.wait(lambda: not any(mark.exists() for mark in marks), "clients to train")
            _rest(parties)  # all have sealed, and wait to send
            parties.hold.touch()
            began = time.time()
            os.kill(parties.pid("shard-0"), signal.SIGCONT)
            seconds.append(parties.time_of("CohortClosed", version) - began)
        parties.committed(turns)
        size = parties.figure("bytes_up")
    return [CLIENTS * size / each for each in seconds], int(size)


def _rest(parties: Large) -> None:
    """Waits until no client spends anything."""
    last, since = parties.spent(), time.monotonic()

    def rested() -> bool:
        nonlocal last, since
        now = parties.spent()
        if any(now[name].seconds - last[name].seconds > IDLE for name in parties.clients):
            last, since = now, time.monotonic()
        return time.monotonic() - since > RESTS

    parties.wait(rested, "clients to rest")


def carried(size: int, turns: int, folder: str = "") -> list[float]:
    """Bytes a second that gRPC alone carries, by turn; kept in a folder, if there is one."""
    server = _Child("serve", folder)
    senders = [_Child("send", server.line(), str(size))]
    senders += [_Child(*senders[0].words) for _ in range(CLIENTS - 1)]
    rates = []
    for _ in range(turns + 1):
        began = time.monotonic()
        for sender in senders:
            sender.begin()
        for sender in senders:
            sender.line()
        rates.append(CLIENTS * size / (time.monotonic() - began))
    for child in (*senders, server):
        child.end()
    return rates[1:]  # the first connects


class _Child:
    """This program, told what to do by its words, and when by lines."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ingest", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        assert self._process.stdin is not None
        print("begin", file=self._process.stdin, flush=True)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate()


def _serve(folder: str) -> None:
    def push(stream: Iterator[bytes], _: Any) -> bytes:
        if not folder:
            return str(sum(map(len, stream))).encode()
        payload = b"".join(stream)
        payload_digest(payload)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(payload)
            os.fsync(file.fileno())
        return str(len(payload)).encode()

    handlers: dict[str, Any] = {"push": grpc.stream_unary_rpc_method_handler(push)}
    server = grpc.server(futures.ThreadPoolExecutor(CLIENTS), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()  # until it is told to end


def _send(port: str, size: int) -> None:
    data = memoryview(os.urandom(size))
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        push: Any = channel.stream_unary("/raw/push")
        for _ in sys.stdin:
            assert int(push(pieces(data), wait_for_ready=True)) == size
            print("done", flush=True)


def measure(values: int = VALUES, turns: int = TURNS) -> Sequence[Row]:
    """A row for each cipher: medians of the turns."""
    rows: list[Row] = []
    for cipher in ("rlwe", "plain"):
        with tempfile.TemporaryDirectory(prefix="secureps-ingest-") as folder:
            rates, size = taken_in(Path(folder), cipher, values, turns)
            synced = statistics.median(carried(size, turns, folder))
        raw = statistics.median(carried(size, turns))
        kept = statistics.median(rates)
        rows.append(
            {
                "cipher": cipher,
                "MB an update": size / 1e6,
                "shard MB/s": kept / 1e6,
                "gRPC alone MB/s": raw / 1e6,
                "ratio": kept / raw,
                "digested, synced MB/s": synced / 1e6,
                "ratio to that": kept / synced,
            }
        )
    return rows


def main() -> None:
    match sys.argv[1:]:
        case ["serve", folder]:
            _serve(folder)
        case ["send", port, size]:
            _send(port, int(size))
        case _:
            report("ingest", f"A shard takes in updates of {CLIENTS} clients, durably", measure())


if __name__ == "__main__":
    main()
