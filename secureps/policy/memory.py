"""How much memory a client and a shard take, and how much disk a shard, from the plan.

Of a client `sealing` says what is covered. Of a shard it is what is resident in its process at its
worst moment, as it is served:

    program       Python and what a server imports, before the first block
    state         three versions (the last, the newest, and the one being made) of the values and
                  of the optimizer's vectors, float32, of the blocks that lie on the busiest shard,
                  and differences between as many versions as are shorter than a block; where a
                  shard has a limit, or a group's tier is mapped, what of it is in the process
    work          on one block: its sum with a member's ciphertext; it is opened and stepped in
                  pieces that are next to nothing; under a codec the mean is decoded as a whole
    uploads       as many blocks, and pieces of them, as threads take in at once; and those that
                  are passed on to other shards
    connections   what gRPC holds of every client's uploads: fixed for a connection and for a stream

An estimate: not all of it falls together, and allocators keep some of what was freed. Not
covered: the page cache of files, the operating system, other processes, and shards of unequal
weight. `benchmarks.memory` sets it beside what is measured;
`tests/processes/test_shard_memory.py` asserts that they agree within half, and for a client
`tests/federation/test_sealing_memory.py` within a quarter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from secureps.config.sections import memory_stated, memory_text
from secureps.errors import ConfigError
from secureps.model.layout import GroupLayout
from secureps.model.placement import place_groups
from secureps.policy.block_deltas import FLOAT_BYTES, block_delta
from secureps.policy.plan import Plan

PINNED = 2
"""Versions in memory of a group whose tier is resident: the newest, and the one being made."""
VERSIONS = 3
FILED = 3
"""Versions of a group whose state files are kept: the newest, the one before it, and what the
checkpoint before has, or the one being made."""
MORE_CHECKPOINTS = 2
"""Beside those that the plan keeps: the first one, and the one being made."""
SHARD_THREADS = 1
"""Threads that step a shard's blocks, unless its file says otherwise."""
CODE_BYTES = 40
"""Of a value that is sent, while the mean of a block is decoded: its place, its factor, two
float64, and the words that are drawn for it."""
ENCODING_BYTES = 28
"""Of a value that is sent, while a client encodes a block: its sign, two float64 of it, and what is
left of the block before."""
PLACE_BYTES = 28
"""And while its place is drawn: words, and the run that they lie in."""
DECODING_BYTES = 12
"""And while it is told what rounding left over."""
NOISED_BYTES = 20
"""Of a value with noise: a float32, and its integers before the noise and after."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a plan does not say about the shards that serve it.

    Args:
        shards: names, for placement; all of the same weight.
        clients: connected to each of them at once.
        program: bytes of a shard's process that has no model yet.
        connection: bytes of buffers of one client's connection, and `stream` of each of its
            uploads, if it sends as much.
        threads: that take uploads in, on a shard; `streams`: that one client sends by.
        piece: bytes of an upload that are on their way into a block.
        in_flight: bytes of blocks that are taken in at once, at most; or `shares` of the largest.
        memory: bytes of values and optimizer state that a shard has resident, at most; None: all.
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
    """Bytes of the shard that needs most; see the module's docstring.

    Args:
        shards: that the blocks lie on.
        clients: that are connected.
        memory: resident at the peak: the sum of the five that follow.
        disk: of updates in its spool, while the largest cohort of every group is open.
        files: of the state files of its groups: each has FILED versions.
        checkpoints: of its parts of the checkpoints that stay.
        limit: of `state`; None if there is none.
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
    """Predicts what the shard needs that needs most, for the groups of a model's layout.

    Raises:
        ConfigError: a shard's limit is too little.
    """
    kind = plan.cipher_of(groups[0])
    nodes = dict.fromkeys(service.shards, 1.0)
    state, sent, disk, held, files = (dict.fromkeys(service.shards, 0) for _ in range(5))
    own: dict[str, dict[str, list[int]]] = {shard: {} for shard in service.shards}
    work = largest = 0
    placed = place_groups({g.name: g.blocks for g in groups}, nodes, plan.section.replicas)
    for group in groups:
        most, chain = plan.bounds(group.name).most, plan.chain(group.name)
        resident = plan.group(group.name).tier != "mapped"
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
                if resident:
                    length = 0 if delta is None else delta.length
                    behind = 0 if delta is None else delta.behind
                    state[shard] += VERSIONS * (version - length) + behind * length
                disk[shard] += most * sealed
            sent[primary] += sealed
            held[primary] += 1
            decoding = 0 if chain.is_identity else FLOAT_BYTES * values + CODE_BYTES * slots
            work = max(work, total + sealed, decoding)
            largest = max(largest, sealed)
    if service.memory is not None:
        state = {shard: _resident(plan, groups, own[shard], service) for shard in service.shards}
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
    """The most checkpoints that lie on a disk at once."""
    section = plan.section
    most = 2 + sum(plan.versions(group) // section.checkpoint_every for group in plan.groups)
    if not section.keep:
        return most
    return min(most, section.keep + MORE_CHECKPOINTS + plan.keeps_best)


def fewest(plan: Plan, groups: Sequence[GroupLayout], service: Service) -> MemoryUse | None:
    """Predicts for the fewest shards that `[scaling]` leaves; None where they are never fewer.

    No shard goes where another one's limit would be too little for its part of the blocks.
    """
    own = plan.section.scaling
    if own is None or own.policy == "fixed":
        return None
    for left in range(own.least_shards, len(service.shards)):
        with suppress(ConfigError):
            return footprint(plan, groups, replace(service, shards=service.shards[:left]))
    return None


def _resident(
    plan: Plan, groups: Sequence[GroupLayout], own: Mapping[str, list[int]], service: Service
) -> int:
    """Bytes of versions in a shard's process within its limit: resident ones, and one being made.

    A version that is longer than the room for it is made in a file.
    """
    assert service.memory is not None
    blocks = {group.name: own.get(group.name, []) for group in groups}
    most = room_to_make(plan, groups, blocks, service.memory, SHARD_THREADS)
    held = longest = 0
    for group in groups:
        version = version_bytes(plan, group, blocks[group.name])
        if plan.group(group.name).tier == "resident":
            held += PINNED * version
        elif version <= most:
            longest = max(longest, version)
    return held + longest


def sealing(plan: Plan, group: GroupLayout) -> int:
    """Predicts what a client holds of a group at its peak while it makes an update: bytes.

    The pulled values and the trained ones, float32; under feedback what earlier updates left over,
    and what this one will. The integers, in as few bytes a value as their grid needs; under
    client-level privacy with their noise. Then what is worked on of one block: without a codec
    next to nothing. Not covered: the program, what the script takes to train, and ciphertexts,
    which leave memory piece by piece.
    """
    section, chain = plan.group(group.name), plan.chain(group.name)
    held = FLOAT_BYTES * group.size * (4 if section.feedback else 2)
    drawn = PLACE_BYTES if chain.one_in > 1 else 0
    if plan.mechanism(group.name, group.sent) is not None:
        return held + group.sent * (NOISED_BYTES + drawn)
    held += group.sent * np.min_scalar_type(plan.grid(group.name, group.sent).levels).itemsize
    encoding = 0 if chain.is_identity else ENCODING_BYTES + drawn
    return held + group.slots(0) * (encoding + DECODING_BYTES * section.feedback)


def version_bytes(plan: Plan, group: GroupLayout, blocks: Iterable[int]) -> int:
    """Counts the bytes of these blocks in one version: values, optimizer state, differences."""
    slots = len(plan.optimizer(group.name).init(np.zeros(1, np.float32)).slots)
    found = 0
    for block in blocks:
        start, stop = group.span(block)
        delta = block_delta(plan, group, block)
        found += FLOAT_BYTES * (1 + slots) * (stop - start)
        found += 0 if delta is None else delta.length
    return found


def room_to_make(
    plan: Plan,
    groups: Sequence[GroupLayout],
    own: Mapping[str, Sequence[int]],
    memory: int,
    threads: int,
) -> int:
    """Bytes of a shard's memory for the version that a step makes; a longer one is made in a file.

    Args:
        own: the blocks that are placed on the shard, by group.
        memory: bytes; threads: that step blocks side by side.
    Raises:
        ConfigError: it is less than what resident groups and the blocks in work take; says how
            much would do.
    """
    pinned = largest = 0
    for group in groups:
        sizes = [version_bytes(plan, group, (block,)) for block in own[group.name]]
        largest = max(largest, *sizes, 0)
        if plan.group(group.name).tier == "resident":
            pinned += PINNED * sum(sizes)
    least = pinned + threads * largest
    if memory < least:
        raise ConfigError(
            f'memory = "{memory_stated(memory)}" is too little for what this shard holds: it works '
            f'with "{memory_text(least)}" or more, {pinned:,} bytes for {PINNED} versions of '
            f"groups whose tier is resident, and its longest block, {largest:,} bytes, for each of "
            f"its threads, {threads}"
        )
    return memory - pinned
