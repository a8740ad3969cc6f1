"""What must hold at the end of every run, whatever went wrong in it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secureps.codec.chain import BlockCode
from secureps.errors import DamagedStore, SecurepsError
from secureps.messages import coordinator_records as records
from secureps.messages.charge import Fact
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.records import RunPinned
from secureps.messages.requests import Prepared, Submit
from secureps.messages.run import COORDINATOR, Placement
from secureps.messages.submission import (
    FOUNDING,
    UPDATE,
    Cohort,
    Receipt,
    SubmissionId,
    cohort_digest,
)
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import block_codes, block_delta
from secureps.policy.plan import Plan, most_counted
from secureps.privacy.ledger import Ledger
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import kept_key
from secureps.run.export import newest_model
from secureps.store.checkpoint import Manifest, checkpoint_directories, load_newest
from tests.chaos.ends import GROUP, ends
from tests.chaos.evidence import Evidence
from tests.chaos.schedule import CHEATS, Setting
from tests.chaos.world import World
from tests.kits.federations import Tensors, same
from tests.kits.feedback_kit import recomputed
from tests.kits.privacy_kit import facts_of

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the files of a run lie, if the machine has memory for files."""


class Known(Protocol):
    """What a run's versions can be computed from once more, beside its journal."""

    @property
    def plan(self) -> Plan:
        """That of the run."""

    @property
    def evidence(self) -> Evidence:
        """What its clients have sealed."""


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
        return [*world.evidence.wrong, *_left_behind(world)]
    return [
        *world.evidence.wrong,
        *ends(world, journal_of(world)),
        *_counted(world),
        *_ledgers(world),
        *_model(world),
        *_kept(world),
    ]


def journal_of(world: World) -> list[Any]:
    return [record for _, record in world._stores[world.ruler].journal.replay()]


def _left_behind(world: World) -> list[str]:
    """What a run without an end leaves is right, as far as it came: a new one may begin there."""
    found, known = list[str](), list[list[NDArray[np.float32]]]()
    journals = [journal_of(world)]
    if (lost := world.lost.get(COORDINATOR)) is not None:
        journals.append([record for _, record in lost.replay()])
    for journal in journals:
        values, wrong = by_receipts(world, journal)
        known.append(values)
        found += [*once(journal), *wrong]
    return [*found, *_checkpoint(world, known)]


def of_kind(journal: Iterable[Any], kind: type[Any]) -> list[Any]:
    return [record for record in journal if isinstance(record, kind)]


def committed_cohorts(journal: list[Any]) -> dict[int, Cohort]:
    """The cohort of every committed version of the group."""
    closed = {
        record.cohort.number: record.cohort
        for record in of_kind(journal, records.CohortClosed)
        if record.cohort.group == GROUP
    }
    opened = {r.number for r in of_kind(journal, records.CohortOpened) if r.group == GROUP}
    burnt = {r.number for r in of_kind(journal, records.CohortBurnt) if r.group == GROUP}
    versions = {r.version for r in of_kind(journal, records.VersionCommitted) if r.group == GROUP}
    made = (closed[number] for number in sorted(opened - burnt))
    return {cohort.version: cohort for cohort in made if cohort.version in versions}


def _counted(world: World) -> list[str]:
    """Each submission at most once; each is accounted for."""
    journal = journal_of(world)
    received = {record.receipt.id for record in of_kind(journal, Submit)}
    fate = world.coordinator.federation.settled.of
    silent = [f"nobody says what became of {id}" for id in sorted(received) if fate(id) is None]
    return [*once(journal), *silent]


