"""A shard with its journal, and a version of it by rote, for tests."""

from typing import Any

import pytest

from secureps.errors import SecurepsError
from secureps.messages import orders, requests
from secureps.messages.encoding import digest
from secureps.messages.orders import MemberBlocks
from secureps.messages.requests import Prepared
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import FOUNDING, Cohort, SubmissionId
from secureps.roles.machine import WORKER, Call, Done, Step
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import GatherState, MakeState, StepState, SumCohort
from tests.kits.roles_kit import (
    HOLDER,
    ROSTER,
    SHARDS,
    block_digest,
    configure,
    make_cohort,
    make_header,
    make_plan,
    make_receipt,
    make_run,
    model_blocks,
    opened_header,
)

PLANS = {"plain": make_plan("plain"), "bfv": make_plan("bfv")}
DOUBLED = {f"doubled {name}": make_plan(name, replicas=2) for name in PLANS}
"""Every block on both shards."""
SUMMED = {"rlwe": make_plan("rlwe")}
"""Sums open with a sum of keys."""
ID = SubmissionId("c0", "all", 1)
FOUND_ID = SubmissionId("c0", "all", 0)
OWN = (0, 2)
STATE = digest("state")
NEW_FILE = digest("new state")
SUMS = (digest("sum", b"0"), digest("sum", b"2"))
OPENED = tuple(block_digest(HOLDER, "all", 0, b) for b in OWN)


class Desk:
    """shard-a with its journal; it holds blocks 0 and 2 of 4."""

    def __init__(self, cipher: str = "plain", name: str = SHARDS[0]) -> None:
        self.plan, self._kind = (PLANS | DOUBLED | SUMMED)[cipher], cipher
        self.run = make_run(self.plan).id
        self.name = name
        self.shard = Shard(ShardAddress(name, f"{name}:1", 1.0), ROSTER)
        self.journal: list[Any] = []

    def give(self, sender: str, event: Any) -> Step:
        step = self.shard.handle(0.0, sender, event)
        self.journal += step.records
        return step

    def order(self, order: Any) -> Step:
        return self.give(COORDINATOR, order)

    def restarted(self) -> "Desk":
        again = Desk(self._kind, self.name)
        for record in self.journal:
            again.shard.apply(0.0, record)
        again.journal = list(self.journal)
        return again

    def header(self, id: SubmissionId = ID, block: int = 0, **changes: Any) -> Any:
        return make_header(self.plan, self.run, id, block, **changes)

    def put(self, header: Any) -> Step:
        assert self.shard.inspect(header.author, requests.PutBlock(header))
        return self.give(header.author, requests.PutBlock(header))

    def put_all(self, ids: tuple[SubmissionId, ...], **changes: Any) -> None:
        for id in ids:
            for block in OWN:
                header = self.header(id, block, **changes)
                self.give(header.author, requests.PutBlock(header))

    def gathered(self, task: GatherState) -> Step:
        """A state file is made of what others have."""
        order = task.order
        blocks = order.blocks or model_blocks("all", order.version, 4)
        made = (self.name, "all", order.version, blocks, order.state or NEW_FILE)
        return self.give(WORKER, Done(task, Prepared(*made, epoch=task.epoch)))

    # --- orders, answered by rote -------------------------------------------------

    def founded(self) -> "Desk":
        self.order(configure(self.plan))
        self.put_all((FOUND_ID,), purpose=FOUNDING)
        self.order(self.found())
        self.ready(0, -1)
        self.order(orders.Commit(1, "all", 0, 0))
        return self

    def found(self) -> orders.Found:
        return orders.Found(1, "all", make_receipt(self.plan, self.run, FOUND_ID, -1, b""))

    def ready(self, version: int, cohort: int, key: bytes | None = None) -> Step:
        made = Prepared("shard-a", "all", version, blocks(version), STATE, cohort=cohort)
        stepped = StepState(make_cohort(number=cohort, version=version), None, key)
        return self.give(WORKER, Done(stepped if version else MakeState("all", None), made))

    def hold(self, cohort: Cohort) -> orders.Hold:
        members = tuple(
            MemberBlocks(
                m.id, tuple(block_digest(m.id.client, "all", m.id.sequence, b) for b in OWN)
            )
            for m in cohort.members
        )
        return orders.Hold(1, cohort, members)

    def holding(self, cohort: Cohort) -> Step:
        self.put_all(tuple(m.id for m in cohort.members))
        self.order(self.hold(cohort))
        report = requests.Telemetry(self.name, "all", cohort.version, ())
        return self.give(WORKER, Done(SumCohort(cohort, ()), SumsMade(cohort, SUMS), report))

    def version(self, number: int, keep: int) -> None:
        cohort = make_cohort(number=number - 1, version=number)
        self.holding(cohort)
        for block in OWN if self.plan.section.cipher.name == "bfv" else ():
            self.put(opened_header(self.plan, self.run, "all", cohort.number, block))
        wanted = tuple(block_digest(HOLDER, "all", cohort.number, b) for b in OWN)
        self.order(orders.Prepare(1, cohort, wanted))
        self.ready(number, cohort.number)
        self.order(orders.Commit(1, "all", number, keep))


def doubled() -> Desk:
    """The run is known; all blocks lie on both shards."""
    made = Desk("doubled plain")
    made.order(configure(made.plan))
    return made


def called(step: Step) -> list[tuple[str, Any]]:
    return [(e.to, e.message) for e in step.effects if isinstance(e, Call)]


def blocks(version: int) -> tuple[bytes, ...]:
    return tuple(model_blocks("all", version, 4)[b] for b in OWN)


def calls(step: Step) -> list[Any]:
    assert all(e.to == COORDINATOR for e in step.effects if isinstance(e, Call))
    return [e.message for e in step.effects if isinstance(e, Call)]


def shelved(shard: Shard) -> dict[str, Any]:
    return dict(vars(shard.state))


def refused(desk: Desk, sender: str, event: Any, error: type[SecurepsError], text: str) -> None:
    """It raises, and a shard that is made from the journal answers the same as this one."""
    before, busy = shelved(desk.restarted().shard), set(desk.shard._busy)
    with pytest.raises(error, match=text) as caught:
        desk.give(sender, event)
    assert type(caught.value) is error
    assert (shelved(desk.shard), desk.shard._busy) == (before, busy)
