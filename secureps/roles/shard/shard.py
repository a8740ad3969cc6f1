"""A shard: holds blocks of the model, stores ciphertexts, adds them, opens the sum, steps.

It decides nothing of its own: it takes in blocks that are signed, of the right size and
for this run, and obeys the coordinator's orders, each of which may come twice. What must
not live here: payloads and arithmetic (`service.shard.worker`), rules.
"""

from __future__ import annotations

from typing import assert_never

from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    Conflict,
    Fenced,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    UnknownParty,
    WrongRun,
    WrongVersion,
)
from secureps.messages import orders, requests
from secureps.messages import shard_records as records
from secureps.messages.encoding import payload_digest
from secureps.messages.holder_records import KeySumTaken
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.run import COORDINATOR, ShardAddress, other_run
from secureps.messages.submission import (
    FOUNDING,
    OPENED,
    UPDATE,
    BlockHeader,
    SubmissionId,
    signing_bytes,
)
from secureps.roles import permissions
from secureps.roles.disk_reports import DiskReports
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Event,
    Failed,
    Halt,
    KitRead,
    Record,
    Step,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import check_run
from secureps.roles.roster_follower import RosterFollower
from secureps.roles.shard.keys import (
    block_name,
    model_key,
    name_under,
    noise_key,
    submission_of,
    sum_key,
)
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import (
    AdoptState,
    Damaged,
    MakeState,
    PartWritten,
    ShardResult,
    StateReady,
    StepState,
    SumCohort,
    SumsReady,
    Unopened,
    WritePart,
)
from secureps.roles.tasks import Prune, Sweep, Task
from secureps.roles.validation import check_header, check_scale

UNSETTLED = 8
"""Submissions of a client and group that a shard keeps, beyond those of two checkpoints."""