def once(journal: list[Any]) -> list[str]:
    """Each submission at most once, by its name and by what is in it."""
    cohorts, found = committed_cohorts(journal), []
    made = len([v for v in of_kind(journal, records.VersionCommitted) if v.group == GROUP])
    if made and made != len(cohorts) + 1:
        found.append(f"{made} versions were committed, and {len(cohorts)} cohorts opened for them")
    members = [member for cohort in cohorts.values() for member in cohort.members]
    names: Counter[Any] = Counter(member.id for member in members)
    contents = Counter((member.id.client, member.update) for member in members)
    for what, times in (names + contents).items():
        if times > 1:
            found.append(f"{what} was counted {times} times")
    received = Counter(record.receipt.id for record in of_kind(journal, Submit))
    # Once more for each cohort that was dissolved since a shard has its blocks no more.
    lost = Counter(
        id for record in of_kind(journal, records.CohortReopened) for id in record.missing
    )
    again = received - lost
    found += [f"{id} was received {received[id]} times" for id in again if again[id] > 1]
    found += [f"{m.id} was counted, and never received" for m in members if m.id not in received]
    return found


def _ledgers(world: World) -> list[str]:
    """No ledger is under what was sent: the client's own has all of it, others what they heard."""
    if not world.setting.privacy:
        return []
    found = []
    federation = world.coordinator.federation
    receipts = [record.receipt for record in of_kind(journal_of(world), Submit)]
    for client in world.clients:
        member = world.parties[client].machine
        assert isinstance(member, Member)
        own, known = facts_of(member._ledger, client), facts_of(federation.ledger, client)
        spent = Counter((fact.group, fact.version) for fact in own)
        sent = Counter(
            (group, version)
            for group, version, _ in world.evidence.sent[client]
            if group == GROUP  # metrics are of records that no training has seen
        )
        if client in world.lost:
            spent |= sent  # what it charged went with its disk: the coordinator's ledger has it
        for (group, version), times in sorted((sent - spent).items()):
            found.append(f"{client} sent {times} more updates of {group} {version} than it charged")
        heard = [r.fact for r in receipts if r.id.client == client and r.fact is not None]
        found += [f"the coordinator forgot {fact}" for fact in heard if fact not in known]
    try:
        _, manifest, _ = load_newest(world.checkpoints)
    except SecurepsError as error:
        return [*found, f"no checkpoint: {error}"]
    summed = {
        m.id for cohort in committed_cohorts(journal_of(world)).values() for m in cohort.members
    }
    facts = {r.fact for r in receipts if r.id in summed and r.fact is not None}
    return [*found, *lacking(manifest, facts)]


def lacking(manifest: Manifest, facts: Collection[Fact]) -> list[str]:
    """What a checkpoint counts less often than it is among these."""
    counted = {each.charge or each.release: each.times for each in manifest.tallies or ()}
    return [
        f"the last checkpoint has {counted.get(fact, 0)} of {times} times {fact}"
        for fact, times in Ledger(facts).tallies()
        if counted.get(fact, 0) < times
    ]


def _model(world: World) -> list[str]:
    """That of the undisturbed run, or that of the receipts that were committed."""
    values, found = by_receipts(world, journal_of(world))
    found += _checkpoint(world, [values])
    pinned = world.coordinator.federation.pinned
    if not world.emptied:
        assert pinned is not None
        layout = world.plan.layout(pinned.run.schema).group(GROUP)
        flat = layout.flatten(world.model() | {name: np.zeros(()) for name in ("body.count",)})
        if flat.tobytes() != values[-1].tobytes():
            found.append("the model is not what the receipts come to")
    cheated = any(fault.kind in CHEATS for fault in world.faults)
    anew = world.lost.keys() & set(world.clients)  # with another seed
    as_ever = world.setting.rule == "all" and not (cheated or anew)
    as_ever &= not (world.coordinator.federation.failure or world.data_holders.gone)
    if as_ever and not same(world.model(), unharmed(world.setting)):
        found.append("the model is not that of the undisturbed run")
    return found


