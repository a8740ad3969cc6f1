"""The shard of `tiers` and `tier_pulls`: a table of row-blocks, who asks for which, and what memory
its process may have.

What must not live here: what is measured.
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.encoding import file_hasher, payload_digest
from secureps.messages.records import RunPinned
from secureps.messages.requests import PutBlock, Telemetry
from secureps.messages.run import GroupPlacement, Placement, RunInfo, ShardAddress
from secureps.messages.schema import Schema, TensorSpec
from secureps.messages.shard_records import BlockSpooled, ShardRecord, StateCommitted
from secureps.messages.submission import UPDATE, BlockHeader, Cohort, Member, SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.shard.keys import model_key, sum_key
from secureps.roles.shard.memory_limit import Limit
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import MakeState, StateReady, StepState, SumCohort, SumsReady
from secureps.roles.tasks import Prune
from secureps.service.shard.folders import ShardFolders
from secureps.service.shard.noise import ShardNoise
from secureps.service.shard.worker import ShardWorker
from secureps.store.checkpoint import digest_of_file, write_state
from secureps.store.spool import DiskSpool

SHARD, CLIENTS = "shard-0", ("client-0", "client-1")
WIDTH, ROWS = 1024, 64
"""Values of a row, and rows of a row-block: 256 KiB of float32."""
MIB = 1 << 20
BLOCK = 4 * WIDTH * ROWS
ALLOWANCE = 64 * MIB
"""Bytes for what a budget is not about: payloads and sums of one block, messages, records."""
EXPONENT = 1.1


@dataclass(frozen=True)
class Asked:
    """What a child is to do; `memory` in bytes, None: all resident, and no limit of the process."""

    initial: str
    digest: str
    table: int
    memory: int | None
    updates: int = 0
    pulls: int = 0

    @property
    def blocks(self) -> int:
        return self.table // BLOCK


def plan_of(asked: Asked) -> Plan:
    group = {
        "name": "table",
        "pattern": "table",
        "sparse": {"rows": asked.blocks * ROWS, "block": ROWS},
        "clip": 30.0,
        "range": 4.0,
        "weighting": "uniform",
        "rule": {"name": "buffered", "buffer": 2, "minimum": 2},
    }
    body = {
        "name": "tiers",
        "versions": 1000,
        "shards": 1,
        "initial": asked.initial,
        "cipher": {"name": "plain", "capacity": 8},
        "group": [group],
    }
    return Plan(parse(PlanSection, body, "tiers"), asked.digest)


class Shard:
    """A shard's worker, and a state to which its `records` are applied at once."""

    def __init__(self, asked: Asked, folder: Path) -> None:
        self.plan = plan_of(asked)
        schema = Schema((TensorSpec("table", (asked.blocks * ROWS, WIDTH), "float32"),))
        layout = self.plan.layout(schema)
        self.groups = tuple(group.name for group in layout.groups)
        self.run = RunInfo(self.plan.text, schema, layout.digest, b"", b"", b"")
        placed = tuple(GroupPlacement(name, (SHARD,)) for name in self.groups)
        record = RunPinned(
            self.run, Placement(1, (SHARD,), placed), (ShardAddress(SHARD, "", 1.0),)
        )
        self.state = ShardState(SHARD)
        self.records: list[RunPinned | ShardRecord] = []
        self._apply(record)
        self.folder = folder
        folders = ShardFolders(folder / "states", folder / "checkpoints")
        noise = ShardNoise(UnsafeSeed(1), {})
        spool, limit = DiskSpool(folder / "spool"), Limit(asked.memory)
        self.worker = ShardWorker(SHARD, self.state, spool, folders, noise, limit=limit)
        self.reports: dict[str, Telemetry] = {}
        self.sequence = 0
        self.layout = layout

    def found(self) -> None:
        for group in self.groups:
            self._made(MakeState(group, None))
            self._commit(group, 0)

    def _apply(self, record: RunPinned | ShardRecord) -> None:
        self.records.append(record)
        self.state.apply(record)

    def _made(self, task: Any) -> StateReady:
        done = self.worker.work(task)
        assert isinstance(done, StateReady), done
        self._apply(done.made)
        if done.telemetry is not None:
            self.reports[SHARD] = done.telemetry
        return done

    def _commit(self, group: str, version: int) -> None:
        keep = max(0, version - 1)
        self._apply(StateCommitted(group, version, keep))
        self.worker.work(Prune((), group, version, keep))

    def key(self, group: str) -> str:
        return model_key(group, self.state.group(group).committed, 0)

    def pull(self, group: str) -> memoryview:
        return memoryview(self.worker.fetch(self.key(group)))

    def update(self, group: str) -> None:
        """One version of a row-block, of both clients' updates."""
        version, self.sequence = self.state.group(group).committed, self.sequence + 1
        ids = [SubmissionId(client, group, self.sequence) for client in CLIENTS]
        payload = self._payload(group)
        for id in ids:
            own = (id.client, UPDATE, group, id.sequence, 0)
            header = BlockHeader(self.run.id, *own, len(payload), payload_digest(payload))
            self.worker.take(PutBlock(header), payload)()
            self._apply(BlockSpooled(header))
        members = tuple(Member(id, 1, version) for id in ids)
        number = version
        cohort = Cohort(group, number, version + 1, 2, members)
        keys = tuple((self.state.block_key(id, 0) or "",) for id in ids)
        sums = self.worker.work(SumCohort(cohort, keys))
        assert isinstance(sums, SumsReady), sums
        self._apply(sums.made)
        self._made(StepState(cohort, None, None))
        gone = (*(key for own in keys for key in own), sum_key(group, number, 0))
        self._commit(group, version + 1)
        self.worker.work(Prune(gone))

    def _payload(self, group: str) -> bytes:
        layout = self.layout.group(group)
        levels = self.plan.grid(group, layout.sent).levels
        drawn = np.random.default_rng(self.sequence).integers(0, levels, layout.sent, endpoint=True)
        return drawn.astype("<u2").tobytes()

    def model(self) -> str:
        """A digest of the newest blocks of all groups."""
        found = hashlib.sha256()
        for group in self.groups:
            held = self.state.group(group)
            found.update(held.states[held.committed].blocks[0])
        return found.hexdigest()

    def files(self) -> list[Path]:
        return sorted((self.folder / "states").glob("*.safetensors"))


