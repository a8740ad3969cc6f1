"""The server and a client that send float32 values over gRPC and do nothing else with them.

A round: every client streams its values up in pieces of 1 MiB, and once all are there, as many
are streamed down to each. Nothing is added, kept on disk, checked or encrypted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from benchmarks.peers.apps import vectors

PIECE = 1 << 20
OPTIONS = (("grpc.max_receive_message_length", 2 * PIECE),)


def pieces(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield bytes(data[start : start + PIECE])


class _Server:
    """Lets nobody pull before all have pushed, and a round is over when all have pulled."""

    def __init__(self) -> None:
        self._all = threading.Barrier(vectors.clients())
        self._told = threading.Barrier(vectors.clients(), vectors.mark)
        self._data = vectors.update(0).data.cast("B")

    def push(self, stream: Iterator[bytes], _: Any) -> bytes:
        came = sum(map(len, stream))
        assert came == len(self._data)
        return b""

    def pull(self, _: bytes, __: Any) -> Iterator[bytes]:
        self._all.wait()
        yield from pieces(self._data)

    def done(self, _: bytes, __: Any) -> bytes:
        self._told.wait()
        return b""


def serve(address: str) -> None:
    own = _Server()
    handlers: dict[str, Any] = {
        "push": grpc.stream_unary_rpc_method_handler(own.push),
        "pull": grpc.unary_stream_rpc_method_handler(own.pull),
        "done": grpc.unary_unary_rpc_method_handler(own.done),
    }
    pool = futures.ThreadPoolExecutor(2 * vectors.clients())
    server = grpc.server(pool, options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peers", handlers),))
    server.add_insecure_port(address)
    server.start()
    sys.stdin.read()  # until it is told to end


def send(address: str, client: int) -> None:
    data = vectors.update(client).data.cast("B")
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        push: Any = channel.stream_unary("/peers/push")
        pull: Any = channel.unary_stream("/peers/pull")
        done: Any = channel.unary_unary("/peers/done")
        for _ in range(vectors.rounds()):
            push(pieces(data), wait_for_ready=True)
            came = sum(map(len, pull(b"")))
            assert came == len(data)
            done(b"")
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]))
