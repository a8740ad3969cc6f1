"""A bfv key holder, which fetches a cohort's sums, decrypts them, and sends them to the shards."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.crypto.roster import Roster
from secureps.errors import ClientError, Refused
from secureps.messages.orders import Open
from secureps.messages.requests import Figure, GetSum, Opened, Payload, PutBlock, Telemetry
from secureps.messages.run import Task
from secureps.messages.submission import BlockHeader, Cohort
from secureps.roles.holder.holder import Holder, HolderRules, Name, name_of
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    Done,
    Effect,
    Event,
    Failed,
    Prune,
    Step,
    Work,
    WorkFailed,
)


@dataclass(frozen=True, slots=True)
class OpenSum(Task):
    """Decrypts the sum of one block that lies in the store under `key`.

    Its `Done` has the header of the opened sum, which lies in the store under the header's key.
    """

    cohort: Cohort
    block: int
    key: str


@dataclass(slots=True)
class Opening:
    """A cohort that is being opened: which shard has each block, and the progress."""

    blocks: dict[int, str]
    expected: dict[int, bytes]
    headers: dict[int, BlockHeader] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    seconds: float = 0.0


class BfvHolder(Holder):
    """The machine of a key holder of the bfv cipher, which decrypts the sums themselves."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules) -> None:
        super().__init__(name, roster, rules)
        self._progress: dict[Name, Opening] = {}

    def handle_own(self, sender: str, event: Event) -> Step:
        match event:
            case Answered(GetSum() as request, Payload(digest)):
                return self._decrypt_sum(request, digest)
            case Answered(PutBlock(header)):
                return self._note_stored(header.group, header.sequence, header.block)
            case Failed(GetSum(group=group, cohort=number), error):
                return self._give_up((group, number), str(error))
            case Failed(PutBlock(header), error):
                return self._give_up((header.group, header.sequence), str(error))
            case Answered() | Failed():
                return Step()
            case WorkFailed(OpenSum(cohort), ClientError() | Refused() as error):
                return self._give_up(name_of(cohort), str(error))
            case Done(_, BlockHeader() as header, Telemetry(figures=(took,))) if sender == WORKER:
                return self._send_opened(header, took.value)
        return super().handle_own(sender, event)

    def begin(self, order: Open) -> list[Effect]:
        name, placement = name_of(order.cohort), self.pinned.placement
        digests = {held.shard: held.sums for held in order.held}
        blocks = dict(enumerate(placement.of(name[0]).owners))
        expected: dict[int, bytes] = {}
        for shard in placement.shards:
            own = placement.blocks_of(name[0], shard)
            if len(digests.get(shard, ())) != len(own):
                raise Refused(f"{shard} does not hold the cohort")
            for block, sum in zip(own, digests.get(shard, ())):
                if expected.setdefault(block, sum) != sum:
                    raise Refused(f"{shard} holds another sum of block {block} than its peers")
        self._progress = {each: self._progress[each] for each in self._openings}
        self._progress[name] = Opening(blocks, expected)
        run = self.pinned.run.id
        return [Call(shard, GetSum(run, *name, block)) for block, shard in blocks.items()]

    def _under_way(self, name: Name) -> Opening | None:
        """Returns the progress of a cohort; None if it is opened or given up."""
        return self._progress[name] if name in self._openings else None

    def _give_up(self, name: Name, reason: str) -> Step:
        """Tells the coordinator why this holder does not open a cohort."""
        step = Step()
        if name in self._openings:
            opened = tuple(header.key for header in self._progress[name].headers.values())
            step.effects += [Work(Prune(opened))] if opened else []
            step.tell(self.refusal(self._openings.pop(name), reason))
        return step

    # --- answers ------------------------------------------------------------------

    def _decrypt_sum(self, request: GetSum, digest: bytes) -> Step:
        group, cohort, block = request.group, request.cohort, request.block
        opening = self._under_way((group, cohort))
        if opening is None:
            return Step()
        if digest != opening.expected[block]:
            reason = f"the sum of block {block} is not the one that its shard held"
            return self._give_up((group, cohort), reason)
        key = f"{received_key(group, cohort, block)}/{digest.hex()}"
        order = self._openings[group, cohort]
        return Step(effects=[Work(OpenSum(order.cohort, block, key))])

    def _send_opened(self, header: BlockHeader, seconds: float) -> Step:
        opening = self._under_way((header.group, header.sequence))
        if opening is None:
            return Step()
        opening.headers[header.block] = header
        opening.seconds += seconds
        if len(opening.headers) < len(opening.blocks):
            return Step()
        puts = sorted(opening.headers.items())
        return Step(effects=[Call(opening.blocks[b], PutBlock(h), attach=h.key) for b, h in puts])

    def _note_stored(self, group: str, cohort: int, block: int) -> Step:
        opening = self._under_way((group, cohort))
        if opening is None:
            return Step()
        opening.stored.add(block)
        if len(opening.stored) < len(opening.blocks):
            return Step()
        order = self._openings.pop((group, cohort))
        sent = tuple(header.key for header in opening.headers.values())
        sums = tuple(opening.headers[b].digest for b in sorted(opening.blocks))
        name, figures = self.name, (Figure("opening_seconds", opening.seconds),)
        step = Step(effects=[Work(Prune(sent))])
        step.tell(Opened(name, group, cohort, sums, self.about(order)))
        step.tell(Telemetry(name, group, order.cohort.version, figures))
        return step


def received_key(group: str, cohort: int, block: int) -> str:
    """Returns the key under which the executor stores the payload of a `GetSum`'s answer."""
    return f"received/{group}/{cohort}/{block}"