def by_receipts(known: Known, journal: list[Any]) -> tuple[list[NDArray[np.float32]], list[str]]:
    """Every version computed once more in plain integers, from what the clients sealed."""
    found, made = list[str](), list[NDArray[np.float32]]()
    receipts = {r.receipt.id: r.receipt for r in of_kind(journal, Submit)}
    committed = [r.version for r in of_kind(journal, records.VersionCommitted) if r.group == GROUP]
    if not committed:
        return made, found
    (pinned,) = of_kind(journal, RunPinned)
    layout = known.plan.layout(pinned.run.schema).group(GROUP)
    prepared = _prepared(journal, pinned.placement)
    *_, founder = (r for r in receipts.values() if (r.purpose, r.id.group) == (FOUNDING, GROUP))
    values = known.evidence.founding[founder.root]
    state = known.plan.optimizer(GROUP).init(values)
    cohorts = committed_cohorts(journal)
    for version in committed:
        if version > 0:
            codes = _codes(known.plan, layout, cohorts[version], values)
            means = _means(known, cohorts[version], receipts, layout, codes)
            made_of = partial(_next, known.plan, layout, codes, values, state)
            wanted = {
                block: digest
                for (at, _), blocks in prepared.items()
                for block, digest in blocks.items()
                if at == version
            }
            mean = _added(means, lambda mean: made_of(mean)[0], wanted, layout)  # noqa: B023
            values, state = made_of(mean)
        made.append(values)
        for (at, shard), blocks in prepared.items():
            known_as = (
                (values[slice(*layout.span(block))].astype("<f4").tobytes(), each)
                for block, each in blocks.items()
            )
            if at == version and any(payload_digest(part) != each for part, each in known_as):
                found.append(f"version {version} of {shard} is not what its receipts come to")
    return made, found


def _prepared(journal: list[Any], placement: Placement) -> dict[tuple[int, str], dict[int, bytes]]:
    """By version and shard: of each of its blocks what the shard said, as they were placed then."""
    found, coming = dict[tuple[int, str], dict[int, bytes]](), placement
    for record in journal:
        match record:
            case records.PlacementMoved():
                coming = record.placement
                placement = coming if record.in_force else placement
            case records.ShardLeft(shard):
                placement = placement.without(shard)
            case Prepared() if record.group == GROUP:
                blocks = (coming if record.epoch else placement).blocks_of(GROUP, record.shard)
                known = found.setdefault((record.version, record.shard), {})
                known |= dict(zip(blocks, record.blocks, strict=True))
    return found


def _checkpoint(world: World, known: list[list[NDArray[np.float32]]]) -> list[str]:
    """The newest whole checkpoint is a version that receipts come to, if there ever was one.

    Args:
        known: the versions by each journal that the coordinator has had.
    """
    if not any(known) or not checkpoint_directories(world.checkpoints):
        return []
    try:
        model = newest_model(world.checkpoints)
    except DamagedStore as error:
        return [] if world.given_up else [f"no checkpoint: {error}"]
    layout, version = model.layout.group(GROUP), model.versions[GROUP]
    flat = layout.flatten(model.tensors | {"body.count": np.zeros(())}).tobytes()
    if any(version < len(values) and values[version].tobytes() == flat for values in known):
        return []
    return [f"checkpoint {model.number} is not what its receipts come to"]


def _codes(
    plan: Plan, layout: GroupLayout, cohort: Cohort, before: NDArray[np.float32]
) -> list[BlockCode]:
    """The codes of the blocks that members of a cohort have sent."""
    spans = (slice(*layout.span(block)) for block in range(layout.blocks))
    base = [payload_digest(before[span].astype("<f4").tobytes()) for span in spans]
    every = plan.group(GROUP).support_every
    supports = {
        member.version if every is None else member.version // every for member in cohort.members
    }
    assert every is None or len(supports) == 1, f"cohort {cohort.number} has several supports"
    version = cohort.version - 1 if every is None else supports.pop() * every
    return list(map(block_codes(plan, layout, version, base), range(layout.blocks)))


