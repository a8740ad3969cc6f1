"""What must hold at the end of every run of real processes, by their journals, files and logs."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from secureps.errors import DamagedStore, SecurepsError
from secureps.messages.coordinator_records import CohortClosed, PlacementMoved, ShardLeft
from secureps.messages.holder_records import CohortReleased
from secureps.messages.member_records import Sealed, SubmissionSettled, UpdateReleased
from secureps.messages.records import REIGN, RunPinned
from secureps.messages.requests import Submit
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.messages.submission import FOUNDING, UPDATE, Outcome, Receipt
from secureps.policy.plan import Plan, load_plan
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.state import CoordinatorState
from secureps.run.export import newest_model
from secureps.store.checkpoint import checkpoint_directories, load_newest
from secureps.store.journal import DatedJournal, SqliteJournal
from tests.chaos.check import by_receipts, committed_cohorts, lacking, of_kind, once
from tests.chaos.ends import GROUP
from tests.chaos.evidence import Evidence
from tests.chaos.real.client import noted
from tests.chaos.real.federation import SEED, Played
from tests.chaos.real.schedule import CLIENTS, SPARE
from tests.chaos.real.takeover import Known
from tests.kits.federations import Tensors, same, small_federation
from tests.kits.privacy_kit import facts_of

Journal = list[tuple[float, Any]]


@dataclass(frozen=True)
class Notes:
    """What versions are computed from once more: the plan, and what clients noted."""

    plan: Plan
    evidence: Evidence


@cache
def unharmed(plan: Path) -> Tensors:
    """The model of the run in which nothing goes wrong."""
    with TemporaryDirectory() as folder:
        simulation = small_federation(load_plan(plan), Path(folder), seed=SEED, clients=CLIENTS)
        simulation.run()
        return simulation.model()


class Check:
    """Every promise that a run has broken; none if it kept them all."""

    def __init__(self, played: Played, stopped: dict[str, int | None]) -> None:
        self.played, self.machines = played, played.machines
        self._stopped = stopped
        self._notes = Notes(self.machines.plan, noted(self.machines.notes))
        self._lost = self.machines.wiped | self.machines.older
        self._journals = {name: self._journal(name) for name in self.machines.names}
        rulers = [name for name in (COORDINATOR, STANDBY) if name in self._journals]
        self._ruler = max(rulers, key=lambda name: Known.of(self._records(name)).reach)
        self._state = self._replayed()

    def complaints(self) -> list[str]:
        return list(dict.fromkeys(self._found()))

    def ended(self) -> str:
        return self.played.stood or self._state.finished or "no end"

    def happened(self) -> dict[str, int]:
        """How often another coordinator took over, blocks moved, and shards left."""
        journal = self._records(self._ruler)
        taken = Known.of(journal).reigns.incarnation // REIGN
        moved = [each for each in of_kind(journal, PlacementMoved) if each.in_force]
        left = of_kind(journal, ShardLeft)
        return {"takeovers": taken, "moves": len(moved), "shards that left": len(left)}

    def _found(self) -> Iterator[str]:
        yield from self.played.operator.wrong
        yield from self._ends()
        yield from self._logs()
        for journal in self._of_coordinator():
            yield from once(journal)
            yield from by_receipts(self._notes, journal)[1]
            yield from self._sealed_by_nobody(journal)
        yield from self._accounted()
        yield from self._settled()
        yield from self._opened()
        yield from self._spent()
        yield from self._model()

    # --- journals -----------------------------------------------------------------

    def _journal(self, name: str) -> Journal:
        path = self.machines.folder / name / "journal.db"
        return _rows(path) if path.exists() else []

    def _records(self, name: str) -> list[Any]:
        return [record for _, record in self._journals[name]]

    def _of_coordinator(self) -> list[list[Any]]:
        """Its journal, and those that it had before its disk was lost."""
        before = (each / "journal.db" for each in self.machines.lost.get(COORDINATOR, []))
        rows = [_rows(path) for path in before if path.exists()]
        return [self._records(self._ruler), *([r for _, r in each] for each in rows)]

    def _replayed(self) -> CoordinatorState:
        plan = self.machines.plan
        groups = {
            name: GroupState(
                name,
                rounds=plan.bounds(name).rounds,
                trails=plan.trails(name),
                times=plan.times_median(name),
            )
            for name in plan.all_groups
        }
        state = CoordinatorState(groups)
        for at, record in self._journals[self._ruler]:
            state.apply(at, record)
        return state

    def _receipts(self) -> list[Receipt]:
        received = of_kind(self._records(self._ruler), Submit)
        return [each.receipt for each in received]

    # --- how it ended -------------------------------------------------------------

    @property
    def _given_up(self) -> bool:
        """Whether what was lost may be nowhere else, so that the run has no end."""
        servers = self._lost - {*self.machines.clients, *self.machines.shards}
        return bool(servers) or len(self._lost) > 1

    def _ends(self) -> Iterator[str]:
        if self.played.stood:
            if not self._given_up:
                yield f"no end: {self.played.stood}"
        elif not self._state.finished and not self._given_up:
            yield "the run ended without a reason"
        elif self._state.failure and not self._given_up:
            yield f"the run failed: {self._state.finished}"
        harmed = {f.who for f in self.played.faults if f.kind in ("memory", "files", "full")}
        for name, status, line in self.played.ends:
            # who is not let in yet has no roster but its kit's, and a shard came meanwhile
            outdated = SPARE in self.machines.names and "get the current kit" in line
            if name not in harmed and not self._lost and not outdated:
                yield f"{name} ended with {status}: {line}"
        for name, ended in self._stopped.items():
            if ended not in (0, self.played.young.get(name, 0)) and not self._lost:
                yield f"{name} was stopped, and ended with {ended}"

    def _logs(self) -> Iterator[str]:
        harmed = {f.who for f in self.played.faults if f.kind == "memory"}
        for name in self.machines.names:
            text = self.machines.log(name)
            at = text.find("Traceback")
            if at >= 0 and name not in harmed:
                yield f"{name} has a traceback: {text[at : at + 3000]}"

    # --- what was counted ---------------------------------------------------------

    def _sealed_by_nobody(self, journal: list[Any]) -> Iterator[str]:
        """Whatever is counted is what its client sealed."""
        for each in of_kind(journal, Submit):
            receipt = each.receipt
            if receipt.purpose == UPDATE and receipt.id.group == GROUP:
                try:
                    self._notes.evidence.integers[receipt.id, receipt.root]
                except KeyError:
                    yield f"{receipt.id} was received, and its client never sealed it"

    def _accounted(self) -> Iterator[str]:
        """Each submission that was received has a fate, once the run is over."""
        if self._state.finished and not self._given_up:
            for id in sorted({receipt.id for receipt in self._receipts()}):
                if self._state.settled.of(id) is None:
                    yield f"nobody says what became of {id}"

    def _settled(self) -> Iterator[str]:
        """What a client was told of its updates is so, unless the coordinator lost its journal."""
        if COORDINATOR in self._lost:
            return
        journal = self._records(self._ruler)
        summed = {m.id for cohort in committed_cohorts(journal).values() for m in cohort.members}
        founders = {each.id for each in self._receipts() if each.purpose == FOUNDING}
        for client in self.machines.clients:
            known = set[Any]()
            for record in self._records(client):
                if isinstance(record, SubmissionSettled):
                    told = record.outcome in (Outcome.INCLUDED, Outcome.DURABLE)
                    told &= record.id.group == GROUP and record.id not in founders
                    if told and record.id not in summed:
                        yield f"{record.id} was {record.outcome}, and is in no version"
                elif isinstance(record, Sealed):
                    known.add((record.receipt.id, record.receipt.root))
            if client not in self._lost:
                for receipt in self._receipts():
                    if receipt.id.client == client and (receipt.id, receipt.root) not in known:
                        yield f"{receipt.id} left {client} before it was journalled"

    def _opened(self) -> Iterator[str]:
        """What key holders opened is known to whoever rules now: they gave a share of it once."""
        if COORDINATOR in self._lost:
            return
        closed = [each.cohort for each in of_kind(self._records(self._ruler), CohortClosed)]
        for holder in self.machines.holders:
            for each in of_kind(self._records(holder), CohortReleased):
                if each.cohort not in closed:
                    name = f"cohort {each.cohort.number} of {each.cohort.group}"
                    yield f"{holder} opened {name}, of which its coordinator does not know"

    # --- what was spent -----------------------------------------------------------

    def _spent(self) -> Iterator[str]:
        """No ledger is under what was sent; that over all runs is on no disk that was lost."""
        if not self.machines.plan.section.privacy:
            return
        # one whose blocks a shard lost is received again, and is no other update
        receipts = {each.id: each for each in self._receipts() if each.fact is not None}.values()
        for client in self.machines.clients:
            own = [each.fact for each in receipts if each.id.client == client]
            sent = Counter((each.id.group, each.version) for each in receipts if each.fact in own)
            charged = Counter(self._charged(client))
            for (group, version), times in (sent - charged).items():
                yield f"{client} sent {times} more updates of {group} {version} than it charged"
            known = facts_of(self._state.ledger, client)
            yield from (f"the coordinator forgot {fact}" for fact in own if fact not in known)
        if self.played.stood or not checkpoint_directories(self._checkpoints):
            return
        try:
            _, manifest, _ = load_newest(self._checkpoints)
        except SecurepsError as error:
            yield f"no checkpoint: {error}"
            return
        cohorts = committed_cohorts(self._records(self._ruler)).values()
        summed = {member.id for cohort in cohorts for member in cohort.members}
        yield from lacking(manifest, {r.fact for r in receipts if r.id in summed and r.fact})

    def _charged(self, client: str) -> Iterator[tuple[str, int]]:
        """By the client's ledger over all runs."""
        path = self.machines.folder / "ledgers" / f"{client}.db"
        runs = {each.run.id for each in of_kind(self._records(self._ruler), RunPinned)}
        for _, record in _rows(path) if path.exists() else ():
            own = isinstance(record, UpdateReleased) and record.run in runs
            if own and record.fact is not None:
                yield record.group, record.version

    # --- the model ----------------------------------------------------------------

    @property
    def _checkpoints(self) -> Path:
        return self.machines.folder / "checkpoints"

    def _model(self) -> Iterator[str]:
        """The newest checkpoint is what receipts come to, and the undisturbed run's model."""
        known = [by_receipts(self._notes, journal)[0] for journal in self._of_coordinator()]
        if not any(known) or not checkpoint_directories(self._checkpoints):
            return
        try:
            model = newest_model(self._checkpoints)
        except DamagedStore as error:
            if not self.played.stood:
                yield f"no checkpoint: {error}"
            return
        layout, version = model.layout.group(GROUP), model.versions[GROUP]
        flat = layout.flatten(model.tensors | {"body.count": np.zeros(())}).tobytes()
        if not any(version < len(each) and each[version].tobytes() == flat for each in known):
            yield f"checkpoint {model.number} is not what its receipts come to"
        if self.played.stood:
            return
        versions = self.machines.plan.section.versions
        if not self._state.failure and version != versions:
            yield f"the last checkpoint has version {version}, and {versions} were made"
        as_ever = "quorum = 3\nminimum = 3" in self._plan.read_text() and not self._state.failure
        as_ever &= not (self.machines.wiped & {COORDINATOR, *self.machines.clients})
        as_ever &= COORDINATOR not in self.machines.older
        if as_ever and not same(model.tensors, unharmed(self._plan)):
            yield "the model is not that of the undisturbed run"

    @property
    def _plan(self) -> Path:
        return self.machines.folder / "plan.toml"


def _rows(path: Path) -> Journal:
    journal = SqliteJournal(path)
    try:
        return list(DatedJournal(journal, "coordinator", "coordinator", time.time).replay())
    finally:
        journal.close()
