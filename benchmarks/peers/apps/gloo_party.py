"""A process that adds float32 values up with others by torch's gloo: an all-reduce each round."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

from benchmarks.peers.apps import vectors

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def main() -> None:
    import torch
    import torch.distributed as dist

    rank, world = int(sys.argv[1]), vectors.clients()
    store = f"file://{os.environ['PEERS_FOLDER']}/store"
    patience = timedelta(seconds=600)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world, timeout=patience
    )
    own = torch.from_numpy(vectors.update(rank))
    mean = own.clone()
    for _ in range(vectors.rounds()):
        mean.copy_(own)
        dist.all_reduce(mean)
        mean /= world
        dist.barrier()
        if rank == 0:
            vectors.mark()
    if rank == 0:
        vectors.conclude(mean.numpy())
    sys.stdin.read()  # until it is told to end


if __name__ == "__main__":
    main()
