"""A bfv key holder: fetches a cohort's sums, decrypts them, and gives the numbers to shards."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.crypto.roster import Roster
from secureps.errors import Refused, SecurepsError
from secureps.messages.orders import Open
from secureps.messages.requests import GetSum, Opened, Payload, PutBlock, Request
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import BlockHeader, Cohort, Receipt
from secureps.roles.holder.holder import Holder, Name
from secureps.roles.holder.ledger import HolderLedger, HolderRules
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    Effect,
    Event,
    Failed,
    Prune,
    Step,
    Task,
    TaskResult,
    Work,
)


@dataclass(frozen=True, slots=True)
class OpenSum(Task):
    """Decrypts the sum of one block that lies in the store under `key`."""

    group: str
    cohort: int
    block: int
    key: str


@dataclass(frozen=True, slots=True)
class SumOpened(TaskResult):
    """The opened sum lies in the store under the header's key."""

    header: BlockHeader
    seconds: float


@dataclass(slots=True)
class Opening:
    """A cohort that is being opened: which shard has each block, and what is done."""

    cohort: Cohort
    receipts: tuple[Receipt, ...]
    blocks: dict[int, str]
    expected: dict[int, bytes]
    headers: dict[int, BlockHeader] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    seconds: float = 0.0


class BfvHolder(Holder[Opening]):
    """The machine of a key holder of the bfv cipher, which decrypts the sums themselves."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules) -> None:
        super().__init__(HolderLedger(name, roster, rules))

    def own(self, sender: str, event: Event) -> Step | None:
        match event:
            case Answered(GetSum() as request, Payload(digest)):
                return self._fetched(request, digest)
            case Answered(PutBlock(header)):
                return self._stored(header.group, header.sequence, header.block)
            case Answered():
                return Step()
            case Failed(request, error):
                return self._failed(request, error)
            case SumOpened() if sender == WORKER:
                return self._opened(event)
        return None

    def assign(self, order: Open) -> Opening:
        group, placement = order.cohort.group, self.pinned.placement
        digests = {held.shard: held.sums for held in order.held}
        blocks = dict(enumerate(placement.of(group).owners))
        expected: dict[int, bytes] = {}
        for shard in placement.shards:
            own = placement.blocks_of(group, shard)
            if len(digests.get(shard, ())) != len(own):
                raise Refused(f"{shard} does not hold the cohort")
            for block, sum in zip(own, digests.get(shard, ())):
                if expected.setdefault(block, sum) != sum:
                    raise Refused(f"{shard} holds another sum of block {block} than its peers")
        return Opening(order.cohort, order.receipts, blocks, expected)

    def begin(self, opening: Opening) -> list[Effect]:
        run, cohort = self.pinned.run.id, opening.cohort
        return [
            Call(shard, GetSum(run, cohort.group, cohort.number, block))
            for block, shard in opening.blocks.items()
        ]

    def opens(self, task: Task) -> Name | None:
        return (task.group, task.cohort) if isinstance(task, OpenSum) else None

    def give_up(self, name: Name, reason: str) -> Step:
        opened = tuple(header.key for header in self._openings[name].headers.values())
        prune = [Work(Prune(opened))] if opened else []
        return Step(effects=[*prune, *super().give_up(name, reason).effects])

    # --- answers ------------------------------------------------------------------

    def _fetched(self, request: GetSum, digest: bytes) -> Step:
        group, cohort, block = request.group, request.cohort, request.block
        opening = self._openings.get((group, cohort))
        if opening is None:
            return Step()
        if digest != opening.expected[block]:
            reason = f"the sum of block {block} is not the one that its shard held"
            return self.give_up((group, cohort), reason)
        key = f"{received_key(group, cohort, block)}/{digest.hex()}"
        return Step(effects=[Work(OpenSum(group, cohort, block, key))])

    def _opened(self, event: SumOpened) -> Step:
        header = event.header
        opening = self._openings.get((header.group, header.sequence))
        if opening is None:
            return Step()
        opening.headers[header.block] = header
        opening.seconds += event.seconds
        if len(opening.headers) < len(opening.blocks):
            return Step()
        puts = sorted(opening.headers.items())
        return Step(effects=[Call(opening.blocks[b], PutBlock(h), attach=h.key) for b, h in puts])

    def _stored(self, group: str, cohort: int, block: int) -> Step:
        opening = self._openings.get((group, cohort))
        if opening is None:
            return Step()
        opening.stored.add(block)
        if len(opening.stored) < len(opening.blocks):
            return Step()
        del self._openings[group, cohort]
        sent = tuple(header.key for header in opening.headers.values())
        sums = tuple(opening.headers[b].digest for b in sorted(opening.blocks))
        about = self._ledger.about(opening)
        return Step(
            effects=[
                Work(Prune(sent)),
                Call(COORDINATOR, Opened(self._ledger.name, group, cohort, sums, about)),
                self._took(opening.cohort, opening.seconds),
            ]
        )

    def _failed(self, request: Request, error: SecurepsError) -> Step:
        match request:
            case GetSum():
                name = request.group, request.cohort
            case PutBlock(header):
                name = header.group, header.sequence
            case _:
                return Step()
        return self.give_up(name, str(error)) if name in self._openings else Step()


def received_key(group: str, cohort: int, block: int) -> str:
    """Where the executor's worker puts the answer to a `GetSum`."""
    return f"received/{group}/{cohort}/{block}"