def _next(
    plan: Plan,
    layout: GroupLayout,
    codes: list[BlockCode],
    values: NDArray[np.float32],
    state: Any,
    mean: NDArray[Any],
) -> tuple[NDArray[np.float32], Any]:
    """The published version that a mean leads to, and the optimizer's state."""
    exact, after = plan.optimizer(GROUP).apply(mean, values, state)
    return _published(plan, layout, exact, values, codes), after


def _added(
    means: list[NDArray[Any]],
    made_of: Callable[[NDArray[Any]], NDArray[np.float32]],
    wanted: Mapping[int, bytes],
    layout: GroupLayout,
) -> NDArray[Any]:
    """Of means with several noises, block by block that of which shards say they made a version.

    A shard that lost its disk has another seed, and draws once more what nobody has added.
    """
    mean = means[0].copy()
    for other in means[1:]:
        values = made_of(other)
        for block in range(layout.blocks):
            here = slice(*layout.span(block))
            if payload_digest(values[here].astype("<f4").tobytes()) == wanted.get(block):
                mean[here] = other[here]
    return mean


def _published(
    plan: Plan,
    layout: GroupLayout,
    exact: NDArray[np.float32],
    before: NDArray[np.float32],
    codes: list[BlockCode],
) -> NDArray[np.float32]:
    """What clients hold of what the optimizer made."""
    values = exact.copy()
    for block in range(layout.blocks):
        here = slice(*layout.span(block))
        if (delta := block_delta(plan, layout, block)) is not None:
            delta.publish(values[here], before[here], codes[block])
    return values


def _means(
    known: Known,
    cohort: Cohort,
    receipts: dict[SubmissionId, Receipt],
    layout: GroupLayout,
    codes: list[BlockCode],
) -> list[NDArray[Any]]:
    """What the integers of a cohort's members come to, added one by one: one for every noise."""
    total, counted = [0] * layout.sent, 0
    for member in cohort.members:
        receipt = receipts[member.id]
        assert receipt.purpose == UPDATE
        integers, own = known.evidence.integers[member.id, receipt.root]
        counted += member.weight * own
        total = [so_far + member.weight * int(each) for so_far, each in zip(total, integers)]
    grid, found = known.plan.grid(GROUP, layout.sent), list[NDArray[Any]]()
    shares = Fraction(counted, most_counted(known.plan.group(GROUP)))
    for noise in _noises(known, cohort, layout):
        values = np.array(total, np.int64) + noise
        decoded = grid.decode_sum(values, cohort.weight + known.plan.noisy_shards)
        mean = grid.mean(decoded, shares)
        if not known.plan.chain(GROUP).is_identity:
            parts = (mean[slice(*layout.sent_span(block))] for block in range(layout.blocks))
            mean = np.concatenate([code.decode(part) for code, part in zip(codes, parts)])
        found.append(mean)
    return found


def _noises(known: Known, cohort: Cohort, layout: GroupLayout) -> list[NDArray[np.int64]]:
    """What shards may have added to a sum: nothing, or what was drawn for each of its blocks."""
    if not known.plan.noisy_shards:
        return [np.zeros(layout.sent, np.int64)]
    name = cohort_digest(b"", replace(cohort, committee=None))
    drawn = [known.evidence.noise[name, block] for block in range(layout.blocks)]
    return [
        np.concatenate([each[min(number, len(each) - 1)] for each in drawn])
        for number in range(max(map(len, drawn)))
    ]


def _kept(world: World) -> list[str]:
    """Of every client: what its last included update left over, as the formula says."""
    found = []
    feedback = world.plan.group(GROUP).feedback
    for client in world.clients if feedback else ():
        if client in world.lost or (known := recomputed(world, client)) is None:
            continue
        receipt, rest = known
        spool = world._stores[client].spool
        if (
            spool.get(kept_key(GROUP, receipt.update))[DIGEST_BYTES:]
            != rest.astype("<f4").tobytes()
        ):
            found.append(f"{client} keeps something else than {receipt.id} left over")
    return found
