"""A key holder of `bfv` that is given orders, and what it says."""

from typing import Any

from secureps.messages import holder_records, orders, requests
from secureps.messages.encoding import canonical, digest
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import BlockHeader, Cohort, Held, opening_digest
from secureps.roles.holder.bfv import BfvHolder, OpenSum
from secureps.roles.holder.holder import HolderRules
from secureps.roles.machine import WORKER, Answered, Call, Done, Halt, Machine, Step
from tests.kits.roles_kit import (
    HOLDER,
    ROSTER,
    SHARDS,
    block_digest,
    configure,
    make_cohort,
    make_placement,
    make_plan,
    make_receipt,
    make_run,
    opened_header,
)

PLAN = make_plan("bfv")
RUN = make_run(PLAN).id
BASE = digest("base")
ENDS = "this holder takes no part in the run: "
SUMS = tuple(block_digest("sum", "all", 0, b) for b in range(4))


def sum_opened(header: BlockHeader) -> Done:
    """What its worker says of an opened sum, half a second after it began."""
    figures = (requests.Figure("opening_seconds", 0.5),)
    report = requests.Telemetry(HOLDER, header.group, 1, figures)
    return Done(OpenSum(make_cohort(), header.block, ""), header, report)


class Keys:
    """A holder that opens cohorts of two or more, with its journal."""

    def __init__(self, journal: tuple[Any, ...] = ()) -> None:
        self.machine = BfvHolder(HOLDER, ROSTER, HolderRules(2))
        self.journal: list[Any] = []
        for record in journal:
            self.machine.apply(0.0, record)
            self.journal.append(record)

    def give(self, sender: str, event: Any) -> Step:
        step = self.machine.handle(0.0, sender, event)
        self.journal += step.records
        return step

    def order(self, order: Any) -> Step:
        return self.give(COORDINATOR, order)

    def founded(self) -> "Keys":
        self.order(configure(PLAN))
        return self

    def restarted(self) -> "Keys":
        return Keys(tuple(self.journal))

    def fetched(self, block: int, number: int = 0, answer: bytes | None = None) -> Step:
        ask = requests.GetSum(RUN, "all", number, block)
        reply = requests.Payload(SUMS[block] if answer is None else answer)
        return self.give(SHARDS[block % 2], Answered(ask, reply))

    def stored(self, block: int, number: int = 0) -> Step:
        header = opened_header(PLAN, RUN, "all", number, block)
        self.give(WORKER, sum_opened(header))
        return self.give(SHARDS[block % 2], Answered(requests.PutBlock(header), requests.Noted()))


def last_word(machine: Machine, step: Step) -> Halt:
    """How a holder ends that takes no part: the coordinator hears why first."""
    (call,) = step.effects
    assert isinstance(call, Call)
    assert isinstance(call.message, requests.Trouble)
    heard = Answered(call.message, requests.Noted())
    (halt,) = machine.handle(0.0, COORDINATOR, heard).effects
    assert isinstance(halt, Halt)
    assert (call.to, f"this holder {call.message.reason}") == (COORDINATOR, halt.reason)
    assert step.records == []
    return halt


def opening(cohort: Cohort | None = None, incarnation: int = 1, **changes: Any) -> orders.Open:
    """An order to open, with signed receipts; `changes` are made to every receipt."""
    cohort = cohort or make_cohort()
    base = cohort.version - 1
    receipts = (make_receipt(PLAN, RUN, m.id, base, BASE, **changes) for m in cohort.members)
    return orders.Open(incarnation, cohort, tuple(receipts), held())


def released(order: orders.Open | None = None) -> holder_records.CohortReleased:
    """What is on record of a cohort whose members were all trained from the version before it."""
    order = order or opening()
    bases = (holder_records.BaseModel(order.cohort.version - 1, BASE),)
    about = opening_digest(RUN, order.cohort, (r.digest for r in order.receipts))
    sums = digest("secureps-held-sums", *map(canonical, order.held))
    return holder_records.CohortReleased(order.cohort, about, bases, sums=sums)


def held() -> tuple[Held, ...]:
    placed = make_placement(PLAN)
    owned = {shard: placed.blocks_of("all", shard) for shard in SHARDS}
    return tuple(Held(s, "all", 0, tuple(SUMS[b] for b in owned[s])) for s in SHARDS)


def refusal(step: Step) -> str:
    """The one thing said is that it will not; nothing is journalled, nothing fetched."""
    assert step.records == []
    (call,) = step.effects
    assert isinstance(call, Call)
    said = call.message
    assert isinstance(said, requests.OpenRefused)
    assert (call.to, said.holder, said.group) == (COORDINATOR, HOLDER, "all")
    return said.reason


def fetches(step: Step) -> list[tuple[str, int]]:
    calls = [(e.to, e.message) for e in step.effects if isinstance(e, Call)]
    return [(to, said.block) for to, said in calls if isinstance(said, requests.GetSum)]
