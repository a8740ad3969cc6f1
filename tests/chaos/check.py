"""What must hold at the end of every run, whatever went wrong in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.errors import SecurepsError
from secureps.messages import coordinator_records as records
from secureps.messages.encoding import payload_digest
from secureps.messages.submission import FOUNDING, UPDATE, Cohort, Receipt, SubmissionId
from secureps.model.layout import GroupLayout
from secureps.model.optimizer import OptimizerState
from secureps.policy.block_deltas import block_delta
from secureps.policy.plan import Plan
from secureps.policy.spending import facts_of
from secureps.roles.member.member import Member
from secureps.run.party_names import client_names
from secureps.store.checkpoint import latest_good
from tests.chaos.schedule import CHEATS, CLIENTS, Setting
from tests.chaos.world import World
from tests.kits.federations import Tensors, same

GROUP = "all"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the files of a run lie, if the machine has memory for files."""


@cache
def unharmed(setting: Setting) -> Tensors:
    """The model of a run in which nothing goes wrong."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        world = World(0, setting, (), Path(folder))
        world.play()
        assert world.stood is None, world.stood
        return world.model()


def complaints(world: World) -> list[str]:
    """Every promise that a run has broken; empty if it kept them all."""
    if world.stood is not None:
        return [*world.evidence.wrong, world.stood]
    if world.given_up:
        return list(world.evidence.wrong)
    return [*world.evidence.wrong, *_end(world), *_counted(world), *_ledgers(world), *_model(world)]


def journal_of(world: World, party: str = "coordinator") -> list[Any]:
    return [record for _, record in world._stores[party].journal.replay()]


def _of(journal: Iterable[Any], kind: type[Any]) -> list[Any]:
    return [record for record in journal if isinstance(record, kind)]


# --- how it ended -----------------------------------------------------------------


def _end(world: World) -> list[str]:
    federation = world.coordinator.federation
    cheated = any(fault.kind in CHEATS for fault in world.faults)
    found = []
    if not federation.finished:
        found.append("the run ended without a reason")
    if federation.failure and not cheated:
        found.append(f"the run failed: {federation.finished}")
    for name in client_names(CLIENTS):
        halt = world.parties[name].halted.result()
        if halt.error is not None and not cheated:
            found.append(f"{name} left: {halt.reason}")
    return found


# --- what was counted -------------------------------------------------------------


def _committed(journal: list[Any]) -> dict[int, Cohort]:
    """The cohort of every committed version of the group."""
    closed = {
        record.cohort.number: record.cohort
        for record in _of(journal, records.CohortClosed)
        if record.cohort.group == GROUP
    }
    opened = {r.number for r in _of(journal, records.CohortOpened) if r.group == GROUP}
    burnt = {r.number for r in _of(journal, records.CohortBurnt) if r.group == GROUP}
    versions = {r.version for r in _of(journal, records.VersionCommitted) if r.group == GROUP}
    made = (closed[number] for number in sorted(opened - burnt))
    return {cohort.version: cohort for cohort in made if cohort.version in versions}


def _counted(world: World) -> list[str]:
    """Each submission at most once, by its name and by what is in it; each is accounted for."""
    journal, found = journal_of(world), []
    cohorts = _committed(journal)
    made = len([v for v in _of(journal, records.VersionCommitted) if v.group == GROUP])
    if made != len(cohorts) + 1:
        found.append(f"{made} versions were committed, and {len(cohorts)} cohorts opened for them")
    members = [member for cohort in cohorts.values() for member in cohort.members]
    names: Counter[Any] = Counter(member.id for member in members)
    contents = Counter((member.id.client, member.update) for member in members)
    for what, times in (names + contents).items():
        if times > 1:
            found.append(f"{what} was counted {times} times")
    received = Counter(record.receipt.id for record in _of(journal, records.Received))
    # Once more for each cohort that was dissolved since a shard has its blocks no more.
    lost = Counter(id for record in _of(journal, records.CohortReopened) for id in record.missing)
    again = received - lost
    found += [f"{id} was received {received[id]} times" for id in again if again[id] > 1]
    fates = world.coordinator.federation.fates
    found += [f"nobody says what became of {id}" for id in sorted(received.keys() - fates.keys())]
    found += [f"{m.id} was counted, and never received" for m in members if m.id not in received]
    return found


# --- what was spent ---------------------------------------------------------------


def _ledgers(world: World) -> list[str]:
    """No ledger is under what was sent: the client's own has all of it, others what they heard."""
    if not world.setting.privacy:
        return []
    found = []
    federation = world.coordinator.federation
    receipts = [record.receipt for record in _of(journal_of(world), records.Received)]
    for client in client_names(CLIENTS):
        member = world.parties[client].machine
        assert isinstance(member, Member)
        own, known = facts_of(member._ledger, client), facts_of(federation.ledger, client)
        spent = Counter((fact.group, fact.version) for fact in own)
        sent = Counter(
            (group, version)
            for group, version, _ in world.evidence.sent[client]
            if group == GROUP  # metrics are of records that no training has seen
        )
        if client in world.wiped:
            spent |= sent  # what it charged went with its disk: the coordinator's ledger has it
        for (group, version), times in sorted((sent - spent).items()):
            found.append(f"{client} sent {times} more updates of {group} {version} than it charged")
        heard = [r.fact for r in receipts if r.id.client == client and r.fact is not None]
        found += [f"the coordinator forgot {fact}" for fact in heard if fact not in known]
    try:
        _, manifest, _ = latest_good(world.checkpoints)
    except SecurepsError as error:
        return [*found, f"no checkpoint: {error}"]
    kept = {*manifest.ledger, *manifest.releases}
    summed = {m.id for cohort in _committed(journal_of(world)).values() for m in cohort.members}
    for receipt in receipts:
        if receipt.id in summed and receipt.fact is not None and receipt.fact not in kept:
            found.append(f"the last checkpoint lacks {receipt.fact}")
    return found


