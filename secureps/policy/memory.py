"""Predictions of a client's memory, and of a shard's memory and disk, from the plan.

`sealing_memory` says what it covers of a client. Of a shard the prediction is what is resident in
its process at the worst moment:

    program       Python and a server's imports, before the first block
    state         three versions (the last, the newest, the one being made) of the values and of the
                  optimizer's vectors, float32, of the busiest shard's blocks, and differences
                  between as many versions as are shorter than a block; where the shard has a
                  limit, only the version being made
    work          one block's sum and a member's ciphertext, or what it opens to, or under a codec
                  its decoded mean; stepping goes piece by piece and takes next to nothing
    uploads       the blocks and pieces that threads take in at once or pass on to other shards
    connections   gRPC's buffers for every client's uploads

It is an estimate: the parts do not peak at the same time, and allocators keep some freed memory.
The page cache, the operating system, other processes and shards of unequal weight are not covered.
`benchmarks.memory` compares it with measurements. `tests/processes/test_memory.py` asserts
that they agree within half, `tests/federation/test_survival.py` within a quarter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from secureps.config.sections import memory_text
from secureps.errors import ConfigError
from secureps.model.layout import GroupLayout
from secureps.model.placement import place_groups
from secureps.policy.block_deltas import FLOAT_BYTES, block_delta
from secureps.policy.plan import Plan

VERSIONS = 3
FILED = 3
"""Versions of a group with state files: the newest, the one before it, and either the one being
made or that of the checkpoint before."""
MORE_CHECKPOINTS = 2
"""Checkpoints beside those that the plan keeps: the first, and the one being made."""
SHARD_THREADS = 1
"""Threads that step a shard's blocks, unless its file says otherwise."""
SUM_BYTES = 8
"""Bytes of an opened sum."""
CODE_BYTES = 40
"""Bytes per sent value while the mean of a block is decoded: its place, its factor, two float64,
and the words that are drawn for it."""
ENCODING_BYTES = 12
"""Bytes per sent value while a client encodes a block: a float64, and the block's own float32."""
PLACE_BYTES = 28
"""Bytes per sent value while its place is drawn: the words, and the run that they lie in."""
DECODING_BYTES = 20
"""Bytes per sent value while a client computes what rounding left out: two float64, a float32."""
NOISED_BYTES = 20
"""Bytes per value with noise: a float32, and the integers before and after the noise."""


