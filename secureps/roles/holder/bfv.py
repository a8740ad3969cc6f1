"""A bfv key holder: decrypts one sum per cohort, by its own rules and its own ledger.

It fetches the sums from their shards, and hands the numbers back to these. What must not
live here: the conditions under which it does (`roles.holder.ledger`), the secret key and the
decryption (`service.holder.bfv_worker`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from secureps.crypto.identity import Roster
from secureps.errors import ClientError, Malformed, Refused, SecurepsError
from secureps.messages.orders import Configure, Finish, Open
from secureps.messages.requests import (
    Figure,
    GetSum,
    Opened,
    PutBlock,
    Register,
    Subscribe,
    Telemetry,
    Trouble,
)
from secureps.messages.submission import BlockHeader, Cohort
from secureps.roles.disk_reports import DiskReports
from secureps.roles.holder.ledger import HolderLedger, HolderRules
from secureps.roles.holder.tasks import OpenSum, SumOpened
from secureps.roles.machine import (
    COORDINATOR,
    WORKER,
    Answered,
    Call,
    Failed,
    Halt,
    Step,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import Pinned
from secureps.roles.tasks import Prune


@dataclass(slots=True)
class Opening:
    """A cohort that is being opened: the digests of blocks that are done."""

    cohort: Cohort
    blocks: dict[int, str]
    expected: dict[int, bytes]
    headers: dict[int, BlockHeader] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    seconds: float = 0.0


class KeyHolder:
    """The machine of one key holder (of the bfv cipher: it decrypts the sums themselves)."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules) -> None:
        self._grants = HolderLedger(name, roster, rules)
        self._disk = DiskReports(name)
        self._openings: dict[tuple[str, int], Opening] = {}

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Any) -> None:
        self._grants.apply(record)

    def resume(self, now: float) -> Step:
        return self._grants.greeting()

    def troubled(self, reason: str) -> list[Any]:
        return self._disk.troubled(reason)

    def wake(self) -> float | None:
        return None

    def subscription(self) -> Subscribe:
        return self._grants.subscription()

    def inspect(self, sender: str, message: Any) -> bool:
        raise Malformed("a key holder takes no payloads")

    def handle(self, now: float, sender: str, event: Any) -> Step:
        match event:
            case Answered(Trouble()):
                return self._disk.heard(event)
            case Answered(request, reply):
                return self._answered(request, reply)
            case Failed(request, error):
                return self._failed(request, error)
            case WatchLost():
                return self.resume(now)
            case Finish() | Tick():
                return Step()
            case WorkFailed(task, error):
                return self._spoilt(task, error)
            case SumOpened() if sender == WORKER:
                return self._opened(event)
            case Configure() if sender == COORDINATOR:
                return self._grants.configure(event)
            case Open() if sender == COORDINATOR:
                return self._open(event)
        raise Malformed(f"a key holder has no answer to a {type(event).__name__}")

    @property
    def configured(self) -> bool:
        """Whether it is part of a run."""
        return self._grants.configured

    @property
    def pinned(self) -> Pinned:
        """The run; NotReady before it is founded."""
        return self._grants.pinned

    # --- orders -------------------------------------------------------------------

    def _open(self, order: Open) -> Step:
        step, cohort = self._grants.obeys(order.incarnation), order.cohort
        name = (cohort.group, cohort.number)
        if not self.configured or name in self._openings:
            return step
        try:
            self._grants.check(cohort, order.receipts, order.held)
            opening = self._assign(order)
        except SecurepsError as error:
            step.effects.append(self._grants.refusal(cohort, error))
            return step
        self._grants.grant(step, order)
        self._openings[name] = opening
        run = self.pinned.run.id
        for block, shard in opening.blocks.items():
            step.effects.append(Call(shard, GetSum(run, cohort.group, cohort.number, block)))
        return step

    def _assign(self, order: Open) -> Opening:
        placed = self.pinned.placement.of(order.cohort.group)
        digests = {held.shard: held.sums for held in order.held}
        blocks = dict(enumerate(placed.owners))
        expected: dict[int, bytes] = {}
        for shard in set(placed.owners):
            own = placed.blocks_of(shard)
            if len(digests.get(shard, ())) != len(own):
                raise Refused(f"{shard} does not hold the cohort")
            expected |= dict(zip(own, digests[shard]))
        return Opening(order.cohort, blocks, expected)

    # --- answers ------------------------------------------------------------------

    def _answered(self, request: Any, reply: Any) -> Step:
        match request:
            case Register():
                return Step(effects=[Watch()])
            case GetSum():
                return self._fetched(request, reply.digest)
            case PutBlock(header):
                return self._stored(header.group, header.sequence, header.block)
        return Step()

    def _fetched(self, request: GetSum, digest: bytes) -> Step:
        group, cohort, block = request.group, request.cohort, request.block
        opening = self._openings.get((group, cohort))
        if opening is None:
            return Step()
        if digest != opening.expected[block]:
            return self._give_up(
                opening, f"the sum of block {block} is not the one that its shard held"
            )
        key = f"{received_key(group, cohort, block)}/{digest.hex()}"
        return Step(effects=[Work(OpenSum(group, cohort, block, key, opening.cohort.weight))])

    def _opened(self, event: SumOpened) -> Step:
        header = event.header
        opening = self._openings.get((header.group, header.sequence))
        if opening is None:
            return Step()
        opening.headers[header.block] = header
        opening.seconds += event.seconds
        if len(opening.headers) < len(opening.blocks):
            return Step()
        return self._release(opening)

    def _release(self, opening: Opening) -> Step:
        """All blocks opened: into the ledger first, and only then out of this process."""
        step, cohort = Step(), opening.cohort
        try:
            self._grants.release(step, cohort)
        except Refused as error:
            return self._give_up(opening, str(error))
        for block, header in sorted(opening.headers.items()):
            step.effects.append(Call(opening.blocks[block], PutBlock(header), attach=header.key))
        return step

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
        figures = (Figure("opening_seconds", opening.seconds),)
        about = self._grants.about(opening.cohort)
        return Step(
            effects=[
                Work(Prune(sent)),
                Call(COORDINATOR, Opened(self._grants.name, group, cohort, sums, about)),
                Call(
                    COORDINATOR,
                    Telemetry(self._grants.name, group, opening.cohort.version, figures),
                ),
            ]
        )

    def _failed(self, request: Any, error: SecurepsError) -> Step:
        if isinstance(request, Register | Subscribe):
            return self._grants.turned_away(error)
        name = (
            (request.group, request.cohort)
            if isinstance(request, GetSum)
            else (request.header.group, request.header.sequence)
            if isinstance(request, PutBlock)
            else None
        )
        opening = self._openings.get(name) if name is not None else None
        return Step() if opening is None else self._give_up(opening, str(error))

    def _spoilt(self, task: Any, error: SecurepsError) -> Step:
        """A sum that does not open is its cohort's end; anything else is ours."""
        opening = (
            self._openings.get((task.group, task.cohort)) if isinstance(task, OpenSum) else None
        )
        if isinstance(task, OpenSum) and isinstance(error, ClientError):
            return Step() if opening is None else self._give_up(opening, str(error))
        return Step(effects=[Halt(str(error), type(error))])

    def _give_up(self, opening: Opening, reason: str) -> Step:
        cohort = opening.cohort
        self._openings.pop((cohort.group, cohort.number), None)
        opened = tuple(header.key for header in opening.headers.values())
        prune = [Work(Prune(opened))] if opened else []
        return Step(effects=[*prune, self._grants.refusal(cohort, reason)])


def received_key(group: str, cohort: int, block: int) -> str:
    """Where the executor's hands put the answer to a `GetSum`."""
    return f"received/{group}/{cohort}/{block}"