def asked_for(groups: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Groups under Zipf's law; which of them are hot does not follow from their names."""
    rng = np.random.default_rng(7)
    order = rng.permutation(len(groups))
    weights = 1 / np.arange(1, len(groups) + 1) ** EXPONENT
    drawn = np.random.default_rng(seed).choice(len(groups), count, p=weights / weights.sum())
    return [groups[order[each]] for each in drawn]


def figure(file: str, name: str, pid: int | str = "self") -> int:
    """What the system counts of a process; 0 if it does not."""
    for line in Path("/proc", str(pid), file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def write_initial(path: Path, table: int) -> str:
    """The file of version 0, and its digest."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((table // BLOCK * ROWS, WIDTH), np.float32)
    write_state(path, {"table": values}, {}, None)
    return digest_of_file(path, file_hasher).hex()


# --- limits -----------------------------------------------------------------------


def limit(memory: int | None, pid: int) -> str:
    """A process may take so much more than it has, and ALLOWANCE; how that is enforced."""
    if memory is None:
        return "none"
    for group, most in cgroups(pid):
        try:
            group.mkdir()
            (group / most).write_text(str(memory + ALLOWANCE))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            continue
        return "memory cgroup"
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[5])
    most_bytes = pages * resource.getpagesize() + memory + ALLOWANCE
    resource.prlimit(pid, resource.RLIMIT_DATA, (most_bytes, most_bytes))
    return "RLIMIT_DATA"


@contextmanager
def limited(pid: int) -> Iterator[None]:
    """Leaves no group behind of a process that has ended by then."""
    try:
        yield
    finally:
        for group, _ in cgroups(pid):
            if group.exists():
                group.rmdir()


def cgroups(pid: int) -> Iterator[tuple[Path, str]]:
    """Where a process may have a group of its own, below this one's, and the file of its limit.

    What the process had before stays with the group above.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        own = f"{path.lstrip('/')}/secureps-tiers-{pid}"
        if kinds == "memory":
            yield Path("/sys/fs/cgroup/memory") / own, "memory.limit_in_bytes"
        elif not kinds:
            yield Path("/sys/fs/cgroup") / own, "memory.max"
