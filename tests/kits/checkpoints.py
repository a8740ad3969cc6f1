"""Whole checkpoints, as coordinator and shards write them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.messages.format import FORMAT
from secureps.messages.run import GroupPlacement, GroupVersion, Placement, RunInfo, Schema
from secureps.policy.plan import Plan
from secureps.store.checkpoint import (
    Manifest,
    ShardFile,
    checkpoint_path,
    tensor_name,
    write_manifest,
    write_state,
)

SHARDS = ("shard-0", "shard-1")


def write_checkpoint(
    root: Path,
    number: int,
    plan: Plan,
    schema: Schema,
    tensors: Mapping[str, NDArray[np.generic]],
    cut: int,
    unsafe: tuple[str, ...] = (),
) -> None:
    """Writes blocks of `cut` values, dealt to two shards in turn; each group is a version newer."""
    layout = plan.layout(schema)
    run = RunInfo(plan.text, schema, layout.digest, b"h" * 32, b"r" * 32, b"n" * 32)
    blocks: dict[str, dict[str, NDArray[Any]]] = {shard: {} for shard in SHARDS}
    placed = []
    for group in (dataclasses.replace(each, block_values=cut) for each in layout.groups):
        flat = group.flatten(tensors)
        owners = tuple(SHARDS[b % 2] for b in range(group.blocks))
        placed.append(GroupPlacement(group.name, owners))
        for b, owner in enumerate(owners):
            blocks[owner][tensor_name(group.name, b)] = flat[slice(*group.span(b))]
            blocks[owner][tensor_name(group.name, b, "m")] = np.zeros(3, np.float32)
    files = []
    for shard in SHARDS:
        path = checkpoint_path(root, number) / f"{shard}.safetensors"
        digest = write_state(path, blocks[shard], {})
        files.append(ShardFile(shard, path.name, digest, path.stat().st_size))
    write_manifest(
        checkpoint_path(root, number),
        Manifest(
            FORMAT,
            number,
            run.id.hex(),
            run,
            tuple(GroupVersion(each.name, number + k) for k, each in enumerate(layout.groups)),
            tuple(files),
            Placement(1, SHARDS, tuple(placed)),
            unsafe=unsafe,
        ),
    )