@dataclass(frozen=True, slots=True)
class Service:
    """Facts about the shards that serve a plan and that the plan does not state.

    Args:
        shards: names, for placement; all of the same weight.
        clients: connected to each shard at once.
        program: bytes of a shard's process without a model.
        connection, stream: bytes of buffers per client connection, and per upload as long.
        threads: of a shard that take uploads in.
        streams: by which one client sends.
        piece: bytes of an upload on their way into a block.
        in_flight, shares: blocks taken in at once have at most so many bytes, or so many times the
            largest block's.
        memory: most bytes of values and optimizer state resident on a shard; None: all.
    """

    shards: tuple[str, ...]
    clients: int
    program: int
    connection: int
    stream: int
    threads: int
    streams: int
    piece: int
    in_flight: int
    shares: int
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the shard that needs most; the module's docstring describes the parts.

    Args:
        memory: resident at the peak: the sum of the next five.
        disk: of updates in its spool, while the largest cohort of every group is open.
        files: of its state files: each group has FILED versions.
        checkpoints: of its parts of the checkpoints that are kept.
        limit: of `state`; None without one.
    """

    shards: int
    clients: int
    memory: int
    program: int
    state: int
    work: int
    uploads: int
    connections: int
    disk: int
    files: int
    checkpoints: int
    limit: int | None = None


def footprint(plan: Plan, groups: Sequence[GroupLayout], service: Service) -> MemoryUse:
    """Predicts the memory and disk of the shard that needs most (ConfigError: its limit)."""
    kind = plan.cipher_of(groups[0])
    nodes = dict.fromkeys(service.shards, 1.0)
    state, sent, disk, held, files = (dict.fromkeys(service.shards, 0) for _ in range(5))
    own: dict[str, dict[str, list[int]]] = {shard: {} for shard in service.shards}
    work = largest = 0
    placed = place_groups({g.name: g.blocks for g in groups}, nodes, plan.section.replicas)
    for group in groups:
        most, chain = plan.bounds(group.name).most, plan.chain(group.name)
        for block, (primary, *replicas) in enumerate(placed[group.name]):
            slots = group.slots(block)
            sealed, total = kind.block_bytes(slots), kind.total_bytes(slots)
            start, stop = group.span(block)
            values = stop - start
            delta = block_delta(plan, group, block)
            version = version_bytes(plan, group, (block,))
            for shard in (primary, *replicas):
                own[shard].setdefault(group.name, []).append(block)
                files[shard] += FILED * version
                length = 0 if delta is None else delta.length
                behind = 0 if delta is None else delta.behind
                state[shard] += VERSIONS * (version - length) + behind * length
                disk[shard] += most * sealed
            sent[primary] += sealed
            held[primary] += 1
            decoding = 0 if chain.is_identity else FLOAT_BYTES * values + CODE_BYTES * slots
            work = max(work, total + sealed, total + SUM_BYTES * slots, decoding)
            largest = max(largest, sealed)
    if service.memory is not None:
        state = {shard: _longest(plan, groups, own[shard], service) for shard in service.shards}
    busiest = max(service.shards, key=lambda shard: (state[shard], files[shard]))
    streams = min(service.streams, held[busiest])
    at_once = min(service.threads, service.clients * streams)
    waiting = min(service.connection + streams * service.stream, sent[busiest])
    parts = {
        "program": service.program,
        "state": state[busiest],
        "work": work,
        "uploads": min(at_once * largest, max(service.in_flight, service.shares * largest))
        + at_once * min(largest, service.piece)
        + (service.streams * largest if plan.section.replicas > 1 else 0),
        "connections": service.clients * waiting,
    }
    return MemoryUse(
        shards=len(service.shards),
        clients=service.clients,
        memory=sum(parts.values()),
        disk=max(disk.values()),
        files=max(files.values()),
        checkpoints=_checkpoints(plan) * (max(files.values()) // FILED),
        limit=service.memory,
        **parts,
    )


def _checkpoints(plan: Plan) -> int:
    section = plan.section
    most = 2 + sum(plan.versions(group) // section.checkpoint_every for group in plan.groups)
    if not section.keep:
        return most
    return min(most, section.keep + MORE_CHECKPOINTS + plan.keeps_best)


def worst_footprint(plan: Plan, groups: Sequence[GroupLayout], service: Service) -> MemoryUse:
    """Predicts what a shard takes with the fewest shards that `[scaling]` may leave.

    A shard is never drained if its blocks would exceed another shard's memory limit.
    """
    own, least = plan.section.scaling, len(service.shards)
    if own is not None and own.policy != "fixed":
        least = own.least_shards
    for left in range(least, len(service.shards)):
        with suppress(ConfigError):
            return footprint(plan, groups, replace(service, shards=service.shards[:left]))
    return footprint(plan, groups, service)


def _longest(
    plan: Plan, groups: Sequence[GroupLayout], own: Mapping[str, list[int]], service: Service
) -> int:
    """Counts the bytes of the longest version that a shard makes in memory, within its limit.

    A longer version is made in a file.
    """
    assert service.memory is not None
    blocks = {group.name: own.get(group.name, []) for group in groups}
    if text := why_little_memory(plan, groups, blocks, service.memory, SHARD_THREADS):
        raise ConfigError(text)
    versions = (version_bytes(plan, group, blocks[group.name]) for group in groups)
    return max((version for version in versions if version <= service.memory), default=0)


def sealing_memory(plan: Plan, group: GroupLayout) -> int:
    """Predicts a client's peak memory, in bytes, while it makes an update of a group.

    It covers the pulled and the trained values and the update, float32; with feedback, the rest of
    earlier updates; the integers, in as few bytes as their grid needs, with their noise under
    client-level privacy; and the codec's work on one block. It does not cover the program, the
    script's training, or ciphertexts, which leave memory piece by piece.
    """
    section, chain = plan.group(group.name), plan.chain(group.name)
    held = FLOAT_BYTES * group.size * (4 if section.feedback else 3)
    drawn = PLACE_BYTES if chain.one_in > 1 else 0
    if plan.mechanism(group.name, group.sent) is not None:
        return held + group.sent * (NOISED_BYTES + drawn)
    held += group.sent * np.min_scalar_type(plan.grid(group.name, group.sent).levels).itemsize
    encoding = 0 if chain.is_identity else ENCODING_BYTES + drawn
    return held + group.slots(0) * (encoding + DECODING_BYTES * section.feedback)


def version_bytes(plan: Plan, group: GroupLayout, blocks: Iterable[int]) -> int:
    slots = len(plan.optimizer(group.name).init(np.zeros(1, np.float32)).slots)
    found = 0
    for block in blocks:
        start, stop = group.span(block)
        delta = block_delta(plan, group, block)
        found += FLOAT_BYTES * (1 + slots) * (stop - start)
        found += 0 if delta is None else delta.length
    return found


def why_little_memory(
    plan: Plan,
    groups: Sequence[GroupLayout],
    own: Mapping[str, Sequence[int]],
    memory: int,
    threads: int,
) -> str:
    """Says why a limit of `memory` is less than a shard's blocks in work take; empty if it is not.

    `own` has the blocks that are placed on the shard.
    """
    sizes = (version_bytes(plan, group, (block,)) for group in groups for block in own[group.name])
    largest = max(sizes, default=0)
    least = threads * largest
    if memory >= least:
        return ""
    return (
        f"memory, {memory:,} bytes, is too little for what this shard holds: it works with "
        f'"{memory_text(least)}" or more, its longest block, {largest:,} bytes, for each '
        f"of its threads, {threads}"
    )
