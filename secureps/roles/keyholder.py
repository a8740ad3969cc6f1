"""A key holder: helps to open one sum per cohort, by its own rules and its own ledger.

It trusts nobody's word: receipts must be signed by clients of its own roster, the cohort
must be large enough for its own minimum, and a submission is bound to one cohort for
ever, in a ledger that is written before anything is opened. What must not live here:
the secret key and the decryption (`service.holder_hands`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from secureps.crypto.identity import Roster
from secureps.errors import (
    ClientError,
    Fenced,
    InternalError,
    Malformed,
    Refused,
    SecurepsError,
    WrongRun,
)
from secureps.messages.orders import Configure, Finish, Open, ShardSums
from secureps.messages.records import CohortGranted, CohortReleased, Incarnated, RunPinned
from secureps.messages.requests import (
    Figure,
    GetSum,
    Opened,
    OpenRefused,
    PutBlock,
    Register,
    Subscribe,
    Telemetry,
)
from secureps.messages.submission import (
    UPDATE,
    BlockHeader,
    Cohort,
    Receipt,
    SubmissionId,
    signing_bytes,
)
from secureps.roles.charter import Pinned, check_run, founded
from secureps.roles.machine import (
    COORDINATOR,
    HANDS,
    Answered,
    Call,
    Failed,
    Halt,
    Locate,
    Step,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.tasks import OpenSum, Prune, SumOpened


@dataclass(frozen=True, slots=True)
class HolderRules:
    """A holder's own settings; the plan cannot weaken them.

    Args:
        minimum: the smallest cohort that it opens.
        holders: digest of the holders' keys in its kit.
    """

    minimum: int
    holders: bytes


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
        self._name = name
        self._roster = roster
        self._rules = rules
        self._incarnation = 0
        self._pinned: Pinned | None = None
        self._bound: dict[SubmissionId, Cohort] = {}
        self._released: dict[tuple[str, str, int], Cohort] = {}
        self._granted: dict[tuple[str, int], CohortGranted] = {}
        self._openings: dict[tuple[str, int], Opening] = {}

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Any) -> None:
        match record:
            case Incarnated(number):
                self._incarnation = number
            case RunPinned():
                self._pinned = Pinned.of(record)
            case CohortGranted(cohort):
                self._granted[cohort.group, cohort.number] = record
                self._bound |= {member.id: cohort for member in cohort.members}
            case CohortReleased(cohort):
                for client in (member.id.client for member in cohort.members):
                    self._released[client, cohort.group, cohort.version] = cohort
            case _:
                raise InternalError(f"a holder's journal has no {type(record).__name__}")

    def resume(self, now: float) -> Step:
        return Step(effects=[Call(COORDINATOR, Register(self._name, "", 1.0, self._incarnation))])

    def wake(self) -> float | None:
        return None

    def subscription(self) -> Subscribe:
        return Subscribe(self._name, ())

    def inspect(self, sender: str, message: Any) -> bool:
        raise Malformed("a key holder takes no payloads")

    def handle(self, now: float, sender: str, event: Any) -> Step:
        match event:
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
            case SumOpened() if sender == HANDS:
                return self._opened(event)
            case Configure() if sender == COORDINATOR:
                return self._configure(event)
            case Open() if sender == COORDINATOR:
                return self._open(event)
        raise Malformed(f"a key holder has no answer to a {type(event).__name__}")

    @property
    def configured(self) -> bool:
        """Whether it is part of a run."""
        return self._pinned is not None

    @property
    def pinned(self) -> Pinned:
        """The run; NotReady before it is founded."""
        return founded(self._pinned, self._name)

    def granted(self, group: str, number: int) -> Cohort:
        """A cohort that it has bound itself to open; KeyError if there is none."""
        return self._granted[group, number].cohort

    # --- orders -------------------------------------------------------------------

    def _obeys(self, incarnation: int) -> Step:
        step = Step()
        if incarnation < self._incarnation:
            raise Fenced(f"an order of incarnation {incarnation}, {self._incarnation} rules")
        if incarnation > self._incarnation:
            self._write(step, Incarnated(incarnation))
        return step

    def _configure(self, order: Configure) -> Step:
        if self._pinned is None:
            check_run(order.run, self._roster, self._rules.holders)
        elif self._pinned.run.id != order.run.id:
            raise WrongRun("this holder's ledger is of another run; give it an empty folder")
        step = self._obeys(order.incarnation)
        if self._pinned is None:
            self._write(step, RunPinned(order.run, order.placement, order.shards))
        step.effects += [Locate(shard.name, shard.advertise) for shard in order.shards]
        return step

    def _open(self, order: Open) -> Step:
        step, cohort = self._obeys(order.incarnation), order.cohort
        name = (cohort.group, cohort.number)
        if self._pinned is None or name in self._openings:
            return step
        try:
            self._check_cohort(cohort, order.receipts, order.held)
            opening = self._assign(order)
        except SecurepsError as error:
            refusal = OpenRefused(self._name, cohort.group, cohort.number, str(error))
            step.effects.append(Call(COORDINATOR, refusal))
            return step
        if name not in self._granted:
            self._write(step, CohortGranted(cohort, order.held))
        self._openings[name] = opening
        run = self.pinned.run.id
        for block, shard in opening.blocks.items():
            step.effects.append(Call(shard, GetSum(run, cohort.group, cohort.number, block)))
        return step

    def _check_cohort(
        self, cohort: Cohort, receipts: tuple[Receipt, ...], held: tuple[ShardSums, ...]
    ) -> None:
        """The holder's own conditions, whatever the coordinator says.

        Raises:
            Refused: too small, weights it does not allow, a submission bound to another
                cohort, or receipts that do not belong to the cohort.
            Unsigned, UnknownParty: a receipt that no client of the roster signed.
        """
        granted = self._granted.get((cohort.group, cohort.number))
        if granted is not None:
            if granted.cohort != cohort or granted.held != held:
                raise Refused(f"cohort {cohort.number} of {cohort.group} was another one before")
            return
        if cohort.group not in {placed.group for placed in self.pinned.placement.groups}:
            raise Refused(f"no group is called {cohort.group!r}")
        ids = [member.id for member in cohort.members]
        least = max(self._rules.minimum, self.pinned.plan.honest(cohort.group))
        if len({id.client for id in ids}) < least:
            raise Refused(f"{len(ids)} members, this holder opens {least} or more")
        if len({id.client for id in ids}) != len(ids):
            raise Refused("a client stands in the cohort twice")
        if any(member.weight != 1 for member in cohort.members):
            raise Refused("this holder opens cohorts of weight 1 only")
        if [receipt.id for receipt in receipts] != ids:
            raise Refused("the receipts are not those of the cohort")
        for receipt in receipts:
            self._check_receipt(cohort, receipt, receipts[0].base)
        for id in ids:
            if id in self._bound:
                raise Refused(f"{id} is bound to cohort {self._bound[id].number} for ever")
        self._check_apart(cohort)

    def _check_apart(self, cohort: Cohort) -> None:
        """Two sums of one version that differ in one client give that client's update away."""
        for id in (member.id for member in cohort.members):
            other = self._released.get((id.client, cohort.group, cohort.version))
            if other is not None and other != cohort:
                raise Refused(
                    f"{id.client} stands in cohort {other.number}, which was opened for the same "
                    f"version {cohort.version}"
                )

    def _check_receipt(self, cohort: Cohort, receipt: Receipt, base: bytes) -> None:
        if receipt.run != self.pinned.run.id or receipt.purpose != UPDATE:
            raise Refused(f"{receipt.id}: its receipt is not for an update of this run")
        if receipt.id.group != cohort.group or receipt.version != cohort.version - 1:
            raise Refused(f"{receipt.id}: its receipt is for another group or version")
        if receipt.base != base:
            raise Refused(f"{receipt.id}: trained on another model than the others")
        if self._roster.find(receipt.id.client).role != "client":
            raise Refused(f"{receipt.id.client} is not a client")
        self._roster.find(receipt.id.client).identity.verify(
            *signing_bytes(receipt), receipt.signature
        )

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
            case GetSum(_, group, cohort, block):
                return self._fetched(group, cohort, block, reply.digest)
            case PutBlock(header):
                return self._stored(header.group, header.sequence, header.block)
        return Step()

    def _fetched(self, group: str, cohort: int, block: int, digest: bytes) -> Step:
        opening = self._openings.get((group, cohort))
        if opening is None:
            return Step()
        if digest != opening.expected[block]:
            return self._give_up(
                opening, f"the sum of block {block} is not the one that its shard held"
            )
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
        return self._release(opening)

    def _release(self, opening: Opening) -> Step:
        """All blocks opened: into the ledger first, and only then out of this process."""
        step, cohort = Step(), opening.cohort
        try:
            self._check_apart(cohort)
        except Refused as error:
            return self._give_up(opening, str(error))
        if cohort not in self._released.values():
            self._write(step, CohortReleased(cohort))
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
        return Step(
            effects=[
                Work(Prune(sent)),
                Call(COORDINATOR, Opened(self._name, group, cohort, sums)),
                Call(COORDINATOR, Telemetry(self._name, group, opening.cohort.version, figures)),
            ]
        )

    def _failed(self, request: Any, error: SecurepsError) -> Step:
        if isinstance(request, Register | Subscribe):
            text = f"the coordinator refuses this holder: {error}"
            return Step(effects=[Halt(text, type(error))])
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
        refusal = OpenRefused(self._name, cohort.group, cohort.number, reason)
        opened = tuple(header.key for header in opening.headers.values())
        prune = [Work(Prune(opened))] if opened else []
        return Step(effects=[*prune, Call(COORDINATOR, refusal)])

    def _write(self, step: Step, record: Any) -> None:
        step.records.append(record)
        self.apply(0.0, record)


def received_key(group: str, cohort: int, block: int) -> str:
    """Where the executor's hands put the answer to a `GetSum`."""
    return f"received/{group}/{cohort}/{block}"