# --- the model --------------------------------------------------------------------


def _model(world: World) -> list[str]:
    """That of the undisturbed run, or that of the receipts that were committed."""
    found = [*_by_receipts(world)]
    cheated = any(fault.kind in CHEATS for fault in world.faults)
    as_ever = world.setting.rule == "all" and not (cheated or world.wiped)
    if as_ever and not same(world.model(), unharmed(world.setting)):
        found.append("the model is not that of the undisturbed run")
    return found


def _by_receipts(world: World) -> list[str]:
    """Every version computed once more in plain integers, from what the clients sealed."""
    journal = journal_of(world)
    federation = world.coordinator.federation
    assert federation.pinned is not None
    layout = world.plan.layout(federation.pinned.run.schema).group(GROUP)
    receipts = {r.receipt.id: r.receipt for r in _of(journal, records.Received)}
    prepared = {
        (r.version, r.shard): r.blocks
        for r in _of(journal, records.ShardPrepared)
        if r.group == GROUP
    }
    placement = federation.pinned.placement.of(GROUP)
    (founder,) = (r for r in receipts.values() if (r.purpose, r.id.group) == (FOUNDING, GROUP))
    values = world.evidence.founding[founder.root]
    state = world.plan.optimizer(GROUP).init(values)
    cohorts, found = _committed(journal), list[str]()
    for version in range(world.versions()[GROUP] + 1):
        if version > 0:
            exact, state = _stepped(world, cohorts[version], receipts, values, state)
            values = _published(world.plan, layout, exact, values)
        for (at, shard), blocks in prepared.items():
            spans = (layout.span(block) for block in placement.blocks_of(shard))
            parts = (values[slice(*span)].astype("<f4").tobytes() for span in spans)
            if at == version and tuple(map(payload_digest, parts)) != blocks:
                found.append(f"version {version} of {shard} is not what its receipts come to")
    if world.emptied:
        return found
    model = world.model()
    flat = layout.flatten(model | {name: np.zeros(()) for name in ("body.count",)})
    if flat.tobytes() != values.tobytes():
        found.append("the model is not what the receipts come to")
    return found


def _published(
    plan: Plan, layout: GroupLayout, exact: NDArray[np.float32], before: NDArray[np.float32]
) -> NDArray[np.float32]:
    """What clients hold of what the optimizer made."""
    values = exact.copy()
    for block in range(layout.blocks):
        here = slice(*layout.span(block))
        if (delta := block_delta(plan, layout, block)) is not None:
            delta.publish(values[here], before[here], None)
    return values


def _stepped(
    world: World,
    cohort: Cohort,
    receipts: dict[SubmissionId, Receipt],
    values: NDArray[np.float32],
    state: OptimizerState,
) -> tuple[NDArray[np.float32], OptimizerState]:
    total, weight = [0] * values.size, 0
    for member in cohort.members:
        receipt = receipts[member.id]
        assert receipt.purpose == UPDATE
        integers, own = world.evidence.integers[member.id, receipt.root]
        weight += member.weight * own
        total = [so_far + member.weight * int(each) for so_far, each in zip(total, integers)]
    grid = world.plan.grid(GROUP, values.size)
    mean = grid.weighted_mean(np.array(total, np.int64), weight, cohort.weight)
    return world.plan.optimizer(GROUP).apply(mean, values, state)