class Shard:
    """The machine of one shard; the seed of its noise may be `unsafe`."""

    def __init__(self, address: ShardAddress, roster: Roster, unsafe: bool = False) -> None:
        self._name, self._address = address.name, address
        self._follower = RosterFollower(roster)
        self._unsafe = unsafe
        self.state = ShardState(address.name)
        self._disk = DiskReports(address.name)
        self.troubled = self._disk.troubled
        self._busy: set[tuple[str, str, int]] = set()
        self._watches = False

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record into the state."""
        if isinstance(record, RosterFollowed):
            self._follower.apply(record)
        else:
            self.state.apply(record)

    @property
    def _roster(self) -> Roster:
        return self._follower.roster

    def resume(self, now: float) -> Step:
        """Says that it is up, and has everything deleted from the spool that is not on record."""
        referenced = frozenset(header.key for header in self.state.spooled.values())
        return Step(effects=[Work(Sweep(referenced)), *self._greet().effects])

    def _greet(self) -> Step:
        self._watches = False
        return Step(effects=[self._register()])

    def _register(self) -> Call:
        here = self.state
        where = (self._name, self._address.advertise, self._address.weight)
        register = requests.Register(*where, here.incarnation, here.run, here.reached, self._unsafe)
        return Call(COORDINATOR, register)

    def wake(self) -> float | None:
        """Never: a shard waits for requests and orders alone."""
        return None

    def subscription(self) -> requests.Subscribe:
        """Of which submissions it has blocks, and its roster."""
        own = self._roster
        return requests.Subscribe(self._name, self.state.submissions(), own.number, own.expires)

    def inspect(self, sender: str, message: requests.Request) -> bool:
        """Is this block wanted? Everything that can be said without its payload.

        Raises:
            Malformed, Oversized, WrongRun, UnknownParty, Unsigned, Conflict: the sender's fault.
            NotReady: the run is not founded yet.
        """
        if not isinstance(message, requests.PutBlock):
            raise Malformed(f"a shard takes no payload with a {type(message).__name__}")
        permissions.check(self._name, permissions.TO_SHARD, self._roster, sender, message)
        header = message.header
        if header.author != sender:
            raise UnknownParty(f"{sender} sends a block of {header.author}; send your own")
        self._check_run(header.run)
        role = self._roster.find(header.author).role
        if header.block not in self.state.own(header.group):
            raise Malformed(
                f"block {header.block} of {header.group} is not placed on {self._name}; "
                "ask the coordinator for the placement"
            )
        pinned = self.state.pinned
        check_header(pinned.plan, pinned.layout.group(header.group), header, role)
        self._roster.find(header.author).identity.verify(*signing_bytes(header), header.signature)
        wanted = not self._known(header)
        founded = self.state.group(header.group).committed >= 0
        if wanted and header.purpose == FOUNDING and founded:
            raise WrongVersion(f"{header.group} has its founding model already")
        return wanted

    def _known(self, header: BlockHeader) -> bool:
        # Other bytes under a name would take the place of those that are summed.
        known = self.state.spooled.get(block_name(header))
        if known is not None and known.digest != header.digest:
            raise Conflict(f"{header.name} is known with other bytes; begin a new sequence")
        return known is not None

    def _make_room(self, step: Step, header: BlockHeader) -> None:
        """Blocks that nobody settles must not fill the disk: a client's oldest go first.

        Should one of them be wanted after all, it is missing, and its client sends it again.
        """
        kept = self.state.unsummed(header.author, header.group)
        most = UNSETTLED + 2 * self.state.pinned.plan.section.checkpoint_every
        if len(kept) > most:
            self._discard(step, (SubmissionId(header.author, header.group, min(kept)),))

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """One event: a block or a question of a party, an order, an answer, the end of a work."""
        if type(event) in permissions.SAID:
            permissions.check(self._name, permissions.TO_SHARD, self._roster, sender, event)
        match event:
            case requests.AskBlock(header):
                wanted = self.inspect(sender, requests.PutBlock(header))
                return Step(effects=[Answer(requests.Stored(header.digest, 0 if wanted else None))])
            case requests.PutBlock(header):
                return self._put(header)
            case requests.GetBlock() | requests.GetSum():
                return self._get(sender, event)
            case Answered(requests.Register()) if not self._watches:
                self._watches = True
                return Step(effects=[Watch()])
            case Answered():
                return self._disk.heard(event)
            case Failed(request, error):
                return Step(effects=[Halt(f"{type(request).__name__}: {error}", type(error))])
            case WatchLost():
                return self._greet()
            case orders.Finish() | Tick():
                return Step()
            case WorkFailed() if sender == WORKER:
                return self._failed(event)
            case KitRead() if sender == WORKER:
                step = Step()
                return self._followed(step, self._follower.read(step, event))
            case _ if sender == WORKER and isinstance(event, ShardResult):
                return self._done(event)
            case _ if sender == COORDINATOR and isinstance(event, orders.ShardOrder):
                return self._obey(event)
        raise Malformed(f"a shard has no answer to a {type(event).__name__}")

    # --- blocks in and out --------------------------------------------------------

    def _put(self, header: BlockHeader) -> Step:
        step = Step(effects=[Answer(requests.Stored(header.digest))])
        if not self._known(header):
            self._write(step, records.BlockSpooled(header))
            self._make_room(step, header)
        return step

    def _get(self, sender: str, event: requests.GetBlock | requests.GetSum) -> Step:
        self._check_run(event.run)
        own = self.state.own(event.group)
        if event.block not in own:
            raise Malformed(f"block {event.block} of {event.group} is not placed on {self._name}")
        held, place = self.state.group(event.group), own.index(event.block)
        if isinstance(event, requests.GetSum):
            if not self.state.opened_by_holder:
                raise UnknownParty("only a key holder that decrypts sums may ask for one")
            made = held.sums.get(event.cohort)
            if made is None:
                raise NotReady(f"cohort {event.cohort} of {event.group} is not held here")
            key = sum_key(event.group, event.cohort, event.block)
            return Step(effects=[Answer(requests.Payload(made.sums[place]), attach=key)])
        state = held.states.get(event.version)
        if state is None:
            if event.version > held.committed:
                raise NotReady(f"version {event.version} of {event.group} is not made yet")
            raise WrongVersion(f"version {event.version} of {event.group} is gone; pull the newest")
        since = self.state.since(event) if event.base else None
        key = model_key(event.group, event.version, event.block, since)
        digest = state.blocks[place] if since is None else b""
        return Step(effects=[Answer(requests.Payload(digest), attach=key)])

    # --- orders -------------------------------------------------------------------

    def _obey(self, order: orders.ShardOrder) -> Step:
        step, before = Step(), self.state.incarnation
        if order.incarnation < before:
            raise Fenced(f"an order of incarnation {order.incarnation}, {before} rules")
        if order.incarnation > before:
            self._write(step, Incarnated(order.incarnation))
        try:
            self._carry_out(step, order)
        except SecurepsError:
            self.state.incarnation = before
            raise
        if order.incarnation > before and isinstance(order, orders.Configure):
            step.effects.append(self._register())  # whoever gave it waits to be obeyed
        return step

    def _carry_out(self, step: Step, order: orders.ShardOrder) -> None:
        always = orders.Configure | orders.RosterChanged
        if not isinstance(order, always) and not self.state.founded:
            raise NotReady(f"{self._name} is not configured yet")
        match order:
            case orders.Configure():
                self._configure(step, order)
            case orders.RosterChanged(text=text):
                self._followed(step, self._follower.follow(step, text))
            case orders.Found():
                self._found(step, order)
            case orders.Hold():
                self._hold(step, order)
            case orders.Prepare():
                self._prepare(step, order)
            case orders.Commit(group=group, version=version):
                known = version in self.state.group(group).states
                if order.state and not known:  # it lost its journal
                    self._begin(step, ("adopt", group, version), AdoptState(order))
                else:
                    self._commit(step, order)
            case orders.WriteCheckpoint(number=number, versions=versions):
                self._begin(step, ("part", "", number), WritePart(number, versions))
            case orders.Discard(ids=ids):
                self._discard(step, ids)
            case _:
                assert_never(order)

    def _configure(self, step: Step, order: orders.Configure) -> None:
        if not self.state.founded:
            check_run(order.run, order.placement, self._roster)
            self._write(step, RunPinned(order.run, order.placement, order.shards))
        elif self.state.pinned.run.id != order.run.id:
            ours = self.state.run
            raise WrongRun(other_run(self._name, ours, order.run.id))

    def _followed(self, step: Step, newer: bool) -> Step:
        """Whoever came is served from now on; the coordinator hears of it on a new stream."""
        if newer:
            step.effects.append(Watch())
        return step

    def _found(self, step: Step, order: orders.Found) -> None:
        group, receipt = order.group, order.receipt
        state = self.state.of_founding(group, receipt)
        keys = None if receipt is None else self.state.founding_keys(group, receipt)
        if state is not None:
            step.tell(self._prepared(state))
        elif receipt is not None and keys is None:
            step.tell(requests.Missing.of_founding(self._name, group, (receipt.id,)))
        else:
            self._begin(step, ("state", group, 0), MakeState(group, keys))

    def _hold(self, step: Step, order: orders.Hold) -> None:
        cohort = order.cohort
        made = self.state.group(cohort.group).sums.get(cohort.number)
        check_scale(self.state.pinned.plan, cohort.group, cohort.scale)
        if made is not None:
            if made.cohort != cohort:
                raise Refused(f"cohort {cohort.number} of {cohort.group} was another one before")
            step.tell(self._held(made))
            return
        if cohort.version - 1 not in self.state.group(cohort.group).states:
            return  # nothing may be opened that cannot be stepped from; once adopted, it greets
        keys = [self.state.keys(m.id, UPDATE, m.blocks) for m in order.members]
        missing = tuple(m.id for m, found in zip(order.members, keys) if found is None)
        if missing:
            step.tell(requests.Missing.of_cohort(self._name, cohort, missing))
            return
        found = tuple(k for k in keys if k is not None)
        self._begin(step, ("sum", cohort.group, cohort.number), SumCohort(cohort, found))

    def _prepare(self, step: Step, order: orders.Prepare) -> None:
        cohort, key = order.cohort, order.key
        held = self.state.group(cohort.group)
        state = held.states.get(cohort.version)
        if state is not None and state.cohort == cohort.number:
            step.tell(self._prepared(state))
            return
        made = held.sums.get(cohort.number)
        if made is None or made.cohort != cohort:
            raise Refused(f"cohort {cohort.number} of {cohort.group} is not held here")
        keys: tuple[str, ...] | None = None
        if self.state.opened_by_holder:
            keys = self.state.opened_keys(cohort, order.opened)
            if keys is None:
                lacking = self.state.lacking(cohort)
                step.tell(requests.Missing.of_cohort(self._name, cohort, lacking))
                return
        elif self.state.opened_by_key_sum:
            pinned = self.state.pinned
            due = 4 * pinned.plan.key_length(pinned.layout.group(cohort.group))
            if key is None or len(key) != due:
                raise Malformed(
                    f"cohort {cohort.number} of {cohort.group} comes without its sum of keys, "
                    f"{due} bytes"
                )
            if held.keys.get(cohort.number) != key:
                self._write(step, KeySumTaken(cohort.group, cohort.number, key))
        self._begin(step, ("state", cohort.group, cohort.version), StepState(cohort, keys, key))

    def _commit(self, step: Step, order: orders.Commit) -> None:
        group, version, keep = order.group, order.version, order.keep
        held = self.state.group(group)
        if version < held.committed or version not in held.states:
            return
        if (version, keep) == (held.committed, held.keep):
            return
        before, sums = dict(self.state.spooled), set(held.sums)
        self._write(step, records.StateCommitted(group, version, keep))
        gone = tuple(h.key for name, h in before.items() if name not in self.state.spooled)
        past = sorted(sums - set(held.sums))
        own = self.state.own(group)
        kinds = (sum_key, noise_key) if self.state.pinned.plan.noisy_shards else (sum_key,)
        gone += tuple(key(group, n, block) for n in past for block in own for key in kinds)
        step.effects.append(Work(Prune(gone, group, version, keep)))

    def _discard(self, step: Step, ids: tuple[SubmissionId, ...]) -> None:
        wanted = set(ids)
        gone = tuple(h.key for n, h in self.state.spooled.items() if submission_of(n) in wanted)
        if gone:
            self._write(step, records.Discarded(ids))
            step.effects.append(Work(Prune(gone)))

    # --- the end of works ---------------------------------------------------------

    def _done(self, event: ShardResult) -> Step:
        step = Step()
        match event:
            case SumsReady(made, report):
                self._busy.discard(("sum", made.cohort.group, made.cohort.number))
                self._write(step, made)
                step.tell(self._held(made))
                step.tell(report)
            case Damaged(task, keys):
                self._ask_again(step, task, keys)
            case StateReady(state, telemetry):
                self._busy.discard(("state", state.group, state.version))
                self._write(step, state)
                step.tell(self._prepared(state))
                if telemetry is not None:
                    step.tell(telemetry)
            case Unopened(task, reason):
                group, cohort = task.cohort.group, task.cohort
                self._busy.discard(("state", group, cohort.version))
                step.tell(self._spoilt(task, reason, payload_digest(task.key or b"")))
                newest = self.state.group(group).keys.get(cohort.number, task.key)
                if newest != task.key:  # it came while the one before was tried
                    again = StepState(cohort, task.opened, newest)
                    self._begin(step, ("state", group, cohort.version), again)
            case AdoptState(at):
                self._busy.discard(("adopt", at.group, at.version))
                self._write(
                    step, records.StatePrepared(at.group, at.version, -1, at.blocks, at.state)
                )
                self._commit(step, at)
                if not any(kind == "adopt" for kind, _, _ in self._busy):
                    step.effects += self._greet().effects  # orders that had to wait come again
            case PartWritten(part):
                self._busy.discard(("part", "", part.number))
                step.tell(part)
            case _:
                assert_never(event)
        return step

    def _ask_again(
        self, step: Step, task: MakeState | SumCohort | StepState, keys: frozenset[str]
    ) -> None:
        """Forgets what is damaged, for nothing known is taken in, and says that it is missing.

        Updates are in their clients' outboxes; opened sums come again from the holder.
        """
        names = {name_under(key) for key in keys}
        ids = tuple(sorted({id for id in map(submission_of, names) if id is not None}))
        self._discard(step, ids)
        match task:
            case MakeState(group):
                self._busy.discard(("state", group, 0))
                missing = requests.Missing.of_founding(self._name, group, ids)
            case SumCohort(cohort):
                self._busy.discard(("sum", cohort.group, cohort.number))
                missing = requests.Missing.of_cohort(self._name, cohort, ids)
            case StepState(cohort):
                self._busy.discard(("state", cohort.group, cohort.version))
                opened = tuple(sorted(name[4] for name in names if name[0] == OPENED))
                if opened:
                    self._write(step, records.OpenedForgotten(cohort.group, cohort.number, opened))
                missing = requests.Missing.of_cohort(self._name, cohort, self.state.lacking(cohort))
        step.tell(missing)

    def _failed(self, event: WorkFailed) -> Step:
        """A cohort whose sum is of no honest cohort, or lost, is at its end; all else is ours."""
        mendable = isinstance(event.error, ClientError | Refused)
        if not (isinstance(event.task, StepState) and mendable):
            return Step(effects=[Halt(str(event.error), type(event.error))])
        cohort = event.task.cohort
        self._busy.discard(("state", cohort.group, cohort.version))
        step = Step()
        step.tell(self._spoilt(event.task, str(event.error)))
        return step

    # --- small things -------------------------------------------------------------

    def _write(self, step: Step, record: records.ShardRecord) -> None:
        step.records.append(record)
        self.apply(0.0, record)

    def _begin(self, step: Step, name: tuple[str, str, int], task: Task) -> None:
        """Hands out a work, once at a time; an order that comes twice changes nothing."""
        if name not in self._busy:
            self._busy.add(name)
            step.effects.append(Work(task))

    def _spoilt(self, task: StepState, reason: str, key: bytes | None = None) -> requests.Spoilt:
        cohort = task.cohort
        return requests.Spoilt(self._name, cohort.group, cohort.number, reason, key)

    def _held(self, made: records.SumsMade) -> requests.Held:
        return requests.Held(self._name, made.cohort.group, made.cohort.number, made.sums)

    def _prepared(self, state: records.StatePrepared) -> requests.Prepared:
        own = (state.group, state.version, state.blocks, state.state, state.scale, state.mean)
        return requests.Prepared(self._name, *own)

    def _check_run(self, run: bytes) -> None:
        if run != self.state.pinned.run.id:
            raise WrongRun("made for another run; join this one first")
